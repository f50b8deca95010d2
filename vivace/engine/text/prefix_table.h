// PrefixTable: which of many strings a text begins with.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace vivace::engine::text {

/// A sorted list, narrowed byte by byte: no memory beside the entries. They must outlive it.
class PrefixTable {
 public:
  using Entry = std::pair<std::string_view, int32_t>;

  PrefixTable() = default;
  explicit PrefixTable(std::vector<Entry> entries) : entries_(std::move(entries)) { std::sort(entries_.begin(), entries_.end()); }
  bool empty() const { return entries_.empty(); }

  /// Calls found(bytes, id) for each entry that `text` begins with, the shortest first.
  template <class F>
  void walk(std::string_view text, F&& found) const {
    auto low = entries_.begin(), high = entries_.end();
    for (size_t n = 0; n < text.size() && low != high; ++n) {
      const auto byte = static_cast<uint8_t>(text[n]);
      low = std::lower_bound(low, high, byte, [n](const Entry& e, uint8_t b) { return e.first.size() <= n || static_cast<uint8_t>(e.first[n]) < b; });
      high = std::upper_bound(low, high, byte, [n](uint8_t b, const Entry& e) { return b < static_cast<uint8_t>(e.first[n]); });
      if (low != high && low->first.size() == n + 1) found(n + 1, low->second);
    }
  }

  /// The longest that `text` begins with: its bytes and id; 0 bytes if there is none.
  std::pair<size_t, int32_t> longest(std::string_view text) const {
    std::pair<size_t, int32_t> best{0, -1};
    walk(text, [&](size_t n, int32_t id) { best = {n, id}; });
    return best;
  }
  /// The id of an entry; -1: it is none.
  int32_t find(std::string_view whole) const {
    const auto at = std::lower_bound(entries_.begin(), entries_.end(), whole, [](const Entry& e, std::string_view s) { return e.first < s; });
    return at != entries_.end() && at->first == whole ? at->second : -1;
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace vivace::engine::text
