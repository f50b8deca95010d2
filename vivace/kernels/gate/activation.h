// The activation functions of gates and of gemm's epilogue, in f32. Host and device, no std.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

enum class Activation : int32_t { none, silu, gelu_tanh, gelu_erf, relu, relu2 };

namespace detail {
#ifdef __CUDACC__
VV_HD inline float exp(float x) { return expf(x); }
VV_HD inline float tanh(float x) { return tanhf(x); }
VV_HD inline float erf(float x) { return erff(x); }
#else
inline float exp(float x) { return __builtin_expf(x); }
inline float tanh(float x) { return __builtin_tanhf(x); }
inline float erf(float x) { return __builtin_erff(x); }
#endif
}  // namespace detail

/// silu = x / (1 + exp(-x)); gelu_tanh = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)));
/// gelu_erf = x/2 (1 + erf(x / sqrt 2)); relu = max(x, 0); relu2 = relu^2. NaN stays NaN.
VV_HD inline float activate(Activation kind, float x) {
  switch (kind) {
    case Activation::none: return x;
    case Activation::silu: return x / (1.0f + detail::exp(-x));
    case Activation::gelu_tanh: return 0.5f * x * (1.0f + detail::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
    case Activation::gelu_erf: return 0.5f * x * (1.0f + detail::erf(x * 0.7071067812f));
    case Activation::relu: return x < 0.0f ? 0.0f : x;
    case Activation::relu2: return x < 0.0f ? 0.0f : x * x;
  }
  return x;
}

}  // namespace vivace::kernels
