// How a model's work stands to others' on its device: what it shuts, or where it lets them by. Models that nobody
// schedules have neither.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "vivace/exec/gate.h"
#include "vivace/exec/stream.h"

namespace vivace::engine {

/// Of a model whose calls are urgent: its stream shuts the word in front of a call's copies and opens it behind its
/// last launch, both queued at once, so that no host thread has to come back for it.
struct UrgentGate {
  exec::Gate* gate = nullptr;  // outlives the model
  int word = 0;
  std::atomic<bool> shuts{true};
};

/// Of a model whose steps stand back: they pass the gate wherever work would run on for longer than `stretch_us`
/// without.
struct GateSite {
  exec::Gate* gate = nullptr;  // null: no gates; outlives the model
  uint32_t mask = 0;
  double stretch_us = 0;
  const std::atomic<bool>* urgent_runs = nullptr;  // whether a call that shuts the gate runs, as the host knows it
};

/// What a scheduler has to know of a model's work.
struct WorkTimes {
  double worst_us = 0;    // the longest step or call
  double stretch_us = 0;  // the longest work between two gates
  int gates = 0;          // of the step that has most
  void take_worst(const WorkTimes& o) {
    worst_us = std::max(worst_us, o.worst_us), stretch_us = std::max(stretch_us, o.stretch_us),
    gates = std::max(gates, o.gates);
  }
};

/// Who is told of a model's steps: a scheduler's tenant. Thread-safe.
class StepAccount {
 public:
  virtual ~StepAccount() = default;
  /// There is work from here on, or there is none.
  virtual void want(bool work) = 0;
  /// A step took so long, waits at gates included: those are taken off.
  virtual void charge(double us) = 0;
};

/// One call of a model: shuts the gate, or passes it, when it begins; opens it behind what was queued since. Whatever
/// becomes of the call, what it has shut is opened.
class GatedCall {
 public:
  /// `urgent` may be null, and `site` without a gate: then nothing happens.
  GatedCall(const UrgentGate* urgent, const GateSite& site, exec::Stream& stream)
      : urgent_(urgent), site_(site), stream_(stream) {}
  GatedCall(const GatedCall&) = delete;
  ~GatedCall() {
    if (shut_ && !stream_.set(*urgent_->gate, urgent_->word, false).ok())
      static_cast<void>(urgent_->gate->open_all());  // a stream that takes nothing more
  }
  Status begin() {
    if (site_.gate != nullptr) return stream_.pass(*site_.gate, site_.mask);
    if (urgent_ == nullptr || !urgent_->shuts) return {};
    shut_ = true;
    return stream_.set(*urgent_->gate, urgent_->word, true);
  }
  /// Before the host waits for the call.
  Status end() {
    if (!shut_) return {};
    Status s = stream_.set(*urgent_->gate, urgent_->word, false);
    shut_ = !s.ok();
    return s;
  }

 private:
  const UrgentGate* urgent_;
  const GateSite& site_;
  exec::Stream& stream_;
  bool shut_ = false;
};

}  // namespace vivace::engine
