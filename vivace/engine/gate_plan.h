// Where a step lets others by: gates at the points that its pipeline marks, so that no stretch runs on for too long.
#pragma once
#include <functional>
#include <vector>

#include "vivace/engine/runtime.h"
#include "vivace/engine/urgent.h"

namespace vivace::engine {

/// Microseconds of each launch of a step, in order, and before which launch each marked point stands.
struct StepTimes {
  std::vector<double> us;
  std::vector<size_t> points;
};

/// `record` issues the step and passes a gate at every point. Launches are timed by themselves: on a device as
/// profile() does it, on the host one by one as they run. `reset` restores the step's inputs. Setup phase.
Result<StepTimes> time_launches(Runtime& runtime, const std::function<Status(exec::Stream&)>& record,
                                const std::function<Status()>& reset);

struct GatePlan {
  std::vector<bool> at;     // of each point, whether it gets a gate
  double stretch_us = 0;    // longest work between two gates, and from the last one through the next step's first
  int gates = 0;
};

/// As few gates as keep every stretch at `stretch_us` or less, where points allow it; a point is passed over as long as
/// the next one still comes in time. Steps follow one another without a pause, so the last stretch of one goes on in
/// the next.
GatePlan plan_gates(const StepTimes& times, double stretch_us);

/// What a pipeline records with: the gate, and which of its points pass it; null: every point does.
struct GateWalk {
  GateSite site;
  const GatePlan* plan = nullptr;
  bool at(size_t point) const { return site.gate != nullptr && (plan == nullptr || plan->at[point]); }
};

}  // namespace vivace::engine
