// GemmLevel for any level's lanes.
#pragma once
#include "vivace/cpu/gemm/unpack.h"
#include "vivace/cpu/simd/gelu.h"

namespace vivace::cpu {

/// Integer products. A lane is a weight row; a block's integer sum is exact and enters the f32 sum with
/// one fused multiply-add, block after block: the same chain for every tile width.
template <class B>
struct Product {
  using I = typename B::I;
  using F = typename B::F;

  template <int kTokens, int kGroup, bool kMin, bool kWide>
  static void tile(const Panel& p, const ActTile& x, int64_t n, bool more, float* acc) {
    F sum[kTokens];
    for (int t = 0; t < kTokens; ++t) sum[t] = more ? B::load(acc + t * 16) : B::zero();
    const int8_t* q = x.q;
    const uint8_t* w = p.q;
    for (int64_t b = 0; b < n / kGroup; ++b) {
      I dot[kTokens];
      for (int t = 0; t < kTokens; ++t)
        dot[t] = B::set_i(kMin || (kWide && B::kSignedWide) ? 0 : x.offset[b * kTokens + t]);
      for (int g = 0; g < kGroup / 4; ++g, q += 4 * kTokens, w += 64) {
        const I codes = B::load_i(w);
        for (int t = 0; t < kTokens; ++t) dot[t] = B::template dot<kWide>(dot[t], codes, q + 4 * t);
      }
      const F scale = B::load(p.scale + b * 16);
      const int64_t at = b * kGroup / 32 * kTokens;
      for (int t = 0; t < kTokens; ++t) sum[t] = B::fma(B::to_f(dot[t]), B::mul(scale, B::set(x.d[at + t])), sum[t]);
      if (kMin) {
        const F min = B::load(p.min + b * 16);
        for (int t = 0; t < kTokens; ++t) sum[t] = B::fma(min, B::set(x.sum[at + t]), sum[t]);
      }
    }
    for (int t = 0; t < kTokens; ++t) B::store(acc + t * 16, sum[t]);
  }

  template <int kTokens, class... A>
  static void format(DType t, A&&... a) {
    switch (t) {
      case DType::q8_0: return tile<kTokens, 32, false, true>(a...);
      case DType::q6_k: return tile<kTokens, 16, false, false>(a...);
      case DType::q4_0: case DType::q5_0: return tile<kTokens, 32, false, false>(a...);
      default: return tile<kTokens, 32, true, false>(a...);
    }
  }

  template <int kTokens>
  static void pick(DType t, const Panel& p, const ActTile& x, int tokens, int64_t n, bool more, float* acc) {
    if (tokens == kTokens) return format<kTokens>(t, p, x, n, more, acc);
    if constexpr (kTokens > 1) return pick<kTokens - 1>(t, p, x, tokens, n, more, acc);
  }
  static void run(DType t, const Panel& p, const ActTile& x, int tokens, int64_t n, bool more, float* acc) {
    pick<B::kTile>(t, p, x, tokens, n, more, acc);
  }

  /// d = amax / 127, q = rint(x * (127 / amax)) to even. A NaN makes its block NaN; a block so small that
  /// 127 / amax overflows counts as zeros.
  static void quantize(DType t, const float* x, int64_t K, int w, int8_t* q, float* d, float* sum, int32_t* offset) {
    const CodeInfo code = code_info(t);
    for (int64_t b = 0; b < K / 32; ++b, x += 32) {
      uint32_t top = 0;  // |x| as an integer orders like |x|, with NaN above all
      for (int i = 0; i < 32; ++i) {
        uint32_t u;
        std::memcpy(&u, x + i, 4);
        u &= 0x7fffffffu;
        top = u > top ? u : top;
      }
      float amax;
      std::memcpy(&amax, &top, 4);
      const float scale = amax / 127.0f;
      float inv = 127.0f / amax;
      if (inv == __builtin_inff()) inv = 0;
      alignas(64) int32_t code32[32];
      alignas(64) int8_t code8[32];
      int32_t part[2] = {0, 0};
      for (int i = 0; i < 32; ++i) {
        const float shifted = x[i] * inv + 12582912.0f;  // 1.5 * 2^23: the sum's low bits are rint(x * inv)
        uint32_t u;
        std::memcpy(&u, &shifted, 4);
        code32[i] = static_cast<int32_t>(u - 0x4b400000u);
      }
      for (int i = 0; i < 16; ++i) part[0] += code32[i], part[1] += code32[i + 16];
      for (int i = 0; i < 32; ++i) code8[i] = static_cast<int8_t>(code32[i]);
      for (int g = 0; g < 8; ++g) std::memcpy(q + (b * 8 + g) * 4 * w, code8 + g * 4, 4);
      d[b * w] = scale;
      sum[b * w] = scale * static_cast<float>(part[0] + part[1]);
      if (code.group == 16) {
        for (int h = 0; h < 2; ++h) offset[(2 * b + h) * w] = -code.zero * part[h];
      } else {
        offset[b * w] = -code.zero * (part[0] + part[1]);
      }
    }
  }
};

/// f32 products. Lanes run along K: element k adds to lane k % 16, and the driver adds up the lanes.
template <class B>
struct Dots {
  using F = typename B::F;

  static void upcast(DType t, const void* src, int64_t n, float* dst) {
    int64_t i = 0;
    const auto* u16 = static_cast<const uint16_t*>(src);
    if (t == DType::f32) {
      std::memcpy(dst, src, n * 4);
    } else if (t == DType::bf16) {
      for (; i + 16 <= n; i += 16) B::store(dst + i, B::load_bf16(u16 + i));
      for (; i < n; ++i) dst[i] = f32_of_bf16(u16[i]);
    } else {
      for (; i + 16 <= n; i += 16) B::store(dst + i, B::load_f16(u16 + i));
      for (; i < n; ++i) dst[i] = f32_of_f16(u16[i]);
    }
  }

  template <int kTokens>
  static void tile(const float* const* row, const float* x, int64_t x_stride, int64_t n, bool more, float* part) {
    F sum[4][kTokens];
    for (int r = 0; r < 4; ++r)
      for (int t = 0; t < kTokens; ++t) sum[r][t] = more ? B::load(part + (r * kTokens + t) * 16) : B::zero();
    for (int64_t k = 0; k < n; k += 16) {
      F v[kTokens];
      for (int t = 0; t < kTokens; ++t) v[t] = B::load(x + t * x_stride + k);
      for (int r = 0; r < 4; ++r) {
        const F w = B::load(row[r] + k);
        for (int t = 0; t < kTokens; ++t) sum[r][t] = B::fma(w, v[t], sum[r][t]);
      }
    }
    for (int r = 0; r < 4; ++r)
      for (int t = 0; t < kTokens; ++t) B::store(part + (r * kTokens + t) * 16, sum[r][t]);
  }

  template <int kTokens>
  static void pick(const float* const* row, const float* x, int64_t x_stride, int tokens, int64_t n, bool more,
                   float* part) {
    if (tokens == kTokens) return tile<kTokens>(row, x, x_stride, n, more, part);
    if constexpr (kTokens > 1) return pick<kTokens - 1>(row, x, x_stride, tokens, n, more, part);
  }
  static void run(const float* const* row, const float* x, int64_t x_stride, int tokens, int64_t n, bool more,
                  float* part) {
    pick<B::kDotTokens>(row, x, x_stride, tokens, n, more, part);
  }

  static bool load16(const void* p, DType t, F* v) {
    if (t == DType::f32) *v = B::load(static_cast<const float*>(p));
    else if (t == DType::bf16) *v = B::load_bf16(static_cast<const uint16_t*>(p));
    else if (t == DType::f16) *v = B::load_f16(static_cast<const uint16_t*>(p));
    else return false;
    return true;
  }

  static bool store16(const float* acc, float alpha, const void* bias, DType bias_dtype, bool gelu,
                      const void* residual, void* out, DType out_dtype) {
    if (out_dtype != DType::f32 && out_dtype != DType::bf16) return false;
    F y = B::mul(B::set(alpha), B::load(acc)), v;
    if (bias != nullptr) {
      if (!load16(bias, bias_dtype, &v)) return false;
      y = B::add(y, v);
    }
    if (gelu) {
      alignas(64) float each[16];
      B::store(each, y);
      for (float& x : each) x = gelu_erf(x);
      y = B::load(each);
    }
    if (residual != nullptr) {
      if (!load16(residual, out_dtype, &v)) return false;
      y = B::add(v, y);
    }
    if (out_dtype == DType::f32) B::store(static_cast<float*>(out), y);
    else B::store_bf16(static_cast<uint16_t*>(out), y);
    return true;
  }
};

template <class B>
inline constexpr GemmLevel kGemmLevel = {B::kTile,         B::kDotTokens,         &Unpack<B>::run,
                                         &Product<B>::run, &Product<B>::quantize, &Dots<B>::upcast,
                                         &Dots<B>::run,    &Dots<B>::store16,     nullptr};

}  // namespace vivace::cpu
