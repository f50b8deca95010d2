#include "vivace/engine/text/prefix_table.h"

#include <algorithm>

#include "vivace/base/check.h"

namespace vivace::engine::text {

Result<PrefixTable> PrefixTable::of(std::vector<Entry> entries) {
  size_t bytes = 0;
  for (const Entry& e : entries) {
    bytes += e.first.size();
    if (e.first.size() > kMostEntry)
      return Status(Code::kLimitExceeded,
                    strf("tokenizer: a token of %zu bytes, at most %zu are accepted", e.first.size(), kMostEntry));
  }
  if (bytes > kMostBytes)
    return Status(
        Code::kLimitExceeded,
        strf("tokenizer: %zu bytes of tokens that are matched whole, at most %zu are accepted", bytes, kMostBytes));
  std::sort(entries.begin(), entries.end());
  PrefixTable t;
  // Level by level: the entries of a node lie side by side, and those that end there come first.
  struct Range {
    uint32_t low, high;
  };
  std::vector<Range> level{{0, static_cast<uint32_t>(entries.size())}}, next;
  t.byte_.push_back(0), t.id_.push_back(-1);
  for (size_t depth = 0; !level.empty(); ++depth, level.swap(next)) {
    next.clear();
    for (Range r : level) {
      t.first_.push_back(static_cast<uint32_t>(t.byte_.size()));
      while (r.low < r.high && entries[r.low].first.size() == depth) ++r.low;
      while (r.low < r.high) {
        const char byte = entries[r.low].first[depth];
        uint32_t end = r.low;
        while (end < r.high && entries[end].first[depth] == byte) ++end;
        t.byte_.push_back(static_cast<uint8_t>(byte));
        t.id_.push_back(entries[r.low].first.size() == depth + 1 ? entries[r.low].second : -1);
        next.push_back({r.low, end});
        r.low = end;
      }
    }
  }
  t.first_.push_back(static_cast<uint32_t>(t.byte_.size()));
  return t;
}

}  // namespace vivace::engine::text
