// Rows of W in shared memory, as they lay in global memory -> operands: a trait a storage format. One warp
// holds 16 rows; lane i has rows i / 4 and i / 4 + 8 and, of each 32 elements, 4c .. 4c + 3 and
// 16 + 4c .. 16 + 4c + 3 (c = i % 4), which is what the tensor cores want of x and W alike.
#pragma once
#include "vivace/kernels/gemm/upcast.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/quantize/blocks.cuh"

namespace vivace::kernels {

/// 32 bits at an address that is a multiple of kAlign.
template <int kAlign>
__device__ __forceinline__ uint32_t word_at(const uint8_t* p) {
  if constexpr (kAlign >= 4) return *reinterpret_cast<const uint32_t*>(p);
  if constexpr (kAlign == 2) return __byte_perm(block_u16(p), block_u16(p + 2), 0x5410);
  return p[0] | p[1] << 8 | p[2] << 16 | uint32_t{p[3]} << 24;
}

/// Four 4-bit codes; two bytes, at any address unless kAligned.
template <bool kAligned>
__device__ __forceinline__ uint32_t four_codes(const uint8_t* p) {
  if constexpr (kAligned) return block_u16(p);
  return p[0] | p[1] << 8;
}

/// One row's step of a block format. `codes` gives unsigned codes (q8_0: signed ones), one a byte, of the
/// lane's elements of 32-element group j; `scale` and `min` belong to that group (`half`: 16 of it in q6_k).
/// kZero: what operands() takes off the codes. In formats with a minimum that is the middle of the codes, and the
/// minimum has to make up for it: sums of unsigned codes times x are large and cancel with the minimum's.
template <DType kFormat, bool kAligned>
struct BlockRow;

/// Nibbles with an f16 scale for each 32: q4_0, q4_1, q5_0, q5_1.
template <bool kHigh, bool kMin, bool kAligned>
struct NibbleRow {
  static constexpr int kCodes = 2 + (kMin ? 2 : 0) + (kHigh ? 4 : 0), kBytes = kCodes + 16;
  static constexpr int kAlign = kAligned && kMin ? 4 : 2;
  static constexpr int kZero = kHigh ? 16 : 8;
  const uint8_t* p;
  NibbleRow() = default;
  __device__ __forceinline__ explicit NibbleRow(const uint8_t* row) : p(row) {}
  __device__ __forceinline__ void codes(int j, int c, uint32_t& low, uint32_t& high) const {
    const uint8_t* b = p + j * kBytes;
    // Of two neighbouring 18- or 22-byte blocks one has its codes at a multiple of four.
    const uint32_t q = kAligned && (j * kBytes + kCodes) % 4 == 0 ? word_at<4>(b + kCodes + 4 * c)
                                                                  : word_at<kAlign>(b + kCodes + 4 * c);
    low = q & 0x0f0f0f0fu;
    high = q >> 4 & 0x0f0f0f0fu;
    if constexpr (kHigh) {
      const uint32_t fifth = word_at<kAlign>(b + kCodes - 4) >> (4 * c);
      low |= ((fifth & 15u) * 0x00204081u & 0x01010101u) << 4;  // bit i to byte i
      high |= ((fifth >> 16 & 15u) * 0x00204081u & 0x01010101u) << 4;
    }
  }
  __device__ __forceinline__ float scale(int j, int) const { return block_f16(p + j * kBytes); }
  __device__ __forceinline__ float min(int j) const { return block_f16(p + j * kBytes + 2); }
};
template <bool kAligned>
struct BlockRow<DType::q4_0, kAligned> : NibbleRow<false, false, kAligned> {
  using NibbleRow<false, false, kAligned>::NibbleRow;
};
template <bool kAligned>
struct BlockRow<DType::q4_1, kAligned> : NibbleRow<false, true, kAligned> {
  using NibbleRow<false, true, kAligned>::NibbleRow;
};
template <bool kAligned>
struct BlockRow<DType::q5_0, kAligned> : NibbleRow<true, false, kAligned> {
  using NibbleRow<true, false, kAligned>::NibbleRow;
};
template <bool kAligned>
struct BlockRow<DType::q5_1, kAligned> : NibbleRow<true, true, kAligned> {
  using NibbleRow<true, true, kAligned>::NibbleRow;
};

template <bool kAligned>
struct BlockRow<DType::q8_0, kAligned> {
  static constexpr int kZero = 0;
  const uint8_t* p;
  BlockRow() = default;
  __device__ __forceinline__ explicit BlockRow(const uint8_t* row) : p(row) {}
  __device__ __forceinline__ void codes(int j, int c, uint32_t& low, uint32_t& high) const {
    const uint8_t* q = p + j * 34 + 2 + 4 * c;
    const bool word = kAligned && (j * 34 + 2) % 4 == 0;
    low = word ? word_at<4>(q) : word_at<2>(q);
    high = word ? word_at<4>(q + 16) : word_at<2>(q + 16);
  }
  __device__ __forceinline__ float scale(int j, int) const { return block_f16(p + j * 34); }
  __device__ __forceinline__ float min(int) const { return 0.0f; }
};

/// Nibbles in blocks of 256 with six-bit sub-scales and sub-minima of 32: q4_k, q5_k.
template <bool kHigh, bool kAligned>
struct SuperRow {
  static constexpr int kZero = kHigh ? 16 : 8, kAlign = kAligned ? 4 : 2;
  const uint8_t* p;
  uint32_t scales[2], mins[2];  // of groups 0 .. 3 and 4 .. 7, one a byte
  float d, d_min;
  SuperRow() = default;
  __device__ __forceinline__ explicit SuperRow(const uint8_t* row)
      : p(row), d(block_f16(row)), d_min(-block_f16(row + 2)) {
    const uint32_t a = word_at<kAlign>(row + 4), b = word_at<kAlign>(row + 8), e = word_at<kAlign>(row + 12);
    scales[0] = a & 0x3f3f3f3fu;
    mins[0] = b & 0x3f3f3f3fu;
    scales[1] = (e & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u);
    mins[1] = (e >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u);
  }
  __device__ __forceinline__ void codes(int j, int c, uint32_t& low, uint32_t& high) const {
    const uint8_t* q = p + (kHigh ? 48 : 16) + j / 2 * 32 + 4 * c;
    low = word_at<kAlign>(q) >> (j % 2 * 4) & 0x0f0f0f0fu;
    high = word_at<kAlign>(q + 16) >> (j % 2 * 4) & 0x0f0f0f0fu;
    if constexpr (kHigh) {
      low |= (word_at<kAlign>(p + 16 + 4 * c) >> j & 0x01010101u) << 4;
      high |= (word_at<kAlign>(p + 32 + 4 * c) >> j & 0x01010101u) << 4;
    }
  }
  /// Sub-scales, kZero times, and sub-minima of groups 2c and 2c + 1, exactly.
  __device__ __forceinline__ void pairs(int c, uint32_t& scale, uint32_t& min) const {
    const uint32_t bytes = c % 2 == 0 ? 0x4140u : 0x4342u;  // each below the exponent of 128
    scale = __byte_perm(c < 2 ? scales[0] : scales[1], 0x43434343u, bytes);
    min = __byte_perm(c < 2 ? mins[0] : mins[1], 0x43434343u, bytes);
    constexpr uint32_t kTimes = kZero == 8 ? 0x41004100u : 0x41804180u, kLess = kZero == 8 ? 0xc480c480u : 0xc500c500u;
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(scale) : "r"(kTimes), "r"(kLess));
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(min) : "r"(0x3f803f80u), "r"(0xc300c300u));
  }
  __device__ __forceinline__ float scale(int j, int) const {
    return __fmul_rn(d, static_cast<float>((j < 4 ? scales[0] : scales[1]) >> (j % 4 * 8) & 255u));
  }
  __device__ __forceinline__ float min(int j) const {
    return __fmul_rn(d_min, static_cast<float>((j < 4 ? mins[0] : mins[1]) >> (j % 4 * 8) & 255u));
  }
};
template <bool kAligned>
struct BlockRow<DType::q4_k, kAligned> : SuperRow<false, kAligned> { using SuperRow<false, kAligned>::SuperRow; };
template <bool kAligned>
struct BlockRow<DType::q5_k, kAligned> : SuperRow<true, kAligned> { using SuperRow<true, kAligned>::SuperRow; };

/// Four bits below, two above, a signed scale for each 16.
template <bool kAligned>
struct BlockRow<DType::q6_k, kAligned> {
  static constexpr int kZero = 32;
  const uint8_t* p;
  float d;
  BlockRow() = default;
  __device__ __forceinline__ explicit BlockRow(const uint8_t* row) : p(row), d(block_f16(row + 208)) {}
  __device__ __forceinline__ void codes(int j, int c, uint32_t& low, uint32_t& high) const {
    const int half = j / 4, run = j % 4;
    const uint8_t *q = p + half * 64 + run % 2 * 32 + 4 * c, *top = p + 128 + half * 32 + 4 * c;
    low = (word_at<2>(q) >> (run / 2 * 4) & 0x0f0f0f0fu) | (word_at<2>(top) >> (run * 2) & 0x03030303u) << 4;
    high = (word_at<2>(q + 16) >> (run / 2 * 4) & 0x0f0f0f0fu) | (word_at<2>(top + 16) >> (run * 2) & 0x03030303u) << 4;
  }
  __device__ __forceinline__ float scale(int j, int half) const {
    return __fmul_rn(d, static_cast<float>(static_cast<int8_t>(p[192 + j * 2 + half])));
  }
  __device__ __forceinline__ float min(int) const { return 0.0f; }
};

/// One row's step as operands of Mma, in planes: pairs 0, 1 of the lane's first four elements of group j,
/// pairs 2, 3 of the others.
template <DType kFormat, class Mma, bool kAligned>
struct WeightRow : BlockRow<kFormat, kAligned> {
  using Base = BlockRow<kFormat, kAligned>;
  using Base::Base;
  __device__ __forceinline__ void operands(int j, int c, uint32_t (&out)[1][4]) const {
    uint32_t low, high;
    Base::codes(j, c, low, high);
    if constexpr (kFormat == DType::q8_0) {
      upcast_signed<Mma>(low, out[0][0], out[0][1]);
      upcast_signed<Mma>(high, out[0][2], out[0][3]);
    } else {
      upcast_values<Mma, Base::kZero>(low, out[0][0], out[0][1]);
      upcast_values<Mma, Base::kZero>(high, out[0][2], out[0][3]);
    }
  }
};

/// Bytes without scales of their own.
template <class Mma, bool kAligned>
struct WeightRow<DType::e4m3, Mma, kAligned> {
  const uint8_t* p;
  WeightRow() = default;
  __device__ __forceinline__ explicit WeightRow(const uint8_t* row) : p(row) {}
  __device__ __forceinline__ void operands(int j, int c, uint32_t (&out)[1][4]) const {
    const uint8_t* q = p + j * 32 + 4 * c;
    upcast_e4m3_as<Mma>(word_at<kAligned ? 4 : 1>(q), out[0][0], out[0][1]);
    upcast_e4m3_as<Mma>(word_at<kAligned ? 4 : 1>(q + 16), out[0][2], out[0][3]);
  }
};
template <class Mma, bool kAligned>
struct WeightRow<DType::i8, Mma, kAligned> {
  const uint8_t* p;
  WeightRow() = default;
  __device__ __forceinline__ explicit WeightRow(const uint8_t* row) : p(row) {}
  __device__ __forceinline__ void operands(int j, int c, uint32_t (&out)[1][4]) const {
    const uint8_t* q = p + j * 32 + 4 * c;
    upcast_signed<Mma>(word_at<kAligned ? 4 : 1>(q), out[0][0], out[0][1]);
    upcast_signed<Mma>(word_at<kAligned ? 4 : 1>(q + 16), out[0][2], out[0][3]);
  }
};

/// Two codes of four bits a byte, the lower nibble first, whose scales lie elsewhere.
template <class Mma>
struct HalfByteRow {
  const uint8_t* p;
  HalfByteRow() = default;
  __device__ __forceinline__ explicit HalfByteRow(const uint8_t* row) : p(row) {}
  /// Four neighbours, each nibble in the byte of its number, twice: the odd ones want a shift.
  __device__ __forceinline__ static uint32_t spread(uint32_t four) { return __byte_perm(four, 0, 0x1100); }
};
template <class Mma, bool kAligned>
struct WeightRow<DType::i4, Mma, kAligned> : HalfByteRow<Mma> {
  using HalfByteRow<Mma>::HalfByteRow;
  __device__ __forceinline__ void operands(int j, int c, uint32_t (&out)[1][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t two = this->spread(four_codes<kAligned>(this->p + j * 16 + half * 8 + 2 * c));
      upcast_values<Mma, 8>(((two & 0x000f000fu) | (two >> 4 & 0x0f000f00u)) ^ 0x08080808u, out[0][2 * half],
                            out[0][2 * half + 1]);
    }
  }
};
template <class Mma, bool kAligned>
struct WeightRow<DType::e2m1, Mma, kAligned> : HalfByteRow<Mma> {
  using HalfByteRow<Mma>::HalfByteRow;
  __device__ __forceinline__ void operands(int j, int c, uint32_t (&out)[1][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t four = four_codes<kAligned>(this->p + j * 16 + half * 8 + 2 * c), two = this->spread(four),
                     pick = four & 0x7777u;
      // A table of the eight magnitudes, upper and lower bytes, looked up four codes at a time.
      constexpr bool kHalf = kIsSame<Mma, f16>;
      uint32_t top = kHalf ? __byte_perm(0x3e3c3800u, 0x46444240u, pick) : __byte_perm(0x3f3f3f00u, 0x40404040u, pick);
      const uint32_t low = kHalf ? 0u : __byte_perm(0xc0800000u, 0xc0804000u, pick);
      top |= (two << 4 & 0x00800080u) | (two & 0x80008000u);  // signs
      out[0][2 * half] = __byte_perm(low, top, 0x5140);
      out[0][2 * half + 1] = __byte_perm(low, top, 0x7362);
    }
  }
};

/// Eight signed codes of four bits as pairs, codes 0 and 4 first; of bf16 2^-6 of the value. A code less its sign in
/// the lowest bits of a bf16 is 2^-133 of it, and 16 times that four bits further up, where the exponent's last bit
/// goes on counting: one exact product and sum each. f16 has it in the mantissa of 1024.
template <class Mma>
__device__ __forceinline__ void paired_values(uint32_t q, uint32_t (&out)[4]) {
  constexpr bool kHalf = kIsSame<Mma, f16>;
  constexpr uint32_t kTop = kHalf ? 0x64006400u : 0u;
  const uint32_t later = q >> 8;
  out[0] = masked<0x000f000fu, kTop | 0x00080008u>(q);
  out[1] = masked<0x00f000f0u, kTop | 0x00800080u>(q);
  out[2] = masked<0x000f000fu, kTop | 0x00080008u>(later);
  out[3] = masked<0x00f000f0u, kTop | 0x00800080u>(later);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kHalf) {  // 1024 + 8 off, or a sixteenth with 64 + 8 off
      asm("fma.rn.f16x2 %0, %0, %1, %2;"
          : "+r"(out[i])
          : "r"(i % 2 == 0 ? 0x3c003c00u : 0x2c002c00u), "r"(i % 2 == 0 ? 0xe408e408u : 0xd480d480u));
    } else {  // times 2^127 or 2^123, 8 * 2^-6 off
      asm("fma.rn.bf16x2 %0, %0, %1, %2;"
          : "+r"(out[i])
          : "r"(i % 2 == 0 ? 0x7f007f00u : 0x7d007d00u), "r"(0xbe00be00u));
    }
  }
}

/// Eight e2m1 times a scale, as pairs of bf16, codes 0 and 4 first: `scale` is it times 2^119, twice, and what comes
/// out 2^-7 of the product. A magnitude in the lowest bits of bf16's exponent and the highest of its mantissa is 2^-126
/// of the code's, also where it is subnormal.
__device__ __forceinline__ void scaled_pairs(uint32_t q, uint32_t scale, uint32_t (&out)[4]) {
  // (code & 15) * (2^6 + 2^12): its magnitude at bit 6, its sign at bit 15.
  const uint32_t later = q >> 8;
  out[0] = (q & 0x000f000fu) * 0x1040u;
  out[1] = (q & 0x00f000f0u) * 0x104u;
  out[2] = (later & 0x000f000fu) * 0x1040u;
  out[3] = (later & 0x00f000f0u) * 0x104u;
#pragma unroll
  for (uint32_t& v : out) {
    v &= 0x81c081c0u;
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(v) : "r"(scale), "r"(0x80008000u));
  }
}
/// An e4m3 as scaled_pairs() takes it.
__device__ __forceinline__ uint32_t pair_scale(uint32_t e4m3_bits) {
  uint32_t half, none;
  ptx::upcast_e4m3(e4m3_bits, half, none);
  const float s = to_float(f16{static_cast<uint16_t>(half)}) * 0x1p119f;
  return ptx::pack<bf16>(s, s);
}

/// bf16, f16 and f32: as they are, or cut into planes where they do not fit Mma.
template <class T, class Mma, bool kAligned>
struct PlainRow {
  static constexpr int kPlanes = sizeof(T) == 4 ? 3 : kIsSame<T, Mma> ? 1 : 2;
  const uint8_t* p;
  PlainRow() = default;
  __device__ __forceinline__ explicit PlainRow(const uint8_t* row) : p(row) {}
  __device__ __forceinline__ void operands(int j, int c, uint32_t (&out)[kPlanes][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* from = reinterpret_cast<const T*>(p) + j * 32 + half * 16 + 4 * c;
      const Vec<T, 4> raw = load_raw<kAligned ? 4 : 1, 4>(from);
      uint32_t parts[kPlanes][2];
      if constexpr (kPlanes == 1) {
#pragma unroll
        for (int i = 0; i < 2; ++i) parts[0][i] = uint32_t{raw.v[2 * i].bits} | uint32_t{raw.v[2 * i + 1].bits} << 16;
      } else {
        const float v[4] = {to_float(raw.v[0]), to_float(raw.v[1]), to_float(raw.v[2]), to_float(raw.v[3])};
        split4<Mma, kPlanes>(v, parts);
      }
#pragma unroll
      for (int s = 0; s < kPlanes; ++s) out[s][2 * half] = parts[s][0], out[s][2 * half + 1] = parts[s][1];
    }
  }
};
template <class Mma, bool kAligned>
struct WeightRow<DType::bf16, Mma, kAligned> : PlainRow<bf16, Mma, kAligned> {
  using PlainRow<bf16, Mma, kAligned>::PlainRow;
};
template <class Mma, bool kAligned>
struct WeightRow<DType::f16, Mma, kAligned> : PlainRow<f16, Mma, kAligned> {
  using PlainRow<f16, Mma, kAligned>::PlainRow;
};
template <class Mma, bool kAligned>
struct WeightRow<DType::f32, Mma, kAligned> : PlainRow<float, Mma, kAligned> {
  using PlainRow<float, Mma, kAligned>::PlainRow;
};

}  // namespace vivace::kernels
