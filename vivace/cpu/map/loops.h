// Inner loops of the CPU's arrays: one a function and type, made from ufuncs.def.
#pragma once
#include "vivace/base/float_types.h"
#include "vivace/kernels/map/map.h"
#include "vivace/kernels/map/math.h"

namespace vivace::cpu {

using kernels::Elem;
using kernels::Func;
using kernels::Rule;

/// Strides in bytes.
using Loop = void (*)(int64_t n, const char* const* in, const int64_t* in_stride, char* out, int64_t out_stride);

template <Elem E>
struct Stored;
template <>
struct Stored<Elem::boolean> {
  using S = bool;
  using C = bool;
};
template <>
struct Stored<Elem::u8> {
  using S = uint8_t;
  using C = uint8_t;
};
template <>
struct Stored<Elem::u16> {
  using S = uint16_t;
  using C = uint16_t;
};
template <>
struct Stored<Elem::u32> {
  using S = uint32_t;
  using C = uint32_t;
};
template <>
struct Stored<Elem::u64> {
  using S = uint64_t;
  using C = uint64_t;
};
template <>
struct Stored<Elem::i8> {
  using S = int8_t;
  using C = int8_t;
};
template <>
struct Stored<Elem::i16> {
  using S = int16_t;
  using C = int16_t;
};
template <>
struct Stored<Elem::i32> {
  using S = int32_t;
  using C = int32_t;
};
template <>
struct Stored<Elem::i64> {
  using S = int64_t;
  using C = int64_t;
};
template <>
struct Stored<Elem::f16> {
  using S = uint16_t;
  using C = float;
};
template <>
struct Stored<Elem::bf16> {
  using S = uint16_t;
  using C = float;
};
template <>
struct Stored<Elem::f32> {
  using S = float;
  using C = float;
};
template <>
struct Stored<Elem::f64> {
  using S = double;
  using C = double;
};

template <Elem E>
inline auto load(const char* p) {
  typename Stored<E>::S v;
  __builtin_memcpy(&v, p, sizeof v);
  if constexpr (E == Elem::f16)
    return f32_of_f16(v);
  else if constexpr (E == Elem::bf16)
    return f32_of_bf16(v);
  else
    return v;
}
template <Elem E>
inline void store(char* p, typename Stored<E>::C c) {
  if constexpr (E == Elem::f16) {
    const uint16_t v = f16_of_f32(c);
    __builtin_memcpy(p, &v, sizeof v);
  } else if constexpr (E == Elem::bf16) {
    const uint16_t v = bf16_of_f32(c);
    __builtin_memcpy(p, &v, sizeof v);
  } else {
    __builtin_memcpy(p, &c, sizeof c);
  }
}

/// The loop of a function in a type, or null where the rule does not take it.
Loop loop_of(Func f, Elem e);
Loop cast_loop(Elem from, Elem to);
/// x ? y : w of elements of `bytes` (1, 2, 4, 8), and plain copies of them.
Loop select_loop(int bytes);
Loop copy_loop(int bytes);

// By the type's group; each in a file of its own, so that they compile side by side.
Loop small_loop(Func f, Elem e);
Loop wide_loop(Func f, Elem e);
Loop real_loop(Func f, Elem e);

}  // namespace vivace::cpu
