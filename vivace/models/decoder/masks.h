// Masks: which tokens each slot may draw, a bit a token, where steps read them. One pinned copy a slot.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "vivace/engine/arena.h"
#include "vivace/exec/stream.h"

namespace vivace::models::decoder {

class Masks {
 public:
  void declare(engine::Arena& arena, int64_t slots, int64_t vocab) {
    arena.declare("masks", DType::i32, Shape(slots, (vocab + 31) / 32), &table_);
  }
  Status open(engine::Runtime& runtime);
  /// For steps that are queued from now on: `words` for `slot`, or none where there are none. Waits for the slot's copy
  /// of before, which is long done where its step was collected. Errors: InvalidShape.
  Status set(exec::Stream& stream, int slot, std::span<const uint32_t> words);
  /// What steps are told of a slot: its row of the table, -1 where it has no mask.
  int32_t row(int slot) const { return masked_[static_cast<size_t>(slot)] ? slot : -1; }
  void clear(int slot) { masked_[static_cast<size_t>(slot)] = false; }
  /// [slots, words] i32
  const Tensor& table() const { return table_; }

 private:
  Tensor table_;
  exec::Buffer staging_;
  std::vector<std::unique_ptr<exec::Event>> copied_;  // a slot
  std::vector<bool> masked_;
};

}  // namespace vivace::models::decoder
