// Profile: what the launches of a step cost, each kind timed by itself with the memory of the whole model behind it.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "vivace/engine/runtime.h"

namespace vivace::engine {

/// Launches that agree in op, kernel, grid and cost: the same site in all layers, as a rule.
struct LaunchGroup {
  std::string op;
  int launches = 0;
  int64_t bytes = 0, flops = 0;  // of one launch, by the op's cost
  double us = 0;                 // of one launch: the group's launches alone in a graph, back to back
  double in_step_us = 0;         // of one launch: what the step's graph is faster without the group; 0: not asked for
};

struct Profile {
  std::vector<LaunchGroup> groups;  // in order of first launch
  std::vector<int> order;           // the group of each launch of the step
  std::vector<size_t> points;       // before which launch the step passes a gate, if it does
  double step_us = 0;               // of the whole step as one graph
};

/// Runs what `record` issues, whole and group by group, from graphs, until each has taken some
/// milliseconds. A group of all layers reads other weights with each launch, so that caches are as cold as in
/// the step. `reset` restores the step's inputs and is called before every timing. `in_step`: also the step without
/// each group; what the other launches compute means nothing then, and what they cost must not depend on it. Setup
/// phase.
Result<Profile> profile(Runtime& runtime, const std::function<Status(exec::Stream&)>& record,
                        const std::function<Status()>& reset, bool in_step = false);

}  // namespace vivace::engine
