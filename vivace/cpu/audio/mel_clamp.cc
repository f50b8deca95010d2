#include "vivace/kernels/audio/mel_clamp.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void mel_clamp(const kernels::MelClampArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.M, [&](int64_t t) {
    const int32_t b = a.frames.quotient(static_cast<int32_t>(t)), f = a.frames.remainder(static_cast<int32_t>(t), b);
    const bool silent = a.length != nullptr && f >= a.length[b];
    const float least = a.peak[b] - a.range;
    for_chunks(a.M, [&](int64_t first, int64_t n) {
      float y[kChunk];
      for (int64_t i = 0; i < n; ++i)
        y[i] = silent ? 0.0f : kernels::clamped_mel(a.x[t * a.x_stride + first + i], least);
      store_f32(a.out, a.out_dtype, t * a.out_stride + first, n, y);
    });
  });
}

}  // namespace vivace::cpu
