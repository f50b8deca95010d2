// Histogram: how long things took, in buckets that are 9 % wide. Fixed memory; whoever owns it locks.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace vivace::sched {

class Histogram {
 public:
  static constexpr int kPerOctave = 8,
                       kBuckets = 27 * kPerOctave;  // 1 us to 134 s; what is shorter or longer is in the first or last

  void add(double us) {
    ++counts_[static_cast<size_t>(
        std::clamp(static_cast<int>(std::ceil(std::log2(std::max(us, 1.0)) * kPerOctave)), 0, kBuckets - 1))];
    ++count_;
    sum_us_ += us;
    max_us_ = std::max(max_us_, us);
  }
  int64_t count() const { return count_; }
  double sum_us() const { return sum_us_; }
  double max_us() const { return max_us_; }
  /// The least bound that a part `q` of all does not exceed; 0 without any.
  double quantile_us(double q) const {
    int64_t left = static_cast<int64_t>(std::ceil(q * static_cast<double>(count_)));
    for (int i = 0; i < kBuckets && left > 0; ++i)
      if ((left -= counts_[static_cast<size_t>(i)]) <= 0) return std::min(max_us_, bound_us(i));
    return max_us_;
  }
  /// How many were `us` or less, to a bucket.
  int64_t below(double us) const {
    int64_t n = 0;
    for (int i = 0; i < kBuckets && bound_us(i) <= us * 1.0001; ++i) n += counts_[static_cast<size_t>(i)];
    return n;
  }

 private:
  static double bound_us(int i) { return std::exp2(static_cast<double>(i) / kPerOctave); }
  std::array<int64_t, kBuckets> counts_{};
  int64_t count_ = 0;
  double sum_us_ = 0, max_us_ = 0;
};

}  // namespace vivace::sched
