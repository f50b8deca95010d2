// Any bytes as the tokenizer.json of an action codec: an error, or codes that give finite actions.
#include <cmath>

#include "tests/fuzz/files.h"
#include "vivace/models/vla/codec.h"

using namespace vivace;
using models::vla::ActionCodec;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  const std::string file = folder.write("tokenizer.json", {reinterpret_cast<const char*>(data), size});
  const auto codec = ActionCodec::open(file, 10.0, -354);
  if (!codec.ok()) {
    fuzz::require(!codec.status().message().empty(), "errors say why");
    return 0;
  }
  std::vector<int32_t> codes;
  for (size_t i = 0; i < std::min<size_t>(size, 64); ++i)
    codes.push_back(codec->size() > 0 ? static_cast<int32_t>(data[i] % codec->size()) : data[i]);
  float actions[8 * 3];
  for (const bool strict : {false, true}) {
    const Status decoded = codec->decode(codes, 8, 3, strict, actions);
    fuzz::require(decoded.ok() || decoded.code() == Code::kInvalidArgument, "codes of the vocabulary are decoded");
    if (decoded.ok())
      for (const float a : actions) fuzz::require(std::isfinite(a), "actions are finite");
  }
  fuzz::require(!codec->decode(std::vector<int32_t>{-1}, 8, 3, false, actions).ok(), "other codes are refused");
  return 0;
}
