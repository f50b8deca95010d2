// Arguments of `gate_residual`, shared by the CPU and CUDA kernels. POD; see vivace/ops/gate_residual.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/gate/activation.h"
#include "vivace/kernels/tile/stretch.h"

namespace vivace::kernels {

struct GateResidualArgs {
  const void* x;           // [T, H] dtype
  const void* residual;    // [T, H] dtype or null
  const void* bias;        // [H] dtype or null
  const void* table;       // [P, H] dtype or null: row t % P
  const void* gate;        // [R, H] dtype or null
  const int32_t* ada_row;  // [T] row of gate, outside [0, R): NaN; or null: row min(t, R-1)
  const float* dt;         // [1] or null
  void* out;               // [T, H] dtype
  const int32_t* rows;     // [1] device-side T, or null
  int64_t x_stride, residual_stride, table_stride, gate_stride, out_stride;  // elements a row
  int32_t T, H, R, P;
  float alpha;
  Activation act;
  DType dtype;
};

}  // namespace vivace::kernels
