#include "vivace/sched/admission.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vivace/base/check.h"

namespace vivace::sched {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr int64_t kMostPoints = 200'000;  // deadlines that are looked at; sets that need more are refused

double deadline_of(const Demand& d) { return d.qos.deadline_us != 0 ? d.qos.deadline_us : d.qos.period_us; }
bool guaranteed(const Demand& d) { return d.qos.cls == Class::guaranteed; }

struct Analysis {
  std::string failure = {};                 // empty: every deadline holds
  double response_us = 0;                   // of the tenant asked for
  double utilisation = 0;
  int64_t bytes_short = 0;
};

/// What a call takes of the device at worst. Others may begin a stretch between any two calls, for the gate opens
/// behind each.
double cost(const Demand& d, double stretch, double handover) { return d.times.worst_us + stretch + handover; }

/// Work of calls whose release and deadline lie within [0, t].
double demand(std::span<const Demand* const> calls, double t, double stretch, double handover) {
  double sum = 0;
  for (const Demand* d : calls) {
    const double left = t - deadline_of(*d);
    if (left >= 0) sum += (std::floor(left / d->qos.period_us) + 1) * cost(*d, stretch, handover);
  }
  return sum;
}

/// The longest call with a later deadline: it may have begun just before, and is not stopped.
double blocking(std::span<const Demand* const> calls, double t, double stretch, double handover) {
  double longest = 0;
  for (const Demand* d : calls)
    if (deadline_of(*d) > t) longest = std::max(longest, cost(*d, stretch, handover));
  return longest;
}

/// Up to where a deadline can be missed: the longest time that calls keep the device busy without a pause.
double busy_period(std::span<const Demand* const> calls, double stretch, double handover) {
  double first = 0, all = 0;
  for (const Demand* d : calls)
    first = std::max(first, cost(*d, stretch, handover)), all += cost(*d, stretch, handover);
  double busy = first + all;
  for (int i = 0; i < 10'000; ++i) {
    double next = first;
    for (const Demand* d : calls) next += std::ceil(busy / d->qos.period_us) * cost(*d, stretch, handover);
    if (next <= busy) return busy;
    busy = next;
  }
  return kForever;
}

Analysis analyse(std::span<const Demand* const> all, const Demand& asked, const Capacity& capacity) {
  Analysis out;
  std::vector<const Demand*> calls;
  double stretch = 0;
  const Demand* longest = nullptr;
  int64_t bytes = 0;
  for (const Demand* d : all) {
    bytes += d->qos.bytes;
    out.utilisation += guaranteed(*d) ? d->times.worst_us / d->qos.period_us : d->qos.min_share;
    if (guaranteed(*d)) calls.push_back(d);
    else if (d->times.stretch_us > stretch) stretch = d->times.stretch_us, longest = d;
  }
  if (capacity.bytes != 0 && bytes > capacity.bytes) {
    out.failure = strf("%lld bytes are asked for in all, the device has %lld", static_cast<long long>(bytes),
                       static_cast<long long>(capacity.bytes));
    out.bytes_short = bytes - capacity.bytes;
    return out;
  }
  if (out.utilisation > capacity.utilisation) {
    const double mine = guaranteed(asked) ? asked.times.worst_us / asked.qos.period_us : asked.qos.min_share;
    out.failure = strf("%s needs %.3f of the device's time, %.3f is left", asked.name.c_str(), mine,
                       std::max(0.0, capacity.utilisation - (out.utilisation - mine)));
    return out;
  }
  for (const Demand* d : calls) {
    if (stretch > d->qos.blocking_us) {
      out.failure = strf("%s runs up to %.0f us without a gate, %s accepts %.0f us", longest->name.c_str(), stretch,
                         d->name.c_str(), d->qos.blocking_us);
      return out;
    }
  }
  const double end = busy_period(calls, stretch, capacity.handover_us);
  int64_t points = 0;
  double slack_of_asked = kForever;
  for (const Demand* d : calls) {
    for (double t = deadline_of(*d); t <= std::max(end, deadline_of(*d)); t += d->qos.period_us) {
      if (++points > kMostPoints) {
        out.failure =
            strf("the set is too close to the whole of the device's time (%.3f) to be decided", out.utilisation);
        return out;
      }
      const double need =
          demand(calls, t, stretch, capacity.handover_us) + blocking(calls, t, stretch, capacity.handover_us);
      if (guaranteed(asked) && t >= deadline_of(asked)) slack_of_asked = std::min(slack_of_asked, t - need);
      if (need > t) {
        out.failure = strf(
            "a call of %s may end %.0f us after its deadline of %.0f us; alone it takes %.0f us, and before each call "
            "others run on for up to %.0f us",
            d->name.c_str(), need - t, deadline_of(*d), d->times.worst_us, stretch);
        return out;
      }
    }
  }
  if (guaranteed(asked)) out.response_us = deadline_of(asked) - slack_of_asked;
  return out;
}

Analysis with(std::span<const Demand> there, const Demand& candidate, const Demand* changed, const Capacity& capacity) {
  std::vector<const Demand*> all;
  for (const Demand& d : there) all.push_back(changed != nullptr && changed->name == d.name ? changed : &d);
  all.push_back(changed != nullptr && changed->name == candidate.name ? changed : &candidate);
  return analyse(all, *all.back(), capacity);
}

/// The least change of one number, by halving: `fits(x)` holds at `good` and not at `bad`.
template <class Fits>
double least(double good, double bad, Fits&& fits) {
  for (int i = 0; i < 60; ++i) {
    const double middle = (good + bad) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

std::vector<Fix> find_fixes(std::span<const Demand> there, const Demand& candidate, const Capacity& capacity) {
  std::vector<Fix> out;
  const auto fits = [&](const Demand& changed) { return with(there, candidate, &changed, capacity).failure.empty(); };
  const auto offer = [&](Demand changed, std::string text) {
    if (fits(changed)) out.push_back({std::move(text), std::move(changed)});
  };
  if (guaranteed(candidate)) {
    Demand slow = candidate;
    const auto at = [&](double period) { return slow.qos.period_us = period, fits(slow); };
    constexpr double kSlowest = 3.6e9;  // an hour
    slow.qos.deadline_us = deadline_of(candidate);
    if (!at(kSlowest)) slow.qos.deadline_us = candidate.qos.deadline_us;  // where that is the period, it grows too
    if (at(kSlowest)) {
      slow.qos.period_us = std::nextafter(least(kSlowest, candidate.qos.period_us, at), kForever);
      offer(slow, strf("%s at %.3g Hz", candidate.name.c_str(), 1e6 / slow.qos.period_us));
    }
    Demand late = candidate;
    const auto by = [&](double deadline) { return late.qos.deadline_us = deadline, fits(late); };
    if (by(candidate.qos.period_us) && deadline_of(candidate) < candidate.qos.period_us) {
      late.qos.deadline_us = least(candidate.qos.period_us, deadline_of(candidate), by);
      offer(late, strf("a deadline of %.0f us for %s", std::ceil(late.qos.deadline_us), candidate.name.c_str()));
    }
  } else if (candidate.qos.min_share > 0) {
    Demand less = candidate;
    const auto at = [&](double share) { return less.qos.min_share = share, fits(less); };
    if (at(0)) {
      less.qos.min_share = least(0, candidate.qos.min_share, at);
      if (less.qos.min_share > 0)
        offer(less, strf("a min_share of %.3f for %s", less.qos.min_share, candidate.name.c_str()));
    }
  }
  if (!guaranteed(candidate)) {
    Demand shorter = candidate;
    const auto at = [&](double stretch) { return shorter.times.stretch_us = stretch, fits(shorter); };
    if (at(1)) {
      shorter.times.stretch_us = least(1, candidate.times.stretch_us, at);
      offer(shorter,
            strf("gates every %.0f us in %s, which has %.0f (smaller steps: prefill_chunk, max_batch, context)",
                 std::floor(shorter.times.stretch_us), candidate.name.c_str(), candidate.times.stretch_us));
    }
  }
  for (const Demand& d : there) {
    if (guaranteed(d) || d.qos.min_share == 0) continue;
    Demand less = d;
    const auto at = [&](double share) { return less.qos.min_share = share, fits(less); };
    if (!at(0)) continue;
    less.qos.min_share = least(0, d.qos.min_share, at);
    offer(less,
          strf("a min_share of %.3f for %s, which has %.3f", less.qos.min_share, d.name.c_str(), d.qos.min_share));
  }
  return out;
}

}  // namespace

Result<Verdict> evaluate(std::span<const Demand> admitted, const Demand& candidate, const Capacity& capacity) {
  VV_TRY(check(candidate));
  for (const Demand& d : admitted)
    if (d.name == candidate.name)
      return Status(Code::kInvalidArgument, strf("tenant %s: there is one of this name", candidate.name.c_str()));
  const Analysis a = with(admitted, candidate, nullptr, capacity);
  Verdict v;
  v.admitted = a.failure.empty();
  v.response_us = a.response_us;
  v.utilisation = a.utilisation;
  v.bytes_short = a.bytes_short;
  if (v.admitted) {
    v.text =
        guaranteed(candidate)
            ? strf("%s: a call ends within %.0f us, its deadline is %.0f us; %.3f of the device's time is promised",
                   candidate.name.c_str(), a.response_us, deadline_of(candidate), a.utilisation)
            : strf("%s: %.3f of the device's time is promised", candidate.name.c_str(), a.utilisation);
    return v;
  }
  v.fixes = find_fixes(admitted, candidate, capacity);
  v.text = strf("%s is refused: %s", candidate.name.c_str(), a.failure.c_str());
  for (size_t i = 0; i < v.fixes.size(); ++i) v.text += (i == 0 ? "; it would fit with " : ", or ") + v.fixes[i].text;
  return v;
}

}  // namespace vivace::sched
