#include <limits>

#include "vivace/cpu/rows.h"
#include "vivace/kernels/moe/moe_combine.h"

namespace vivace::cpu {

void moe_combine(const kernels::MoeCombineArgs& a, Pool& pool) {
  const int64_t T = valid_rows(a.rows, a.T), A = int64_t{a.T} * a.K;
  for_rows(pool, T, int64_t{a.N} * a.K, [&](int64_t t) {
    for_chunks(a.N, [&](int64_t first, int64_t n) {
      float sum[kChunk] = {}, y[kChunk];
      for (int32_t k = 0; k < a.K; ++k) {
        const int64_t row = a.place[t * a.place_stride + k];
        const float w = a.weights[t * a.weights_stride + k];
        if (row >= 0 && row < A) load_f32(a.y, a.dtype, row * a.y_stride + first, n, y);
        else std::fill_n(y, n, std::numeric_limits<float>::quiet_NaN());
        for (int64_t i = 0; i < n; ++i) sum[i] += w * y[i];
      }
      if (a.residual != nullptr) {
        load_f32(a.residual, a.out_dtype, t * a.residual_stride + first, n, y);
        for (int64_t i = 0; i < n; ++i) sum[i] = y[i] + sum[i];
      }
      store_f32(a.out, a.out_dtype, t * a.out_stride + first, n, sum);
    });
  });
}

}  // namespace vivace::cpu
