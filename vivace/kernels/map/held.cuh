// How the element types of arrays lie in memory and in registers, and vectors of them. A C++ compiler that is told what
// blocks and threads are (tests/emulated) reads this header and those that include it, too.
#pragma once
#include "vivace/kernels/map/launch.h"
#include "vivace/kernels/map/math.h"
#ifdef __CUDACC__
#include "vivace/kernels/tile/elem.cuh"
#else
#include "vivace/base/float_types.h"
#endif

namespace vivace::kernels {

/// S in memory, C in registers.
template <class T>
struct HeldAs {
  using S = T;
  using C = T;
  static __device__ __forceinline__ C load(S s) { return s; }
  static __device__ __forceinline__ S store(C c) { return c; }
};
template <Elem E>
struct Held;
template <>
struct Held<Elem::boolean> {
  using S = uint8_t;
  using C = bool;
  static __device__ __forceinline__ C load(S s) { return s != 0; }
  static __device__ __forceinline__ S store(C c) { return c ? 1 : 0; }
};
template <>
struct Held<Elem::u8> : HeldAs<uint8_t> {};
template <>
struct Held<Elem::u16> : HeldAs<uint16_t> {};
template <>
struct Held<Elem::u32> : HeldAs<uint32_t> {};
template <>
struct Held<Elem::u64> : HeldAs<uint64_t> {};
template <>
struct Held<Elem::i8> : HeldAs<int8_t> {};
template <>
struct Held<Elem::i16> : HeldAs<int16_t> {};
template <>
struct Held<Elem::i32> : HeldAs<int32_t> {};
template <>
struct Held<Elem::i64> : HeldAs<int64_t> {};
template <>
struct Held<Elem::f32> : HeldAs<float> {};
template <>
struct Held<Elem::f64> : HeldAs<double> {};
template <>
struct Held<Elem::f16> {
  using S = uint16_t;
  using C = float;
#ifdef __CUDACC__
  static __device__ __forceinline__ C load(S s) { return to_float(f16{s}); }
  static __device__ __forceinline__ S store(C c) { return from_float<f16>(c).bits; }
#else
  static C load(S s) { return f32_of_f16(s); }
  static S store(C c) { return f16_of_f32(c); }
#endif
};
template <>
struct Held<Elem::bf16> {
  using S = uint16_t;
  using C = float;
#ifdef __CUDACC__
  static __device__ __forceinline__ C load(S s) { return to_float(bf16{s}); }
  static __device__ __forceinline__ S store(C c) { return from_float<bf16>(c).bits; }
#else
  static C load(S s) { return f32_of_bf16(s); }
  static S store(C c) { return bf16_of_f32(c); }
#endif
};

/// A function's value, rounded to the type it is of: f16 and bf16 round once a function.
template <Elem E>
__device__ __forceinline__ typename Held<E>::C rounded(typename Held<E>::C c) {
  return Held<E>::load(Held<E>::store(c));
}
template <Elem From, Elem To>
__device__ __forceinline__ typename Held<To>::C cast_to(typename Held<From>::C c) {
  return rounded<To>(math::convert<typename Held<To>::C>(c));
}

/// What one instruction moves.
template <int kBytes>
struct Word;
template <>
struct Word<1> {
  using type = uint8_t;
};
template <>
struct Word<2> {
  using type = uint16_t;
};
template <>
struct Word<4> {
  using type = uint32_t;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};
/// V elements as the fewest words, of 16 bytes at most.
template <class S, int V>
struct Words {
  static constexpr int kWord = sizeof(S) * V < 16 ? static_cast<int>(sizeof(S)) * V : 16;
  static constexpr int kWords = static_cast<int>(sizeof(S)) * V / kWord;
  using type = typename Word<kWord>::type;
  union {
    type word[kWords];
    S s[V];
  };
};

/// V elements of an operand along the inner axis.
template <Elem E, int V, Walk kWalk>
struct Line {
  using S = typename Held<E>::S;
  static constexpr int kHeld = kWalk == Walk::scalar || kWalk == Walk::still ? 1 : V;
  Words<S, kHeld> v;

  /// `n` of the V elements are there; in place of the others stands what was not read.
  template <class Offset>
  __device__ __forceinline__ void load(uint64_t in, Offset at, int64_t stride, int n) {
    if constexpr (kWalk == Walk::scalar) {
      union {
        uint64_t bits;
        S s;
      } u;
      u.bits = in;
      v.s[0] = u.s;
    } else {
      const S* const p = reinterpret_cast<const S*>(in) + at;
      if constexpr (kWalk == Walk::still) {
        v.s[0] = *p;
      } else if constexpr (kWalk == Walk::dense) {
        if (n == V) {
#pragma unroll
          for (int i = 0; i < Words<S, V>::kWords; ++i)
            v.word[i] = reinterpret_cast<const typename Words<S, V>::type*>(p)[i];
        } else {
#pragma unroll
          for (int i = 0; i < V; ++i) v.s[i] = i < n ? p[i] : S();
        }
      } else {
        const Offset step = kWalk == Walk::loose ? Offset(1) : static_cast<Offset>(stride);
#pragma unroll
        for (int i = 0; i < V; ++i) v.s[i] = i < n ? p[i * step] : S();
      }
    }
  }
  __device__ __forceinline__ typename Held<E>::C operator[](int i) const {
    return Held<E>::load(v.s[kHeld == 1 ? 0 : i]);
  }
};

/// Adds the place of number n to the offsets of kOperands operands and the output.
template <int kOperands, class Offset>
__device__ __forceinline__ void place(const Axes& axes, Offset n, Offset (&at)[kMaxOperands + 1]) {
#pragma unroll
  for (int i = 0; i < kMapRank; ++i) {
    if (i >= axes.rank) break;
    Offset q;
    if constexpr (sizeof(Offset) == 4)
      q = axes.by[i].quotient(n);
    else
      q = n / axes.dim[i];
    const Offset r = n - q * static_cast<Offset>(axes.dim[i]);
#pragma unroll
    for (int k = 0; k < kOperands; ++k) at[k] += r * static_cast<Offset>(axes.stride[k][i]);
    at[kOut] += r * static_cast<Offset>(axes.stride[kOut][i]);
    n = q;
  }
}
template <class Offset>
__device__ __forceinline__ Offset divided(Offset n, const Divisor& by, int64_t d) {
  if constexpr (sizeof(Offset) == 4)
    return by.quotient(n);
  else
    return n / d;
}

// The functions of ufuncs.def: Of_add::run(x, y, w).
#define UFUNC(name, arity, rule, expression)                                                                       \
  struct Of_##name {                                                                                               \
    template <class T>                                                                                             \
    static __device__ __forceinline__ auto run([[maybe_unused]] T x, [[maybe_unused]] T y, [[maybe_unused]] T w) { \
      return expression;                                                                                           \
    }                                                                                                              \
  };
#include "vivace/kernels/map/ufuncs.def"
#undef UFUNC

}  // namespace vivace::kernels
