#include "vivace/kernels/sampling/sample_chain.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {
namespace {

using kernels::SampleChainArgs;

/// Gumbel-max over the positive weights p - q (q may be null); -1 if there is none.
int64_t draw(const float* p, const float* q, int64_t V, uint64_t seed, uint32_t step) {
  int64_t token = -1;
  float best = 0;
  for (int64_t first = 0; first < V; first += 4) {
    const kernels::PhiloxWords noise = kernels::chain_words(seed, step, static_cast<uint32_t>(first / 4));
    for (int64_t v = first; v < std::min(V, first + 4); ++v) {
      const float w = q ? p[v] - q[v] : p[v];
      if (!(w > 0)) continue;
      const float score = std::log(w) + kernels::gumbel(noise.w[v - first]);
      if (token < 0 || score > best) token = v, best = score;
    }
  }
  return token;
}

void chain_row(const SampleChainArgs& a, int64_t t) {
  const uint64_t seed = a.seed ? static_cast<uint64_t>(a.seed[t]) : 0;
  const uint32_t step = a.step ? static_cast<uint32_t>(a.step[t]) : 0;
  const int32_t* draft = a.draft + t * a.draft_stride;
  const float* q = a.draft_probs + t * a.draft_probs_stride;
  const float* p = a.probs + t * a.probs_stride;
  int64_t n = 0;
  while (n < a.N) {
    const int64_t x = draft[n];
    if (x < 0 || x >= a.V ||
        !kernels::chain_accepts(p[n * a.V + x], q[n * a.V + x], seed, step, static_cast<uint32_t>(n)))
      break;
    ++n;
  }
  a.accepted[t] = static_cast<int32_t>(n);
  const int64_t next = draw(p + n * a.V, n < a.N ? q + n * a.V : nullptr, a.V, seed, step);
  int32_t* tokens = a.tokens + t * a.tokens_stride;
  for (int64_t i = 0; i <= a.N; ++i) tokens[i] = i < n ? draft[i] : i == n ? static_cast<int32_t>(next) : -1;
}

}  // namespace

void sample_chain(const SampleChainArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.V * int64_t{8}, [&](int64_t t) { chain_row(a, t); });
}

}  // namespace vivace::cpu
