// Arguments of `latent_attention`, shared by the CPU and CUDA kernels. POD; see vivace/ops/latent_attention.h.
#pragma once
#include "vivace/kernels/attention/attention.h"

namespace vivace::kernels {

struct LatentAttentionArgs {
  AttentionArgs a;  // one kv head: k is the cache, D = E, Dv = C; out and lse have N runs a token
  int32_t N;

  /// Places of a run: whole blocks of 32.
  VV_HD int64_t width() const { return (a.places() + int64_t{N} * 32 - 1) / (int64_t{N} * 32) * 32; }
  /// What query t sees of run n.
  VV_HD AttentionSpan span(int64_t t, int64_t n) const {
    AttentionSpan s(a, t);
    const int64_t from = n * width(), to = from + width();
    if (s.first < from) s.first = from;
    if (s.end > to) s.end = to;
    if (s.end <= s.first) s.first = s.end = 0;
    return s;
  }
};

}  // namespace vivace::kernels
