// quantize_block_scaled on CUDA: formula in vivace/ops/quantize_block_scaled.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/quantize/quantize_block_scaled.h"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/nibble.cuh"

namespace vivace::kernels {

/// Grid: all 16-blocks, those of the swizzled layout's padding included, by `threads`.
/// Moves In + 9/16 bytes a value. A thread owns its block: no shuffle, no shared memory.
template <class In, BlockScaledPolicy P>
__global__ void __launch_bounds__(P.threads) quantize_block_scaled(const __grid_constant__ BlockScaledArgs a) {
  constexpr int V = P.vec, kAccesses = kBlockScaledGroup / V;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int blocks = a.H / kBlockScaledGroup;
  const bool swizzled = a.layout == ScaleLayout::swizzled;
  const uint32_t pitch = static_cast<uint32_t>(swizzled ? (blocks + 3) / 4 * 4 : blocks);
  const int64_t unit = int64_t{blockIdx.x} * P.threads + threadIdx.x, t = unit / pitch;
  const int b = static_cast<int>(unit - t * pitch);
  if (t >= (swizzled ? (int64_t{a.T} + 127) / 128 * 128 : a.T)) return;
  e4m3* scale = static_cast<e4m3*>(a.scales) + fp4_scale_at(t, b, blocks, a.layout);
  if (t >= valid_rows(a.rows, a.T) || b >= blocks) {
    *scale = e4m3{0};
    return;
  }
  const In* x = static_cast<const In*>(a.values) + t * a.values_stride + int64_t{b} * kBlockScaledGroup;
  float v[kAccesses][V];
#pragma unroll
  for (int k = 0; k < kAccesses; ++k) load<V>(x + k * V, v[k]);
  const float tensor = *a.tensor_scale;
  float amax = 0;
#pragma unroll
  for (int i = 0; i < kBlockScaledGroup; ++i) amax = fmaxf(amax, fabsf(v[i / V][i % V]));
  const e4m3 code = from_float<e4m3>(amax / 6.0f / tensor);
  *scale = code;
  const float d = to_float(code) * tensor;
  const float inv = d >= 0x1p-126f ? 1.0f / d : 0.0f;
  uint32_t word[2] = {};
#pragma unroll
  for (int i = 0; i < kBlockScaledGroup; ++i) word[i / 8] |= nibble_of(v[i / V][i % V] * inv) << (i % 8 * 4);
  uint8_t* out = static_cast<uint8_t*>(a.packed) + t * a.packed_stride + int64_t{b} * (kBlockScaledGroup / 2);
  if constexpr (V > 1) {
    *reinterpret_cast<Vec<uint32_t, 2>*>(out) = Vec<uint32_t, 2>{{word[0], word[1]}};
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = static_cast<uint8_t>(word[i / 4] >> (i % 4 * 8));
  }
}

}  // namespace vivace::kernels
