// dequantize_block_scaled on CUDA: formula in vivace/ops/dequantize_block_scaled.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/quantize/dequantize_block_scaled.h"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/nibble.cuh"

namespace vivace::kernels {

/// Grid: all 16-blocks by `threads`. Moves 9/16 + Out bytes a value.
template <class Out, BlockScaledPolicy P>
__global__ void __launch_bounds__(P.threads) dequantize_block_scaled(const __grid_constant__ BlockScaledArgs a) {
  constexpr int V = P.vec;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const uint32_t blocks = static_cast<uint32_t>(a.H) / kBlockScaledGroup;
  const int64_t unit = int64_t{blockIdx.x} * P.threads + threadIdx.x, t = unit / blocks;
  const int b = static_cast<int>(unit - t * blocks);
  if (t >= valid_rows(a.rows, a.T)) return;
  const uint8_t* in =
      static_cast<const uint8_t*>(a.packed) + t * a.packed_stride + int64_t{b} * (kBlockScaledGroup / 2);
  uint32_t word[2] = {};
  if constexpr (V > 1) {
    const auto raw = *reinterpret_cast<const Vec<uint32_t, 2>*>(in);
    word[0] = raw.v[0], word[1] = raw.v[1];
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) word[i / 4] |= uint32_t{in[i]} << (i % 4 * 8);
  }
  const float d = to_float(static_cast<const e4m3*>(a.scales)[fp4_scale_at(t, b, blocks, a.layout)]) * *a.tensor_scale;
  Out* out = static_cast<Out*>(a.values) + t * a.values_stride + int64_t{b} * kBlockScaledGroup;
#pragma unroll
  for (int k = 0; k < kBlockScaledGroup / V; ++k) {
    float v[V];
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = float_of_nibble(word[(k * V + i) / 8] >> ((k * V + i) % 8 * 4)) * d;
    store<V>(out + k * V, v);
  }
}

}  // namespace vivace::kernels
