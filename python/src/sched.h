// A scheduler's tenant for Python: what model.cc and policy.cc load a model with.
#pragma once
#include <nanobind/nanobind.h>

#include <memory>

#include "vivace/sched/scheduled_policy.h"

namespace vivace::python {

struct Tenant {
  std::shared_ptr<sched::Tenant> tenant;
  double worst_us = 0;  // what a call or step takes at worst, if the caller says so; else it is timed
};

/// (bytes, seconds) of Tenant::sleep() or wake().
nanobind::tuple moved(const Result<engine::Moved>& m);

void add_sched(nanobind::module_& m);

}  // namespace vivace::python
