// The activation functions of gates and of gemm's epilogue, in f32. Host and device, no std.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

enum class Activation : int32_t { none, silu, gelu_tanh, gelu_erf, relu, relu2 };

/// silu = x / (1 + exp(-x)); gelu_tanh = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3);
/// gelu_erf = x/2 (1 + erf(x / sqrt 2)); relu = max(x, 0); relu2 = relu^2. NaN stays NaN.
#ifdef __CUDACC__

/// 2^x and 1/x by the special-function unit alone: 2 and 1 units in the last place, subnormals are zero.
__device__ __forceinline__ float quick_exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float quick_reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

/// Within 6e-7 |x| of the formula: the sigmoid is flat where the exponential's relative error is large, so
/// neither a second product for the argument's rounding nor a division pays. x/2 (1 + tanh u) is written
/// x / (1 + exp(-2 u)), which has no cancellation.
template <Activation kKind>
__device__ __forceinline__ float activate_as(float x) {
  constexpr float kLog2e = 1.4426950409f;
  if constexpr (kKind == Activation::silu) return x * quick_reciprocal(1.0f + quick_exp2(-kLog2e * x));
  if constexpr (kKind == Activation::gelu_tanh) {
    constexpr float kU = -2.0f * 0.7978845608f * kLog2e;
    return x * quick_reciprocal(1.0f + quick_exp2(x * fmaf(x * x, 0.044715f * kU, kU)));
  }
  if constexpr (kKind == Activation::gelu_erf) {
    // 1 - erf z for z >= 0 to 1.5e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26).
    const float z = fabsf(x) * 0.7071067812f, t = quick_reciprocal(fmaf(0.3275911f, z, 1.0f));
    const float p =
        fmaf(fmaf(fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f), t, -0.284496736f), t, 0.254829592f);
    const float tail = 0.5f * t * p * quick_exp2(-kLog2e * z * z);
    return x * (x < 0.0f ? tail : 1.0f - tail);
  }
  if constexpr (kKind == Activation::relu) return x < 0.0f ? 0.0f : x;
  if constexpr (kKind == Activation::relu2) return x < 0.0f ? 0.0f : x * x;
  return x;
}

/// All of them by one branch.
template <int N>
__device__ __forceinline__ void activate_all(Activation kind, float (&x)[N]) {
  const auto all = [&](auto&& f) {
#pragma unroll
    for (float& v : x) v = f(v);
  };
  switch (kind) {
    case Activation::none: return;
    case Activation::silu: return all(activate_as<Activation::silu>);
    case Activation::gelu_tanh: return all(activate_as<Activation::gelu_tanh>);
    case Activation::gelu_erf: return all(activate_as<Activation::gelu_erf>);
    case Activation::relu: return all(activate_as<Activation::relu>);
    case Activation::relu2: return all(activate_as<Activation::relu2>);
  }
}

__device__ __forceinline__ float activate(Activation kind, float x) {
  float one[1] = {x};
  activate_all(kind, one);
  return one[0];
}

#else

inline float activate(Activation kind, float x) {
  switch (kind) {
    case Activation::none: return x;
    case Activation::silu: return x / (1.0f + __builtin_expf(-x));
    case Activation::gelu_tanh: return 0.5f * x * (1.0f + __builtin_tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    case Activation::gelu_erf: return 0.5f * x * (1.0f + __builtin_erff(x * 0.7071067812f));
    case Activation::relu: return x < 0.0f ? 0.0f : x;
    case Activation::relu2: return x < 0.0f ? 0.0f : x * x;
  }
  return x;
}

#endif

}  // namespace vivace::kernels
