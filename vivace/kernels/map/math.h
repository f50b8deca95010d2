// The scalar functions of arrays, one meaning for both backends: IEEE, no fast math, integers wrap, x / 0 of integers
// is 0, shifts past the width give 0 or the sign, float -> integer truncates and saturates, NaN -> 0.
// Readable by g++ and NVRTC.
#pragma once
#include "vivace/base/int.h"

#ifdef __CUDACC__
#define VV_LIBM(fn) ::fn
#else
#define VV_LIBM(fn) __builtin_##fn
#endif
// Two overloads of a function of libm.
#define VV_MATH_1(name, fn)            \
  VV_HD inline float name(float x) {   \
    return VV_LIBM(fn##f)(x);          \
  }                                    \
  VV_HD inline double name(double x) { \
    return VV_LIBM(fn)(x);             \
  }
#define VV_MATH_2(name, fn)                      \
  VV_HD inline float name(float x, float y) {    \
    return VV_LIBM(fn##f)(x, y);                 \
  }                                              \
  VV_HD inline double name(double x, double y) { \
    return VV_LIBM(fn)(x, y);                    \
  }

namespace vivace::kernels::math {

/// The unsigned type that arithmetic of T wraps in; never narrower than unsigned, so that nothing is promoted to int.
template <class T>
struct Wrap {
  using type = uint32_t;
  static constexpr bool integer = true;
  static constexpr bool is_signed = T(-1) < T(0);
};
template <>
struct Wrap<int64_t> {
  using type = uint64_t;
  static constexpr bool integer = true, is_signed = true;
};
template <>
struct Wrap<uint64_t> {
  using type = uint64_t;
  static constexpr bool integer = true, is_signed = false;
};
template <>
struct Wrap<float> {
  using type = float;
  static constexpr bool integer = false, is_signed = true;
};
template <>
struct Wrap<double> {
  using type = double;
  static constexpr bool integer = false, is_signed = true;
};
template <class T>
using W = typename Wrap<T>::type;

template <class T>
VV_HD inline T add(T x, T y) {
  return static_cast<T>(static_cast<W<T>>(x) + static_cast<W<T>>(y));
}
template <class T>
VV_HD inline T subtract(T x, T y) {
  return static_cast<T>(static_cast<W<T>>(x) - static_cast<W<T>>(y));
}
template <class T>
VV_HD inline T multiply(T x, T y) {
  return static_cast<T>(static_cast<W<T>>(x) * static_cast<W<T>>(y));
}
template <class T>
VV_HD inline T negative(T x) {
  if constexpr (Wrap<T>::integer)
    return static_cast<T>(W<T>{0} - static_cast<W<T>>(x));
  else
    return -x;
}
template <class T>
VV_HD inline T quotient(T x, T y) {
  return x / y;
}  // of floats

VV_HD inline bool isnan(float x) {
  return x != x;
}
VV_HD inline bool isnan(double x) {
  return x != x;
}
template <class T>
VV_HD inline bool isnan(T) {
  return false;
}
template <class T>
VV_HD inline bool isinf(T x) {
  if constexpr (Wrap<T>::integer)
    return false;
  else
    return !(x - x == x - x) && x == x;
}
template <class T>
VV_HD inline bool isfinite(T x) {
  if constexpr (Wrap<T>::integer)
    return true;
  else
    return x - x == x - x;
}
VV_HD inline bool signbit(float x) {
  return VV_LIBM(copysignf)(1.0f, x) < 0;
}
VV_HD inline bool signbit(double x) {
  return VV_LIBM(copysign)(1.0, x) < 0;
}

VV_MATH_1(sin, sin)
VV_MATH_1(cos, cos)
VV_MATH_1(tan, tan) VV_MATH_1(asin, asin) VV_MATH_1(acos, acos) VV_MATH_1(atan, atan) VV_MATH_1(sinh, sinh)
    VV_MATH_1(cosh, cosh) VV_MATH_1(tanh, tanh) VV_MATH_1(asinh, asinh) VV_MATH_1(acosh, acosh) VV_MATH_1(atanh, atanh)
        VV_MATH_1(exp, exp) VV_MATH_1(expm1, expm1) VV_MATH_1(log, log) VV_MATH_1(log1p, log1p) VV_MATH_1(log2, log2)
            VV_MATH_1(log10, log10) VV_MATH_1(sqrt, sqrt) VV_MATH_1(float_floor, floor) VV_MATH_1(float_ceil, ceil)
                VV_MATH_1(float_trunc, trunc) VV_MATH_1(float_rint, rint) VV_MATH_1(float_abs, fabs) VV_MATH_1(erf, erf)
                    VV_MATH_2(atan2, atan2) VV_MATH_2(hypot, hypot) VV_MATH_2(copysign, copysign)
                        VV_MATH_2(nextafter, nextafter) VV_MATH_2(float_pow, pow) VV_MATH_2(fmod, fmod)

                            template <class T>
                            VV_HD inline T abs(T x) {
  if constexpr (!Wrap<T>::integer)
    return float_abs(x);
  else if constexpr (!Wrap<T>::is_signed)
    return x;
  else
    return x < 0 ? negative(x) : x;
}
template <class T>
VV_HD inline T sign(T x) {
  if constexpr (!Wrap<T>::integer)
    return x > 0 ? T(1) : x < 0 ? T(-1) : x;  // keeps NaN and the sign of zero
  else if constexpr (!Wrap<T>::is_signed)
    return x > 0;
  else
    return static_cast<T>((x > 0) - (x < 0));
}
template <class T>
VV_HD inline T floor(T x) {
  if constexpr (Wrap<T>::integer)
    return x;
  else
    return float_floor(x);
}
template <class T>
VV_HD inline T ceil(T x) {
  if constexpr (Wrap<T>::integer)
    return x;
  else
    return float_ceil(x);
}
template <class T>
VV_HD inline T trunc(T x) {
  if constexpr (Wrap<T>::integer)
    return x;
  else
    return float_trunc(x);
}
/// Halves to even.
template <class T>
VV_HD inline T round(T x) {
  if constexpr (Wrap<T>::integer)
    return x;
  else
    return float_rint(x);
}
template <class T>
VV_HD inline T square(T x) {
  return multiply(x, x);
}
template <class T>
VV_HD inline T reciprocal(T x) {
  return T(1) / x;
}
template <class T>
VV_HD inline T rsqrt(T x) {
  return T(1) / sqrt(x);
}
template <class T>
VV_HD inline T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}
template <class T>
VV_HD inline T silu(T x) {
  return x / (T(1) + exp(-x));
}
template <class T>
VV_HD inline T gelu(T x) {
  return x * T(0.5) * (T(1) + erf(x * T(0.70710678118654752440)));
}

/// NaN if either is; of two zeros the positive one is the larger.
template <class T>
VV_HD inline T maximum(T x, T y) {
  if constexpr (Wrap<T>::integer)
    return x > y ? x : y;
  else
    return x != x ? x : y != y ? y : x > y ? x : y > x ? y : signbit(x) ? y : x;
}
template <class T>
VV_HD inline T minimum(T x, T y) {
  if constexpr (Wrap<T>::integer)
    return x < y ? x : y;
  else
    return x != x ? x : y != y ? y : x < y ? x : y < x ? y : signbit(x) ? x : y;
}
template <class T>
VV_HD inline T clip(T x, T low, T high) {
  return minimum(maximum(x, low), high);
}

/// Python's // and %: the quotient rounds down, the remainder has the divisor's sign.
template <class T>
VV_HD inline T remainder(T x, T y) {
  if constexpr (Wrap<T>::integer) {
    if (y == 0) return 0;
    if constexpr (Wrap<T>::is_signed) {
      if (y == T(-1)) return 0;
      const T r = static_cast<T>(x % y);
      return r != 0 && (r < 0) != (y < 0) ? static_cast<T>(r + y) : r;
    } else {
      return static_cast<T>(x % y);
    }
  } else {
    const T r = fmod(x, y);
    if (r == 0) return copysign(T(0), y);
    return (r < 0) != (y < 0) ? r + y : r;
  }
}
template <class T>
VV_HD inline T floor_divide(T x, T y) {
  if constexpr (Wrap<T>::integer) {
    if (y == 0) return 0;
    if constexpr (Wrap<T>::is_signed) {
      if (y == T(-1)) return negative(x);
      const T q = static_cast<T>(x / y);
      return x % y != 0 && (x < 0) != (y < 0) ? static_cast<T>(q - 1) : q;
    } else {
      return static_cast<T>(x / y);
    }
  } else {
    const T q = x / y;
    if (!isfinite(q) || q == 0) return isnan(q) || isinf(q) || !isinf(y) || x == 0 ? q : signbit(q) ? T(-1) : q;
    // By the exact remainder: the rounded quotient may already be the next integer.
    const T r = remainder(x, y), d = (x - r) / y, f = floor(d);
    if (d == 0) return copysign(T(0), q);
    return d - f > T(0.5) ? f + T(1) : f;
  }
}
/// Of integers by squaring; to a negative power 0, but of 1 and -1.
template <class T>
VV_HD inline T pow(T x, T y) {
  if constexpr (!Wrap<T>::integer) {
    return float_pow(x, y);
  } else {
    if constexpr (Wrap<T>::is_signed)
      if (y < 0) return x == 1 ? T(1) : x == T(-1) ? (y & 1 ? T(-1) : T(1)) : T(0);
    T r = 1;
    for (W<T> n = static_cast<W<T>>(y); n != 0; n >>= 1) {
      if (n & 1) r = multiply(r, x);
      x = multiply(x, x);
    }
    return r;
  }
}
template <class T>
VV_HD inline T logaddexp(T x, T y) {
  if (x == y) return x + T(0.69314718055994530942);  // infinities of one sign too
  const T m = maximum(x, y), d = x > y ? y - x : x - y;
  return isnan(m) ? m : m + log1p(exp(d));
}

template <class T>
VV_HD inline T bitwise_and(T x, T y) {
  return static_cast<T>(x & y);
}
template <class T>
VV_HD inline T bitwise_or(T x, T y) {
  return static_cast<T>(x | y);
}
template <class T>
VV_HD inline T bitwise_xor(T x, T y) {
  return static_cast<T>(x ^ y);
}
template <class T>
VV_HD inline T bitwise_invert(T x) {
  return static_cast<T>(~x);
}
VV_HD inline bool bitwise_invert(bool x) {
  return !x;
}
/// A negative count, too, is past the width.
template <class T>
VV_HD inline T left_shift(T x, T n) {
  if (static_cast<W<T>>(n) >= sizeof(T) * 8) return 0;
  return static_cast<T>(static_cast<W<T>>(x) << static_cast<W<T>>(n));
}
template <class T>
VV_HD inline T right_shift(T x, T n) {
  if (static_cast<W<T>>(n) >= sizeof(T) * 8) {
    if constexpr (Wrap<T>::is_signed) return x < 0 ? T(-1) : T(0);
    return 0;
  }
  return static_cast<T>(x >> n);
}

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers, 2011) of the counter (counter, 0) and the key:
/// the first two of its four words.
VV_HD inline uint64_t philox(uint64_t counter, uint64_t key) {
  uint32_t c[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t k[2] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
    c[0] = static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0];
    c[2] = static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1];
    c[1] = static_cast<uint32_t>(b), c[3] = static_cast<uint32_t>(a);
    k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;
  }
  return uint64_t{c[1]} << 32 | c[0];
}

template <class T>
struct Limits {
  static constexpr int kBits = static_cast<int>(sizeof(T) * 8) - (Wrap<T>::is_signed ? 1 : 0);
  static constexpr T kMax = static_cast<T>(~uint64_t{0} >> (64 - kBits));
  static constexpr T kMin = Wrap<T>::is_signed ? static_cast<T>(-kMax - 1) : T(0);
};
/// Float -> integer as the chips do it.
template <class To, class From>
VV_HD inline To saturate(From x) {
  if (x != x) return 0;
  // 2^bits is exact in either float; the maximum itself may not be.
  constexpr From kAbove = static_cast<From>(uint64_t{1} << (Limits<To>::kBits - 1)) * From(2);
  if (x >= kAbove) return Limits<To>::kMax;
  if (x <= (Wrap<To>::is_signed ? -kAbove : From(0))) return Limits<To>::kMin;
  return static_cast<To>(x);
}
template <class To, class From>
struct Convert {
  VV_HD static To of(From x) {
    if constexpr (Wrap<To>::integer && !Wrap<From>::integer)
      return saturate<To>(x);
    else
      return static_cast<To>(x);
  }
};
template <class From>
struct Convert<bool, From> {
  VV_HD static bool of(From x) { return x != From(0); }
};
template <class To, class From>
VV_HD inline To convert(From x) {
  return Convert<To, From>::of(x);
}

}  // namespace vivace::kernels::math

#undef VV_MATH_1
#undef VV_MATH_2
