// Arguments and policy of norm_gemm's fused kernel: a product of few tokens whose blocks normalise x themselves. POD;
// see vivace/ops/norm_gemm.h for the formula.
#pragma once
#include "vivace/kernels/gemm/gemm.h"
#include "vivace/kernels/norm/norm.h"

namespace vivace::kernels {

struct NormGemmArgs {
  TensorMap w_map;  // as in GemmWgmmaArgs; x has no map, nor has a residual
  GemmArgs g;
  NormArgs norm;    // x, weight, bias, scale, shift, ada_row, out_scale; no residual or gate; rows as in the product
};

/// How a block makes its panel. threads and items are those of norm's block for this length of row: they fix the order
/// of the sum of squares, and with it every bit. `team` warps share a row, each as threads / 32 / team warps of norm.
struct NormPanel {
  int32_t threads, items;
  int32_t team, warps;
  bool adaptive;  // there may be scale and shift; else their code is left out: what runs once costs its way from the
                  // instruction cache
  bool layer;     // the mean is taken off, and there may be a bias
  constexpr bool operator==(const NormPanel&) const = default;
  VV_HD constexpr int teams() const { return warps / team; }
  VV_HD constexpr int each() const { return threads / 32 / team; }  // warps of norm that a warp stands for
};

}  // namespace vivace::kernels
