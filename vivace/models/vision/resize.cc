#include "vivace/models/vision/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace vivace::models::vision {
namespace {

constexpr int64_t C = 3;
constexpr int kFilterBits = 22, kLinearBits = 11;
constexpr double kSliver = 1e-3;  // what an output pixel covers of an input pixel counts from here on

double filter_at(Filter filter, double x) {
  x = std::fabs(x);
  if (filter == Filter::bilinear) return x < 1 ? 1 - x : 0.0;
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;  // Keys's cubic of -1/2
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0.0;
}

uint8_t level(int32_t sum) {
  return static_cast<uint8_t>(std::clamp((sum + (1 << (kFilterBits - 1))) >> kFilterBits, 0, 255));
}

/// Halves go to the even neighbour.
uint8_t nearest(float x) { return static_cast<uint8_t>(std::clamp(std::nearbyint(x), 0.0f, 255.0f)); }

template <class T>
void room(std::vector<T>* v, size_t n) {
  if (v->size() < n) v->resize(n);
}

}  // namespace

void Resizer::filter_taps(int64_t from, int64_t to, Filter filter, Taps* taps) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), wide = std::max(scale, 1.0),
               support = (filter == Filter::bilinear ? 1.0 : 2.0) * wide, inverse = 1.0 / wide;
  taps->spans.clear(), taps->fixed.clear(), taps->shares.clear();
  for (int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(centre - support + 0.5), 0),
                  count = std::min<int64_t>(static_cast<int64_t>(centre + support + 0.5), from) - first;
    const auto weight = [&](int64_t k) {
      return filter_at(filter, (static_cast<double>(k + first) - centre + 0.5) * inverse);
    };
    double all = 0;
    for (int64_t k = 0; k < count; ++k) all += weight(k);
    taps->spans.push_back({first, count, taps->fixed.size() + taps->shares.size()});
    for (int64_t k = 0; k < count; ++k) {
      if (filter == Filter::smooth_bicubic) {
        taps->shares.push_back(static_cast<float>(weight(k) / all));
        continue;
      }
      const double w = weight(k) / all * (1 << kFilterBits);
      taps->fixed.push_back(static_cast<int32_t>(w < 0 ? w - 0.5 : w + 0.5));
    }
  }
}

void Resizer::area_taps(int64_t from, int64_t to, Taps* taps) {
  const double scale = 1.0 / (static_cast<double>(to) / static_cast<double>(from));
  taps->spans.clear(), taps->fixed.clear(), taps->shares.clear();
  for (int64_t i = 0; i < to; ++i) {
    const double begin = static_cast<double>(i) * scale, end = begin + scale,
                 cell = std::min(scale, static_cast<double>(from) - begin);
    const int64_t last = std::min<int64_t>(static_cast<int64_t>(std::floor(end)), from - 1),
                  whole = std::min<int64_t>(static_cast<int64_t>(std::ceil(begin)), last);
    Span span{whole, 0, taps->shares.size()};
    const auto add = [&](double share) { taps->shares.push_back(static_cast<float>(share)), ++span.count; };
    if (const double part = static_cast<double>(whole) - begin; part > kSliver) --span.first, add(part / cell);
    for (int64_t k = whole; k < last; ++k) add(1.0 / cell);
    if (const double part = end - static_cast<double>(last); part > kSliver)
      add(std::min(std::min(part, 1.0), cell) / cell);
    taps->spans.push_back(span);
  }
}

void Resizer::linear_taps(int64_t from, int64_t to, Taps* taps) {
  const double ratio = static_cast<double>(to) / static_cast<double>(from), scale = 1.0 / ratio;
  taps->spans.clear(), taps->fixed.clear(), taps->shares.clear();
  for (int64_t i = 0; i < to; ++i) {
    const auto first = static_cast<int64_t>(std::floor(static_cast<double>(i) * scale));
    auto share = static_cast<float>(static_cast<double>(i + 1) - static_cast<double>(first + 1) * ratio);
    share = share <= 0 ? 0.0f : share - std::floor(share);
    taps->spans.push_back({std::min(first, from - 1), first + 1 < from ? 2 : 1, taps->fixed.size()});
    for (const float w : {1.0f - share, share})
      taps->fixed.push_back(static_cast<int32_t>(std::nearbyint(w * (1 << kLinearBits))));
  }
}

/// The columns of a line.
void Resizer::narrow_line(const uint8_t* line, const Taps& columns, float* out) {
  for (const Span& x : columns.spans) {
    const float* const share = columns.shares.data() + x.at;
    const uint8_t* pixel = line + x.first * C;
    float sum[C] = {};
    for (int64_t j = 0; j < x.count; ++j, pixel += C)
      for (int64_t c = 0; c < C; ++c) sum[c] += static_cast<float>(pixel[c]) * share[j];
    for (int64_t c = 0; c < C; ++c) *out++ = sum[c];
  }
}

/// Columns of every line, then lines, each rounded to levels; an axis that keeps its size stays as it is.
void Resizer::filtered(const Pixels& from, int64_t height, int64_t width, Filter filter, uint8_t* to) {
  const int64_t wide = width * C;
  const uint8_t* lines = from.data;
  int64_t pitch = from.stride;
  if (from.width != width) {
    filter_taps(from.width, width, filter, &columns_);
    uint8_t* out = to;
    if (from.height != height) {
      room(&narrow_, static_cast<size_t>(from.height * wide));
      out = narrow_.data(), lines = out, pitch = wide;
    }
    for (int64_t y = 0; y < from.height; ++y) {
      const uint8_t* const line = from.data + y * from.stride;
      for (const Span& s : columns_.spans) {
        const int32_t* const weight = columns_.fixed.data() + s.at;
        const uint8_t* pixel = line + s.first * C;
        int32_t sum[C] = {};
        for (int64_t k = 0; k < s.count; ++k, pixel += C)
          for (int64_t c = 0; c < C; ++c) sum[c] += pixel[c] * weight[k];
        for (int64_t c = 0; c < C; ++c) *out++ = level(sum[c]);
      }
    }
    if (from.height == height) return;
  }
  filter_taps(from.height, height, filter, &rows_);
  std::vector<int32_t>& sums = lines_[0];
  room(&sums, static_cast<size_t>(wide));
  for (const Span& s : rows_.spans) {
    std::fill_n(sums.begin(), wide, 0);
    for (int64_t k = 0; k < s.count; ++k) {
      const uint8_t* const line = lines + (s.first + k) * pitch;
      const int32_t weight = rows_.fixed[s.at + static_cast<size_t>(k)];
      for (int64_t i = 0; i < wide; ++i) sums[static_cast<size_t>(i)] += line[i] * weight;
    }
    for (int64_t i = 0; i < wide; ++i) *to++ = level(sums[static_cast<size_t>(i)]);
  }
}

void Resizer::smooth(const Pixels& from, int64_t height, int64_t width, uint8_t* to) {
  filter_taps(from.height, height, Filter::smooth_bicubic, &rows_);
  filter_taps(from.width, width, Filter::smooth_bicubic, &columns_);
  const auto wide = static_cast<size_t>(width * C);
  room(&smooth_, static_cast<size_t>(from.height) * wide), room(&sum_, wide);
  for (int64_t y = 0; y < from.height; ++y)
    narrow_line(from.data + y * from.stride, columns_, smooth_.data() + static_cast<size_t>(y) * wide);
  for (const Span& s : rows_.spans) {
    std::fill_n(sum_.begin(), wide, 0.0f);
    for (int64_t k = 0; k < s.count; ++k) {
      const float* const line = smooth_.data() + static_cast<size_t>(s.first + k) * wide;
      const float share = rows_.shares[s.at + static_cast<size_t>(k)];
      for (size_t i = 0; i < wide; ++i) sum_[i] += share * line[i];
    }
    for (size_t i = 0; i < wide; ++i) *to++ = nearest(sum_[i]);
  }
}

/// Where output pixels cover whole input pixels.
void Resizer::whole_areas(const Pixels& from, int64_t height, int64_t width, uint8_t* to) const {
  const int64_t lines = from.height / height, columns = from.width / width;
  const float share = 1.0f / static_cast<float>(lines * columns);
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (int64_t c = 0; c < C; ++c) {
        const uint8_t* const corner = from.data + y * lines * from.stride + x * columns * C + c;
        int32_t sum = 0;
        for (int64_t i = 0; i < lines; ++i)
          for (int64_t j = 0; j < columns; ++j) sum += corner[i * from.stride + j * C];
        *to++ = lines == 2 && columns == 2 ? static_cast<uint8_t>((sum + 2) >> 2)
                                           : nearest(static_cast<float>(sum) * share);
      }
}

void Resizer::areas(const Pixels& from, int64_t height, int64_t width, uint8_t* to) {
  area_taps(from.height, height, &rows_);
  area_taps(from.width, width, &columns_);
  const int64_t wide = width * C;
  room(&line_, static_cast<size_t>(wide)), room(&sum_, static_cast<size_t>(wide));
  int64_t held = -1;  // the line whose columns line_ has
  for (const Span& s : rows_.spans) {
    for (int64_t k = 0; k < s.count; ++k) {
      if (held != s.first + k) {
        held = s.first + k;
        narrow_line(from.data + held * from.stride, columns_, line_.data());
      }
      const float share = rows_.shares[s.at + static_cast<size_t>(k)];
      if (k == 0)
        for (size_t i = 0; i < static_cast<size_t>(wide); ++i) sum_[i] = share * line_[i];
      else
        for (size_t i = 0; i < static_cast<size_t>(wide); ++i) sum_[i] += share * line_[i];
    }
    for (int64_t i = 0; i < wide; ++i) *to++ = nearest(sum_[static_cast<size_t>(i)]);
  }
}

void Resizer::linear(const Pixels& from, int64_t height, int64_t width, uint8_t* to) {
  linear_taps(from.height, height, &rows_);
  linear_taps(from.width, width, &columns_);
  const auto wide = static_cast<size_t>(width * C);
  int64_t held[2] = {-1, -1};
  for (auto& line : lines_) room(&line, wide);
  const auto columns = [&](int64_t y, std::vector<int32_t>* line) {
    int32_t* out = line->data();
    for (const Span& s : columns_.spans) {
      const uint8_t* const pixel = from.data + y * from.stride + s.first * C;
      const int32_t left = columns_.fixed[s.at], right = columns_.fixed[s.at + 1];
      for (int64_t c = 0; c < C; ++c)
        *out++ = s.count == 2 ? pixel[c] * left + pixel[C + c] * right : pixel[c] << kLinearBits;
    }
  };
  for (const Span& s : rows_.spans) {
    const int64_t wanted[2] = {s.first, std::min(s.first + 1, from.height - 1)};
    if (held[0] != wanted[0] && held[1] == wanted[0]) std::swap(lines_[0], lines_[1]), std::swap(held[0], held[1]);
    for (size_t k = 0; k < 2; ++k)
      if (held[k] != wanted[k]) columns(held[k] = wanted[k], &lines_[k]);
    const int32_t above = rows_.fixed[s.at], below = rows_.fixed[s.at + 1];
    for (size_t i = 0; i < wide; ++i)  // OpenCV's roundings
      *to++ = static_cast<uint8_t>(
          (((above * (lines_[0][i] >> 4)) >> 16) + ((below * (lines_[1][i] >> 4)) >> 16) + 2) >> 2);
  }
}

void Resizer::run(const Pixels& from, int64_t height, int64_t width, Filter filter, uint8_t* to) {
  if (from.height == height && from.width == width) {
    for (int64_t y = 0; y < height; ++y)
      std::memcpy(to + y * width * C, from.data + y * from.stride, static_cast<size_t>(width * C));
    return;
  }
  if (filter == Filter::smooth_bicubic) return smooth(from, height, width, to);
  if (filter != Filter::area) return filtered(from, height, width, filter, to);
  if (height > from.height || width > from.width) return linear(from, height, width, to);
  if (from.height % height == 0 && from.width % width == 0) return whole_areas(from, height, width, to);
  areas(from, height, width, to);
}

}  // namespace vivace::models::vision
