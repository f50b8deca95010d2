// Python functions and introspection, both made from the op table.
#pragma once
#include <nanobind/nanobind.h>

namespace vivace::python {

/// op_functions() and cost().
void add_ops(nanobind::module_& m);
/// op_table(), alias_table(), dtype_table().
void add_table(nanobind::module_& m);

}  // namespace vivace::python
