// Models and checkpoints for Python; see model.cc and checkpoint.cc.
#pragma once
#include <nanobind/nanobind.h>

namespace vivace::python {

void add_model(nanobind::module_& m);
void add_checkpoint(nanobind::module_& m);

}  // namespace vivace::python
