#include <cmath>

#include "vivace/cpu/rows.h"
#include "vivace/kernels/moe/moe_route.h"

namespace vivace::cpu {
namespace {

/// The largest logits of a row's candidates, lower experts first among equals. A NaN counts as the smallest, so that a
/// choice always names an expert; its weight shows the NaN. Leaves the experts in `chosen`, larger first.
void choose(const kernels::MoeRouteArgs& a, const float* x, int32_t* chosen) {
  const int32_t K = a.drawn();
  for (int32_t e = 0; e < a.candidates(); ++e) {
    const auto above = [&](int32_t other) { return x[e] > x[other] || (std::isnan(x[other]) && !std::isnan(x[e])); };
    int32_t at = std::min(e, K);  // places filled so far
    if (at == K && !above(chosen[K - 1])) continue;
    if (at == K) --at;
    for (; at > 0 && above(chosen[at - 1]); --at) chosen[at] = chosen[at - 1];
    chosen[at] = e;
  }
}

}  // namespace

void moe_route(const kernels::MoeRouteArgs& a, Pool& pool) {
  const int64_t T = valid_rows(a.rows, a.T);
  float* logits = static_cast<float*>(pool.scratch(static_cast<size_t>(a.T) * a.E * sizeof(float)));
  for_rows(pool, T, int64_t{a.E} * a.K, [&](int64_t t) {
    float* x = logits + t * a.E;
    load_f32(a.logits, a.dtype, t * a.logits_stride, a.E, x);
    int32_t* chosen = a.place + t * a.place_stride;  // the expert for now
    choose(a, x, chosen);
    float top = -INFINITY, mass = 0;
    const int32_t E = a.candidates(), K = a.drawn();
    for (int32_t e = 0; e < E; ++e) top = std::max(top, x[e]);
    float* w = a.weights + t * a.weights_stride;
    for (int32_t k = 0; k < K; ++k) w[k] = std::exp(x[chosen[k]] - top);
    if (a.renormalize)
      for (int32_t k = 0; k < K; ++k) mass += w[k];
    else
      for (int32_t e = 0; e < E; ++e) mass += std::exp(x[e] - top);
    for (int32_t k = 0; k < K; ++k) w[k] /= mass;
    if (a.shared) chosen[K] = E, w[K] = 1.0f / (1.0f + std::exp(-x[E]));
  });
  // A counting sort by expert that keeps tokens in order.
  std::fill_n(a.offsets, a.E + 1, 0);
  for (int64_t t = 0; t < T; ++t)
    for (int32_t k = 0; k < a.K; ++k) ++a.offsets[a.place[t * a.place_stride + k] + 1];
  for (int32_t e = 0; e < a.E; ++e) a.offsets[e + 1] += a.offsets[e];
  for (int64_t t = 0; t < T; ++t)
    for (int32_t k = 0; k < a.K; ++k) {
      int32_t& place = a.place[t * a.place_stride + k];
      place = a.offsets[place]++;
      a.token[place] = static_cast<int32_t>(t);
    }
  for (int32_t e = a.E; e > 0; --e) a.offsets[e] = a.offsets[e - 1];  // each ended where the next begins
  a.offsets[0] = 0;
  std::fill(a.token + T * a.K, a.token + int64_t{a.T} * a.K, 0);
}

}  // namespace vivace::cpu
