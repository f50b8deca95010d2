// Arguments of `gate_heads`, shared by the CPU and CUDA kernels. POD; see vivace/ops/gate_heads.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct GateHeadsArgs {
  const void* x;                              // [T, N, D] dtype
  const void* gate;                           // [T, N, G] dtype; G is D or 1
  const void* weight;                         // [D] weight_dtype, or null: no norm
  void* out;                                  // [T, N, D] dtype
  const int32_t* rows;                        // [1] device-side T, or null
  int64_t x_stride, gate_stride, out_stride;  // elements a token
  int32_t T, N, D, G;
  float eps;
  bool silu;  // else the sigmoid
  DType dtype, weight_dtype;
};

/// A warp a head, `warps` of them a block, 16 bytes a lane and step by accesses of `vec` elements.
struct GateHeadsPolicy {
  int32_t warps, vec;
  bool held;  // a head is one step
  constexpr bool operator==(const GateHeadsPolicy&) const = default;
};

}  // namespace vivace::kernels
