// embedding on CUDA: formula in vivace/ops/embedding.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/embedding/embedding.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/quantize/blocks.cuh"

namespace vivace::kernels {

/// Elements [col, col + V) of row `id`. Block formats (kTable) are decoded; V is 8 for them.
template <class Table, DType kTable, int V>
__device__ __forceinline__ void table_values(const EmbeddingArgs& a, int64_t id, int col, float (&y)[V]) {
  if constexpr (is_block(kTable)) {
    constexpr DTypeInfo kFormat = info(kTable);
    const uint8_t* row = static_cast<const uint8_t*>(a.table) + id * a.table_stride / kFormat.block * kFormat.bytes;
    decode8<kTable>(row + col / kFormat.block * kFormat.bytes, col % kFormat.block, y);
  } else {
    load<V>(static_cast<const Table*>(a.table) + id * a.table_stride + col, y);
  }
}

/// Grid: T * ceil(H / stretch) blocks. Moves a row of the table in and one of Out out a token.
template <class Table, DType kTable, class Out, EmbeddingPolicy P>
__global__ void __launch_bounds__(P.threads) embedding(const __grid_constant__ EmbeddingArgs a) {
  constexpr int V = P.vec, kStep = P.threads * V;
  ptx::launch_dependents();  // before the wait: the product that follows loads its weights meanwhile
  ptx::dependency_wait();
  const int stretches = (a.H + kStep * P.items - 1) / (kStep * P.items);
  const int64_t t = blockIdx.x / stretches;
  if (t >= valid_rows(a.rows, a.T)) return;
  const int id = a.ids[t];
  const bool valid = id >= 0 && id < a.V;
  Out* out = static_cast<Out*>(a.out) + t * a.out_stride;
  const int first = static_cast<int>(blockIdx.x % stretches) * kStep * P.items + static_cast<int>(threadIdx.x) * V;
  float y[P.items][V];
#pragma unroll
  for (int k = 0; k < P.items; ++k) {
#pragma unroll
    for (int i = 0; i < V; ++i) y[k][i] = __uint_as_float(0x7fc00000u);
    if (valid && first + k * kStep < a.H) table_values<Table, kTable, V>(a, id, first + k * kStep, y[k]);
  }
#pragma unroll
  for (int k = 0; k < P.items; ++k) {
#pragma unroll
    for (int i = 0; i < V; ++i) y[k][i] *= a.scale;
    if (first + k * kStep >= a.H) continue;
    if constexpr (P.store_vec == V) {
      store<V>(out + first + k * kStep, y[k]);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) out[first + k * kStep + i] = from_float<Out>(y[k][i]);
    }
  }
}

}  // namespace vivace::kernels
