// Profiles of launches, and counts of streams.
#pragma once
#include <nanobind/nanobind.h>

namespace vivace::python {

/// start_profile, stop_profile, enter_region, leave_region, stream_stats.
void add_profile(nanobind::module_& m);

}  // namespace vivace::python
