// Views that pipelines take of their buffers.
#pragma once
#include "vivace/base/tensor.h"

namespace vivace::models {

/// The first rows.
inline Tensor top(const Tensor& t, int64_t rows) {
  return slice(t, 0, rows);
}

/// A dense tensor, from its first element on, in another shape of as many elements or fewer.
inline Tensor as(const Tensor& t, const Shape& shape) {
  return tensor(t.data, t.dtype, shape, t.place);
}

/// Columns [first, first + n) of a matrix.
inline Tensor columns(Tensor t, int64_t first, int64_t n) {
  t.data = static_cast<char*>(t.data) + row_bytes(t.dtype, first);
  t.shape.dim[1] = n;
  return t;
}

/// Row `i` of a matrix as a vector.
inline Tensor row(const Tensor& t, int64_t i) {
  return tensor(slice(t, i, 1).data, t.dtype, Shape(t.shape[1]), t.place);
}

/// [T, N, D] seen as [T, N*D].
inline Tensor flat(const Tensor& t) {
  Tensor r = as(t, Shape(t.shape[0], t.shape[1] * t.shape[2]));
  r.stride[0] = t.stride[0];
  return r;
}

/// [T, N*D] seen as [T, N, D].
inline Tensor heads(const Tensor& t, int64_t N) {
  Tensor r = as(t, Shape(t.shape[0], N, t.shape[1] / N));
  r.stride[0] = t.stride[0];
  return r;
}

}  // namespace vivace::models
