#include "vivace/kernels/attention/scaled_attention.h"

#include <limits>

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void scaled_attention(const kernels::ScaledAttentionArgs& m, Pool& pool) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  constexpr int kMaxDim = 256;  // as ops/scaled_attention.h says
  const kernels::AttentionArgs& a = m.a;
  const int64_t T = valid_rows(a.rows, a.T), D = a.D;
  const auto body = [&](int64_t chunk) {
    const int64_t h = chunk % a.Hq, t = chunk / a.Hq, kv = h / a.group();
    const kernels::AttentionSpan see(a, t);
    const float scale =
        a.scale * (m.q_scale != nullptr ? m.q_scale[h] : 1.0f) * (m.k_scale != nullptr ? m.k_scale[kv] : 1.0f);
    float q[kMaxDim], row[kMaxDim], sum[kMaxDim] = {}, row_max = kLowest, row_sum = 0;
    load_f32(a.q, DType::e4m3, t * a.q_stride + h * D, D, q);
    const auto load = [&](const void* from, int64_t stride, int64_t block, int64_t j) {
      if (block < 0) std::fill(row, row + D, 0.0f);
      else
        load_f32(from, DType::e4m3,
                 block * stride + (a.row_in_block(see.slot, j) * a.position_rows() + kv * a.head_rows()) * D, D, row);
    };
    for (int64_t j = see.first; j < see.end; ++j) {
      const int64_t block = a.block(see.slot, j);
      load(a.k, a.k_stride, block, j);
      float part[16] = {}, s = 0;
      for (int64_t i = 0; i < D; ++i) part[i % 16] += q[i] * row[i];
      for (const float p : part) s += p;
      s *= scale;
      const float highest = std::fmax(row_max, s), base = highest == kLowest ? 0.0f : highest,
                  shrink = std::exp(row_max - base), w = std::exp(s - base);
      load(a.v, a.v_stride, block, j);
      for (int64_t i = 0; i < D; ++i) sum[i] = sum[i] * shrink + w * row[i];
      row_sum = row_sum * shrink + w;
      row_max = highest;
    }
    const float factor = row_sum == 0 ? 0.0f : (m.v_scale != nullptr ? m.v_scale[kv] : 1.0f) / row_sum;
    for (int64_t i = 0; i < D; ++i) sum[i] *= factor;
    store_f32(a.out, a.dtype, t * a.out_stride + h * D, D, sum);
    if (a.lse != nullptr) a.lse[t * a.lse_stride + h] = row_sum == 0 ? kLowest : row_max + std::log(row_sum);
  };
  pool.run(T * a.Hq, body);
}

}  // namespace vivace::cpu
