// Any bytes as a pack of compiled kernels: an error, or an index whose every binary is found or fails its digest.
#include "tests/fuzz/files.h"
#include "vivace/base/sha256.h"
#include "vivace/jit/pack.h"

using namespace vivace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  // A digest that no mutation meets guards the index: where the last byte is even it is made to fit.
  constexpr size_t kHead = 48, kRow = 112;
  if (size > kHead && bytes.back() % 2 == 0) {
    const Digest d = sha256(std::string_view(bytes).substr(kHead, kRow * static_cast<uint8_t>(bytes[8])));
    bytes.replace(16, d.size(), reinterpret_cast<const char*>(d.data()), d.size());
  }
  const std::string file = folder.write("kernels.pack", bytes);
  const auto pack = jit::Pack::open(file);
  if (!pack.ok()) {
    fuzz::require(pack.status().message().find("kernels.pack") != std::string::npos, "errors name the file");
    return 0;
  }
  for (const std::string& key : pack->keys()) {
    const auto binary = pack->find(key);
    fuzz::require(binary.ok() || binary.status().code() == Code::kCorruptData,
                  "what the index has is found or damaged");
  }
  fuzz::require(pack->find("no such key").status().code() == Code::kNotFound, "others are not there");
  return 0;
}
