// The handlers that XLA calls, and the check of a call that is only traced.
#pragma once
#include <nanobind/nanobind.h>

namespace vivace::python {

/// xla_handlers(), check_call().
void add_jax_ffi(nanobind::module_& m);

}  // namespace vivace::python
