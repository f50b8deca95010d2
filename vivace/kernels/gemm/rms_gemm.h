// Arguments of rms_gemm's and gemm_rms_rows' fused kernels: products of few tokens around an RMS norm that is taken
// behind the second. POD; see vivace/ops/rms_gemm.h and gemm_rms_rows.h for the formulas.
#pragma once
#include "vivace/kernels/gemm/gemm.h"
#include "vivace/kernels/norm/rms_rows.h"

namespace vivace::kernels {

struct RmsGemmArgs {
  TensorMap x_map, w_map;  // as in GemmWgmmaArgs
  GemmArgs g;              // x_row_scale is not read
  RmsSquares squares;
};

struct GemmRmsRowsArgs {
  TensorMap x_map, w_map;
  GemmArgs g;
  GemmNext next;
};

}  // namespace vivace::kernels
