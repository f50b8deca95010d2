// Policy of gemm_mixed_input. Shared by host and device. POD.
#pragma once
#include "vivace/kernels/gemm/gemm.h"

namespace vivace::kernels {

/// How W, which is not bf16, gets into the ring of gemm_wgmma: each of four producer warps has its own rows, a quarter
/// of a tile's 128 or 64, copies them as they lie in memory, 256 elements a row at a time, and writes them as bf16.
/// Beside a tile of 64 rows and 128 tokens there are two such groups, whose copies take turns. w_map is of W as 32-bit
/// words, in boxes of a warp's rows x pitch(w) bytes; paired as gemm_wgmma's.
struct GemmMixedInput {
  int32_t raw;    // such copies in flight a warp
  int32_t group;  // elements of K that share an entry of w_block_scale; 0: there is none
  DType scale;    // its type
  bool zeros;     // w_block_zero is there
  // gemm_mixed_held: a warp copies W, and those that multiply dequantize it into their registers. w_map is then of
  // copies of P.rows rows as HeldWeights says: blocks as 32-bit words, bytes swizzled.
  bool held = false;
  constexpr bool operator==(const GemmMixedInput&) const = default;

  static constexpr int kElements = 256, kWarps = 4;
  VV_HD static constexpr int bytes(DType w) { return static_cast<int>(row_bytes(w, kElements)); }
  /// Bytes between rows: an odd number of 16, so that eight rows' words meet in no bank.
  VV_HD static constexpr int pitch(DType w) { return (bytes(w) / 16 | 1) * 16; }
  VV_HD static constexpr int warp_rows(const GemmWgmma& p) { return p.rows / kWarps; }
  VV_HD static constexpr int groups(const GemmWgmma& p) { return p.rows == 64 && p.tokens == 128 ? 2 : 1; }
  /// Stages that the ring has at least. A warp sees the parity of a slot's turn, so it may not be two rings ahead of
  /// what has been read. It has waited for the slot of its own last step, up to seven before: a short K's residual,
  /// four steps of the other group's and their residual lie between.
  VV_HD static constexpr int least_stages(const GemmWgmma& p) { return groups(p) > 1 ? 7 : 3; }
  VV_HD constexpr int threads(const GemmWgmma& p) const {
    return held ? p.threads() : 2 * p.rows + 32 * kWarps * groups(p);
  }
  VV_HD constexpr int ring_bytes(const GemmWgmma& p, DType w) const { return raw * warp_rows(p) * pitch(w); }
  /// As GemmWeightOnly::folds(): W comes out 2^-7 of itself, for which alpha has to make up.
  VV_HD constexpr bool folds(DType w) const {
    return w == DType::e2m1 && group == 16 && scale == DType::e4m3 && !zeros;
  }
  /// Whether W can be held: the formats of HeldWeights.
  VV_HD static constexpr bool holds(DType w) {
    return w == DType::q4_0 || w == DType::q4_k || w == DType::q6_k || w == DType::q8_0 || w == DType::e2m1 ||
           w == DType::e4m3 || w == DType::i8;
  }
  VV_HD static constexpr int held_elements(DType w) {
    return w == DType::q6_k ? 512 : is_block(w) || w == DType::e2m1 ? 256 : 128;
  }  // of K, a copy
  VV_HD static constexpr int held_row_bytes(DType w) {
    return static_cast<int>(row_bytes(w, held_elements(w)) + 15) / 16 * 16;
  }
  VV_HD static constexpr int held_bytes(const GemmWgmma& p, DType w) { return p.rows * held_row_bytes(w); }
  /// What sums have to be multiplied by.
  VV_HD constexpr float lift(DType w) const {
    return folds(w) ? 128.0f : held && w == DType::q4_0 ? 64.0f : 1.0f;
  }
  VV_HD static constexpr int raw_at(const GemmWgmma& p) {
    return (p.smem_bytes() + 127) / 128 * 128;
  }  // behind gemm_wgmma's own
  VV_HD constexpr int smem_bytes(const GemmWgmma& p, DType w) const {
    if (held) return raw * (held_bytes(p, w) + 16) + p.smem_bytes();
    return raw_at(p) + kWarps * groups(p) * (ring_bytes(p, w) + 8 * raw);
  }
};

}  // namespace vivace::kernels
