#include "vivace/models/whisper/alignment.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vivace::models::whisper {
namespace {

constexpr int64_t kMedian = 7;

void softmax(float* row, int64_t n) {
  const float most = *std::max_element(row, row + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(row[i] = std::exp(row[i] - most));
  for (int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(static_cast<double>(row[i]) / sum);
}

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

/// Adds the medians of a row to `to`.
void add_medians(const float* row, int64_t n, float* to) {
  constexpr int64_t half = kMedian / 2;
  float window[kMedian];
  for (int64_t i = 0; i < n; ++i) {
    if (n <= half) {
      to[i] += row[i];
      continue;
    }
    for (int64_t k = 0; k < kMedian; ++k) {
      int64_t at = std::abs(i + k - half);
      at = at < n ? at : 2 * (n - 1) - at;
      window[k] = row[at];
    }
    std::nth_element(window, window + half, window + kMedian);
    to[i] += window[half];
  }
}

}  // namespace

std::vector<float> alignment_weights(std::vector<float>* scores, int64_t heads, int64_t tokens, int64_t columns) {
  std::vector<float> sum(static_cast<size_t>(tokens * columns));
  for (int64_t h = 0; h < heads; ++h) {
    float* const x = scores->data() + h * tokens * columns;
    for (int64_t t = 0; t < tokens; ++t) softmax(x + t * columns, columns);
    standardise(x, tokens, columns);
    for (int64_t t = 0; t < tokens; ++t) add_medians(x + t * columns, columns, sum.data() + t * columns);
  }
  for (float& v : sum) v /= static_cast<float>(heads);
  return sum;
}

void Follower::add(size_t head, std::span<float> scores) {
  rows_ += head == 0;
  softmax(scores.data(), columns_);
  const size_t at = head * static_cast<size_t>(columns_);
  for (size_t c = 0; c < scores.size(); ++c) {
    const auto v = static_cast<double>(row_[at + c] = scores[c]);
    const double off = v - mean_[at + c];
    mean_[at + c] += off / static_cast<double>(rows_);
    square_[at + c] += off * (v - mean_[at + c]);
  }
}

int32_t Follower::place() const {
  std::vector<float> z(static_cast<size_t>(columns_)), sum(z.size());
  for (size_t at = 0; at < row_.size(); at += z.size()) {
    for (size_t c = 0; c < z.size(); ++c) {
      const double deviation = std::sqrt(square_[at + c] / static_cast<double>(rows_));
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
