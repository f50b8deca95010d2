// Where a step lets others by: gates at the points that its pipeline marks, so that no stretch runs on for too long.
#pragma once
#include <functional>
#include <span>
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

/// The plans of graphs that run one after the other as a call, each of which marks a point in front of its first
/// launch; `record` issues one of them. Launches are timed as the call at hand left its inputs. Setup phase.
Result<WorkTimes> plan_call(Runtime& runtime, double stretch_us, std::span<GatePlan> plans,
                            const std::function<Status(exec::Stream&, size_t)>& record);

/// What a pipeline records with: the gate, and which of its points pass it; null: every point does.
struct GateWalk {
  GateSite site;
  const GatePlan* plan = nullptr;
  bool at(size_t point) const { return site.gate != nullptr && (plan == nullptr || plan->at[point]); }
};

/// The points of one record, counted as they are marked.
class GateMarks {
 public:
  GateMarks(const GateSite& site, const GatePlan* plan) : walk_{site, plan} {}
  /// Where others may go first.
  Status point(exec::Stream& stream) {
    return walk_.at(next_++) ? stream.pass(*walk_.site.gate, walk_.site.mask) : Status();
  }

 private:
  GateWalk walk_;
  size_t next_ = 0;
};

}  // namespace vivace::engine
