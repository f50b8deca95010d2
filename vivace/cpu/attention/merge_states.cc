#include "vivace/kernels/attention/merge_states.h"

#include <limits>

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void merge_states(const kernels::MergeStatesArgs& a, Pool& pool) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for_rows(pool, valid_rows(a.rows, a.T) * int64_t{a.Hq}, (a.N + 1) * int64_t{a.Dv}, [&](int64_t head) {
    const int64_t t = head / a.Hq, h = head % a.Hq;
    const auto score = [&](int64_t n) {
      return n < a.N ? a.s[t * a.s_stride + n * a.Hq + h] : a.v2 != nullptr ? a.s2[t * a.s2_stride + h] : kLowest;
    };
    float row_max = kLowest;
    for (int64_t n = 0; n <= a.N; ++n) row_max = std::fmax(row_max, score(n));
    const float base = row_max == kLowest ? 0.0f : row_max;
    const auto weight = [&](int64_t n) { return a.base2 ? std::exp2(score(n) - base) : std::exp(score(n) - base); };
    float row_sum = 0;
    for (int64_t n = 0; n <= a.N; ++n) row_sum += weight(n);
    const float factor = row_sum == 0 ? 0.0f : 1.0f / row_sum;
    for_chunks(a.Dv, [&](int64_t first, int64_t count) {
      float sum[kChunk] = {}, x[kChunk];
      for (int64_t n = 0; n <= a.N; ++n) {
        const float w = weight(n);
        if (w == 0) continue;  // what such a state holds does not matter
        if (n < a.N) load_f32(a.v, a.dtype, t * a.v_stride + (n * a.Hq + h) * a.Dv + first, count, x);
        else load_f32(a.v2, a.dtype, t * a.v2_stride + h * a.Dv + first, count, x);
        for (int64_t i = 0; i < count; ++i) sum[i] += w * x[i];
      }
      for (int64_t i = 0; i < count; ++i) sum[i] *= factor;
      store_f32(a.out, a.dtype, t * a.out_stride + h * a.Dv + first, count, sum);
    });
    if (a.lse != nullptr)
      a.lse[t * a.lse_stride + h] = row_sum == 0 ? kLowest : base + (a.base2 ? std::log2(row_sum) : std::log(row_sum));
  });
}

}  // namespace vivace::cpu
