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

/// [T, ...] seen as [T / n, n, ...].
inline Tensor blocks(const Tensor& t, int64_t n) {
  Tensor r = t;
  ++r.shape.rank;
  for (int i = t.shape.rank; i > 0; --i) r.shape.dim[i] = t.shape[i - 1], r.stride[i] = t.stride[i - 1];
  r.shape.dim[0] = t.shape[0] / n, r.shape.dim[1] = n;
  r.stride[0] = n * t.stride[0];
  return r;
}

/// Rows of queries, keys and values: [T, N, D], [T, M, D] x 2.
struct Qkv {
  Tensor q, k, v;
};

/// Of a product's rows [T, (N + 2 M) * D], where they lie.
inline Qkv split_qkv(const Tensor& rows, int64_t N, int64_t D) {
  const int64_t M = (rows.shape[1] / D - N) / 2;
  return {heads(columns(rows, 0, N * D), N), heads(columns(rows, N * D, M * D), M),
          heads(columns(rows, (N + M) * D, M * D), M)};
}

}  // namespace vivace::models
