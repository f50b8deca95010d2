// Arguments of the fused kernels of rms_gemm, rms_gemm_rope and gemm_rms_rows: products of few tokens around an RMS
// norm that is taken behind the second. POD; see vivace/ops/ for the formulas.
#pragma once
#include "vivace/kernels/gemm/gemm.h"
#include "vivace/kernels/norm/rms_rows.h"

namespace vivace::kernels {

struct RmsGemmArgs {
  TensorMap x_map, w_map;  // as in GemmWgmmaArgs
  GemmArgs g;              // x_row_scale is not read
  RmsSquares squares;
};

/// Where kEpilogueRope: how far heads turn and where they go, as qkv_rope has it of a cache without pages, laid out by
/// places.
struct GemmHeads {
  void* q;               // [T, Hq, D] out_dtype
  void *k, *v;           // [B, L, Hkv, D] out_dtype
  const int32_t* pos;    // [T]
  const int32_t* slot;   // [T] or null: slot 0
  const float* angles;   // [T, 2, R]: each token's cosines, then its sines
  int64_t q_stride, k_stride, v_stride, angles_stride;  // elements a token of q and angles, a slot of the caches
  int32_t Hq, Hkv, D, R, B, L;                          // D = 2 R
};

struct RmsGemmRopeArgs {
  TensorMap x_map;  // as above
  TensorMap w_map;  // [N / D, D / 16, 2, 8, K]: eight rows of a head's first half, then those that turn with them
  GemmArgs g;       // neither x_row_scale nor out is touched
  RmsSquares squares;
  GemmHeads heads;
};

struct GemmRmsRowsArgs {
  TensorMap x_map, w_map;
  GemmArgs g;
  GemmNext next;
};

}  // namespace vivace::kernels
