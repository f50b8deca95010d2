// What the expressions of vivace.attention.variant() are made of: Python's meaning of operators on int and
// float, and a few functions.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::expression {

/// a // b and a % b round towards minus infinity, as in Python; by 0 they are 0.
__device__ __forceinline__ int floor_divide(int a, int b) {
  if (b == 0) return 0;
  const int q = a / b;
  return q - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}
__device__ __forceinline__ int modulo(int a, int b) { return b == 0 ? 0 : a - floor_divide(a, b) * b; }
__device__ __forceinline__ float floor_divide(float a, float b) { return floorf(a / b); }
__device__ __forceinline__ float modulo(float a, float b) { return a - floorf(a / b) * b; }
__device__ __forceinline__ float divide(float a, float b) { return a / b; }
/// Bits move as in 32 bits; a count outside of [0, 32) gives 0.
__device__ __forceinline__ int shift_left(int a, int n) {
  return n >= 0 && n < 32 ? static_cast<int>(static_cast<uint32_t>(a) << n) : 0;
}
__device__ __forceinline__ int shift_right(int a, int n) {
  return n >= 0 && n < 32 ? static_cast<int>(static_cast<uint32_t>(a) >> n) : 0;
}
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ int minimum(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int maximum(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ float minimum(float a, float b) { return fminf(a, b); }
__device__ __forceinline__ float maximum(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ int absolute(int a) { return a < 0 ? -a : a; }
__device__ __forceinline__ float absolute(float a) { return fabsf(a); }

}  // namespace vivace::kernels::expression
