// AttentionHeads for any level's lanes: online softmax over blocks of keys, counted from the first
// visible one, so that a row's bits depend on nothing but its own query and keys.
#pragma once
#include <cstring>

#include "vivace/base/float_types.h"
#include "vivace/cpu/attention/level.h"

namespace vivace::cpu {

template <class B>
struct Heads {
  using F = typename B::F;
  static constexpr int kKeys = 32;

  /// n values of any type as f32, zeros up to a multiple of 16.
  static void widen(DType t, const void* src, int64_t at, int n, float* dst) {
    const auto* u16 = static_cast<const uint16_t*>(src) + at;
    int i = 0;
    switch (t) {
      case DType::f32: std::memcpy(dst, static_cast<const float*>(src) + at, n * 4); i = n; break;
      case DType::bf16:
        for (; i + 16 <= n; i += 16) B::store(dst + i, B::load_bf16(u16 + i));
        for (; i < n; ++i) dst[i] = f32_of_bf16(u16[i]);
        break;
      case DType::f16:
        for (; i + 16 <= n; i += 16) B::store(dst + i, B::load_f16(u16 + i));
        for (; i < n; ++i) dst[i] = f32_of_f16(u16[i]);
        break;
      default:
        for (; i < n; ++i) dst[i] = f32_of_e4m3((static_cast<const uint8_t*>(src) + at)[i]);
    }
    for (; i % 16 != 0; ++i) dst[i] = 0;
  }

  static float lanes(const F& v) {
    alignas(64) float s[16];
    B::store(s, v);
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) s[i] += s[i + half];
    return s[0];
  }

  /// exp of x <= 0 to 2 units in the last place; 0 below -87; NaN stays NaN.
  static float exp_negative(float x) {
    const float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;  // n = rint(x / ln 2)
    const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, 4);
    bits = (bits + 127u) << 23;  // 2^n
    float power;
    std::memcpy(&power, &bits, 4);
    return x < -87.0f ? 0.0f : p * power;
  }

  static void run(const kernels::AttentionArgs& a, int64_t t, int64_t slot, int64_t first, int64_t end, int h0, int heads) {
    constexpr int kMax = kMaxHeadDim;
    const int D = (a.D + 15) / 16 * 16, Dv = (a.Dv + 15) / 16 * 16, kv = h0 / (a.Hq / a.Hkv);
    alignas(64) float q[kHeadsTogether][kMax], sum[kHeadsTogether][kMax], row[kMax], p[kHeadsTogether][kKeys];
    float top[kHeadsTogether], mass[kHeadsTogether];  // largest score so far, sum of exp(score - top)
    for (int h = 0; h < heads; ++h) {
      widen(a.dtype, a.q, t * a.q_stride + int64_t{h0 + h} * a.D, a.D, q[h]);
      std::memset(sum[h], 0, Dv * sizeof(float));
      top[h] = -__builtin_inff(), mass[h] = 0;
    }
    for (int64_t j0 = first; j0 < end; j0 += kKeys) {
      const int n = static_cast<int>(end - j0 < kKeys ? end - j0 : kKeys);
      for (int j = 0; j < n; ++j) {
        widen(a.kv_dtype, a.k, slot * a.k_stride + ((j0 + j) * a.Hkv + kv) * a.D, a.D, row);
        for (int h = 0; h < heads; ++h) {
          F s = B::zero();
          for (int i = 0; i < D; i += 16) s = B::fma(B::load(q[h] + i), B::load(row + i), s);
          p[h][j] = lanes(s);
        }
      }
      for (int h = 0; h < heads; ++h) {
        float m = top[h];
        for (int j = 0; j < n; ++j) {
          p[h][j] *= a.scale;
          if (a.softcap > 0) p[h][j] = a.softcap * __builtin_tanhf(p[h][j] / a.softcap);
        }
        for (int j = 0; j < n; ++j) m = p[h][j] > m ? p[h][j] : m;
        for (int j = n; j < kKeys; ++j) p[h][j] = -__builtin_inff();
        const float base = m == -__builtin_inff() ? 0.0f : m;  // all scores -inf: their exp is 0, not NaN
        const float shrink = exp_negative(top[h] - base);
        for (int j = 0; j < kKeys; ++j) p[h][j] = exp_negative(p[h][j] - base);
        F s = B::add(B::load(p[h]), B::load(p[h] + 16));
        mass[h] = mass[h] * shrink + lanes(s);
        top[h] = m;
        if (shrink != 1.0f)
          for (int i = 0; i < Dv; i += 16) B::store(sum[h] + i, B::mul(B::load(sum[h] + i), B::set(shrink)));
      }
      for (int j = 0; j < n; ++j) {
        widen(a.kv_dtype, a.v, slot * a.v_stride + ((j0 + j) * a.Hkv + kv) * a.Dv, a.Dv, row);
        for (int h = 0; h < heads; ++h) {
          const F w = B::set(p[h][j]);
          for (int i = 0; i < Dv; i += 16) B::store(sum[h] + i, B::fma(w, B::load(row + i), B::load(sum[h] + i)));
        }
      }
    }
    for (int h = 0; h < heads; ++h) finish(a, t, h0 + h, top[h], mass[h], sum[h]);
  }

  static void finish(const kernels::AttentionArgs& a, int64_t t, int h, float top, float mass, float* sum) {
    if (a.lse != nullptr) a.lse[t * a.lse_stride + h] = top + __builtin_logf(mass);
    float factor = mass > 0 || mass != mass ? 1.0f / mass : 0.0f;
    if (a.sinks != nullptr) {
      const float sink = a.sinks[h], m = sink > top ? sink : top, keys = __builtin_expf(top - m);
      factor = mass == 0 ? 0.0f : keys / (mass * keys + __builtin_expf(sink - m));
    }
    const int64_t at = t * a.out_stride + int64_t{h} * a.Dv;
    for (int i = 0; i < a.Dv; ++i) {
      const float y = sum[i] * factor;
      if (a.dtype == DType::f32) static_cast<float*>(a.out)[at + i] = y;
      else if (a.dtype == DType::bf16) static_cast<uint16_t*>(a.out)[at + i] = bf16_of_f32(y);
      else static_cast<uint16_t*>(a.out)[at + i] = f16_of_f32(y);
    }
  }
};

}  // namespace vivace::cpu
