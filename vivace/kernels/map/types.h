// Element types of arrays: those with arithmetic first, then those that only store. Readable by g++, nvcc and NVRTC.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

/// The op table's DType has no unsigned types beyond u8; arrays have them. `first_storage` and what follows are
/// DType's own storage types, in its order: fp8, fp4, i4 and the block formats.
enum class Elem : uint8_t {
  boolean,
  u8,
  u16,
  u32,
  u64,
  i8,
  i16,
  i32,
  i64,
  f16,
  bf16,
  f32,
  f64,
  e4m3,
  e5m2,
  e2m1,
  i4,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q4_k,
  q5_k,
  q6_k,
};
inline constexpr int kElemCount = 25, kArithmeticCount = 13;

VV_HD constexpr bool has_arithmetic(Elem e) {
  return static_cast<int>(e) < kArithmeticCount;
}
VV_HD constexpr bool is_unsigned(Elem e) {
  return e >= Elem::u8 && e <= Elem::u64;
}
VV_HD constexpr bool is_signed(Elem e) {
  return e >= Elem::i8 && e <= Elem::i64;
}
VV_HD constexpr bool is_integer(Elem e) {
  return is_unsigned(e) || is_signed(e);
}
VV_HD constexpr bool is_real(Elem e) {
  return e >= Elem::f16 && e <= Elem::f64;
}

}  // namespace vivace::kernels
