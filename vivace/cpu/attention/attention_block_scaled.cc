#include "vivace/kernels/attention/attention_block_scaled.h"

#include <limits>

#include "vivace/base/float_types.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {
namespace {

constexpr int kMaxDim = 256;  // as ops/attention_block_scaled.h says

/// A head's codes times their blocks' scales; `head` counts heads from `block_at` bytes on.
void upcast(const void* codes, int64_t codes_at, const void* scales, int64_t scales_at, int64_t head, int d,
            float* to) {
  static constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const uint8_t* const from = static_cast<const uint8_t*>(codes) + codes_at + head * (d / 2);
  const uint8_t* const block = static_cast<const uint8_t*>(scales) + scales_at + head * (d / 16);
  for (int i = 0; i < d; ++i) to[i] = kValues[from[i / 2] >> (i % 2 * 4) & 15] * f32_of_e4m3(block[i / 16]);
}

}  // namespace

void attention_block_scaled(const kernels::AttentionBlockScaledArgs& m, Pool& pool) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const kernels::AttentionArgs& a = m.a;
  const int64_t T = valid_rows(a.rows, a.T);
  const float scale = a.scale * (m.k_scale != nullptr ? m.k_scale[0] : 1.0f),
              v_scale = m.v_scale != nullptr ? m.v_scale[0] : 1.0f;
  const auto body = [&](int64_t chunk) {
    const int64_t h = chunk % a.Hq, n = chunk / a.Hq % m.N, t = chunk / a.Hq / m.N, kv = h / a.group();
    const kernels::AttentionSpan see = m.span(t, n);
    float q[kMaxDim], row[kMaxDim] = {}, sum[kMaxDim] = {}, row_max = kLowest, row_sum = 0;
    load_f32(a.q, a.dtype, t * a.q_stride + h * a.D, a.D, q);
    for (int64_t j = see.first; j < see.end; ++j) {
      const int64_t block = a.block(see.slot, j),
                    head = a.row_in_block(see.slot, j) * a.position_rows() + kv * a.head_rows();
      if (block >= 0) upcast(a.k, block * a.k_stride, m.k_scales, block * m.k_scales_stride, head, a.D, row);
      else std::fill(row, row + a.D, 0.0f);
      float part[16] = {}, s = 0;
      for (int i = 0; i < a.D; ++i) part[i % 16] += q[i] * row[i];
      for (const float p : part) s += p;
      s *= scale;
      const float highest = std::fmax(row_max, s), base = highest == kLowest ? 0.0f : highest,
                  shrink = std::exp(row_max - base), w = std::exp(s - base);
      if (block >= 0) upcast(a.v, block * a.v_stride, m.v_scales, block * m.v_scales_stride, head, a.Dv, row);
      else std::fill(row, row + a.Dv, 0.0f);
      for (int i = 0; i < a.Dv; ++i) sum[i] = sum[i] * shrink + w * row[i];
      row_sum = row_sum * shrink + w;
      row_max = highest;
    }
    const float factor = row_sum == 0 ? 0.0f : v_scale / row_sum;
    for (int i = 0; i < a.Dv; ++i) sum[i] *= factor;
    store_f32(a.out, a.dtype, t * a.out_stride + (n * a.Hq + h) * a.Dv, a.Dv, sum);
    if (a.lse != nullptr) a.lse[t * a.lse_stride + n * a.Hq + h] = row_sum == 0 ? kLowest : row_max + std::log(row_sum);
  };
  pool.run(T * m.N * a.Hq, body);
}

}  // namespace vivace::cpu
