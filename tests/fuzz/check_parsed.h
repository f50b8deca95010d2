// The promises that every parsed checkpoint keeps, whatever its bytes were.
#pragma once
#include <algorithm>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "vivace/engine/checkpoint/parse.h"

namespace vivace::fuzz {

/// Reads every metadata element and the first and last byte of every tensor, so that the sanitizers
/// see a bad view.
inline void check_parsed(engine::Bytes file, const engine::ParsedFile& parsed) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  uint64_t sum = 0;
  for (const engine::TensorEntry& t : parsed.tensors) {
    require(engine::is_good_name(t.name), "names are printable");
    require(t.offset <= file.size() && t.bytes <= file.size() - t.offset,
            "tensors lie inside the file");
    require(engine::tensor_bytes(t.dtype, t.shape) == t.bytes, "bytes == shape x dtype");
    for (int i = 0; i < t.shape.rank; ++i)
      require(t.shape.dim[i] >= 0, "dimensions are not negative");
    if (t.bytes == 0) continue;
    sum += file[t.offset] + file[t.offset + t.bytes - 1];
    ranges.emplace_back(t.offset, t.offset + t.bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i)
    require(ranges[i - 1].second <= ranges[i].first, "tensors share no byte");
  for (const engine::MetaEntry& e : parsed.metadata.entries()) {
    require(parsed.metadata.find(e.key) == &e, "keys are unique and found");
    for (size_t i = 0; i < e.count(); ++i) {
      if (e.type == engine::MetaType::string) {
        for (unsigned char c : e.is_array ? e.strings[i] : e.raw) sum += c;
      } else {
        sum += static_cast<uint64_t>(e.integer(i)) + (e.number(i) > 0 ? 1 : 0);
      }
    }
    // Every getter answers for every type; which of them succeed is the unit tests' business.
    const bool any = parsed.metadata.get_u64(e.key).ok() || parsed.metadata.get_i64(e.key).ok() ||
                     parsed.metadata.get_f64(e.key).ok() || parsed.metadata.get_bool(e.key).ok() ||
                     parsed.metadata.get_string(e.key).ok() ||
                     parsed.metadata.get_strings(e.key).ok() ||
                     parsed.metadata.get_f32s(e.key).ok() || parsed.metadata.get_i64s(e.key).ok();
    sum += any;
  }
  asm volatile("" : : "r"(sum));  // keeps the reads
}

}  // namespace vivace::fuzz
