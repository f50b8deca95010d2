// Products, gathers and orders of arrays on the CPU: what is no map and no fold.
#pragma once
#include "vivace/cpu/pool.h"
#include "vivace/kernels/map/map.h"

namespace vivace::cpu {

/// out[b, m, n] = sum over k of x[b, m, k] y[b, k, n], strides in elements, nothing copied but tiles. f16, bf16 and f32
/// add up in f32, f64 in f64, integers wrap. `out` is dense in n.
struct Matmul {
  kernels::Elem type;
  const void *x, *y;
  void* out;
  int rank = 0;  // batch axes
  int64_t batch[kernels::kMapRank], x_batch[kernels::kMapRank], y_batch[kernels::kMapRank];
  int64_t out_batch = 0;  // batches of out lie one behind the other
  int64_t m, n, k;
  int64_t x_m, x_k, y_k, y_n, out_m;
};
void matmul(const Matmul& a, Pool* pool);

/// out[o, j, i] = x[o, at(o, j, i), i] of elements of `bytes`: take (at(j)) and take_along_axis (at(o, j, i)), all of
/// it dense. Indices from -length on. Answers the first index out of range, or -1 - length - 1 (none is).
struct Gather {
  int bytes;
  const void* x;
  const int64_t* at;
  void* out;
  int64_t outer, length, inner, count;  // x [outer, length, inner], out [outer, count, inner]
  bool along;                           // at [outer, count, inner] instead of [count]
};
/// Whether every index is in range; if not `*bad` is one that is not, and out is left half done.
bool gather(const Gather& g, int64_t* bad, Pool* pool);

/// Sorts dense rows of n in place; stable; NaNs last, also if descending. With `order` non-null the rows stay and their
/// order is written there.
void sort(kernels::Elem type, bool descending, char* data, int64_t* order, int64_t rows, int64_t n, Pool* pool);

/// Where each of `count` values belongs in sorted x [n]: before its equals, or behind with `right`. `sorter`: the order
/// of x, or null.
void searchsorted(kernels::Elem type, const char* x, int64_t n, const int64_t* sorter, const char* values,
                  int64_t count, bool right, int64_t* out, Pool* pool);

}  // namespace vivace::cpu
