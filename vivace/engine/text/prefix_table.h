// PrefixTable: which of many strings a text begins with.
#pragma once
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::engine::text {

/// A trie: a step a byte, so that a place of a text takes at most kMostEntry steps, whatever the strings are. 13 bytes
/// a byte of the strings at most.
class PrefixTable {
 public:
  using Entry = std::pair<std::string_view, int32_t>;
  static constexpr size_t kMostEntry = 1024, kMostBytes = 8 << 20;  // of a string, of all

  PrefixTable() = default;
  /// Of equal strings the least id counts. Errors: LimitExceeded.
  static Result<PrefixTable> of(std::vector<Entry> entries);
  bool empty() const { return first_.size() < 2 || first_[1] == first_[0]; }

  /// Calls found(bytes, id) for each string that `text` begins with, the shortest first.
  template <class F>
  void walk(std::string_view text, F&& found) const {
    if (first_.empty()) return;
    uint32_t node = 0;
    for (size_t n = 0; n < text.size() && step(static_cast<uint8_t>(text[n]), &node); ++n)
      if (id_[node] >= 0) found(n + 1, id_[node]);
  }

  /// The longest that `text` begins with: its bytes and id; 0 bytes if there is none.
  std::pair<size_t, int32_t> longest(std::string_view text) const {
    std::pair<size_t, int32_t> best{0, -1};
    walk(text, [&](size_t n, int32_t id) { best = {n, id}; });
    return best;
  }

 private:
  /// To the child of `node` for `byte`; false: there is none.
  bool step(uint8_t byte, uint32_t* node) const {
    uint32_t low = first_[*node], high = first_[*node + 1];
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (byte_[middle] < byte) low = middle + 1;
      else high = middle;
    }
    if (low == first_[*node + 1] || byte_[low] != byte) return false;
    *node = low;
    return true;
  }

  // By node, the root first and the children of one side by side, in the order of their bytes.
  std::vector<uint32_t> first_;  // the first child; the next node's is behind the last
  std::vector<uint8_t> byte_;
  std::vector<int32_t> id_;  // -1: no string ends there
};

}  // namespace vivace::engine::text
