// What a tenant asks for, and what the scheduler knows of its times.
#pragma once
#include <cstdint>
#include <string>

#include "vivace/base/status.h"

namespace vivace::sched {

/// guaranteed: calls with a deadline, admitted only if it holds; everybody else stands back while one runs.
/// burstable: a least share of the device's time, more while others leave some. best_effort: what is left.
enum class Class : uint8_t { guaranteed, burstable, best_effort };
const char* name(Class c);

/// What happens to a guaranteed call that takes longer than its budget: others run again beside it (release), or stand
/// back until twice the budget is over (hold).
enum class Overrun : uint8_t { release, hold };

/// 0 stands for "none" or, where said, for a default. Times are microseconds of the device's clock.
struct Qos {
  Class cls = Class::best_effort;
  double period_us = 0;      // guaranteed: least time between two calls
  double deadline_us = 0;    // guaranteed: from submit to done; 0: the period
  double min_share = 0;      // burstable: least part of the device's time, below 1
  double weight = 1;         // burstable: how what is left is divided
  double blocking_us = 220;  // guaranteed: longest stretch of others' work that it may have to wait for; others: what
                             // their gates are placed by
  Overrun overrun = Overrun::release;
  int queue = 4;             // calls that may wait
  int64_t bytes = 0;         // of the device's memory
};

/// What is known of a tenant's work.
struct Times {
  double worst_us = 0;    // a call's worst time; of burstable work a step's
  double stretch_us = 0;  // longest work between two gates; worst_us where it passes none
  double whole_us = 0;    // of a policy that switches: a call's worst time on the whole device; worst_us is the
                          // partition's, and what is promised counts by that alone
  bool apart = false;     // it has a partition: it and others that have one run beside each other
};

struct Demand {
  std::string name;
  Qos qos;
  Times times;
};

/// Errors: InvalidArgument names the tenant, the field, what was wanted and got.
Status check(const std::string& name, const Qos& qos);
/// The same, and of times: FailedPrecondition for work without them and a deadline below the call's own worst time.
Status check(const Demand& demand);

}  // namespace vivace::sched
