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
  nb::object capsules;  // what owner's DLPack export must keep alive, or invalid
  Tensor tensor;
  bool writable;
};

/// What came with the tensors of one call besides their memory.
struct Borrowed {
  nb::object capsules;     // list of DLPack capsules that must outlive the call; invalid if there are none
  int device = -1;         // GPU of the first device tensor
  void* stream = nullptr;  // where its producer's work is ordered: the framework's current stream, or the legacy stream
  void keep(nb::object capsule) {
    if (!capsules.is_valid()) capsules = nb::list();
    nb::borrow<nb::list>(capsules).append(std::move(capsule));
  }
};

/// `o` as a Tensor. Host cost for a NumPy array: some 20 ns, for a tensor of a framework with DLPack's C
/// exchange table (torch from 2.10 on) some 160 ns, a third of it is_neg(). Errors do not name op and port: the caller
/// does. `write` refuses memory that its owner declared read-only.
Status to_tensor(PyObject* o, bool write, Tensor* t, Borrowed* from);

void add_view(nb::module_& m);

}  // namespace vivace::python
