// Arguments of qkv_gemm's fused kernel: a product of few tokens whose outputs are rotated and leave for q and the caches.
// POD; see vivace/ops/qkv_gemm.h for the formula.
#pragma once
#include "vivace/kernels/gemm/gemm.h"
#include "vivace/kernels/norm/rms_rows.h"
#include "vivace/kernels/rope/qkv_rope.h"

namespace vivace::kernels {

struct QkvGemmArgs {
  TensorMap x_map;  // as in GemmWgmmaArgs
  TensorMap w_map;  // [N / D, D / 16, 2, 8, K]: eight rows of a head's first half, then the eight that turn with them
  GemmArgs g;       // x, w, bias and scales; out is not written
  QkvRopeArgs rope; // q, k_out and v_out or the caches, pos, inv_freq; no norms; rows as in the product
  RmsSquares squares; // where kFinishTokenNorms; g.x_row_scale is not read then
};

}  // namespace vivace::kernels
