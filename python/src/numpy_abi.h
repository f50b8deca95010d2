// The leading fields of NumPy's array and dtype objects, which are its stable C ABI (1.x and 2.x).
// Reading them costs nanoseconds where the buffer and DLPack protocols cost most of a microsecond, and
// they also serve dtypes that the buffer protocol refuses (bf16, fp8). tensor.cc compares what they say
// with __array_interface__ once, at the first array.
#pragma once
#include <nanobind/nanobind.h>

namespace vivace::python {

struct NumpyArray {
  PyObject_HEAD
  char* data;
  int nd;
  Py_ssize_t* dimensions;
  Py_ssize_t* strides;  // bytes
  PyObject* base;
  struct NumpyDType* dtype;
  int flags;
};
inline constexpr int kNumpyWritable = 0x0400;

struct NumpyDType {
  PyObject_HEAD
  PyTypeObject* scalar;  // numpy.float32, ml_dtypes.bfloat16, ...
  char kind, type;
  char byteorder;  // '>' is foreign: Vivace runs on little-endian machines
};

}  // namespace vivace::python
