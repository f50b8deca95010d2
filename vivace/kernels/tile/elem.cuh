// Element types in device memory and their conversion to f32, by the chip's own instructions where it
// has them. No toolkit header: NVRTC compiles this with nothing but Vivace's own sources.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

/// Whether A and B are one type. NVRTC has no __is_same.
template <class A, class B>
inline constexpr bool kIsSame = false;
template <class A>
inline constexpr bool kIsSame<A, A> = true;

// Storage only; arithmetic is f32.
struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };
struct e4m3 { uint8_t bits; };
struct e5m2 { uint8_t bits; };

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(bf16 v) { return __uint_as_float(uint32_t{v.bits} << 16); }
__device__ __forceinline__ float to_float(f16 v) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits));
  return r;
}
__device__ __forceinline__ float to_float(e4m3 v) {
#if __CUDA_ARCH__ >= 890
  uint32_t pair;  // two f16
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(uint16_t{v.bits}));
  return to_float(f16{static_cast<uint16_t>(pair)});
#else
  // The seven magnitude bits, moved to f32's places, are the value times 2^-120: one exact product
  // restores it, subnormals included. 0x7f is NaN.
  const float r = __uint_as_float((v.bits & 0x7fu) << 20) * 0x1p120f;
  return (v.bits & 0x7fu) == 0x7fu ? __uint_as_float(0x7fc00000u) : (v.bits & 0x80u) ? -r : r;
#endif
}

/// e5m2 is the upper half of an f16.
__device__ __forceinline__ float to_float(e5m2 v) {
  return to_float(f16{static_cast<uint16_t>(uint16_t{v.bits} << 8)});
}

/// f32 -> T, round to nearest even; e4m3 saturates at +-448, e5m2 at +-57344, and both keep NaN.
template <class T>
__device__ __forceinline__ T from_float(float f);

template <>
__device__ __forceinline__ float from_float<float>(float f) { return f; }
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float f) {
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(f));
  return r;
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float f) {
  f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(f));
  return r;
}
template <>
__device__ __forceinline__ e4m3 from_float<e4m3>(float f) {
#if __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));  // first source is the high half
  return e4m3{static_cast<uint8_t>(pair)};
#else
  const uint32_t u = __float_as_uint(f), mag = u & 0x7fffffffu;
  const uint8_t sign = static_cast<uint8_t>((u >> 24) & 0x80u);
  if (mag > 0x7f800000u) return e4m3{static_cast<uint8_t>(sign | 0x7fu)};
  if (mag >= 0x43e80000u) return e4m3{static_cast<uint8_t>(sign | 0x7eu)};  // 464 and above: half a step over 448
  uint32_t code;
  if (mag < 0x3c800000u) {  // below 2^-6: subnormals are multiples of 2^-9, rounded by the adder
    code = __float_as_uint(__uint_as_float(mag) + 16384.0f) - 0x46800000u;
  } else {
    const uint32_t rounded = mag + 0x7ffffu + ((mag >> 20) & 1u);  // to three mantissa bits, ties to even
    code = (rounded >> 20) - (120u << 3);
  }
  return e4m3{static_cast<uint8_t>(sign | code)};
#endif
}

template <>
__device__ __forceinline__ e5m2 from_float<e5m2>(float f) {
#if __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));
  return e5m2{static_cast<uint8_t>(pair)};
#else
  const uint32_t u = __float_as_uint(f), mag = u & 0x7fffffffu;
  const uint8_t sign = static_cast<uint8_t>((u >> 24) & 0x80u);
  if (mag > 0x7f800000u) return e5m2{static_cast<uint8_t>(sign | 0x7fu)};
  if (mag >= 0x47700000u) return e5m2{static_cast<uint8_t>(sign | 0x7bu)};  // 61440 and above: half a step over 57344
  uint32_t code;
  if (mag < 0x38800000u) {  // below 2^-14: subnormals are multiples of 2^-16, rounded by the adder
    code = __float_as_uint(__uint_as_float(mag) + 128.0f) - 0x43000000u;
  } else {
    const uint32_t rounded = mag + 0xfffffu + ((mag >> 21) & 1u);  // to two mantissa bits, ties to even
    code = (rounded >> 21) - (112u << 2);
  }
  return e5m2{static_cast<uint8_t>(sign | code)};
#endif
}

/// N elements that move as one access; N * sizeof(T) is 1, 2, 4, 8 or 16 bytes (larger ones split).
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vec {
  T v[N];
};

/// Whether N elements travel between memory and registers as words: single bytes, which the compiler takes apart
/// and joins again one by one, would cost more than their conversion.
template <class T, int N>
inline constexpr bool kByWords = kIsSame<T, e4m3> && N % 4 == 0
#if __CUDA_ARCH__ < 890
                                 && false
#endif
    ;

/// All of them as f32.
template <class T, int N>
__device__ __forceinline__ void to_floats(const Vec<T, N>& raw, float (&out)[N]) {
  if constexpr (kIsSame<T, bf16> && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {  // the upper one lies where f32 wants it
      const uint32_t pair = reinterpret_cast<const uint32_t*>(&raw)[i / 2];
      out[i] = __uint_as_float(pair << 16);
      out[i + 1] = __uint_as_float(pair & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = to_float(raw.v[i]);
  }
}
/// Four e4m3 a word.
template <int W>
__device__ __forceinline__ void words_to_floats(const Vec<uint32_t, W>& raw, float (&out)[4 * W]) {
#pragma unroll
  for (int i = 0; i < W; ++i) {
    uint32_t halves[2];
    asm("{\n\t.reg .b16 lo, hi;\n\tmov.b32 {lo, hi}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, lo;\n\tcvt.rn.f16x2.e4m3x2 %1, "
        "hi;\n\t}"
        : "=r"(halves[0]), "=r"(halves[1])
        : "r"(raw.v[i]));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      out[4 * i + 2 * j] = to_float(f16{static_cast<uint16_t>(halves[j])});
      out[4 * i + 2 * j + 1] = to_float(f16{static_cast<uint16_t>(halves[j] >> 16)});
    }
  }
}
template <int N>
__device__ __forceinline__ Vec<uint32_t, N / 4> floats_to_words(const float (&in)[N]) {
  Vec<uint32_t, N / 4> raw;
#pragma unroll
  for (int i = 0; i < N; i += 4)
    asm("{\n\t.reg .b16 lo, hi;\n\tcvt.rn.satfinite.e4m3x2.f32 lo, %2, %1;\n\tcvt.rn.satfinite.e4m3x2.f32 hi, %4, "
        "%3;\n\tmov.b32 %0, {lo, hi};\n\t}"
        : "=r"(raw.v[i / 4])
        : "f"(in[i]), "f"(in[i + 1]), "f"(in[i + 2]), "f"(in[i + 3]));
  return raw;
}

/// N consecutive elements as f32. `p` is aligned to min(16, N * sizeof(T)) bytes.
template <int N, class T>
__device__ __forceinline__ void load(const T* p, float (&out)[N]) {
  if constexpr (kByWords<T, N>) {
    const Vec<uint32_t, N / 4> raw = *reinterpret_cast<const Vec<uint32_t, N / 4>*>(p);
    words_to_floats(raw, out);
  } else {
    const Vec<T, N> raw = *reinterpret_cast<const Vec<T, N>*>(p);  // one access, before anything is taken from it
    to_floats(raw, out);
  }
}

/// The reverse, rounded to T.
template <int N, class T>
__device__ __forceinline__ void store(T* p, const float (&in)[N]) {
  if constexpr (kByWords<T, N>) {
    *reinterpret_cast<Vec<uint32_t, N / 4>*>(p) = floats_to_words(in);
  } else {
    Vec<T, N> raw;
#pragma unroll
    for (int i = 0; i < N; ++i) raw.v[i] = from_float<T>(in[i]);
    *reinterpret_cast<Vec<T, N>*>(p) = raw;
  }
}

/// N elements by accesses of kAccess (N or 1): the same values in the same places at any alignment.
template <int kAccess, int N, class T>
__device__ __forceinline__ Vec<T, N> load_raw(const T* p) {
  if constexpr (kAccess == N) {
    return *reinterpret_cast<const Vec<T, N>*>(p);
  } else {
    static_assert(kAccess == 1);
    Vec<T, N> raw;
#pragma unroll
    for (int i = 0; i < N; ++i) raw.v[i] = p[i];
    return raw;
  }
}
template <int kAccess, int N, class T>
__device__ __forceinline__ void load_by(const T* p, float (&out)[N]) {
  const Vec<T, N> raw = load_raw<kAccess, N>(p);
  to_floats(raw, out);
}
template <int kAccess, int N, class T>
__device__ __forceinline__ void store_by(T* p, const float (&in)[N]) {
  if constexpr (kAccess == N) {
    store<N>(p, in);
  } else {
    static_assert(kAccess == 1);
#pragma unroll
    for (int i = 0; i < N; ++i) p[i] = from_float<T>(in[i]);
  }
}

/// Valid rows: the device-side count clamped to [0, T], or T where there is none.
__device__ __forceinline__ int valid_rows(const int32_t* rows, int T) {
  if (rows == nullptr) return T;
  const int n = *rows;
  return n < 0 ? 0 : (n < T ? n : T);
}

}  // namespace vivace::kernels
