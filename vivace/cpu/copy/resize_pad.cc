#include "vivace/kernels/copy/resize_pad.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {
namespace {

using kernels::ResizeAxis;
using kernels::ResizePadArgs;
using kernels::ResizeSpan;

/// n levels, or values of [0, 1] that are `unit`, as elements of the result from `first` on.
void store_levels(const ResizePadArgs& a, int64_t first, int64_t n, const uint8_t* level) {
  if (a.out_dtype == DType::u8) {
    std::copy_n(level, n, static_cast<uint8_t*>(a.out) + first);
    return;
  }
  for_chunks(n, [&](int64_t at, int64_t part) {
    float y[kChunk];
    for (int64_t i = 0; i < part; ++i) y[i] = kernels::signed_unit(kernels::unit_of(level[at + i]));
    store_f32(a.out, a.out_dtype, first + at, part, y);
  });
}

/// A line of the result that `fill(first element, n)` writes between its padding; all padding without one.
template <class F>
void padded_line(const ResizePadArgs& a, int64_t t, int64_t line, F&& fill) {
  static constexpr uint8_t kBlack[kChunk] = {};
  const int64_t whole = int64_t{a.OW} * a.C, first = t * a.out_stride + line * whole;
  const auto black = [&](int64_t from, int64_t n) {
    for_chunks(n, [&](int64_t at, int64_t part) { store_levels(a, first + from + at, part, kBlack); });
  };
  const int64_t picture = line - a.y.before;
  if (picture < 0 || picture >= a.y.to) return black(0, whole);
  const int64_t left = int64_t{a.x_axis.before} * a.C, wide = int64_t{a.x_axis.to} * a.C;
  black(0, left);
  fill(first + left, picture);
  black(left + wide, whole - left - wide);
}

/// Weights of one axis and what they are of.
struct Weights {
  int32_t* weight;
  ResizeSpan* span;
  Weights(const ResizeAxis& a, std::byte** memory) {
    weight = reinterpret_cast<int32_t*>(*memory);
    span = reinterpret_cast<ResizeSpan*>(weight + int64_t{a.to} * a.taps);
    *memory = reinterpret_cast<std::byte*>(span + a.to);
    for (int32_t i = 0; i < a.to; ++i) span[i] = kernels::triangle_weights(a, i, weight + int64_t{i} * a.taps);
  }
  static size_t bytes(const ResizeAxis& a) {
    return static_cast<size_t>(a.to) * (static_cast<size_t>(a.taps) * sizeof(int32_t) + sizeof(ResizeSpan));
  }
};

/// The columns of one line. Part: channels whose sums are made together, of which C is a multiple.
template <int Part>
void columns(const ResizePadArgs& a, const Weights& w, const uint8_t* from, uint8_t* to) {
  const int64_t C = Part == 3 ? 3 : a.C;
  for (int64_t i = 0; i < a.x_axis.to; ++i) {
    const int32_t* const weight = w.weight + i * a.x_axis.taps;
    const uint8_t* const pixel = from + w.span[i].first * C;
    for (int64_t c = 0; c < C; c += Part) {
      int32_t sum[Part] = {};
      for (int64_t k = 0; k < w.span[i].count; ++k)
        for (int p = 0; p < Part; ++p) sum[p] += pixel[k * C + c + p] * weight[k];
      for (int p = 0; p < Part; ++p) *to++ = static_cast<uint8_t>(kernels::resized_level(sum[p]));
    }
  }
}

/// Columns of every line, then lines: levels between the two.
void triangle(const ResizePadArgs& a, int64_t T, Pool& pool) {
  const int64_t C = a.C, wide = int64_t{a.x_axis.to} * C;
  const size_t lines = static_cast<size_t>(a.y.from * wide);
  auto* memory = static_cast<std::byte*>(
      pool.scratch(Weights::bytes(a.y) + Weights::bytes(a.x_axis) + lines + static_cast<size_t>(a.y.to * wide)));
  if (T == 0) return;
  const Weights wy(a.y, &memory), wx(a.x_axis, &memory);
  auto* const narrow = reinterpret_cast<uint8_t*>(memory);
  for (int64_t t = 0; t < T; ++t) {
    for_rows(pool, a.y.from, a.x_axis.from * C, [&](int64_t y) {
      const uint8_t* const from = a.x + t * a.x_stride + y * a.x_axis.from * C;
      if (C == 3) columns<3>(a, wx, from, narrow + y * wide);
      else columns<1>(a, wx, from, narrow + y * wide);
    });
    for_rows(pool, a.OH, wide * a.y.taps, [&](int64_t line) {
      padded_line(a, t, line, [&](int64_t first, int64_t i) {
        for_chunks(wide, [&](int64_t at, int64_t n) {
          int32_t sum[kChunk] = {};
          uint8_t level[kChunk];
          for (int64_t k = 0; k < wy.span[i].count; ++k) {
            const uint8_t* const from = narrow + (wy.span[i].first + k) * wide + at;
            const int32_t weight = wy.weight[i * a.y.taps + k];
            for (int64_t j = 0; j < n; ++j) sum[j] += from[j] * weight;
          }
          for (int64_t j = 0; j < n; ++j) level[j] = static_cast<uint8_t>(kernels::resized_level(sum[j]));
          store_levels(a, first + at, n, level);
        });
      });
    });
  }
}

void linear_line(const ResizePadArgs& a, int64_t t, int64_t first, int64_t line) {
  const int64_t C = a.C, pitch = a.x_axis.from * C;
  const kernels::ResizePoint y = kernels::linear_point(a.y, static_cast<int32_t>(line));
  const uint8_t *const top = a.x + t * a.x_stride + y.first * pitch, *const low =
                                                                         a.x + t * a.x_stride + y.second * pitch;
  float value[kChunk];
  int64_t held = 0;  // elements in `value`
  const auto flush = [&] {
    if (a.out_dtype == DType::u8)
      for (int64_t j = 0; j < held; ++j)
        static_cast<uint8_t*>(a.out)[first + j] =
            static_cast<uint8_t>(std::clamp(std::nearbyint(value[j]), 0.0f, 255.0f));
    else
      store_f32(a.out, a.out_dtype, first, held, value);
    first += held;
    held = 0;
  };
  const auto unit = kernels::unit_of;
  for (int32_t pixel = 0; pixel < a.x_axis.to; ++pixel) {
    const kernels::ResizePoint x = kernels::linear_point(a.x_axis, pixel);
    const int64_t left = x.first * C, right = x.second * C;
    for (int64_t c = 0; c < C; ++c) {
      const int32_t p[] = {top[left + c], top[right + c], low[left + c], low[right + c]};
      if (a.out_dtype == DType::u8)
        value[held++] = kernels::between(static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
                                         static_cast<float>(p[3]), y.share, x.share);
      else
        value[held++] =
            kernels::signed_unit(kernels::between(unit(p[0]), unit(p[1]), unit(p[2]), unit(p[3]), y.share, x.share));
      if (held == kChunk) flush();
    }
  }
  flush();
}

}  // namespace

void resize_pad(const ResizePadArgs& a, Pool& pool) {
  const int64_t T = valid_rows(a.rows, a.T);
  if (a.filter == kernels::ResizeFilter::triangle) return triangle(a, T, pool);
  for_rows(pool, T * a.OH, int64_t{a.OW} * a.C, [&](int64_t row) {
    const int64_t t = row / a.OH;
    padded_line(a, t, row % a.OH, [&](int64_t first, int64_t line) { linear_line(a, t, first, line); });
  });
}

}  // namespace vivace::cpu
