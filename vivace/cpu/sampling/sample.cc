#include "vivace/kernels/sampling/sample.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "vivace/cpu/rows.h"
#include "vivace/cpu/simd/exp.h"
#include "vivace/kernels/sampling/philox.h"

namespace vivace::cpu {
namespace {

using kernels::SampleArgs;
constexpr float kInf = std::numeric_limits<float>::infinity();

/// Tokens that are kept: score key above `key`, or equal to it and an id of at most `last`.
struct Cut {
  uint32_t key = 0;
  int64_t last = std::numeric_limits<int64_t>::max();
};

struct Largest {
  float value;  // meaningless beside a NaN
  bool nan;
};

/// Over n >= 1 values. As integers, because compilers vectorise that maximum.
Largest largest(const float* z, int64_t n) {
  uint32_t top = 0, nan = 0;
  for (int64_t i = 0; i < n; ++i) {
    top = std::max(top, kernels::score_key(z[i]));
    nan |= z[i] != z[i];
  }
  const uint32_t bits = top & 0x80000000u ? top & 0x7fffffffu : ~top;
  float value;
  std::memcpy(&value, &bits, 4);
  return {value, nan != 0};
}

/// One row's logits as the draw sees them, recomputed in every pass: no row-sized memory is needed.
class Row {
 public:
  Row(const SampleArgs& a, int64_t t) : a_(a), t_(t), mask_(kernels::mask_of(a, t)) {
    const float temperature = a.temperature ? a.temperature[t] : 0.0f;
    greedy_ = !(temperature >= kernels::kMinTemperature);
    temperature_ = greedy_ ? 1.0f : temperature;
    const int64_t slot = a.slot ? a.slot[t] : 0;
    const auto differs = [t](const float* of, float neutral) { return of != nullptr && of[t] != neutral; };
    const bool penalised = differs(a.repetition, 1) || differs(a.presence, 0) || differs(a.frequency, 0);
    if (penalised && a.counts && slot >= 0 && slot < a.S) counts_ = a.counts + slot * a.counts_stride;
  }

  /// Token of the row, -1 if there is none.
  int64_t draw() {
    if (!find_max()) return -1;
    if (greedy_) return argmax_;
    Cut cut;
    const int64_t k = a_.top_k ? a_.top_k[t_] : 0;
    const float p = a_.top_p ? a_.top_p[t_] : 1.0f;
    if (k > 0 && k < a_.V) cut = narrow(cut, static_cast<uint64_t>(k), [](float) { return uint64_t{1}; });
    if (p < 1.0f) {
      const auto mass = [this](float z) { return static_cast<uint64_t>(weight(z) * kernels::kMassUnit); };
      uint64_t total = 0;
      each_kept(cut, [&](int64_t, float z, uint32_t) { total += mass(z); });
      const double want = std::ceil(static_cast<double>(p) * static_cast<double>(total));
      cut = narrow(cut, want < 1 ? 1 : std::min(total, static_cast<uint64_t>(want)), mass);
    }
    return noisy_argmax(cut);
  }

  float logprob(int64_t token) const {
    if (token < 0) return std::numeric_limits<float>::quiet_NaN();
    float l[kChunk], max = -kInf, sum = 0, at = 0;
    for_chunks(a_.V, [&](int64_t first, int64_t n) {
      load_f32(a_.logits, a_.dtype, t_ * a_.logits_stride + first, n, l);
      max = std::max(max, largest(l, n).value);
      if (token >= first && token < first + n) at = l[token - first];
    });
    for_chunks(a_.V, [&](int64_t first, int64_t n) {
      load_f32(a_.logits, a_.dtype, t_ * a_.logits_stride + first, n, l);
      for (int64_t i = 0; i < n; ++i) l[i] = exp_negative(l[i] - max);
      std::fill(l + n, l + kChunk, 0.0f);
      float part[8] = {};  // of one chunk: the error grows with kChunk / 8 + V / kChunk, not with V
      for (int64_t i = 0; i < kChunk; i += 8)
        for (int64_t j = 0; j < 8; ++j) part[j] += l[i + j];
      for (const float p : part) sum += p;
    });
    return at - max - std::log(sum);
  }

 private:
  /// Calls f(first, n, z) for each stretch of the row's penalised, masked and divided logits.
  template <class F>
  void each_chunk(F&& f) const {
    for_chunks(a_.V, [&](int64_t first, int64_t n) {
      float z[kChunk];
      load_f32(a_.logits, a_.dtype, t_ * a_.logits_stride + first, n, z);
      if (counts_) penalise(first, n, z);
      if (!greedy_)
        for (int64_t i = 0; i < n; ++i) z[i] = z[i] == -kInf ? -kInf : z[i] / temperature_;
      if (mask_) {
        for (int64_t v = first; v < first + n; ++v)
          if (!(static_cast<uint32_t>(mask_[v / 32]) >> (v % 32) & 1)) z[v - first] = -kInf;
      }
      f(first, n, z);
    });
  }

  void penalise(int64_t first, int64_t n, float* l) const {
    const float repetition = a_.repetition ? a_.repetition[t_] : 1.0f;
    const float presence = a_.presence ? a_.presence[t_] : 0.0f, frequency = a_.frequency ? a_.frequency[t_] : 0.0f;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t count = counts_[first + i];
      if (count <= 0) continue;
      l[i] = l[i] > 0 ? l[i] / repetition : l[i] * repetition;
      const float per_count = frequency * static_cast<float>(count);
      l[i] -= presence + per_count;
    }
  }

  template <class F>
  void each_kept(const Cut& cut, F&& f) const {
    each_chunk([&](int64_t first, int64_t n, const float* z) {
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t key = kernels::score_key(z[i]);
        if (z[i] > -kInf && (key > cut.key || (key == cut.key && first + i <= cut.last))) f(first + i, z[i], key);
      }
    });
  }

  /// Sets the largest score and its lowest id; false if a score is NaN or none is above -inf.
  bool find_max() {
    bool nan = false;
    each_chunk([&](int64_t first, int64_t n, const float* z) {
      const Largest top = largest(z, n);
      nan |= top.nan;
      if (!(top.value > max_)) return;
      max_ = top.value;
      for (argmax_ = first; z[argmax_ - first] != max_;) ++argmax_;
    });
    return !nan && argmax_ >= 0;
  }

  /// exp(z - max): the probability in units of the top token's.
  float weight(float z) const { return z == max_ ? 1.0f : std::exp(z - max_); }

  /// The fewest best tokens within `cut` whose measures sum to `target` or more; `cut` if all do not.
  /// Radix descent over the keys, from the top: 11, 11 and 10 bits, then the ties of one key by id.
  template <class Measure>
  Cut narrow(const Cut& cut, uint64_t target, Measure&& measure) const {
    uint64_t above = 0;  // sum over keys above the prefix
    uint32_t prefix = 0;
    int known = 0;  // leading bits that prefix holds
    for (const int bits : {11, 11, 10}) {
      uint64_t sums[2048] = {};
      const int shift = 32 - known - bits;
      each_kept(cut, [&](int64_t, float z, uint32_t key) {
        if (known == 0 || key >> (32 - known) == prefix) sums[key >> shift & ((1u << bits) - 1)] += measure(z);
      });
      int digit = (1 << bits) - 1;
      while (digit >= 0 && above + sums[digit] < target) above += sums[digit--];
      if (digit < 0) return cut;
      prefix = prefix << bits | static_cast<uint32_t>(digit);
      known += bits;
    }
    Cut result{prefix, -1};
    each_kept(cut, [&](int64_t v, float z, uint32_t key) {
      if (key != prefix || above >= target) return;
      above += measure(z);
      result.last = v;
    });
    return result;
  }

  int64_t noisy_argmax(const Cut& cut) const {
    const uint64_t seed = a_.seed ? static_cast<uint64_t>(a_.seed[t_]) : 0;
    const uint32_t step = a_.step ? static_cast<uint32_t>(a_.step[t_]) : 0;
    const float min_p = a_.min_p ? a_.min_p[t_] : 0.0f;
    int64_t group = -1;
    kernels::PhiloxWords words{};  // of tokens 4 * group and the three after it
    const auto word = [&](int64_t v) {
      if (v / 4 != group) group = v / 4, words = kernels::noise_words(seed, step, static_cast<uint32_t>(group));
      return words.w[v % 4];
    };
    // Two logarithms a token are saved where they cannot matter: the top token, which every cut keeps,
    // starts, and g <= -log(u), so that a token whose u is above exp(max - best) loses. The slack is wider
    // than the roundings of a score.
    int64_t best = argmax_;
    float best_score = 0, hopeless = 0;
    const auto take = [&](int64_t v, float score) {
      best = v, best_score = score;
      hopeless = std::exp(max_ - score + 1e-3f + 1e-6f * std::fabs(max_)) * 0x1p32f;
    };
    take(argmax_, max_ + kernels::gumbel(word(argmax_)));
    each_kept(cut, [&](int64_t v, float z, uint32_t) {
      if (z + kernels::kMaxGumbel < best_score || static_cast<float>(word(v)) > hopeless || weight(z) < min_p) return;
      const float score = z + kernels::gumbel(word(v));
      if (score > best_score || (score == best_score && v < best)) take(v, score);
    });
    return best;
  }

  const SampleArgs& a_;
  int64_t t_;
  const int32_t* mask_;
  bool greedy_;
  float temperature_;
  const int32_t* counts_ = nullptr;  // the row's occurrences, null: no penalties
  float max_ = -kInf;
  int64_t argmax_ = -1;
};

}  // namespace

void sample(const SampleArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.V, [&](int64_t t) {
    Row row(a, t);
    const int64_t token = row.draw();
    a.token[t] = static_cast<int32_t>(token);
    if (a.logprob != nullptr) a.logprob[t] = row.logprob(token);
  });
}

}  // namespace vivace::cpu
