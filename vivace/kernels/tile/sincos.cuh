// Sine and cosine of any f32 angle without local memory: what the compiler's own routine keeps on the
// stack for large arguments is a double product here.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

/// Absolute error below 2e-7 for |angle| < 2^31; NaN for infinities and NaN.
__device__ __forceinline__ void sin_cos(float angle, float* s, float* c) {
  float r;  // angle - quarter * pi / 2, in [-pi/4, pi/4]
  int quarter;
  if (fabsf(angle) < 32768.0f) {
    const float j = rintf(angle * 0.636619772f);
    r = fmaf(j, -1.57079601e+00f, angle);  // pi / 2 in three parts: the products with j are exact
    r = fmaf(j, -3.13916473e-07f, r);
    r = fmaf(j, -5.39030253e-15f, r);
    quarter = static_cast<int>(j);
  } else {
    const double j = rint(static_cast<double>(angle) * 0.63661977236758134);
    double d = fma(j, -1.5707963267948966, static_cast<double>(angle));
    d = fma(j, -6.123233995736766e-17, d);
    r = static_cast<float>(d);
    quarter = static_cast<int>(static_cast<long long>(j) & 3);
  }
  const float q = r * r;
  const float sine = fmaf(r * q, fmaf(q, fmaf(q, -1.9515295891e-4f, 8.3321608736e-3f), -1.6666654611e-1f), r);
  const float cosine =
      fmaf(q * q, fmaf(q, fmaf(q, 2.443315711809948e-5f, -1.388731625493765e-3f), 4.166664568298827e-2f),
           fmaf(q, -0.5f, 1.0f));
  const float a = quarter & 1 ? cosine : sine, b = quarter & 1 ? sine : cosine;
  *s = quarter & 2 ? -a : a;
  *c = (quarter + 1) & 2 ? -b : b;
}

}  // namespace vivace::kernels
