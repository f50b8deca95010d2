#include "vivace/kernels/attention/latent_attention.h"

#include <limits>

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void latent_attention(const kernels::LatentAttentionArgs& args, Pool& pool) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  constexpr int kMaxDim = 1024;  // as ops/latent_attention.h says
  const kernels::AttentionArgs& a = args.a;
  const int64_t T = valid_rows(a.rows, a.T), E = a.D, C = a.Dv;
  const auto body = [&](int64_t chunk) {
    const int64_t h = chunk % a.Hq, n = chunk / a.Hq % args.N, t = chunk / a.Hq / args.N;
    const kernels::AttentionSpan see = args.span(t, n);
    float q[kMaxDim], row[kMaxDim], sum[kMaxDim] = {}, row_max = kLowest, row_sum = 0;
    load_f32(a.q, a.dtype, t * a.q_stride + h * E, E, q);
    for (int64_t j = see.first; j < see.end; ++j) {
      const int64_t block = a.block(see.slot, j);
      if (block < 0) std::fill(row, row + E, 0.0f);
      else load_f32(a.k, a.dtype, block * a.k_stride + a.row_in_block(see.slot, j) * E, E, row);
      float part[16] = {}, s = 0;
      for (int64_t i = 0; i < E; ++i) part[i % 16] += q[i] * row[i];
      for (const float p : part) s += p;
      s *= a.scale;
      const float highest = std::fmax(row_max, s), base = highest == kLowest ? 0.0f : highest,
                  shrink = std::exp(row_max - base), w = std::exp(s - base);
      if (shrink != 1.0f)
        for (int64_t i = 0; i < C; ++i) sum[i] *= shrink;
      for (int64_t i = 0; i < C; ++i) sum[i] += w * row[i];
      row_sum = row_sum * shrink + w;
      row_max = highest;
    }
    const float factor = row_sum == 0 ? 0.0f : 1.0f / row_sum;
    for (int64_t i = 0; i < C; ++i) sum[i] *= factor;
    store_f32(a.out, a.dtype, t * a.out_stride + (n * a.Hq + h) * C, C, sum);
    if (a.lse != nullptr) a.lse[t * a.lse_stride + n * a.Hq + h] = row_sum == 0 ? kLowest : row_max + std::log(row_sum);
  };
  pool.run(T * args.N * a.Hq, body);
}

}  // namespace vivace::cpu
