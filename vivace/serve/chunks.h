// ChunkRunner: a robot's loop at its own pace over chunks of actions that arrive late, out of order, or never.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::serve {

struct ChunkOptions {
  static constexpr int kMost = 1 << 16;             // horizon, dims, network_dims
  static constexpr int64_t kMostValues = 1 << 20;   // of a chunk: 4 MB, of which a runner holds five
  enum class Join : uint8_t {
    swap,    // the new chunk's action for this tick, from the tick at which it is there
    blend,   // from the old chunk's to the new one's over `blend` ticks
    prefix,  // the next chunk is asked to begin with what will have been executed when it is there (real-time chunking)
    future,  // the next chunk is asked for the state that these actions lead to, and begins behind them (VLASh)
  };
  int horizon = 50, dims = 0;   // of a chunk in the robot's units; horizon x dims is at most kMostValues
  int network_dims = 0;         // of the network's own actions; needed by Join::prefix
  Join join = Join::swap;
  std::optional<int> blend;     // ticks; unset: 5, or the horizon where that is shorter
  int ask_after = 0;            // ticks of a chunk before the next is asked for; 0: half of it
  std::vector<float> max_step;  // a dimension: most that an action differs from the one before; empty: no bound
  double max_action_age = 1.0;           // s after its observation in which an action may be used
  double watchdog = 2.0;        // s without a new chunk until the runner reports that it has stopped
  double deadline =
      0;  // s after which a question without an answer is put anew; 0: the watchdog's. A late answer may still be used
};

enum class TickSource : uint8_t { chunk, blend, hold, stopped };

/// What next() did.
struct Tick {
  TickSource source = TickSource::hold;
  bool clamped = false;  // max_step bound it
  int chunk_index = -1;        // of the action in its chunk
  double age = 0;        // s since its observation
};

/// A question to the policy: travels with the observation and comes back with the answer. A runner goes by `id` alone
/// and keeps the rest itself.
struct ChunkRequest {
  int64_t id = 0;        // of one question of one runner of this process
  int64_t tick = 0;      // the first tick that the chunk is for
  double observed = 0;   // s, of the caller's clock
  int prefix_length = 0;        // actions that the chunk was asked to begin with
  int ahead = 0;         // actions that come between the observation and the chunk's first, with Join::future
};

/// start(), next(), needs_inference() and start_request() belong to the robot's thread, complete() and cancel() to one
/// other. Neither waits for the other; after make() nothing allocates. Times are seconds of one steady clock. Whatever
/// is delivered or lost, an action differs from the one before by max_step at most, and is the one before where nothing
/// fresh is there.
class ChunkRunner {
 public:
  /// Errors: InvalidArgument names the option.
  static Result<std::unique_ptr<ChunkRunner>> make(const ChunkOptions& options);

  /// The robot stands at `position` [dims]: begins, or begins anew. What was asked before is not used any more.
  /// Errors: InvalidShape, InvalidArgument (position or time not finite).
  Status start(std::span<const float> position, double now);
  /// The action of this tick. Errors, which use no tick up: FailedPrecondition before start(), InvalidShape,
  /// InvalidArgument (time not finite).
  Status next(double now, std::span<float> action, Tick* tick);
  /// Whether a chunk should be asked for: none is on its way, and enough of this one is used.
  bool needs_inference(double now) const;
  /// Ticks until a chunk should be asked for, as far as that is known: 0 now, -1 while one is on its way or before
  /// start().
  int64_t ticks_to_request() const;
  /// Asks, at the time of the observation. With Join::prefix `actions` [horizon - 1, network_dims] gets
  /// request->prefix_length of the network's own for engine::Observation::action_prefix; with Join::future [horizon,
  /// dims] request->ahead of the robot's, as next() will give them if nothing comes between; else it may be empty.
  /// Errors: FailedPrecondition before start(), InvalidShape, InvalidArgument (time not finite).
  Status start_request(double now, ChunkRequest* request, std::span<float> actions);

  /// The answer: actions [horizon, dims], and with Join::prefix the network's own [horizon, network_dims].
  /// Errors: InvalidShape, InvalidArgument (not finite; a request that is not this runner's): it is not used.
  Status complete(const ChunkRequest& request, std::span<const float> actions, std::span<const float> normalized);
  /// There will be no answer. Errors: InvalidArgument (a request that is not this runner's).
  Status cancel(const ChunkRequest& request);

  /// Ticks from question to use, the largest of the last few answers: what a prefix, or a state ahead, must cover.
  int delay() const;
  int64_t ticks() const { return tick_; }

 private:
  explicit ChunkRunner(const ChunkOptions& options);
  struct Chunk {
    ChunkRequest request;
    std::vector<float> actions, normalized;
    bool there = false;
  };
  void pick_up(double now);
  /// Whether start_request() gave it; for either thread.
  Status check_mine(const char* call, const ChunkRequest& request) const;
  const float* action_of(const Chunk& chunk, int64_t tick) const;
  /// Whose action counts at `tick`: a chunk that begins later leaves the one before it in place.
  const Chunk& chunk_at(int64_t tick) const;
  /// `wanted` no further than max_step from `before`.
  float bounded(float wanted, float before, size_t d, bool* clamped) const;

  static constexpr int kDelays = 8;
  static constexpr int kFresh = 4;       // bit of middle_: not picked up yet
  static constexpr int kRemembered = 64; // newest questions: answers to older ones are dropped
  const int64_t first_;                  // before the id of this runner's first question
  ChunkOptions o_;
  // The robot's thread.
  Chunk current_, previous_;
  std::vector<float> last_;
  bool started_ = false;
  int64_t tick_ = 0, next_id_, pending_ = 0, first_id_;
  ChunkRequest remembered_[kRemembered]; // by id
  double asked_ = 0, fed_ = 0;           // s: when the pending question was put, when a chunk last came
  int64_t joined_ = 0;                   // tick at which current_ took over
  int delays_[kDelays] = {}, answers_ = 0;
  // Three slots in turn: one each side writes or reads, one between them.
  Chunk slots_[3];
  int writing_ = 0, reading_ = 1;
  int64_t delivered_ = 0;                // the other thread's: the newest answer
  std::atomic<int> middle_{2};
  std::atomic<int64_t> failed_{0};
  std::atomic<int64_t> asked_last_;      // id of the newest question
};

}  // namespace vivace::serve
