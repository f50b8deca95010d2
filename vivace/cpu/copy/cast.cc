#include "vivace/kernels/copy/cast.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void cast(const kernels::CastArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.H, [&](int64_t t) {
    for_chunks(a.H, [&](int64_t first, int64_t n) {
      float h[kChunk];
      load_f32(a.x, a.x_dtype, t * a.x_stride + first, n, h);
      store_f32(a.out, a.out_dtype, t * a.out_stride + first, n, h);
    });
  });
}

}  // namespace vivace::cpu
