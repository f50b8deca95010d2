// LaunchProfile: what each launch of this process took, by kernel, while it is on.
#pragma once
#include <string>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::engine {

/// Calls that agree in region, device, op, kernel, bytes and flops.
struct ProfiledLaunch {
  std::string region;  // of enter_region(), nested ones joined by "/"
  std::string device;  // cpu, cuda:N
  std::string op;      // "graph": of a replay as a whole; "other": not launched by Vivace
  std::string kernel;  // symbol; empty on the CPU
  int64_t calls = 0;
  int64_t bytes = 0, flops = 0;  // of one call; 0 where nobody said
  int64_t inside = 0;            // launches of one call: of a graph as many as it has
  double us = 0, least_us = 0, most_us = 0;  // of all calls together, of the shortest, of the longest
};

struct LaunchReport {
  std::vector<ProfiledLaunch> rows;  // in order of the first call
  std::string timer;                 // what was read: "cupti 13.0", "events", "host clock"
  std::string note;                  // why no CUPTI, where it was wanted
  double wall_us = 0;
};

enum class LaunchTimer { automatic, events, cupti };

/// Begins. Allocates with each call that it sees. `cupti`: where to look for the library. automatic takes CUPTI where
/// it is, else pairs of events: then kernels do not overlap the launch before, and a graph is one call. The CPU's ops
/// are timed by the host's clock in any case. Errors: FailedPrecondition (one is on), those of device::cupti.
Status start_launch_profile(LaunchTimer timer, const std::vector<std::string>& cupti);
/// Ends, waits for the devices that were used, and answers. Errors: FailedPrecondition (none is on), CudaError.
Result<LaunchReport> stop_launch_profile();
/// Names what this thread launches until leave_region(). Also without a profile: then nothing sees it.
void enter_region(const std::string& name);
void leave_region();

}  // namespace vivace::engine
