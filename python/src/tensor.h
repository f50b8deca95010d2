// Python objects -> Tensor: NumPy arrays, vivace.View, and anything with __dlpack__. No copies.
#pragma once
#include <nanobind/nanobind.h>

#include "vivace/base/status.h"
#include "vivace/base/tensor.h"

namespace vivace::python {

namespace nb = nanobind;

/// vivace.View: memory of `owner` read as another dtype; the way to pass block formats.
struct View {
  nb::object owner;
  Tensor tensor;
  bool writable;
};

/// What must stay alive while the tensor is used besides the object itself: its DLPack capsule.
using Keep = nb::object;

/// `o` as a Tensor. Host cost for a NumPy array: some 20 ns. Errors do not name op and port: the
/// caller does. `write` refuses memory that its owner declared read-only.
Status to_tensor(PyObject* o, bool write, Tensor* t, Keep* keep);

void add_view(nb::module_& m);

}  // namespace vivace::python
