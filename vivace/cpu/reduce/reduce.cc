#include "vivace/kernels/reduce/reduce.h"

#include <limits>

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

using kernels::Reduction;

void reduce(const kernels::ReduceArgs& a, Pool& pool) {
  const int64_t H = valid_rows(a.cols, a.H);
  for_rows(pool, valid_rows(a.rows, a.T), H, [&](int64_t t) {
    // Sixteen partial sums: a fixed order that vectorises, the same for every T and thread count.
    float y[kChunk], part[16] = {}, largest = a.kind == Reduction::max ? -std::numeric_limits<float>::infinity() : 0.0f;
    for_chunks(H, [&](int64_t first, int64_t n) {
      load_f32(a.x, a.dtype, t * a.x_stride + first, n, y);
      for (int64_t i = 0; i < n; ++i) part[i % 16] += y[i];
      for (int64_t i = 0; i < n; ++i) largest = std::max(largest, a.kind == Reduction::amax ? std::fabs(y[i]) : y[i]);
    });
    float sum = 0;
    for (const float p : part) sum += p;
    a.out[t] = a.kind == Reduction::sum ? sum : a.kind == Reduction::mean ? sum / static_cast<float>(H) : largest;
  });
}

}  // namespace vivace::cpu
