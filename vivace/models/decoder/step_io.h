// StepIo: how a step's inputs reach the ops and its draws come back, for several steps in flight.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "vivace/engine/arena.h"
#include "vivace/models/decoder/masks.h"
#include "vivace/models/decoder/pipeline.h"

namespace vivace::models::decoder {

/// The inputs of one class: one stretch of the arena, and for each step in flight a copy of it that the
/// host writes.
class InputBlock {
 public:
  /// What a block has besides: lists of runs and of guesses of a decode class; of the draft layer's first step, which
  /// rows it goes on from; of its others nothing. Draws of the draft layer are of the token behind the one it is given.
  enum class Kind : uint8_t { step, guesses, draft, drafts_on };
  /// `R` sampled rows of at most `T`; `gathers`: of which sample_rows says where they stand. `axes`: rows of shift, 0
  /// of a model without images; with 3 rows may be images', of which there are `images`.
  /// `runs`: most stretches of rows of one slot; 0: nobody asks for them.
  void declare(engine::Arena& arena, const char* prefix, int64_t T, int64_t R, bool gathers, int64_t axes = 0,
               int64_t images = 0, int64_t runs = 0, Kind kind = Kind::step);
  /// After the arena's commit: the host's copies, one a step in flight.
  Status open(engine::Runtime& runtime, int max_in_flight_steps);
  /// Writes rows, of which those that sample take the parameters of their slot, and queues the copy.
  /// `flight`: which of the copies, free since its last step was collected. `source`: of Kind::draft.
  Status write(exec::Stream& stream, int flight, std::span<const engine::TokenRow> rows,
               std::span<const engine::Sampling> of_slot, const Masks& masks, std::span<const int32_t> source = {});
  const StepInputs& inputs() const { return in_; }

 private:
  /// The host's copy of element i of `t`.
  template <class V>
  void put(const Tensor& t, size_t i, V v) {
    reinterpret_cast<V*>(stage_ + (static_cast<char*>(t.data) - begin_))[i] = v;
  }
  void put_runs(std::span<const engine::TokenRow> rows, bool guesses, const Tensor& offsets, const Tensor& slots);
  StepInputs in_;
  bool gathers_ = false;
  Kind kind_ = Kind::step;
  int64_t images_ = 0;     // rows of images' tokens
  char* begin_ = nullptr;  // of the stretch
  size_t bytes_ = 0;
  exec::Buffer staging_;
  char* stage_ = nullptr;  // the copy that is being written
};

/// The steps that were queued and not yet collected, oldest first.
class InFlightSteps {
 public:
  /// `R`: most draws of a step. Makes the rings of `buffers` and the events.
  Status open(engine::Runtime& runtime, const char* name, int max_in_flight_steps, int64_t R, StepBuffers* buffers);
  bool full() const { return count_ == static_cast<int>(in_flight_.size()); }
  bool empty() const { return count_ == 0; }
  int size() const { return count_; }
  /// The place of the next step, for InputBlock::write().
  int next() const { return (first_ + count_) % static_cast<int>(in_flight_.size()); }
  /// Notes that a step was queued which draws for `slots`, and marks its end on the stream.
  Status push(exec::Stream& stream, std::span<const int32_t> slots);
  /// A step that draws nothing and is not collected: of loading.
  void skip() { row_ = (row_ + 1) % static_cast<int>(in_flight_.size()); }
  /// Begins again at the first row of the rings, after steps that were not counted.
  Status restart(exec::Stream& stream, const StepBuffers& buffers);
  /// Draws of the oldest step, 0 where none is queued.
  size_t draws() const { return empty() ? 0 : in_flight_[static_cast<size_t>(first_)].slots.size(); }
  /// Waits for the oldest step. `out` has draws() elements.
  Status pop(std::span<engine::Sampled> out);

 private:
  struct InFlightStep {
    std::unique_ptr<exec::Event> done;
    std::vector<int32_t> slots;  // of the draws; reserved
    int row = 0;                 // of the rings
  };
  std::vector<InFlightStep> in_flight_;
  int first_ = 0, count_ = 0;
  int row_ = 0;  // of the rings that the next step writes, as the device's turn says
  exec::Buffer rings_;
  Tensor ring_, logprob_;
};

}  // namespace vivace::models::decoder
