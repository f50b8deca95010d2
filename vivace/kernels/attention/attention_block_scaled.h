// Arguments of `attention_block_scaled`, shared by the CPU and CUDA kernels. POD; see
// vivace/ops/attention_block_scaled.h.
#pragma once
#include "vivace/kernels/attention/attention.h"

namespace vivace::kernels {

struct AttentionBlockScaledArgs {
  AttentionArgs
      a;  // k and v: codes, two a byte; k_stride and v_stride are bytes a block; out and lse have N runs a token
  const void* k_scales;    // [B, L, Hkv, D / 16] e4m3
  const void* v_scales;    // [B, L, Hkv, Dv / 16] e4m3
  const float* k_scale;    // [1] or null: 1
  const float* v_scale;    // [1] or null: 1
  int64_t k_scales_stride, v_scales_stride;  // elements a block
  int32_t N;

  /// Places of a run: whole blocks of 64.
  VV_HD int64_t width() const { return (a.slot_capacity() + int64_t{N} * 64 - 1) / (int64_t{N} * 64) * 64; }
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

/// A block of four warps takes up to 16 query heads of one kv head, a token and a run; a warp takes every fourth 16
/// positions and dequantizes codes in registers on their way into products. What a row's bits depend on is this and N.
struct AttentionBlockScaledTile {
  int32_t d;  // of keys and values: 64 or 128
  bool wide;  // accesses of 8 and 16 bytes
  static constexpr int kThreads = 128, kKeys = 16, kRows = 16;
  constexpr bool operator==(const AttentionBlockScaledTile&) const = default;

  VV_HD constexpr int smem() const {
    return kThreads / 32 * kRows * (d + 2) * 4;
  }  // sums, maximum and row_sum of each row, of each warp
};

}  // namespace vivace::kernels
