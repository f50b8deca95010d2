// GGUF block formats in device memory -> f32, eight elements at a time. Layouts as in DType; the same
// roundings as the CPU's dequantize_row, to the bit: no product is fused into a sum.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Blocks are 2-byte aligned at best (18, 22, 34, 210 bytes): wider loads are put together from halves.
__device__ __forceinline__ uint32_t block_u16(const uint8_t* p) { return *reinterpret_cast<const uint16_t*>(p); }
__device__ __forceinline__ uint32_t block_u32(const uint8_t* p) { return block_u16(p) | block_u16(p + 2) << 16; }
__device__ __forceinline__ float block_f16(const uint8_t* p) {
  return to_float(f16{static_cast<uint16_t>(block_u16(p))});
}

/// Codes of eight neighbouring elements, one a byte.
struct Codes8 {
  uint32_t lo, hi;
  __device__ __forceinline__ int operator[](int i) const {
    return static_cast<int>((i < 4 ? lo : hi) >> (i % 4 * 8) & 255u);
  }
};

/// Nibble `high` (0 or 1) of eight bytes.
__device__ __forceinline__ Codes8 block_nibbles(const uint8_t* p, int high) {
  return {block_u32(p) >> (4 * high) & 0x0f0f0f0fu, block_u32(p + 4) >> (4 * high) & 0x0f0f0f0fu};
}

/// q4_0, q4_1, q5_0, q5_1: f16 scale, f16 minimum (kMin), 32 fifth bits (kHigh), 16 bytes of nibbles, the
/// first 16 elements in the low ones.
template <bool kHigh, bool kMin>
__device__ __forceinline__ void decode_nibbles32(const uint8_t* b, int e, float (&y)[8]) {
  constexpr int kCodes = 2 + (kMin ? 2 : 0) + (kHigh ? 4 : 0), kZero = kMin ? 0 : (kHigh ? 16 : 8);
  const float d = block_f16(b), m = kMin ? block_f16(b + 2) : 0.0f;
  const Codes8 q = block_nibbles(b + kCodes + e % 16, e / 16);
  const uint32_t fifth = kHigh ? block_u32(b + kCodes - 4) >> e : 0u;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int code = q[i] | static_cast<int>((fifth >> i & 1u) << 4);
    y[i] = __fadd_rn(__fmul_rn(static_cast<float>(code - kZero), d), m);
  }
}

/// Sub-scale and sub-minimum `j` of eight, six bits each, in 12 bytes.
__device__ __forceinline__ void block_scale_min(const uint8_t* s, int j, int* scale, int* min) {
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = (s[j + 4] & 15) | (s[j - 4] >> 6 << 4);
    *min = (s[j + 4] >> 4) | (s[j] >> 6 << 4);
  }
}

/// q4_k, q5_k: f16 d, f16 dmin, 12 bytes of sub-scales, 32 of fifth bits (kHigh), 128 of nibbles.
template <bool kHigh>
__device__ __forceinline__ void decode_nibbles256(const uint8_t* b, int e, float (&y)[8]) {
  const int j = e / 32, l = e % 32;  // sub-block, place in it
  int sub_scale, sub_min;
  block_scale_min(b + 4, j, &sub_scale, &sub_min);
  const float scale = __fmul_rn(block_f16(b), static_cast<float>(sub_scale)),
              min = __fmul_rn(block_f16(b + 2), static_cast<float>(sub_min));
  Codes8 q = block_nibbles(b + (kHigh ? 48 : 16) + j / 2 * 32 + l, j % 2);
  if constexpr (kHigh) {
    q.lo |= (block_u32(b + 16 + l) >> j & 0x01010101u) << 4;
    q.hi |= (block_u32(b + 20 + l) >> j & 0x01010101u) << 4;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = __fadd_rn(__fmul_rn(static_cast<float>(q[i]), scale), -min);
}

__device__ __forceinline__ void decode_q8_0(const uint8_t* b, int e, float (&y)[8]) {
  const float d = block_f16(b);
  const Codes8 q{block_u32(b + 2 + e), block_u32(b + 6 + e)};
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = __fmul_rn(static_cast<float>(static_cast<int8_t>(q[i])), d);
}

/// 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed sub-scales of 16 elements, f16 d. Each half
/// of 128 elements is four runs of 32: nibble bytes l and l + 32, low then high; bit pair r of byte l.
__device__ __forceinline__ void decode_q6_k(const uint8_t* b, int e, float (&y)[8]) {
  const int half = e / 128, run = e % 128 / 32, l = e % 32;
  Codes8 q = block_nibbles(b + half * 64 + run % 2 * 32 + l, run / 2);
  q.lo |= (block_u32(b + 128 + half * 32 + l) >> (run * 2) & 0x03030303u) << 4;
  q.hi |= (block_u32(b + 132 + half * 32 + l) >> (run * 2) & 0x03030303u) << 4;
  const int sub_scale = static_cast<int8_t>(b[192 + half * 8 + run * 2 + l / 16]);
  const float scale = __fmul_rn(block_f16(b + 208), static_cast<float>(sub_scale));
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = __fmul_rn(static_cast<float>(q[i] - 32), scale);
}

/// Elements e .. e + 7 of the block at `b`; e is a multiple of 8 within the block.
template <DType kFormat>
__device__ __forceinline__ void decode8(const uint8_t* b, int e, float (&y)[8]) {
  static_assert(is_block(kFormat));
  if constexpr (kFormat == DType::q4_0) decode_nibbles32<false, false>(b, e, y);
  if constexpr (kFormat == DType::q4_1) decode_nibbles32<false, true>(b, e, y);
  if constexpr (kFormat == DType::q5_0) decode_nibbles32<true, false>(b, e, y);
  if constexpr (kFormat == DType::q5_1) decode_nibbles32<true, true>(b, e, y);
  if constexpr (kFormat == DType::q8_0) decode_q8_0(b, e, y);
  if constexpr (kFormat == DType::q4_k) decode_nibbles256<false>(b, e, y);
  if constexpr (kFormat == DType::q5_k) decode_nibbles256<true>(b, e, y);
  if constexpr (kFormat == DType::q6_k) decode_q6_k(b, e, y);
}

}  // namespace vivace::kernels
