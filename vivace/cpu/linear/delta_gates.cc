#include "vivace/kernels/linear/delta_gates.h"

#include "vivace/cpu/linear/delta_gate.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void delta_gates(const kernels::DeltaGatesArgs& args, Pool& pool) {
  const kernels::DeltaProjections& in = args.in;
  for_rows(pool, valid_rows(args.rows, args.T), args.H, [&](int64_t t) {
    for_chunks(args.H, [&](int64_t first, int64_t n) {
      float a[kChunk], b[kChunk], rate[kChunk], bias[kChunk];
      load_f32(in.a, in.dtype, t * in.a_stride + first, n, a);
      load_f32(in.b, in.dtype, t * in.b_stride + first, n, b);
      load_f32(in.rate, in.rate_dtype, first, n, rate);
      load_f32(in.bias, in.bias_dtype, first, n, bias);
      float* const decay = args.decay + t * args.decay_stride + first;
      float* const beta = args.beta + t * args.beta_stride + first;
      for (int64_t i = 0; i < n; ++i) {
        decay[i] = delta_decay(a[i], rate[i], bias[i]);
        beta[i] = delta_beta(b[i]);
      }
    });
  });
}

}  // namespace vivace::cpu
