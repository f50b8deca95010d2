// Any bytes as a safetensors file, and as the index of a sharded one.
#include "tests/fuzz/check_parsed.h"

using namespace vivace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const engine::Bytes file(data, size);
  const fuzz::MemoryBound bound(size);
  if (const auto parsed = engine::parse_safetensors(file, "fuzz.safetensors"); parsed.ok()) {
    fuzz::check_parsed(file, *parsed);
    uint64_t total = 0;
    for (const engine::TensorEntry& t : parsed->tensors) total += t.bytes;
    uint64_t header = 0;
    for (int i = 7; i >= 0; --i) header = header << 8 | data[i];
    fuzz::require(8 + header + total == size, "tensors fill the data section");
  } else {
    fuzz::require(parsed.status().message().find("fuzz.safetensors") != std::string::npos,
                  "errors name the file");
  }
  if (const auto index = engine::parse_shard_index(file, "fuzz.json"); index.ok()) {
    for (const std::string& shard : index->shards)
      fuzz::require(shard.find('/') == shard.npos && shard.find("..") == shard.npos,
                    "shards are plain names");
    for (const auto& [name, shard] : index->tensors)
      fuzz::require(shard < index->shards.size(), "shard numbers are in range");
  }
  return 0;
}
