#include "vivace/kernels/gemm/gemm.h"

#include <algorithm>
#include <cstring>

#include "vivace/base/float_types.h"
#include "vivace/cpu/convert.h"
#include "vivace/cpu/gate/activated.h"
#include "vivace/cpu/gemm/level.h"
#include "vivace/cpu/gemm/scaled.h"
#include "vivace/cpu/pool.h"
#include "vivace/cpu/quant/dequantize.h"
#include "vivace/cpu/simd/isa.h"

namespace vivace::cpu {
namespace {

using kernels::GemmAct;
using kernels::GemmArgs;

constexpr int64_t kTokenBlock = 256;  // tokens whose sums a thread keeps at a time
constexpr int64_t kAheadBytes = 16384;  // how far ahead of one token's product memory is asked for weights

const GemmLevel& level() {
  switch (isa()) {
    case Isa::avx512: return *gemm_avx512();
    case Isa::avx2: return *gemm_avx2();
    case Isa::portable: break;
  }
  return *gemm_portable();
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void upcast(const GemmLevel& l, DType t, const void* src, int64_t n, float* dst) {
  if (t == DType::e4m3) load_f32(src, t, 0, n, dst);
  else l.upcast(t, src, n, dst);
}

/// Finishes 16 columns (fewer at the end of N) of one token.
void finish(const GemmArgs& a, const GemmLevel& l, int64_t t, int64_t n0, float* acc) {
  const int64_t n = std::min<int64_t>(kPanelRows, a.N - n0),
                wide = a.gated ? 2 : 1;  // columns of the product an output
  const int e = info(a.out_dtype).bytes;
  const auto at = [&](const void* p, int64_t row, int64_t stride) {
    return p == nullptr ? nullptr : static_cast<char*>(const_cast<void*>(p)) + (row * stride + n0 / wide) * e;
  };
  char *out = at(a.out, t, a.out_stride), *residual = at(a.residual, t, a.residual_stride);
  const char* gate = at(a.gate, std::min<int64_t>(t, a.gate_rows - 1), a.gate_stride);
  const char* bias = a.bias == nullptr ? nullptr : static_cast<const char*>(a.bias) + n0 * info(a.bias_dtype).bytes;
  const float scale = a.alpha * (a.x_scale ? *a.x_scale : 1.0f) * (a.w_scale ? *a.w_scale : 1.0f);
  const bool more =
      a.x_row_scale != nullptr || a.w_row_scale != nullptr || a.out_scale != nullptr || a.gated || gate != nullptr;
  const bool gelu = a.epilogue == kernels::Activation::gelu_erf;
  if (n == kPanelRows && (gelu || a.epilogue == kernels::Activation::none) && !more &&
      l.store16(acc, scale, bias, a.bias_dtype, gelu, residual, out, a.out_dtype))
    return;
  float tmp[kPanelRows];
  for (int64_t i = 0; i < n; ++i) acc[i] = scale * acc[i];
  if (a.x_row_scale != nullptr)
    for (int64_t i = 0; i < n; ++i) acc[i] *= a.x_row_scale[t];
  if (a.w_row_scale != nullptr)
    for (int64_t i = 0; i < n; ++i) acc[i] *= a.w_row_scale[n0 + i];
  if (bias != nullptr) {
    load_f32(bias, a.bias_dtype, 0, n, tmp);
    for (int64_t i = 0; i < n; ++i) acc[i] += tmp[i];
  }
  for (int64_t i = 0; i < n; i += wide) acc[i] = activated(a.epilogue, acc[i]);
  const int64_t m = n / wide;  // outputs
  if (a.gated)
    for (int64_t i = 0; i < m; ++i) acc[i] = acc[2 * i] * acc[2 * i + 1];
  if (gate != nullptr) {
    load_f32(gate, a.out_dtype, 0, m, tmp);
    for (int64_t i = 0; i < m; ++i) acc[i] *= tmp[i];
  }
  if (residual != nullptr) {
    load_f32(residual, a.out_dtype, 0, m, tmp);
    for (int64_t i = 0; i < m; ++i) acc[i] = tmp[i] + acc[i];
  }
  if (a.out_scale != nullptr)
    for (int64_t i = 0; i < m; ++i) acc[i] /= *a.out_scale;
  store_f32(out, a.out_dtype, 0, m, acc);
}

/// Calls body(first panel, count) in chunks that keep all threads busy to the end: several chunks a
/// thread, none so small that claiming it costs more than its work.
template <class F>
void for_panels(const GemmArgs& a, int64_t T, Pool& pool, F&& body) {
  const int64_t panels = ceil_div(a.N, kPanelRows);
  const int64_t work = std::max<int64_t>(1, T * a.K * kPanelRows);  // multiply-adds of a panel
  int64_t together = std::max<int64_t>(1, panels / (pool.threads() * 8));
  together = std::min(panels, std::max(together, 16384 / work));
  const auto chunk = [&](int64_t c) { body(c * together, std::min(together, panels - c * together)); };
  pool.run(ceil_div(panels, together), chunk);
}

struct Rows {
  const uint8_t* row[kPanelRows];

  /// The rows of a panel from `offset` bytes on; beyond N the last row again, whose results nobody reads.
  Rows(const GemmArgs& a, int64_t pitch, int64_t panel, int64_t offset) {
    for (int64_t r = 0; r < kPanelRows; ++r)
      row[r] = static_cast<const uint8_t*>(a.w) + std::min<int64_t>(panel * kPanelRows + r, a.N - 1) * pitch + offset;
  }
};

/// Quantized activations of all tokens: tiles of up to `tile` tokens, each [K/4][w][4].
struct QuantizedRows {
  int64_t K, T, tile;
  int8_t* q;
  float *d, *sum;
  int32_t* offset;

  static size_t bytes(int64_t K, int64_t T) { return static_cast<size_t>(T) * (K + K / 32 * 8 + K / 16 * 4) + 256; }

  QuantizedRows(int64_t k, int64_t tokens, int64_t w, void* memory) : K(k), T(tokens), tile(w) {
    d = static_cast<float*>(memory);
    sum = d + T * (K / 32);
    offset = reinterpret_cast<int32_t*>(sum + T * (K / 32));
    q = reinterpret_cast<int8_t*>(offset + T * (K / 16));
  }
  int64_t width(int64_t first) const { return std::min(tile, T - first); }
  /// The tile that starts at token `first`, from element k on.
  ActTile at(int64_t first, int64_t k, int group) const {
    const int64_t w = width(first);
    return {q + first * K + k * w, d + first * (K / 32) + k / 32 * w, sum + first * (K / 32) + k / 32 * w,
            offset + first * (K / group) + k / group * w};
  }
  void fill(const GemmLevel& l, DType format, int64_t t, const float* x) const {
    const int64_t first = t / tile * tile, w = width(first), i = t - first;
    const int group = code_info(format).group;
    l.quantize(format, x, K, static_cast<int>(w), q + first * K + i * 4, d + first * (K / 32) + i,
               sum + first * (K / 32) + i, offset + first * (K / group) + i);
  }
};

/// x as f32: its own memory, or a converted copy with rows padded by zeros to a multiple of 16.
struct WideRows {
  const float* data;
  int64_t stride;
};

WideRows upcast_rows(const GemmArgs& a, const GemmLevel& l, int64_t T, int64_t padded, float* copy, Pool& pool) {
  if (a.x_dtype == DType::f32 && padded == a.K) return {static_cast<const float*>(a.x), a.x_stride};
  const auto convert = [&](int64_t t) {
    float* row = copy + t * padded;
    upcast(l, a.x_dtype, static_cast<const char*>(a.x) + t * a.x_stride * info(a.x_dtype).bytes, a.K, row);
    if (a.x_block_scale != nullptr) scale_x(a, t, a.K, row);
    std::fill(row + a.K, row + padded, 0.0f);
  };
  if (T == 1) convert(0);
  else pool.run(T, convert);
  return {copy, padded};
}

void gemm_q8(const GemmArgs& a, const GemmLevel& l, int64_t T, Pool& pool) {
  const int64_t K = a.K;
  const size_t wide_bytes = a.x_dtype == DType::f32 ? 0 : static_cast<size_t>(T * K * 4);
  char* memory = static_cast<char*>(pool.scratch(wide_bytes + QuantizedRows::bytes(K, T)));
  const QuantizedRows x(K, T, l.tile, memory + wide_bytes);
  const auto quantize_row = [&](int64_t t) {
    const float* row = static_cast<const float*>(a.x) + t * a.x_stride;
    if (wide_bytes != 0) {
      float* copy = reinterpret_cast<float*>(memory) + t * K;
      upcast(l, a.x_dtype, static_cast<const char*>(a.x) + t * a.x_stride * info(a.x_dtype).bytes, K, copy);
      row = copy;
    }
    x.fill(l, a.w_dtype, t, row);
  };
  if (T == 1) quantize_row(0);
  else pool.run(T, quantize_row);

  const int group = code_info(a.w_dtype).group;
  // Rows of a panel follow each other in memory, so the next panel is what lies this far on.
  const bool dense = a.w_stride == K;
  const int64_t pitch = row_bytes(a.w_dtype, a.w_stride), slab_bytes = row_bytes(a.w_dtype, kSlab);
  const int64_t panel_bytes = pitch * kPanelRows, slabs = ceil_div(K, kSlab), panels = ceil_div(a.N, kPanelRows);
  if (T == 1 && l.direct != nullptr) {
    const int64_t far = ceil_div(kAheadBytes, panel_bytes);
    for_panels(a, T, pool, [&](int64_t first, int64_t count) {
      alignas(64) float acc[kPanelRows];
      for (int64_t p = first; p < first + count; ++p) {
        l.direct(a.w_dtype, Rows(a, pitch, p, 0).row, K, dense && p + far + 1 < panels ? far * panel_bytes : 0,
                 x.at(0, 0, group), acc);
        finish(a, l, 0, p * kPanelRows, acc);
      }
    });
    return;
  }
  for_panels(a, T, pool, [&](int64_t first, int64_t count) {
    Panel panel;
    alignas(64) float acc[kTokenBlock * kPanelRows];
    for (int64_t p = first; p < first + count; ++p)
      for (int64_t t0 = 0; t0 < T; t0 += kTokenBlock) {
        const int64_t t1 = std::min(T, t0 + kTokenBlock);
        for (int64_t s = 0; s < slabs; ++s) {
          const int64_t k = s * kSlab, n = std::min(kSlab, K - k);
          if (slabs > 1 || t0 == 0)
            l.unpack(a.w_dtype, Rows(a, pitch, p, s * slab_bytes).row, n,
                     dense && slabs == 1 && p + 2 < panels ? panel_bytes : 0, &panel);
          for (int64_t t = t0; t < t1; t += l.tile)
            l.product(a.w_dtype, panel, x.at(t, k, group), static_cast<int>(x.width(t)), n, s > 0,
                      acc + (t - t0) * kPanelRows);
        }
        for (int64_t t = t0; t < t1; ++t) finish(a, l, t, p * kPanelRows, acc + (t - t0) * kPanelRows);
      }
  });
}

constexpr int64_t kRows = 4;  // of weights: a tile of gemm_f32

/// Elements [k, k + n) of rows [n0, n0 + kRows) of a w that lies column after column; beyond N the last row again.
template <class E, class ToF32>
void turn_rows(const GemmArgs& a, int64_t n0, int64_t k, int64_t n, float (&wide)[kRows][kSlab], ToF32 to_f32) {
  for (int64_t i = 0; i < n; ++i) {
    const E* const column = static_cast<const E*>(a.w) + (k + i) * a.w_stride;
    for (int64_t r = 0; r < kRows; ++r) wide[r][i] = to_f32(column[std::min<int64_t>(n0 + r, a.N - 1)]);
  }
}
void turn_rows(const GemmArgs& a, int64_t n0, int64_t k, int64_t n, float (&wide)[kRows][kSlab]) {
  if (a.w_dtype == DType::f32) turn_rows<float>(a, n0, k, n, wide, [](float x) { return x; });
  else if (a.w_dtype == DType::bf16) turn_rows<uint16_t>(a, n0, k, n, wide, f32_of_bf16);
  else turn_rows<uint16_t>(a, n0, k, n, wide, f32_of_f16);
}

void gemm_f32(const GemmArgs& a, const GemmLevel& l, int64_t T, Pool& pool) {
  constexpr int64_t kTokens = 64;  // whose lane sums are kept
  const int64_t K = a.K, padded = ceil_div(K, 16) * 16;
  float* copy = static_cast<float*>(pool.scratch(static_cast<size_t>(T * padded * 4)));
  const WideRows x = upcast_rows(a, l, T, padded, copy, pool);
  const int64_t pitch = row_bytes(a.w_dtype, a.w_stride);
  const bool scaled = a.w_block_scale != nullptr || a.w_dtype == DType::i8;
  const auto tile = [&](const uint8_t* const* row, int64_t n0, int64_t t0, int64_t t1, float* acc) {
    alignas(64) float wide[kRows][kSlab];
    alignas(64) float part[kRows * kTokens * 16];
    for (int64_t k = 0; k < K; k += kSlab) {
      const int64_t n = std::min(kSlab, K - k), n16 = ceil_div(n, 16) * 16;
      const float* from[kRows];
      for (int64_t r = 0; r < kRows; ++r) from[r] = wide[r];
      if (a.w_by_column) turn_rows(a, n0, k, n, wide);
      for (int64_t r = 0; r < kRows && !a.w_by_column; ++r) {
        const uint8_t* src = row[r] + row_bytes(a.w_dtype, k);
        if (a.w_dtype == DType::f32 && n == n16) from[r] = reinterpret_cast<const float*>(src);
        else if (is_block(a.w_dtype)) dequantize_row(a.w_dtype, src, 0, n, wide[r]);
        else if (scaled) upcast_scaled(a, std::min<int64_t>(n0 + r, a.N - 1), src, k, n, wide[r]);
        else upcast(l, a.w_dtype, src, n, wide[r]);
      }
      for (int64_t r = 0; r < kRows; ++r)
        if (from[r] == wide[r]) std::fill(wide[r] + n, wide[r] + n16, 0.0f);
      for (int64_t t = t0; t < t1; t += l.dot_tokens)
        l.dots(from, x.data + t * x.stride + k, x.stride, static_cast<int>(std::min<int64_t>(l.dot_tokens, t1 - t)),
               n16, k > 0, part + (t - t0) * kRows * 16);
    }
    for (int64_t t = t0; t < t1; ++t) {
      const int64_t first = t0 + (t - t0) / l.dot_tokens * l.dot_tokens,
                    w = std::min<int64_t>(l.dot_tokens, t1 - first);
      for (int64_t r = 0; r < kRows; ++r) {
        float* lane = part + ((first - t0) * kRows + r * w + (t - first)) * 16;
        for (int half = 8; half > 0; half /= 2)
          for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
        acc[(t - t0) * kPanelRows + r] = lane[0];
      }
    }
  };
  for_panels(a, T, pool, [&](int64_t first, int64_t count) {
    alignas(64) float acc[kTokens * kPanelRows];
    for (int64_t p = first; p < first + count; ++p)
      for (int64_t t0 = 0; t0 < T; t0 += kTokens) {
        const int64_t t1 = std::min(T, t0 + kTokens);
        const Rows rows(a, pitch, p, 0);
        for (int64_t r = 0; r < kPanelRows; r += kRows) tile(rows.row + r, p * kPanelRows + r, t0, t1, acc + r);
        for (int64_t t = t0; t < t1; ++t) finish(a, l, t, p * kPanelRows, acc + (t - t0) * kPanelRows);
      }
  });
}

}  // namespace

size_t gemm_scratch(const GemmArgs& a) {
  const int64_t T = a.T, K = a.K;
  if (a.act == GemmAct::q8)
    return (a.x_dtype == DType::f32 ? 0 : static_cast<size_t>(T * K * 4)) + QuantizedRows::bytes(K, T);
  return static_cast<size_t>(T * ceil_div(K, 16) * 16 * 4);
}

void gemm(const GemmArgs& a, Pool& pool) {
  const int64_t T = valid_rows(a.rows, a.T);
  pool.scratch(gemm_scratch(a));  // for the bound: one call with no valid row makes room for all later ones
  if (T == 0) return;
  if (a.act == GemmAct::q8) gemm_q8(a, level(), T, pool);
  else gemm_f32(a, level(), T, pool);
}

}  // namespace vivace::cpu
