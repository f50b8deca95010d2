// Codes and elements in registers -> operands of the tensor cores, exactly.
#pragma once
#include "vivace/kernels/ptx/mma.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// a - b for two pairs of bf16 or f16; exact here, as every use subtracts what a dequantizing has added.
template <class Mma>
__device__ __forceinline__ uint32_t minus2(uint32_t a, uint32_t b);
template <>
__device__ __forceinline__ uint32_t
minus2<bf16>(uint32_t a, uint32_t b) {  // as a product with 1: chips before Hopper subtract no bf16
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(a) : "r"(0x3f803f80u), "r"(b ^ 0x80008000u));
  return a;
}
template <>
__device__ __forceinline__ uint32_t minus2<f16>(uint32_t a, uint32_t b) {
  asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}

/// a + b for two pairs of bf16; exact here too.
__device__ __forceinline__ uint32_t plus2(uint32_t a, uint32_t b) {
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(a) : "r"(0x3f803f80u), "r"(b));
  return a;
}
/// v & kMask ^ kXor as one instruction: two constants keep the compiler from seeing that.
template <uint32_t kMask, uint32_t kXor>
__device__ __forceinline__ uint32_t masked(uint32_t v) {
  asm("lop3.b32 %0, %0, %1, %2, 0x6a;" : "+r"(v) : "n"(kMask), "n"(kXor));
  return v;
}

/// Bytes 0, 1 and bytes 2, 3 of `codes`, each below a byte `top`.
__device__ __forceinline__ void under(uint32_t codes, uint32_t top, uint32_t& low, uint32_t& high) {
  low = __byte_perm(codes, top, 0x4140);
  high = __byte_perm(codes, top, 0x4342);
}

/// Four unsigned codes below 128 (bf16) or 256 (f16), less kZero, as two pairs: a code is put into the
/// mantissa of 128 or 1024, whose last bit is worth one, and that is subtracted again.
template <class Mma, int kZero>
__device__ __forceinline__ void upcast_values(uint32_t codes, uint32_t& low, uint32_t& high) {
  constexpr bool kHalf = sizeof(Mma) == 2 && kIsSame<Mma, f16>;
  under(codes, kHalf ? 0x64646464u : 0x43434343u, low, high);
  constexpr uint32_t kOne = kHalf ? 0x6400u + kZero : 0x4300u + kZero, kBoth = kOne << 16 | kOne;
  low = minus2<Mma>(low, kBoth);
  high = minus2<Mma>(high, kBoth);
}

/// Four signed bytes as two pairs.
template <class Mma>
__device__ __forceinline__ void upcast_signed(uint32_t bytes, uint32_t& low, uint32_t& high);
template <>
__device__ __forceinline__ void upcast_signed<f16>(uint32_t bytes, uint32_t& low, uint32_t& high) {
  upcast_values<f16, 128>(bytes ^ 0x80808080u, low, high);
}
template <>
__device__ __forceinline__ void upcast_signed<bf16>(uint32_t bytes, uint32_t& low, uint32_t& high) {
  const uint32_t pair[2] = {__byte_perm(bytes, 0, 0x4140), __byte_perm(bytes, 0, 0x4342)};  // each byte under a zero
  uint32_t wide[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // less 128, or less 256 under a sign: 0x80 is the exponent's last bit
    wide[i] = plus2(masked<0x007f007fu, 0x43004300u>(pair[i]), masked<0x00800080u, 0xc300c300u>(pair[i]));
  }
  low = wide[0];
  high = wide[1];
}

/// Four e4m3 as two pairs.
template <class Mma>
__device__ __forceinline__ void upcast_e4m3_as(uint32_t four, uint32_t& low, uint32_t& high);
template <>
__device__ __forceinline__ void upcast_e4m3_as<f16>(uint32_t four, uint32_t& low, uint32_t& high) {
  ptx::upcast_e4m3(four, low, high);
}
template <>
__device__ __forceinline__ void upcast_e4m3_as<bf16>(uint32_t four, uint32_t& low, uint32_t& high) {
#if __CUDA_ARCH__ >= 890
  uint32_t half[2], pair[2];
  ptx::upcast_e4m3(four, half[0], half[1]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float first = to_float(f16{static_cast<uint16_t>(half[i])}),
                second = to_float(f16{static_cast<uint16_t>(half[i] >> 16)});
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair[i]) : "f"(second), "f"(first));
  }
#else
  // Magnitude bits in bf16's places are the value times 2^-120: one exact product restores it, subnormals included.
  uint32_t pair[2] = {__byte_perm(four, 0, 0x1404), __byte_perm(four, 0, 0x3424)};  // each byte on top of a zero
#pragma unroll
  for (uint32_t& p : pair) {
    const uint32_t magnitude = p >> 4 & 0x07f007f0u, sign = p & 0x80008000u;
    uint32_t wide = magnitude;
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(wide) : "r"(0x7b807b80u), "r"(0u));  // 2^120
    if ((magnitude & 0x07f0u) == 0x07f0u) wide |= 0x00007fc0u;  // 0x7f is NaN
    if ((magnitude & 0x07f00000u) == 0x07f00000u) wide |= 0x7fc00000u;
    p = wide | sign;
  }
#endif
  low = pair[0];
  high = pair[1];
}

/// A f32 as three bf16 whose sum it is: cut, not rounded, so that no part overflows. Infinity and NaN stay
/// in the first.
struct Planes3 {
  uint32_t part[3];  // in the upper halves
  __device__ __forceinline__ explicit Planes3(float v) {
    part[0] = __float_as_uint(v) & 0xffff0000u;
    if ((part[0] & 0x7f800000u) == 0x7f800000u) {
      if (v != v) part[0] |= 0x00400000u;  // a NaN whose only bits lie below
      part[1] = part[2] = 0;
      return;
    }
    const float rest = v - __uint_as_float(part[0]);
    part[1] = __float_as_uint(rest) & 0xffff0000u;
    part[2] = __float_as_uint(rest - __uint_as_float(part[1])) & 0xffff0000u;
  }
};

/// Four values as pairs of Mma in kPlanes planes: [plane][pair].
template <class Mma, int kPlanes>
__device__ __forceinline__ void split4(const float (&v)[4], uint32_t (&out)[kPlanes][2]) {
  if constexpr (kPlanes == 1) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      out[0][i] = uint32_t{from_float<Mma>(v[2 * i]).bits} | uint32_t{from_float<Mma>(v[2 * i + 1]).bits} << 16;
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Planes3 a(v[2 * i]), b(v[2 * i + 1]);
#pragma unroll
      for (int p = 0; p < kPlanes; ++p) out[p][i] = __byte_perm(a.part[p], b.part[p], 0x7632);
    }
  }
}

}  // namespace vivace::kernels
