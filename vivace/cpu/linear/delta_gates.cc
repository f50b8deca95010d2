#include "vivace/kernels/linear/delta_gates.h"

#include <cmath>

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void delta_gates(const kernels::DeltaGatesArgs& args, Pool& pool) {
  for_rows(pool, valid_rows(args.rows, args.T), args.H, [&](int64_t t) {
    for_chunks(args.H, [&](int64_t first, int64_t n) {
      float a[kChunk], b[kChunk], rate[kChunk], bias[kChunk];
      load_f32(args.a, args.dtype, t * args.a_stride + first, n, a);
      load_f32(args.b, args.dtype, t * args.b_stride + first, n, b);
      load_f32(args.rate, args.rate_dtype, first, n, rate);
      load_f32(args.bias, args.bias_dtype, first, n, bias);
      float* const decay = args.decay + t * args.decay_stride + first;
      float* const beta = args.beta + t * args.beta_stride + first;
      for (int64_t i = 0; i < n; ++i) {
        const float x = a[i] + bias[i];
        decay[i] = -std::exp(rate[i]) * (x > 20.0f ? x : std::log1p(std::exp(x)));
        beta[i] = 1.0f / (1.0f + std::exp(-b[i]));
      }
    });
  });
}

}  // namespace vivace::cpu
