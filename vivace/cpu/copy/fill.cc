#include "vivace/kernels/copy/fill.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void fill(const kernels::FillArgs& a, Pool& pool) {
  float value[kChunk];
  std::fill_n(value, kChunk, a.value);
  for_rows(pool, valid_rows(a.rows, a.T), a.H, [&](int64_t t) {
    for_chunks(a.H, [&](int64_t first, int64_t n) { store_f32(a.out, a.dtype, t * a.out_stride + first, n, value); });
  });
}

}  // namespace vivace::cpu
