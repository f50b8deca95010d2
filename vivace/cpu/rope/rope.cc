#include "vivace/kernels/rope/rope.h"

#include "vivace/cpu/rope/rotate.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void rope(const kernels::RopeArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), int64_t{a.N} * a.D, [&](int64_t t) {
    const Rotation rotation(a.inv_freq, a.R, a.pos[t], a.attn_factor, a.style);
    float head[kernels::kMaxRopeHeadDim];
    for (int64_t n = 0; n < a.N; ++n) {
      load_f32(a.x, a.dtype, t * a.x_stride + n * a.D, a.D, head);
      rotation.apply(head);
      store_f32(a.out, a.dtype, t * a.out_stride + n * a.D, a.D, head);
    }
  });
}

}  // namespace vivace::cpu
