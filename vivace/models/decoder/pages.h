// Pages: which blocks of the caches each slot reads and writes, as a table that steps read. Who has which block is
// KvBlocks'.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "vivace/engine/arena.h"
#include "vivace/engine/kv_blocks.h"

namespace vivace::models::decoder {

class Pages {
 public:
  static constexpr int kPlaces = 64;  // positions of a block

  /// `pages` blocks for `slots` sequences of up to `context` positions; 0: every slot has its own places, and nothing
  /// below does anything.
  void declare(engine::Arena& arena, int slots, int context, int pages);
  /// `states`: as KvBlocks takes them.
  Status open(engine::Runtime& runtime, int states);
  bool used() const { return blocks_ != nullptr; }
  /// Null without pages.
  engine::KvBlocks* blocks() const { return blocks_.get(); }
  static int needed(int positions) { return (positions + kPlaces - 1) / kPlaces; }
  /// release(), and takes blocks for `positions`, which are the slot's own. Errors: LimitExceeded, and the slot has
  /// none.
  Status reserve(exec::Stream& stream, int slot, int positions);
  /// QuantizationSites of the slot from block `first` on, at most as many as it has, are these blocks; it has none
  /// behind them. The table follows on `stream`, behind the steps that are queued.
  Status map(exec::Stream& stream, int slot, int first, std::span<const int32_t> blocks);
  /// The slot has no places; those that reserve() took are free.
  void release(int slot);
  /// Whether position `pos` of the slot has a place.
  bool holds(int slot, int pos) const { return !used() || pos < mapped_[static_cast<size_t>(slot)] * kPlaces; }
  /// [slots, blocks of a context] i32; absent without pages.
  const Tensor& table() const { return table_; }

 private:
  int count_ = 0, slots_ = 0;
  Tensor table_;
  exec::Buffer staging_;                    // the table as it will be; a row belongs to its slot
  std::unique_ptr<engine::KvBlocks> blocks_;
  std::vector<int> mapped_;                 // blocks of a slot
  std::vector<int> written_;  // entries of its row that are not -1: the last sequence's stay until the next
  std::vector<std::vector<int32_t>> own_;   // a slot: what reserve() took
};

}  // namespace vivace::models::decoder
