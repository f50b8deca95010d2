#include "vivace/ops/rope_freqs.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "vivace/base/check.h"

namespace vivace::ops {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

Status check(double base, int64_t dim, const RopeScaling& s) {
  const auto bad = [](const char* what, double got) {
    return Status(Code::kInvalidArgument, strf("rope_freqs: %s, got %g", what, got));
  };
  if (!(base > 1)) return bad("base must be above 1", base);
  if (dim < 2 || dim % 2 != 0) return bad("dim must be even and at least 2", static_cast<double>(dim));
  if (!(s.factor >= 1) || std::isinf(s.factor)) return bad("factor must be at least 1 and finite", s.factor);
  if (s.kind == RopeKind::ntk && dim < 4) return bad("ntk needs dim of at least 4", static_cast<double>(dim));
  const bool needs_context = s.kind == RopeKind::llama3 || s.kind == RopeKind::yarn;
  if (needs_context && !(s.original_context >= 1))
    return bad("llama3 and yarn need original_context of at least 1", s.original_context);
  if (s.kind == RopeKind::llama3 && !(s.low_freq > 0 && s.high_freq > s.low_freq))
    return bad("high_freq must be above low_freq, which must be above 0", s.high_freq);
  if (s.kind == RopeKind::yarn && !(s.beta_slow > 0 && s.beta_fast >= s.beta_slow))
    return bad("beta_fast must be at least beta_slow, which must be above 0", s.beta_fast);
  if (!(s.attn_factor >= 0)) return bad("attn_factor must be at least 0", s.attn_factor);
  return {};
}

double llama3(double inv, const RopeScaling& s) {
  const double turns = s.original_context * inv / kTwoPi;  // over the original context
  if (turns > s.high_freq) return inv;
  if (turns < s.low_freq) return inv / s.factor;
  const double keep = (turns - s.low_freq) / (s.high_freq - s.low_freq);
  return keep * inv + (1 - keep) * inv / s.factor;
}

/// Share of inv / factor in each pair's frequency: 0 before the ramp, 1 after it.
class YarnRamp {
 public:
  YarnRamp(double base, int64_t dim, const RopeScaling& s) {
    const auto pair = [&](double turns) {  // the pair, a real number, that turns so often over the context
      return static_cast<double>(dim) * std::log(s.original_context / (turns * kTwoPi)) / (2 * std::log(base));
    };
    low_ = pair(s.beta_fast), high_ = pair(s.beta_slow);
    if (s.truncate) low_ = std::floor(low_), high_ = std::ceil(high_);
    low_ = std::max(low_, 0.0);
    high_ = std::min(high_, static_cast<double>(dim - 1));
    if (low_ == high_) high_ += 0.001;  // a step, without a division by zero
  }
  double at(int64_t i) const { return std::clamp((static_cast<double>(i) - low_) / (high_ - low_), 0.0, 1.0); }

 private:
  double low_, high_;
};

double yarn_attn_factor(const RopeScaling& s) {
  if (s.attn_factor > 0) return s.attn_factor;
  const auto m = [&](double scale) { return 0.1 * scale * std::log(s.factor) + 1; };
  return s.mscale != 0 && s.mscale_all_dim != 0 ? m(s.mscale) / m(s.mscale_all_dim) : m(1);
}

}  // namespace

Result<RopeFreqs> rope_freqs(double base, int64_t dim, const RopeScaling& s) {
  VV_TRY(check(base, dim, s));
  const double n = static_cast<double>(dim);
  if (s.kind == RopeKind::ntk) base *= std::pow(s.factor, n / (n - 2));
  RopeFreqs out;
  out.inv_freq.resize(static_cast<size_t>(dim / 2));
  for (int64_t i = 0; i < dim / 2; ++i) {
    double inv = std::pow(base, -2.0 * static_cast<double>(i) / n);
    if (s.kind == RopeKind::linear) inv /= s.factor;
    if (s.kind == RopeKind::llama3) inv = llama3(inv, s);
    if (s.kind == RopeKind::yarn) {
      const double scaled = YarnRamp(base, dim, s).at(i);
      inv = inv * (1 - scaled) + inv / s.factor * scaled;
    }
    out.inv_freq[static_cast<size_t>(i)] = static_cast<float>(inv);
  }
  if (s.kind == RopeKind::yarn) out.attn_factor = static_cast<float>(yarn_attn_factor(s));
  return out;
}

Result<RopeKind> rope_kind(const std::string& name) {
  constexpr const char* kNames[] = {"none", "linear", "ntk", "llama3", "yarn"};
  if (name == "default") return RopeKind::none;
  for (int i = 0; i < 5; ++i)
    if (name == kNames[i]) return static_cast<RopeKind>(i);
  return Status(Code::kUnsupported,
                "rope scaling '" + name + "' is not served; these are: none, linear, ntk, llama3, yarn");
}

}  // namespace vivace::ops
