// Any bytes as a GGUF file: an error or a checkpoint that keeps its promises, in linear memory.
#include "tests/fuzz/check_parsed.h"

using namespace vivace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const engine::Bytes file(data, size);
  const fuzz::MemoryBound bound(size);
  if (const auto parsed = engine::parse_gguf(file, "fuzz.gguf"); parsed.ok()) {
    fuzz::check_parsed(file, *parsed);
    (void)engine::index_by_name(parsed->tensors, "fuzz.gguf").ok();
  } else {
    fuzz::require(parsed.status().message().find("fuzz.gguf") != std::string::npos,
                  "errors name the file");
  }
  return 0;
}
