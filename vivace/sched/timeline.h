// Timeline: what a scheduler's tenants did of late, for traces. Fixed memory; whoever owns it locks.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace vivace::sched {

class Timeline {
 public:
  /// wait: a guaranteed call until its turn; call: it runs; step: of others, stand_back: what they waited at gates.
  enum class Kind : uint8_t { wait, call, step, stand_back };
  struct Span {
    std::array<char, 32> tenant{};  // its name, cut
    Kind kind = Kind::step;
    double at_us = 0, us = 0;       // at_us: of the steady clock
  };
  static constexpr size_t kMost = 1 << 15;

  Timeline() { spans_.reserve(kMost); }
  void add(std::string_view tenant, Kind kind, double at_us, double us) {
    Span s{{}, kind, at_us, us};
    size_t n = std::min(tenant.size(), s.tenant.size() - 1);
    while (n > 0 && n < tenant.size() && (tenant[n] & 0xc0) == 0x80) --n;  // not in the middle of a letter
    tenant.copy(s.tenant.data(), n);
    if (spans_.size() < kMost) spans_.push_back(s);
    else spans_[next_ % kMost] = s;
    ++next_;
  }
  /// Oldest first: what was added behind the last one that was over before `since_us`.
  std::vector<Span> spans(double since_us = 0) const {
    size_t first = next_ - spans_.size();
    for (size_t i = next_; i-- > first;)  // from the newest: a look at the last second costs no more than it has
      if (const Span& s = spans_[i % kMost]; s.kind != Kind::stand_back && s.at_us + s.us < since_us)
        first = i + 1;
    if (first < next_ && spans_[first % kMost].kind == Kind::stand_back) ++first;  // of the step that was over
    std::vector<Span> out;
    out.reserve(next_ - first);
    for (size_t i = first; i < next_; ++i) out.push_back(spans_[i % kMost]);
    return out;
  }

 private:
  std::vector<Span> spans_;
  size_t next_ = 0;
};

}  // namespace vivace::sched
