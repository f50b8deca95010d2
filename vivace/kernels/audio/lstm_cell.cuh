// lstm_cell on CUDA: formula in vivace/ops/lstm_cell.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/audio/lstm_cell.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/// Grid: T.
template <LstmCellPolicy P>
__global__ void __launch_bounds__(P.threads) lstm_cell(const __grid_constant__ LstmCellArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = blockIdx.x;
  if (t >= valid_rows(a.rows, a.T)) return;
  const float* const g = a.gates + t * a.gates_stride;
  float *const cell = a.cell + t * a.cell_stride, *const out = a.out + t * a.out_stride;
  for (int h = static_cast<int>(threadIdx.x); h < a.H; h += P.threads) {
    const float c = sigmoid(g[a.H + h]) * cell[h] + sigmoid(g[h]) * tanhf(g[2 * a.H + h]);
    cell[h] = c;
    out[h] = sigmoid(g[3 * a.H + h]) * tanhf(c);
  }
}

}  // namespace vivace::kernels
