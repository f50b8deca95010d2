#include "vivace/models/vla/image.h"

#include <algorithm>
#include <cmath>

namespace vivace::models::vla {
namespace {

constexpr int kBits = 22;  // of a fixed-point weight

uint8_t rounded(int32_t sum) { return static_cast<uint8_t>(std::clamp((sum + (1 << (kBits - 1))) >> kBits, 0, 255)); }

}  // namespace

void Resizer::prepare(Axis* a, int64_t from, int64_t to) const {
  a->from = from;
  a->to = to;
  a->before = (side_ - to) / 2;
  a->first.resize(static_cast<size_t>(to));
  if (kind_ == Resize::lerobot) {
    a->share.resize(static_cast<size_t>(to));
    const float scale = static_cast<float>(from) / static_cast<float>(to);
    for (int64_t i = 0; i < to; ++i) {
      const float at = std::max((static_cast<float>(i) + 0.5f) * scale - 0.5f, 0.0f);
      const auto first = std::min(static_cast<int64_t>(at), from - 1);
      a->first[static_cast<size_t>(i)] = static_cast<int32_t>(first);
      a->share[static_cast<size_t>(i)] = at - static_cast<float>(first);
    }
    return;
  }
  const double scale = static_cast<double>(from) / static_cast<double>(to), support = std::max(scale, 1.0);
  a->taps = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  a->count.resize(static_cast<size_t>(to));
  a->fixed.assign(static_cast<size_t>(to * a->taps), 0);
  std::vector<double> weights(static_cast<size_t>(a->taps));
  for (int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<int64_t>(static_cast<int64_t>(centre - support + 0.5), 0);
    const int64_t n = std::min<int64_t>(static_cast<int64_t>(centre + support + 0.5), from) - first;
    double sum = 0;
    for (int64_t k = 0; k < n; ++k) {
      const double distance = std::fabs((static_cast<double>(k + first) - centre + 0.5) / support);
      sum += weights[static_cast<size_t>(k)] = std::max(1.0 - distance, 0.0);
    }
    a->first[static_cast<size_t>(i)] = static_cast<int32_t>(first);
    a->count[static_cast<size_t>(i)] = static_cast<int32_t>(n);
    for (int64_t k = 0; k < n; ++k)
      a->fixed[static_cast<size_t>(i * a->taps + k)] = static_cast<int32_t>(weights[static_cast<size_t>(k)] / sum * (1 << kBits) + 0.5);
  }
}

void Resizer::prepare(const engine::Frame& frame) {
  if (frame.height == height_ && frame.width == width_) return;
  height_ = frame.height;
  width_ = frame.width;
  const double ratio = std::max(static_cast<double>(width_) / static_cast<double>(side_), static_cast<double>(height_) / static_cast<double>(side_));
  const auto fit = [&](int64_t n) { return std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(n) / ratio), 1, side_); };
  prepare(&x_, width_, fit(width_));
  prepare(&y_, height_, fit(height_));
  rows_.resize(static_cast<size_t>(height_ * x_.to * 3));
  sums_.resize(static_cast<size_t>(x_.to * 3));
}

/// Columns, then rows.
void Resizer::run(const engine::Frame& frame, uint8_t* out) {
  if (frame.height == side_ && frame.width == side_) {
    for (int64_t y = 0; y < side_; ++y) std::copy_n(frame.data + y * frame.stride, side_ * 3, out + y * side_ * 3);
    return;
  }
  prepare(frame);
  for (int64_t y = 0; y < height_; ++y) {
    const uint8_t* const from = frame.data + y * frame.stride;
    uint8_t* to = rows_.data() + y * x_.to * 3;
    for (int64_t i = 0; i < x_.to; ++i, to += 3) {
      const int32_t* const weight = &x_.fixed[static_cast<size_t>(i * x_.taps)];
      const uint8_t* pixel = from + int64_t{x_.first[static_cast<size_t>(i)]} * 3;
      int32_t sum[3] = {};
      for (int32_t k = 0; k < x_.count[static_cast<size_t>(i)]; ++k, pixel += 3)
        for (int c = 0; c < 3; ++c) sum[c] += pixel[c] * weight[k];
      for (int c = 0; c < 3; ++c) to[c] = rounded(sum[c]);
    }
  }
  const int64_t wide = x_.to * 3;
  std::fill_n(out, side_ * side_ * 3, uint8_t{0});
  for (int64_t i = 0; i < y_.to; ++i) {
    std::fill(sums_.begin(), sums_.end(), 0);
    for (int32_t k = 0; k < y_.count[static_cast<size_t>(i)]; ++k) {
      const uint8_t* const from = rows_.data() + (y_.first[static_cast<size_t>(i)] + k) * wide;
      const int32_t weight = y_.fixed[static_cast<size_t>(i * y_.taps + k)];
      for (int64_t j = 0; j < wide; ++j) sums_[static_cast<size_t>(j)] += from[j] * weight;
    }
    uint8_t* const to = out + ((y_.before + i) * side_ + x_.before) * 3;
    for (int64_t j = 0; j < wide; ++j) to[j] = rounded(sums_[static_cast<size_t>(j)]);
  }
}

void Resizer::run(const engine::Frame& frame, float* out) {
  prepare(frame);
  std::fill_n(out, side_ * side_ * 3, -1.0f);
  for (int64_t i = 0; i < y_.to; ++i) {
    const int64_t y0 = y_.first[static_cast<size_t>(i)], y1 = std::min(y0 + 1, height_ - 1);
    const float below = y_.share[static_cast<size_t>(i)], above = 1.0f - below;
    const uint8_t *const top = frame.data + y0 * frame.stride, *const bottom = frame.data + y1 * frame.stride;
    float* to = out + ((y_.before + i) * side_ + x_.before) * 3;
    for (int64_t j = 0; j < x_.to; ++j) {
      const int64_t x0 = x_.first[static_cast<size_t>(j)], x1 = std::min(x0 + 1, width_ - 1);
      const float right = x_.share[static_cast<size_t>(j)], left = 1.0f - right;
      const auto at = [](const uint8_t* p, int64_t x, int c) { return static_cast<float>(p[x * 3 + c]) / 255.0f; };
      for (int c = 0; c < 3; ++c)
        *to++ = (above * (left * at(top, x0, c) + right * at(top, x1, c)) + below * (left * at(bottom, x0, c) + right * at(bottom, x1, c))) * 2.0f - 1.0f;
    }
  }
}

}  // namespace vivace::models::vla
