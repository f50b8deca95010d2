#include "vivace/kernels/sampling/top_logprobs.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "vivace/cpu/rows.h"
#include "vivace/cpu/simd/exp.h"

namespace vivace::cpu {
namespace {

using kernels::TopLogprobsArgs;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

/// A row's allowed logits, in stretches.
class Row {
 public:
  Row(const TopLogprobsArgs& a, int64_t t)
      : logits_(a.logits + t * a.logits_stride), mask_(kernels::mask_of(a, t)), spans_(kernels::spans_of(a, t)) {
    for (const int part : {0, 1}) most_[part] = largest(part), sum_[part] = exp_sum(part, most_[part]);
    if (spans_.together && log_sum(1) > static_cast<double>(most_[0])) first_ = 1;
    const float most = first_ == 1 ? most_[1] : std::max(most_[0], most_[1]);
    double sum = 0;
    for (int part = first_; part < 2; ++part)
      if (most_[part] != -kInf || std::isnan(sum_[part]))
        sum += sum_[part] * std::exp(static_cast<double>(most_[part]) - static_cast<double>(most));
    all_ = sum > 0           ? static_cast<double>(most) + std::log(sum)
           : std::isnan(sum) ? static_cast<double>(kNan)
                             : -HUGE_VAL;
  }

  bool sound() const { return std::isfinite(all_); }
  float logprob(float l) const { return static_cast<float>(static_cast<double>(l) - all_); }
  /// The n likeliest into `token` and `logprob`; how many there are.
  int32_t best(int32_t n, int32_t* token, float* logprob) const {
    int32_t held = 0;
    if (n == 0) return held;
    for (int part = first_; part < 2; ++part)
      each_chunk(part, [&](int64_t first, int64_t count, const float* z) {
        for (int64_t i = 0; i < count; ++i) {
          if (!(z[i] > (held == n ? logprob[held - 1] : -kInf))) continue;
          int32_t at = held == n ? held - 1 : held++;
          for (; at > 0 && z[i] > logprob[at - 1]; --at) logprob[at] = logprob[at - 1], token[at] = token[at - 1];
          logprob[at] = z[i], token[at] = static_cast<int32_t>(first + i);
        }
      });
    for (int32_t i = 0; i < held; ++i) logprob[i] = this->logprob(logprob[i]);
    return held;
  }
  float at(int64_t v) const {
    for (int part = first_; part < 2; ++part)
      if (v >= spans_.begin[part] && v < spans_.end[part] && kernels::mask_allows(mask_, v)) return logprob(logits_[v]);
    return -kInf;
  }

 private:
  double log_sum(int part) const {
    return most_[part] == -kInf ? -HUGE_VAL : static_cast<double>(most_[part]) + std::log(sum_[part]);
  }
  template <class F>
  void each_chunk(int part, F&& f) const {
    const int64_t begin = spans_.begin[part];
    for_chunks(spans_.end[part] - begin, [&](int64_t first, int64_t n) {
      first += begin;
      if (mask_ == nullptr) return f(first, n, logits_ + first);
      float z[kChunk];
      std::memcpy(z, logits_ + first, static_cast<size_t>(n) * sizeof(float));
      for (int64_t i = 0; i < n;) {
        const int64_t v = first + i, in_word = std::min<int64_t>(32 - v % 32, n - i);
        const uint32_t word = static_cast<uint32_t>(mask_[v / 32]) >> (v % 32);
        if (word != ~uint32_t{0} >> (v % 32))
          for (int64_t k = 0; k < in_word; ++k)
            if ((word >> k & 1) == 0) z[i + k] = -kInf;
        i += in_word;
      }
      f(first, n, z);
    });
  }
  /// Without NaN. As integers, because compilers vectorise that maximum.
  float largest(int part) const {
    uint32_t top = 0x007fffffu;  // of -inf
    each_chunk(part, [&](int64_t, int64_t n, const float* z) {
      for (int64_t i = 0; i < n; ++i) top = std::max(top, z[i] == z[i] ? kernels::score_key(z[i]) : 0u);
    });
    const uint32_t bits = top & 0x80000000u ? top & 0x7fffffffu : ~top;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  /// Sum of exp(l - most). NaN where a logit is.
  double exp_sum(int part, float most) const {
    const float from = most == -kInf ? 0.0f : most;
    double sum = 0;
    each_chunk(part, [&](int64_t, int64_t n, const float* z) {
      float e[kChunk];
      for (int64_t i = 0; i < n; ++i) e[i] = exp_negative(z[i] - from);
      std::fill(e + n, e + kChunk, 0.0f);
      float parts[8] = {};
      for (int64_t i = 0; i < kChunk; i += 8)
        for (int64_t j = 0; j < 8; ++j) parts[j] += e[i + j];
      for (const float p : parts) sum += static_cast<double>(p);
    });
    return sum;
  }

  const float* logits_;
  const int32_t* mask_;
  kernels::TokenSpans spans_;
  float most_[2];
  double sum_[2];
  int first_ = 0;  // part that may come
  double all_;     // log-sum-exp of what may
};

void top_row(const TopLogprobsArgs& a, int64_t t) {
  const Row row(a, t);
  int32_t* const token = a.token + t * a.token_stride;
  float* const logprob = a.logprob + t * a.logprob_stride;
  const int32_t held = row.sound() ? row.best(kernels::wanted_of(a, t), token, logprob) : 0;
  std::fill(token + held, token + a.K, -1);
  std::fill(logprob + held, logprob + a.K, kNan);
  if (a.asked_logprob != nullptr) a.asked_logprob[t] = row.sound() ? row.at(a.asked[t]) : kNan;
}

}  // namespace

void top_logprobs(const TopLogprobsArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.V * int64_t{4}, [&](int64_t t) { top_row(a, t); });
}

}  // namespace vivace::cpu
