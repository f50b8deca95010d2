// vivace.Array: a tensor in the pool's device memory, or borrowed from another library's.
#pragma once
#include <nanobind/nanobind.h>

#include <memory>

#include "vivace/base/tensor.h"
#include "vivace/device/device.h"

namespace vivace::python {

namespace nb = nanobind;

/// Memory that arrays and DLPack exports of them share. Freed with the last of them.
struct ArrayStorage;

struct Array {
  std::shared_ptr<ArrayStorage> storage;  // null once closed
  Tensor tensor;                          // dense, Place::device
  int device = 0;
};

/// OK, or Closed.
Status check_open(const Array& a, const char* what);
/// Says that work on a stream which the default stream does not order now uses the memory.
void mark_foreign_use(const Array& a);

void add_array(nb::module_& m);

}  // namespace vivace::python
