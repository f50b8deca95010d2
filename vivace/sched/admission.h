// Admission: whether a set of tenants keeps its deadlines and shares, decided before anybody runs.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vivace/sched/qos.h"

namespace vivace::sched {

struct Capacity {
  double utilisation = 0.97;   // part of the device's time that may be promised
  double handover_us = 50;     // between two tenants' work: submission, gate, wake-up
  int64_t bytes = 0;           // of the device's memory; 0: not looked at
};

/// A change that would make a refused tenant fit; evaluate() of it admits.
struct Fix {
  std::string text;
  Demand demand;               // the changed tenant: the candidate or one that is there
};

struct Verdict {
  bool admitted = false;
  std::string text;            // why, with the numbers
  double response_us = 0;      // guaranteed candidate: bound of a call's time from submit to done
  double utilisation = 0;      // promised with the candidate
  int64_t bytes_short = 0;     // where it is bytes that are not there: how many too few
  std::vector<Fix> fixes = {}; // where refused: smallest changes, one a way
};

/// A dry run: nothing is kept. `admitted` are the tenants that are there.
///
/// Guaranteed calls run one at a time, earliest deadline first, and are not interrupted; before each, others' work may
/// go on for its longest stretch. By the processor demand criterion for non-preemptive EDF (George, Rivierre, Spuri
/// 1996) all deadlines hold if, for every time t, blocking(t) + demand(t) <= t: demand(t) is the work, stretch and
/// handover included, of calls whose release and deadline lie in [0, t], blocking(t) the longest call with a later
/// deadline. Errors: those of check(); InvalidArgument for a name that is taken.
Result<Verdict> evaluate(std::span<const Demand> admitted, const Demand& candidate, const Capacity& capacity);

}  // namespace vivace::sched
