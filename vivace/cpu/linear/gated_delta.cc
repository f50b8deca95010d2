#include "vivace/kernels/linear/gated_delta.h"

#include <vector>

#include "vivace/cpu/linear/delta_gate.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {
namespace {

constexpr int kMaxDim = 512;  // as ops/gated_delta.h says

/// A head of q or k as f32, times `factor`, by its length if the op says so.
void load_head(const kernels::GatedDeltaArgs& a, const void* base, int64_t at, float factor, float* x) {
  load_f32(base, a.dtype, at, a.D, x);
  float square = 0;
  for (int d = 0; d < a.D; ++d) square += x[d] * x[d];
  if (a.normalize) factor *= 1.0f / std::sqrt(square + 1e-6f);
  for (int d = 0; d < a.D; ++d) x[d] *= factor;
}

/// What the state keeps at token t, and how much of the correction is made.
struct Gates {
  float keep = 1.0f, beta = 1.0f;
  Gates(const kernels::GatedDeltaArgs& a, int64_t t, int64_t h) {
    const kernels::DeltaProjections& in = a.gates;
    const auto one = [](const void* from, DType type, int64_t at) {
      float x;
      load_f32(from, type, at, 1, &x);
      return x;
    };
    if (in.present()) {
      keep = std::exp(delta_decay(one(in.a, in.dtype, t * in.a_stride + h), one(in.rate, in.rate_dtype, h),
                                  one(in.bias, in.bias_dtype, h)));
      beta = delta_beta(one(in.b, in.dtype, t * in.b_stride + h));
    }
    if (a.decay != nullptr) keep = std::exp(a.decay[t * a.decay_stride + h]);
    if (a.beta != nullptr) beta = a.beta[t * a.beta_stride + h];
  }
};

}  // namespace

void gated_delta(const kernels::GatedDeltaArgs& a, Pool& pool) {
  const auto T = static_cast<int32_t>(valid_rows(a.rows, a.T));
  const auto body = [&](int64_t chunk) {
    const auto n = static_cast<int32_t>(chunk / a.Hv);
    const int64_t hv = chunk % a.Hv, hk = hv / a.group(), D = a.D, Dv = a.Dv;
    const int32_t first = a.sequences.first(n, T), past = a.sequences.past(n, T), slot = a.sequences.row(n);
    if (first >= past) return;
    // Without a slot, or where it is only read, the state is scratch; one head's fits the first-level cache's
    // neighbour.
    thread_local std::vector<float> scratch;
    const bool apart = slot < 0 || a.frozen;
    if (apart) scratch.resize(static_cast<size_t>(D * Dv));
    float* const stored = slot < 0 ? nullptr : a.state + slot * a.state_stride + hv * D * Dv;
    float* const state = apart ? scratch.data() : stored;
    if (a.sequences.starts_at_zero(n)) std::fill(state, state + D * Dv, 0.0f);
    else if (apart) std::copy_n(stored, D * Dv, state);
    float q[kMaxDim], k[kMaxDim], v[kMaxDim], held[kMaxDim], out[kMaxDim];
    for (int64_t t = first; t < past; ++t) {
      load_head(a, a.k, t * a.k_stride + hk * D, 1.0f, k);
      load_head(a, a.q, t * a.q_stride + hk * D, a.scale, q);
      load_f32(a.v, a.dtype, t * a.v_stride + hv * Dv, Dv, v);
      const Gates gates(a, t, hv);
      std::fill(held, held + Dv, 0.0f);
      for (int64_t d = 0; d < D; ++d)
        for (int64_t c = 0; c < Dv; ++c) {
          state[d * Dv + c] *= gates.keep;
          held[c] += k[d] * state[d * Dv + c];
        }
      for (int64_t c = 0; c < Dv; ++c) held[c] = gates.beta * (v[c] - held[c]);
      std::fill(out, out + Dv, 0.0f);
      for (int64_t d = 0; d < D; ++d)
        for (int64_t c = 0; c < Dv; ++c) {
          state[d * Dv + c] += k[d] * held[c];
          out[c] += q[d] * state[d * Dv + c];
        }
      store_f32(a.out, a.dtype, t * a.out_stride + hv * Dv, Dv, out);
    }
  };
  pool.run(int64_t{a.sequences.N} * a.Hv, body);
}

}  // namespace vivace::cpu
