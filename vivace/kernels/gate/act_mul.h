// Arguments of `act_mul`, shared by the CPU and CUDA kernels. POD; see vivace/ops/act_mul.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/gate/activation.h"

namespace vivace::kernels {

struct ActMulArgs {
  const void* gate;        // [T, H] dtype
  const void* up;          // [T, H] dtype, or null: the activation alone
  const float* inv_scale;  // [H] or null
  void* out;               // [T, H] out_dtype
  const float* out_scale;  // [1] static quantization scale, or null
  float* row_scale;        // [T] dynamic quantization scale, written; or null
  const int32_t* rows;     // [1] device-side T, or null
  int64_t gate_stride, up_stride, out_stride;  // elements a row
  int32_t T, H;
  Activation act;
  DType dtype, out_dtype;
};

struct ActMulPolicy {
  int32_t threads;  // a block
  int32_t vec;      // elements an access; 1 serves any alignment
  int32_t items;    // accesses of each input that a thread has in flight; 0: a whole row is read twice
  bool whole_row;   // a block owns a row (dynamic scales need its maximum); else a stretch of one
  int32_t blocks;   // that an SM must have room for
  constexpr bool operator==(const ActMulPolicy&) const = default;
  VV_HD constexpr int stretch() const { return threads * vec * items; }
};

}  // namespace vivace::kernels
