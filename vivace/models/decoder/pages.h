// Pages: places of the caches that sequences share. Who has which page is decided on the host, between steps; steps
// read a table on the device.
#pragma once
#include <vector>

#include "vivace/engine/arena.h"

namespace vivace::models::decoder {

class Pages {
 public:
  static constexpr int kPlaces = 64;  // positions of a page

  /// `pages` of them for `slots` sequences of up to `context` positions; 0: every slot has its own places, and nothing
  /// below does anything.
  void declare(engine::Arena& arena, int slots, int context, int pages);
  Status open(engine::Machine& machine);
  bool used() const { return count_ > 0; }
  int count() const { return count_; }
  int free() const { return static_cast<int>(free_.size()); }
  static int needed(int positions) { return (positions + kPlaces - 1) / kPlaces; }
  /// Gives back what `slot` has and takes pages for `positions`; the table follows on `stream`, behind the steps that
  /// are queued. Errors: LimitExceeded, and the slot has none.
  Status reserve(exec::Stream& stream, int slot, int positions);
  void release(int slot);
  /// Whether position `pos` of the slot has a place.
  bool holds(int slot, int pos) const { return !used() || pos < static_cast<int>(taken_[static_cast<size_t>(slot)].size()) * kPlaces; }
  /// [slots, pages of a context] i32; absent without pages.
  const Tensor& table() const { return table_; }

 private:
  int count_ = 0, slots_ = 0;
  Tensor table_;
  exec::Buffer staging_;                    // the table as it will be; a row belongs to its slot
  std::vector<int32_t> free_;               // last in, first out
  std::vector<std::vector<int32_t>> taken_; // a slot
};

}  // namespace vivace::models::decoder
