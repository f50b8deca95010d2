// The activation functions of gates and of gemm's epilogue, in f32. Host and device, no std.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

enum class Activation : int32_t { none, silu, gelu_tanh, gelu_erf, relu, relu2 };

/// silu = x / (1 + exp(-x)); gelu_tanh = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3);
/// gelu_erf = x/2 (1 + erf(x / sqrt 2)); relu = max(x, 0); relu2 = relu^2. NaN stays NaN.
#ifdef __CUDACC__

/// exp(x) to some 2 ulp from the chip's 2^x, with the rounding of x * log2(e) put back.
__device__ __forceinline__ float quick_exp(float x) {
  x = fminf(fmaxf(x, -104.0f), 89.0f);  // 0 and infinity from here on; NaN becomes 0, so callers keep x itself
  const float t = x * 1.442695041f;
  const float lost = fmaf(x, 1.442695041f, -t) + x * 1.925963e-8f;
  float r;
  asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(t));
  return fmaf(r * 0.6931471806f, lost, r);
}

/// x / y for y >= 1; __fdividef gives up where 1 / y would be subnormal.
__device__ __forceinline__ float quick_divide(float x, float y) {
  const float scale = y > 0x1p126f ? 0x1p-64f : 1.0f;
  return __fdividef(x * scale, y * scale);
}

/// x / (1 + exp(-2 u)) is x/2 (1 + tanh u) without its cancellation and without a second exponential.
__device__ __forceinline__ float activate(Activation kind, float x) {
  switch (kind) {
    case Activation::none: return x;
    case Activation::silu: return quick_divide(x, 1.0f + quick_exp(-x));
    case Activation::gelu_tanh: return quick_divide(x, 1.0f + quick_exp(-2.0f * 0.7978845608f * fmaf(0.044715f * x * x, x, x)));
    case Activation::gelu_erf: return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
    case Activation::relu: return x < 0.0f ? 0.0f : x;
    case Activation::relu2: return x < 0.0f ? 0.0f : x * x;
  }
  return x;
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
