// ChunkRunner: a robot's loop at its own pace over chunks of actions that arrive late, out of order, or never.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::serve {

struct ChunkOptions {
  enum class Join : uint8_t {
    swap,    // the new chunk's action for this tick, from the tick at which it is there
    blend,   // from the old chunk's to the new one's over `blend` ticks
    prefix,  // the next chunk is asked to begin with what will have been executed when it is there (real-time chunking)
  };
  int horizon = 50, dims = 0;   // of a chunk in the robot's units
  int network_dims = 0;         // of the network's own actions; needed by Join::prefix
  Join join = Join::swap;
  int blend = 5;                // ticks
  int ask_after = 0;            // ticks of a chunk before the next is asked for; 0: half of it
  std::vector<float> max_step;  // a dimension: most that an action differs from the one before; empty: no bound
  double stale = 1.0;           // s after its observation in which an action may be used
  double watchdog = 2.0;        // s without a new chunk until the runner reports that it has stopped
  double deadline = 0;          // s after which a question without an answer is put anew; 0: the watchdog's. A late answer may still be used
};

enum class TickSource : uint8_t { chunk, blend, hold, stopped };

/// What next() did.
struct Tick {
  TickSource source = TickSource::hold;
  bool clamped = false;  // max_step bound it
  int place = -1;        // of the action in its chunk
  double age = 0;        // s since its observation
};

/// A question to the policy: travels with the observation and comes back with the answer.
struct ChunkRequest {
  int64_t id = 0;
  int64_t tick = 0;      // the first tick that the chunk is for
  double observed = 0;   // s, of the caller's clock
  int frozen = 0;        // actions that the chunk was asked to begin with
};

/// start(), next(), wants() and begin() belong to the robot's thread, deliver() and fail() to one other. Neither waits for
/// the other; after make() nothing allocates. Times are seconds of one steady clock. Whatever is delivered or lost, an
/// action differs from the one before by max_step at most, and is the one before where nothing fresh is there.
class ChunkRunner {
 public:
  /// Errors: InvalidArgument names the option.
  static Result<std::unique_ptr<ChunkRunner>> make(const ChunkOptions& options);

  /// The robot stands at `position` [dims]: begins, or begins anew. What was asked before is not used any more.
  /// Errors: InvalidShape, InvalidArgument (not finite).
  Status start(std::span<const float> position, double now);
  /// The action of this tick. Errors: FailedPrecondition before start(), InvalidShape.
  Status next(double now, std::span<float> action, Tick* tick);
  /// Whether a chunk should be asked for: none is on its way, and enough of this one is used.
  bool wants(double now) const;
  /// Asks, at the time of the observation. `frozen` [horizon - 1, network_dims] gets request->frozen actions for
  /// engine::Observation::frozen; without Join::prefix it may be empty. Errors: FailedPrecondition before start(), InvalidShape.
  Status begin(double now, ChunkRequest* request, std::span<float> frozen);

  /// The answer: actions [horizon, dims], and with Join::prefix the network's own [horizon, network_dims].
  /// Errors: InvalidShape, InvalidArgument (not finite): it is not used.
  Status deliver(const ChunkRequest& request, std::span<const float> actions, std::span<const float> normalized);
  /// There will be no answer.
  void fail(const ChunkRequest& request);

  /// Ticks from question to use, the largest of the last few answers: what a prefix must cover.
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
  const float* action_of(const Chunk& chunk, int64_t tick) const;

  static constexpr int kDelays = 8;
  static constexpr int kFresh = 4;       // bit of middle_: not picked up yet
  ChunkOptions o_;
  // The robot's thread.
  Chunk current_, previous_;
  std::vector<float> last_;
  bool started_ = false;
  int64_t tick_ = 0, next_id_ = 1, pending_ = 0, first_id_ = 1;
  double asked_ = 0, fed_ = 0;           // s: when the pending question was put, when a chunk last came
  int64_t joined_ = 0;                   // tick at which current_ took over
  int delays_[kDelays] = {}, answers_ = 0;
  // Three slots in turn: one each side writes or reads, one between them.
  Chunk slots_[3];
  int writing_ = 0, reading_ = 1;
  int64_t delivered_ = 0;                // the other thread's: the newest answer
  std::atomic<int> middle_{2};
  std::atomic<int64_t> failed_{0};
};

}  // namespace vivace::serve
