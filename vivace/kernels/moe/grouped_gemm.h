// Arguments and policies of `grouped_gemm`, shared by the CPU and CUDA kernels. POD; see vivace/ops/grouped_gemm.h.
#pragma once
#include "vivace/kernels/gemm/gemm.h"

namespace vivace::kernels {

struct GroupedGemmArgs {
  const void* x;           // [A, K] x_dtype, rows sorted by group
  const void* w;           // [E, N, K] w_dtype
  const int32_t* offsets;  // [E + 1]
  const int32_t* counts;   // [E] valid rows of each group, or null: all
  const float* w_row_scale;  // [E, N] factor of each row of an e4m3 w, or null
  void* out;               // [A, N] out_dtype
  int64_t x_stride, w_stride, out_stride;  // elements a row; w: an expert; x: 0 where its one row is every row
  int64_t scale_stride;                    // of w_row_scale: an expert
  int32_t A, E, N, K;
  GemmAct act;
  DType x_dtype, w_dtype, out_dtype;
  Activation
      gate;  // of a gated product: what becomes of the first half of W's rows, see vivace/ops/grouped_gated_gemm.h

  /// Rows [*first, *end) of group e, inside of [0, A].
  VV_HD constexpr void rows_of(int e, int32_t* first, int32_t* end) const {
    const auto clamp = [](int32_t v, int32_t low, int32_t high) { return v < low ? low : v > high ? high : v; };
    *first = clamp(offsets[e], 0, A);
    *end = clamp(offsets[e + 1], *first, A);
    if (counts != nullptr) *end = *first + clamp(counts[e], 0, *end - *first);
  }
};

/// Where weights are dequantized in registers: as GemmWeightOnlyArgs, of the matrices of all groups one below the
/// other.
struct GroupedWeightOnlyArgs {
  TensorMap w_map;
  GroupedGemmArgs g;
};

/// Hopper: as GemmWgmma, over the tiles of all groups. A tile asks TMA for as many boxes of x as it
/// has rows and multiplies in the narrowest width that holds them, so one kernel serves groups of any size.
struct GroupedWgmma {
  int32_t rows;  // of W a tile: 48, 64 or 128. Of 48 the products are those of 64, the last 16 of whatever lies behind
  int32_t tokens;  // of x a tile, at most: 32, 64, 128 or 256
  int32_t stages;
  bool gated = false;  // half of the rows of each 64 (or 48) are gates, half the ups of the same columns
  bool eight = false;  // W is e4m3: a stage has 128 elements of K, of x in two runs of 64
  bool four = false;   // W is q4_0: 256 elements, the fewest that are whole 16 bytes; four runs
  constexpr bool operator==(const GroupedWgmma&) const = default;

  VV_HD constexpr int groups() const { return (rows + 63) / 64; }
  VV_HD constexpr int warps() const { return 4 * groups(); }  // that multiply
  // Consumer warps need most of the registers.
  VV_HD constexpr bool wide() const { return tokens > 128 || (eight && tokens > 64); }
  VV_HD constexpr int threads() const { return 32 * warps() + (wide() ? 128 : 32); }
  VV_HD constexpr int columns() const { return gated ? rows / 2 : rows; }   // of out a tile
  VV_HD constexpr int box_w() const { return gated ? rows / groups() / 2 : rows; }  // rows of W a copy brings
  // Rows of x a copy brings, and the narrowest width.
  VV_HD constexpr int box() const { return tokens < 64 ? 8 : tokens / 8; }
  VV_HD constexpr int x_runs() const { return four ? 4 : eight ? 2 : 1; }
  VV_HD constexpr int x_run_bytes() const { return tokens * 128; }
  VV_HD constexpr int row_bytes() const { return four ? 144 : 128; }  // of W in a stage
  /// In front of x, which is swizzled in runs of 1024 bytes.
  VV_HD constexpr int w_bytes() const { return (rows * row_bytes() + 1023) / 1024 * 1024; }
  VV_HD constexpr int stage_bytes() const { return w_bytes() + x_runs() * x_run_bytes(); }
  VV_HD constexpr bool held() const { return eight || four; }  // W is dequantized into registers
  VV_HD static constexpr int transpose_stride() { return 20; }  // floats a token of a warp's 16 rows: keeps banks apart
  VV_HD constexpr int transpose_bytes() const { return warps() * 8 * transpose_stride() * 4; }
  VV_HD constexpr int smem_bytes() const { return stages * (stage_bytes() + 32) + transpose_bytes(); }
};

struct GroupedWgmmaArgs {
  TensorMap x_map;  // [A, K], boxes of box() rows x 128 bytes
  TensorMap w_map;  // [E * N, K], boxes of box_w() rows x row_bytes(); q4_0 as 32-bit words, without a swizzle
  GroupedGemmArgs g;
};

}  // namespace vivace::kernels
