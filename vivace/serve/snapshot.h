// Snapshot: what a sequence has computed, held where it lies, and the way of its keys and values, and of its recurrent
// state where it carries one, to other memory and back.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vivace/serve/engine_loop.h"

namespace vivace::serve {

/// Blocks with a reference more than their sequence has: nothing is copied, and nothing of it is forgotten while this
/// lives. Requests of the same salt that begin with its tokens find it. Any thread.
class Snapshot {
 public:
  /// Of the beginning of `tokens` that is known under `salt`, all but the last of them at most, and as far as a state
  /// is there where sequences carry one; `request`: number of the answer that they are of, which may go on meanwhile;
  /// 0: none. `keep`: it may stay as long as it likes, else only for a moment. Errors: Unsupported for a model without
  /// blocks; LimitExceeded where those that stay would leave too few to others; those of EngineLoop::perform().
  static Result<std::unique_ptr<Snapshot>> take(EngineLoop& loop, std::string_view salt,
                                                std::span<const int32_t> tokens, int64_t request, bool keep = false);
  /// Of what read() gave: `positions` of `tokens`, of which steps of prompts wrote the first `pure`, for a moment.
  /// Errors: InvalidArgument where they are not what the model holds; LimitExceeded where too few blocks are free.
  static Result<std::unique_ptr<Snapshot>> write(EngineLoop& loop, std::string_view salt,
                                                 std::span<const int32_t> tokens, int positions, int pure,
                                                 std::span<const std::byte> bytes);
  /// `loop` must outlive it, but may be closed.
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;

  int positions() const { return positions_; }
  int pure() const { return pure_; }
  int blocks() const { return static_cast<int>(blocks_.size()); }
  /// Of what read() gives: blocks, and the state behind them.
  int64_t bytes() const { return blocks() * block_bytes_ + (state_ >= 0 ? state_bytes_ : 0); }
  /// A copy of its keys and values, and of its state.
  Result<engine::HostBytes> read() const;

 private:
  explicit Snapshot(EngineLoop& loop) : loop_(loop) {}
  EngineLoop& loop_;
  std::vector<int32_t> blocks_;
  int positions_ = 0, pure_ = 0, kept_ = 0;
  int32_t state_ = -1;
  bool state_kept_ = false;
  int64_t block_bytes_ = 0, state_bytes_ = 0;
};

}  // namespace vivace::serve
