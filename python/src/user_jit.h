// Kernels for Python: a user's own, and the warm-up and packs of the ops' kernels.
#pragma once
#include <nanobind/nanobind.h>

namespace vivace::python {

void add_user_jit(nanobind::module_& m);
/// device_info(), nvrtc_info(), jit_cache(): what doctor and vivace.device report.
void add_machine(nanobind::module_& m);

}  // namespace vivace::python
