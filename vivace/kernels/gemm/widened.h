// Policy of gemm_widened. Shared by host and device. POD.
#pragma once
#include "vivace/kernels/gemm/gemm.h"

namespace vivace::kernels {

/// How W, which is not bf16, gets into the ring of gemm_wgmma: each of the four loading warps has its own 32 rows of a tile
/// of 128, copies them as they lie in memory, 256 elements a row at a time, and writes them as bf16. w_map is of W as 32-bit
/// words, in boxes of 32 rows x pitch(w) bytes; paired as gemm_wgmma's.
struct GemmWiden {
  int32_t raw;    // such copies in flight a warp
  int32_t group;  // elements of K that share an entry of w_block_scale; 0: there is none
  DType scale;    // its type
  bool zeros;     // w_block_zero is there
  constexpr bool operator==(const GemmWiden&) const = default;

  static constexpr int kElements = 256, kWarps = 4;
  VV_HD static constexpr int bytes(DType w) { return static_cast<int>(row_bytes(w, kElements)); }
  /// Bytes between rows: an odd number of 16, so that eight rows' words meet in no bank.
  VV_HD static constexpr int pitch(DType w) { return (bytes(w) / 16 | 1) * 16; }
  VV_HD constexpr int ring_bytes(DType w) const { return raw * 32 * pitch(w); }
  /// As GemmCodes::folds(): W comes out 2^-7 of itself, for which alpha has to make up.
  VV_HD constexpr bool folds(DType w) const { return w == DType::e2m1 && group == 16 && scale == DType::e4m3 && !zeros; }
  VV_HD static constexpr int raw_at(const GemmWgmma& p) { return (p.smem_bytes() + 127) / 128 * 128; }  // behind gemm_wgmma's own
  VV_HD constexpr int smem_bytes(const GemmWgmma& p, DType w) const { return raw_at(p) + kWarps * (ring_bytes(w) + 8 * raw); }
};

}  // namespace vivace::kernels
