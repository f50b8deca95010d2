// Quantized weights as the operands of wgmma that lie in registers: pairs of bf16, each value rounded once.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/gemm/upcast.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/wgmma_held.cuh"

namespace vivace::kernels {

/// Eight codes of q4_0 as pairs of bf16, codes 0 and 4 first: 2^-6 of code - 8, exactly. A code in the lowest bits of
/// a bf16 is 2^-133 of it, and 16 times that four bits further up, where the exponent's last bit goes on counting.
__device__ __forceinline__ void code_pairs(uint32_t q, uint32_t (&out)[4]) {
  const uint32_t later = q >> 8;
  out[0] = q & 0x000f000fu;
  out[1] = q & 0x00f000f0u;
  out[2] = later & 0x000f000fu;
  out[3] = later & 0x00f000f0u;
#pragma unroll
  for (int i = 0; i < 4; ++i)  // times 2^127 or 2^123, 8 * 2^-6 off
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(out[i]) : "r"(i % 2 == 0 ? 0x7f007f00u : 0x7d007d00u), "r"(0xbe00be00u));
}

/// A scale as two bf16 whose sum it is, each twice: f16 has eleven significant bits, of which the second gets three.
struct SplitScale {
  /// What sums of code_pairs() have to be multiplied by.
  __device__ __forceinline__ static constexpr float lift() { return 64.0f; }
  uint32_t high, low;
  __device__ __forceinline__ explicit SplitScale(uint32_t f16_bits) {
    const float s = to_float(f16{static_cast<uint16_t>(f16_bits)});
    high = ptx::pack<bf16>(s, s);
    const float rest = s - __uint_as_float(high & 0xffff0000u);
    low = ptx::pack<bf16>(rest, rest);
  }
  /// Times a pair of four-bit codes, rounded once: their product with `low` is exact.
  __device__ __forceinline__ uint32_t times(uint32_t pair) const {
    uint32_t rest, out;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(rest) : "r"(pair), "r"(low));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(pair), "r"(high), "r"(rest));
    return out;
  }
};

/// How the warps of a warpgroup read their 64 rows of W out of shared memory, kElements of K a copy, kRowBytes a row. A
/// lane has rows i / 4 and i / 4 + 8 of its warp's 16 and, of each 16 elements, pairs 2c and 2c + 8 on (c = i % 4).
///   place()      where a lane's bytes begin, from the copy's first row on
///   dequantize() 64 elements, `half` of the copy's `pair` of such runs, of a lane whose bytes begin at `own`: the
///                operands of four products, each value rounded once; GemmMixedInput::lift() makes up for its size
/// A partial specialization a format: what is no template has its constants in every kernel that sees it.
template <DType W, class = void>
struct HeldWeights;

/// Blocks as they are stored: 4 or 12 words more a row than a multiple of 32, so that eight rows meet in no bank.
template <int kBytes, int kK = 256>
struct HeldBlocks {
  enum : int { kElements = kK, kRowBytes = kBytes };  // no variables: as above
  __device__ __forceinline__ static uint32_t place() {
    return threadIdx.x / 128 * (64 * kRowBytes) + (threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) * kRowBytes +
           threadIdx.x % 4 * 2;
  }
  /// Of the row, not of the lane: what lies `bytes` behind the row's first.
  __device__ __forceinline__ static uint32_t of_row(uint32_t own, int bytes) {
    return own + bytes - threadIdx.x % 4 * 2;
  }
  /// Two pairs of bytes, eight apart.
  __device__ __forceinline__ static uint32_t four_bytes(uint32_t from) {
    return __byte_perm(ptx::load_half_word(from), ptx::load_half_word(from + 8), 0x5410);
  }
};

template <class V>
struct HeldWeights<DType::q4_0, V> : HeldBlocks<144> {
  static constexpr int kPairBytes = 4 * 18;
  __device__ __forceinline__ static void dequantize(uint32_t own, int pair, int half, uint32_t (&w)[4][4]) {
    own += pair * kPairBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int b = 0; b < 2; ++b) {  // of 32: a byte has elements 16 apart
        const uint32_t block = own + i * 8 * kRowBytes + (2 * half + b) * 18;
        const SplitScale scale(ptx::load_half_word(of_row(block, 0)));
        uint32_t pairs[4];
        code_pairs(__byte_perm(ptx::load_half_word(block + 2), ptx::load_half_word(block + 10), 0x5140), pairs);
#pragma unroll
        for (int j = 0; j < 4; ++j) w[2 * b + j % 2][i + j / 2 * 2] = scale.times(pairs[j]);
      }
  }
};

/// Two bf16 times a scale, and a minimum added.
__device__ __forceinline__ uint32_t scaled_pair(uint32_t two, float scale) {
  return ptx::pack<bf16>(__fmul_rn(__uint_as_float(two << 16), scale),
                         __fmul_rn(__uint_as_float(two & 0xffff0000u), scale));
}
__device__ __forceinline__ uint32_t scaled_pair(uint32_t two, float scale, float min) {
  return ptx::pack<bf16>(__fmaf_rn(__uint_as_float(two << 16), scale, min),
                         __fmaf_rn(__uint_as_float(two & 0xffff0000u), scale, min));
}

template <class V>
struct HeldWeights<DType::q8_0, V> : HeldBlocks<272> {
  static constexpr int kPairBytes = 4 * 34;
  __device__ __forceinline__ static void dequantize(uint32_t own, int pair, int half, uint32_t (&w)[4][4]) {
    own += pair * kPairBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const uint32_t block = own + i * 8 * kRowBytes + (2 * half + b) * 34;
        const float scale = to_float(f16{static_cast<uint16_t>(ptx::load_half_word(of_row(block, 0)))});
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          uint32_t first, second;
          upcast_signed<bf16>(four_bytes(block + 2 + 16 * q), first, second);
          w[2 * b + q][i] = scaled_pair(first, scale), w[2 * b + q][i + 2] = scaled_pair(second, scale);
        }
      }
  }
};

template <class V>
struct HeldWeights<DType::q4_k, V> : HeldBlocks<144> {  // a block a row: its scales and minima, then 32 bytes a run
  __device__ __forceinline__ static void dequantize(uint32_t own, int pair, int half, uint32_t (&w)[4][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t row = own + i * 8 * kRowBytes, codes = row + 16 + (2 * pair + half) * 32;
      const float d = to_float(f16{static_cast<uint16_t>(ptx::load_half_word(of_row(row, 0)))}),
                  d_min = -to_float(f16{static_cast<uint16_t>(ptx::load_half_word(of_row(row, 2)))});
      // Six bits each, as SuperRow has them: of the pair's four groups of 32, one a byte.
      const uint32_t a = ptx::load_word(of_row(row, 4)), b = ptx::load_word(of_row(row, 8)),
                     e = ptx::load_word(of_row(row, 12));
      const uint32_t scales = pair == 0 ? a & 0x3f3f3f3fu : (e & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u),
                     mins = pair == 0 ? b & 0x3f3f3f3fu : (e >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u);
      float scale[2], min[2];
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int shift = (2 * half + g) * 8;
        scale[g] = __fmul_rn(d, static_cast<float>(scales >> shift & 255u));
        min[g] = __fmaf_rn(8.0f, scale[g], __fmul_rn(d_min, static_cast<float>(mins >> shift & 255u)));
      }
#pragma unroll
      for (int q = 0; q < 2; ++q) {  // a byte has elements 32 apart
        const uint32_t four = four_bytes(codes + 16 * q);
#pragma unroll
        for (int g = 0; g < 2; ++g) {
          uint32_t first, second;
          upcast_values<bf16, 8>((g == 0 ? four : four >> 4) & 0x0f0f0f0fu, first, second);
          w[2 * g + q][i] = scaled_pair(first, scale[g], min[g]),
                    w[2 * g + q][i + 2] = scaled_pair(second, scale[g], min[g]);
        }
      }
    }
  }
};

template <class V>
struct HeldWeights<DType::q6_k, V> : HeldBlocks<432, 512> {  // two blocks a row, 420 bytes, and what TMA brings beside
  __device__ __forceinline__ static constexpr float lift() { return 1.0f; }
  __device__ __forceinline__ static void dequantize(uint32_t own, int pair, int half, uint32_t (&w)[4][4]) {
    const int part = pair % 2;  // of a block's 256 elements the first or second 128, whose low or high nibbles it is
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t block = own + i * 8 * kRowBytes + pair / 2 * 210, codes = block + part * 64,
                     tops = block + 128 + part * 32;
      const float d = to_float(f16{static_cast<uint16_t>(ptx::load_half_word(of_row(block, 208)))});
      // A signed scale for each 16 elements.
      const uint32_t first = of_row(block, 192 + part * 8 + half * 4);
      const uint32_t scales = __byte_perm(ptx::load_half_word(first), ptx::load_half_word(first + 2), 0x5410);
#pragma unroll
      for (int q = 0; q < 4; ++q) {  // q / 2: of 32 elements
        const uint32_t four = four_bytes(codes + q * 16) >> (half * 4) & 0x0f0f0f0fu,
                       top = four_bytes(tops + q % 2 * 16) >> (half * 4 + q / 2 * 2) & 0x03030303u;
        const float scale = __fmul_rn(d, static_cast<float>(static_cast<int8_t>(scales >> (q * 8))));
        uint32_t low, high;
        upcast_values<bf16, 32>(four | top << 4, low, high);
        w[q][i] = scaled_pair(low, scale), w[q][i + 2] = scaled_pair(high, scale);
      }
    }
  }
};

/// Bytes without scales of their own, in TMA's swizzle.
template <DType W>
struct HeldBytes {
  enum : int { kElements = 128, kRowBytes = 128 };
  __device__ __forceinline__ static uint32_t place() {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    return threadIdx.x / 128 * (64 * kRowBytes) + row * kRowBytes + threadIdx.x % 4 * 2 + row % 8 * 16;
  }
  __device__ __forceinline__ static void dequantize(uint32_t own, int, int half, uint32_t (&w)[4][4]) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const uint32_t from = own ^ ((4 * half + q) * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t two = ptx::load_half_word(from + i % 2 * 1024 + i / 2 * 8);
        uint32_t none;
        if constexpr (W == DType::e4m3) upcast_e4m3_as<bf16>(two, w[q][i], none);
        else upcast_signed<bf16>(two, w[q][i], none);
      }
    }
  }
};

/// NVFP4: 128 bytes in TMA's swizzle, and of a lane's rows the scales of 256 elements.
template <class V>
struct HeldWeights<DType::e2m1, V> {
  static constexpr int kElements = 256, kRowBytes = 128;
  uint4 scales[2];  // a byte for each 16
  __device__ __forceinline__ static uint32_t place() {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    return threadIdx.x / 128 * (64 * kRowBytes) + row * kRowBytes + threadIdx.x % 4 + row % 8 * 16;
  }
  __device__ __forceinline__ void dequantize(uint32_t own, int pair, int half, uint32_t (&w)[4][4]) const {
    const uint32_t from = own ^ (pair * 64 + half * 32);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t four =
          half == 0 ? (pair == 0 ? scales[i].x : scales[i].z) : (pair == 0 ? scales[i].y : scales[i].w);
      uint32_t halves[2];
      ptx::upcast_e4m3(four, halves[0], halves[1]);
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const float s = to_float(f16{static_cast<uint16_t>(halves[q / 2] >> (q % 2 * 16))}) * 0x1p119f;
        const uint32_t scale = ptx::pack<bf16>(s, s), bytes = (from ^ (q / 2 * 16)) + i * 1024 + q % 2 * 8;
        w[q][i] = scaled_byte(ptx::load_byte(bytes), scale),
        w[q][i + 2] = scaled_byte(ptx::load_byte(bytes + 4), scale);
      }
    }
  }
  /// Its two codes, as scaled_pairs() has them.
  __device__ __forceinline__ static uint32_t scaled_byte(uint32_t byte, uint32_t scale) {
    uint32_t v = (byte * 0x1001u & 0x000f000fu) * 0x1040u & 0x81c081c0u;
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(v) : "r"(scale), "r"(0x80008000u));
    return v;
  }
};

template <class V>
struct HeldWeights<DType::e4m3, V> : HeldBytes<DType::e4m3> {};
template <class V>
struct HeldWeights<DType::i8, V> : HeldBytes<DType::i8> {};

}  // namespace vivace::kernels
