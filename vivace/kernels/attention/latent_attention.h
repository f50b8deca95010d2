// Arguments of `latent_attention`, shared by the CPU and CUDA kernels. POD; see vivace/ops/latent_attention.h.
#pragma once
#include "vivace/kernels/attention/attention.h"

namespace vivace::kernels {

struct LatentAttentionArgs {
  AttentionArgs a;  // one kv head: k is the cache, D = E, Dv = C; out and lse have N runs a token
  int32_t N;

  /// Places of a run: whole blocks of 32.
  VV_HD int64_t width() const { return (a.slot_capacity() + int64_t{N} * 32 - 1) / (int64_t{N} * 32) * 32; }
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

/// A block of eight warps takes `rows` heads of a token (32 or 64) and a run, 32 positions at a time. Scores are shared
/// out by rows and positions, sums by columns.
struct LatentTile {
  int32_t e, c, rows, stages;
  bool wide;  // 16-byte accesses
  constexpr bool operator==(const LatentTile&) const = default;

  static constexpr int kThreads = 256, kKeys = 32, kProbabilityPitch = 40;  // pitches: an odd number of 16-byte units
  VV_HD constexpr int pitch() const { return e + 8; }
  VV_HD constexpr int row_groups() const { return rows / 16; }
  VV_HD constexpr int key_groups() const { return 8 / row_groups(); }
  VV_HD constexpr int smem() const {
    return (rows + stages * kKeys) * pitch() * 2 + rows * kProbabilityPitch * 2 + rows * (2 * key_groups() + 3) * 4;
  }
};

/// For everything else: `items` elements of a row in each of a warp's lanes, E <= 32 * items.
struct LatentPlain {
  int32_t items;
  static constexpr int kThreads = 128;
  constexpr bool operator==(const LatentPlain&) const = default;

  VV_HD static constexpr int smem(int c) { return kThreads / 32 * (c + 2) * 4; }
};

}  // namespace vivace::kernels
