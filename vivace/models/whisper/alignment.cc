#include "vivace/models/whisper/alignment.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vivace::models::whisper {
namespace {

constexpr int64_t kMedian = 7;

/// Each column of [T, n] with mean 0 and deviation 1 over its rows.
void standardise(float* x, int64_t T, int64_t n) {
  for (int64_t c = 0; c < n; ++c) {
    double mean = 0, square = 0;
    for (int64_t t = 0; t < T; ++t) mean += static_cast<double>(x[t * n + c]);
    mean /= static_cast<double>(T);
    for (int64_t t = 0; t < T; ++t)
      square += (static_cast<double>(x[t * n + c]) - mean) * (static_cast<double>(x[t * n + c]) - mean);
    const double deviation = std::sqrt(square / static_cast<double>(T));
    for (int64_t t = 0; t < T; ++t)
      x[t * n + c] = deviation > 0 ? static_cast<float>((static_cast<double>(x[t * n + c]) - mean) / deviation) : 0.0f;
  }
}

void order(float& a, float& b) {
  const float low = b < a ? b : a, high = b < a ? a : b;
  a = low, b = high;
}

/// The middle of seven, without a branch, so that loops of it become vectors: of five the least and the largest cannot
/// be it; then the same of the three that stay and one more, and of the two that stay and the last.
float middle(float a, float b, float c, float d, float e, float f, float g) {
  order(a, b), order(d, e), order(a, d), order(b, e), order(a, c), order(c, e);  // a least, e largest
  order(b, c), order(d, f), order(b, d), order(c, f);                            // b least, f largest
  order(c, d), order(d, g), order(c, d);
  return d;
}

/// Adds the medians of a row to `to`.
void add_medians(const float* row, int64_t n, float* to) {
  constexpr int64_t half = kMedian / 2;
  if (n <= half) {
    for (int64_t i = 0; i < n; ++i) to[i] += row[i];
    return;
  }
  const auto at = [&](int64_t i) { return row[i < 0 ? -i : i < n ? i : 2 * (n - 1) - i]; };
  const auto mirrored = [&](int64_t i) {
    to[i] += middle(at(i - 3), at(i - 2), at(i - 1), at(i), at(i + 1), at(i + 2), at(i + 3));
  };
  const int64_t inner = std::max(half, n - half);
  for (int64_t i = 0; i < std::min(half, n); ++i) mirrored(i);
  for (int64_t i = half; i < inner; ++i)
    to[i] += middle(row[i - 3], row[i - 2], row[i - 1], row[i], row[i + 1], row[i + 2], row[i + 3]);
  for (int64_t i = inner; i < n; ++i) mirrored(i);
}

}  // namespace

std::vector<float> alignment_weights(std::vector<float>* weights, int64_t heads, int64_t tokens, int64_t columns) {
  std::vector<float> sum(static_cast<size_t>(tokens * columns));
  for (int64_t h = 0; h < heads; ++h) {
    float* const x = weights->data() + h * tokens * columns;
    standardise(x, tokens, columns);
    for (int64_t t = 0; t < tokens; ++t) add_medians(x + t * columns, columns, sum.data() + t * columns);
  }
  for (float& v : sum) v /= static_cast<float>(heads);
  return sum;
}

void Follower::add(size_t head, const float* weights, int64_t n) {
  const size_t at = head * static_cast<size_t>(columns_);
  double* const mean = mean_.data() + at;
  double* const square = square_.data() + at;
  for (int64_t i = 0; i < n; ++i) {
    const float* const row = weights + i * columns_;
    const double part = 1 / static_cast<double>(rows_ + i + 1);
    for (int64_t c = 0; c < columns_; ++c) {
      const auto v = static_cast<double>(row[c]);
      const double off = v - mean[c], now = mean[c] + off * part;
      mean[c] = now;
      square[c] += off * (v - now);
    }
  }
  std::copy_n(weights + (n - 1) * columns_, columns_, row_.data() + at);
}

int32_t Follower::place() const {
  std::vector<float> z(static_cast<size_t>(columns_)), sum(z.size());
  const double part = 1 / static_cast<double>(rows_);
  for (size_t at = 0; at < row_.size(); at += z.size()) {
    for (size_t c = 0; c < z.size(); ++c) {
      const double deviation = std::sqrt(square_[at + c] * part);
      z[c] = deviation > 0 ? static_cast<float>((static_cast<double>(row_[at + c]) - mean_[at + c]) / deviation) : 0.0f;
    }
    add_medians(z.data(), columns_, sum.data());
  }
  return static_cast<int32_t>(std::max_element(sum.begin(), sum.begin() + std::max(follow_->content, 1)) - sum.begin());
}

std::vector<int32_t> first_hits(std::span<const float> weights, int64_t tokens, int64_t columns) {
  enum Step : uint8_t { both, token, column };
  const int64_t pitch = columns + 1;
  constexpr float kFar = std::numeric_limits<float>::infinity();
  std::vector<float> before(static_cast<size_t>(pitch), kFar), now(static_cast<size_t>(pitch), kFar);
  std::vector<Step> from(static_cast<size_t>((tokens + 1) * pitch), column);
  before[0] = 0;
  for (int64_t t = 1; t <= tokens; ++t) {
    now[0] = kFar;
    from[static_cast<size_t>(t * pitch)] = token;
    for (int64_t c = 1; c <= columns; ++c) {
      const auto i = static_cast<size_t>(c);
      const float a = before[i - 1], b = before[i], d = now[i - 1];
      const Step step = a < b && a < d ? both : b < a && b < d ? token : column;
      now[i] = (step == both ? a : step == token ? b : d) - weights[static_cast<size_t>((t - 1) * columns + c - 1)];
      from[static_cast<size_t>(t * pitch + c)] = step;
    }
    std::swap(before, now);
  }
  std::vector<int32_t> first(static_cast<size_t>(tokens), 0);
  for (int64_t t = tokens, c = columns; t > 0 || c > 0;) {
    if (t > 0)
      first[static_cast<size_t>(t - 1)] =
          static_cast<int32_t>(std::max<int64_t>(c - 1, 0));  // the last seen on the way back is the first
    const auto step = t == 0 ? column : c == 0 ? token : from[static_cast<size_t>(t * pitch + c)];
    t -= step != column;
    c -= step != token;
  }
  return first;
}

}  // namespace vivace::models::whisper
