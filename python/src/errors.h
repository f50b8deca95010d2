// Status -> Python exception: one class a Code, all below vivace.Error.
#pragma once
#include <nanobind/nanobind.h>

#include "vivace/base/status.h"

namespace vivace::python {

namespace nb = nanobind;

/// Makes the classes and adds them to `m`. Once, at import.
void add_errors(nb::module_& m);

/// Sets the Python error that stands for `s`, which must not be OK.
void set_error(const Status& s);

/// The same, thrown, for code that nanobind calls.
inline void check(const Status& s) {
  if (s.ok()) return;
  set_error(s);
  throw nb::python_error();
}

/// The pending Python error as "TypeError: text"; clears it.
std::string take_python_error();

}  // namespace vivace::python
