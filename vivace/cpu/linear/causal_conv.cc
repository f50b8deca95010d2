#include "vivace/kernels/linear/causal_conv.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void causal_conv(const kernels::CausalConvArgs& a, Pool& pool) {
  constexpr int64_t kTogether = 64;  // channels a chunk
  constexpr int kMaxTaps = 8;        // as ops/causal_conv.h says
  const auto T = static_cast<int32_t>(valid_rows(a.rows, a.T));
  const int64_t slices = (a.C + kTogether - 1) / kTogether;
  const auto body = [&](int64_t chunk) {
    const auto n = static_cast<int32_t>(chunk / slices);
    const int64_t c0 = chunk % slices * kTogether, count = std::min<int64_t>(kTogether, a.C - c0);
    const int32_t first = a.sequences.first(n, T), past = a.sequences.past(n, T), row = a.sequences.row(n);
    if (first >= past) return;
    float w[kTogether][kMaxTaps], b[kTogether] = {}, window[kMaxTaps][kTogether] = {}, y[kTogether];
    for (int64_t i = 0; i < count; ++i) load_f32(a.weight, a.dtype, (c0 + i) * a.weight_stride, a.K, w[i]);
    if (a.bias != nullptr) load_f32(a.bias, a.dtype, c0, count, b);
    float* const state = a.state + std::max<int64_t>(row, 0) * a.state_stride + c0;
    if (!a.sequences.starts_at_zero(n))
      for (int k = 0; k + 1 < a.K; ++k) std::copy_n(state + int64_t{k} * a.C, count, window[k + 1]);
    for (int32_t t = first; t < past; ++t) {
      for (int k = 0; k + 1 < a.K; ++k) std::copy_n(window[k + 1], count, window[k]);
      load_f32(a.x, a.dtype, t * a.x_stride + c0, count, window[a.K - 1]);
      for (int64_t i = 0; i < count; ++i) {
        y[i] = b[i];
        for (int k = 0; k < a.K; ++k) y[i] += w[i][k] * window[k][i];
        if (a.silu) y[i] = y[i] / (1.0f + std::exp(-y[i]));
      }
      store_f32(a.out, a.dtype, t * a.out_stride + c0, count, y);
    }
    if (row >= 0 && !a.frozen)
      for (int k = 0; k + 1 < a.K; ++k) std::copy_n(window[k + 1], count, state + int64_t{k} * a.C);
  };
  pool.run(int64_t{a.sequences.N} * slices, body);
}

}  // namespace vivace::cpu
