// Weights of block formats as operands of wgmma that lie in registers: pairs of bf16, each value rounded once.
#pragma once
#include "vivace/kernels/gemm/upcast.cuh"
#include "vivace/kernels/ptx/pack.cuh"

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

}  // namespace vivace::kernels
