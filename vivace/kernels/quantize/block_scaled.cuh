// Rows that leave a kernel as FP4 codes with a scale for each 16 columns, as quantize_block_scaled would write them.
#pragma once
#include "vivace/kernels/quantize/quantize_block_scaled.h"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/nibble.cuh"

namespace vivace::kernels {

/// Scales of row t that belong to no value: all of them beyond the valid rows, the layout's padding before.
/// Threads `thread` of `threads` share the work.
__device__ __forceinline__ void zero_block_scaled_scales(const BlockScaledArgs& a, int64_t t, bool valid, int thread,
                                                         int threads) {
  const int blocks = a.H / kBlockScaledGroup, pitch = a.layout == ScaleLayout::swizzled ? (blocks + 3) / 4 * 4 : blocks;
  for (int b = (valid ? blocks : 0) + thread; b < pitch; b += threads)
    static_cast<e4m3*>(a.scales)[fp4_scale_at(t, b, blocks, a.layout)] = e4m3{0};
}

/// Columns [col, col + 8) of row t. Two neighbouring lanes hold a block: both call, the even one with its first
/// half. kAligned: packed rows allow accesses of 4 bytes.
template <bool kAligned>
__device__ __forceinline__ void store_block_scaled(const BlockScaledArgs& a, int64_t t, int col, float tensor,
                                                   const float (&y)[8]) {
  float amax = 0;
#pragma unroll
  for (float v : y) amax = fmaxf(amax, fabsf(v));
  const uint32_t pair = 3u << (threadIdx.x % 32 & ~1u);
  amax = fmaxf(amax, __shfl_xor_sync(pair, amax, 1));
  const e4m3 code = from_float<e4m3>(amax / 6.0f / tensor);
  const float d = to_float(code) * tensor, inv = d >= 0x1p-126f ? 1.0f / d : 0.0f;
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) word |= nibble_of(y[i] * inv) << (i * 4);
  uint8_t* out = static_cast<uint8_t*>(a.packed) + t * a.packed_stride + col / 2;
  if constexpr (kAligned) {
    *reinterpret_cast<uint32_t*>(out) = word;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = static_cast<uint8_t>(word >> (i * 8));
  }
  if (threadIdx.x % 2 == 0)
    static_cast<e4m3*>(a.scales)[fp4_scale_at(t, col / kBlockScaledGroup, a.H / kBlockScaledGroup, a.layout)] = code;
}

}  // namespace vivace::kernels
