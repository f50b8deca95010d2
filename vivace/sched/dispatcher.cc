#include "vivace/sched/dispatcher.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vivace/base/check.h"

namespace vivace::sched {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();

Status no_tenant(int tenant) { return Status(Code::kNotFound, strf("scheduler: there is no tenant %d", tenant)); }
double relative_deadline(const Qos& q) { return q.deadline_us != 0 ? q.deadline_us : q.period_us; }

}  // namespace

Dispatcher::Tenant* Dispatcher::find(int tenant) {
  const bool known =
      tenant >= 0 && static_cast<size_t>(tenant) < tenants_.size() && tenants_[static_cast<size_t>(tenant)].there;
  return known ? &tenants_[static_cast<size_t>(tenant)] : nullptr;
}

std::vector<Demand> Dispatcher::demands() const {
  std::vector<Demand> out;
  for (const Tenant& t : tenants_) {
    if (!t.there) continue;
    out.push_back(t.demand);
    if (t.stats.asleep) out.back().qos.bytes = 0;
  }
  return out;
}

double Dispatcher::utilisation() const {
  double sum = 0;
  for (const Tenant& t : tenants_)
    if (t.there)
      sum += t.demand.qos.cls == Class::guaranteed ? t.demand.times.worst_us / t.demand.qos.period_us
                                                   : t.demand.qos.min_share;
  return sum;
}

Result<Verdict> Dispatcher::evaluate(const Demand& candidate) const {
  return sched::evaluate(demands(), candidate, capacity_);
}

Result<int> Dispatcher::add(const Demand& demand) {
  VV_ASSIGN(const Verdict v, evaluate(demand));
  if (!v.admitted) return Status(Code::kFailedPrecondition, v.text);
  Tenant made;
  made.demand = demand;
  for (const Tenant& t : tenants_)  // what others had before it came does not count
    if (lower(t)) made.virtual_us = std::max(made.virtual_us, t.virtual_us);
  tenants_.push_back(std::move(made));
  return static_cast<int>(tenants_.size()) - 1;
}

Status Dispatcher::change(int tenant, Qos qos) {
  Tenant* const t = find(tenant);
  if (t == nullptr) return no_tenant(tenant);
  const Qos& old = t->demand.qos;
  const char* const who = t->demand.name.c_str();
  if ((qos.cls == Class::guaranteed) != (old.cls == Class::guaranteed))
    return Status(Code::kInvalidArgument, strf("tenant %s: it was loaded as %s and cannot become %s; load it again",
                                               who, name(old.cls), name(qos.cls)));
  if (lower(*t) && qos.blocking_us != old.blocking_us)
    return Status(Code::kInvalidArgument,
                  strf("tenant %s: its gates were placed for stretches of %g us, not %g; load it again", who,
                       old.blocking_us, qos.blocking_us));
  if (qos.bytes == 0) qos.bytes = old.bytes;
  const Demand wanted{t->demand.name, qos, t->demand.times};
  Demand now = wanted;
  if (t->stats.asleep) now.qos.bytes = 0;
  t->there = false;  // the test is of the others and what it wants now
  Result<Verdict> v = evaluate(now);
  t->there = true;
  VV_TRY(v.status());
  if (!v->admitted) return Status(Code::kFailedPrecondition, v->text);
  t->demand = wanted;
  t->stats.demoted = false, t->stats.fits = true, t->recent_overruns = 0, t->recent_calls = 0, t->steady = 0;
  t->last_order_release = -kForever;
  pace();
  return {};
}

Status Dispatcher::pause(int tenant, bool paused) {
  Tenant* const t = find(tenant);
  if (t == nullptr) return no_tenant(tenant);
  if (t->paused && !paused) catch_up(t);
  t->paused = paused;
  if (paused) set_early(t, false), t->hinted = -1;
  pace();
  return {};
}

Status Dispatcher::sleep(int tenant) {
  Tenant* const t = find(tenant);
  if (t == nullptr) return no_tenant(tenant);
  const char* const who = t->demand.name.c_str();
  if (t->stats.asleep) return Status(Code::kFailedPrecondition, strf("tenant %s: it sleeps already", who));
  const bool waits = std::any_of(queue_.begin(), queue_.end(), [&](const Call& c) { return c.tenant == tenant; });
  if (waits || (running_ && running_->call.tenant == tenant))
    return Status(Code::kFailedPrecondition,
                  strf("tenant %s: a call of it %s; let it end first", who, waits ? "waits" : "runs"));
  t->stats.asleep = true;
  set_early(t, false), t->hinted = -1, t->steady = 0;
  return {};
}

Status Dispatcher::wake(int tenant, int64_t* bytes_short, bool anyway) {
  Tenant* const t = find(tenant);
  if (t == nullptr) return no_tenant(tenant);
  if (!t->stats.asleep)
    return Status(Code::kFailedPrecondition, strf("tenant %s: it does not sleep", t->demand.name.c_str()));
  t->there = false;  // as change()
  const Result<Verdict> v = evaluate(t->demand);
  t->there = true;
  // Only bytes: its time stayed promised, and times that have grown since are told by stats().
  if (!anyway && v.ok() && v->bytes_short > 0) {
    if (bytes_short != nullptr) *bytes_short = v->bytes_short;
    return Status(Code::kFailedPrecondition, v->text);
  }
  t->stats.asleep = false;
  return {};
}

int Dispatcher::coldest(bool burstable) const {
  for (const Class cls : {Class::best_effort, Class::burstable}) {
    int found = -1;
    for (size_t i = 0; i < tenants_.size(); ++i) {
      const Tenant& t = tenants_[i];
      if (!t.there || t.demand.qos.cls != cls || t.wants || t.stats.asleep || t.demand.qos.bytes == 0) continue;
      if (found < 0 || t.last_wanted < tenants_[static_cast<size_t>(found)].last_wanted) found = static_cast<int>(i);
    }
    if (found >= 0 || !burstable) return found;
  }
  return -1;
}

/// Time that it did not want is not saved up.
void Dispatcher::catch_up(Tenant* t) const {
  if (const double least = least_virtual_us(*t); least != kForever) t->virtual_us = std::max(t->virtual_us, least);
}

/// Of those that want what `beside` has.
double Dispatcher::least_virtual_us(const Tenant& beside) const {
  double least = kForever;
  for (const Tenant& t : tenants_)
    if (lower(t) && t.wants && !t.paused && !(t.demand.times.apart && beside.demand.times.apart))
      least = std::min(least, t.virtual_us);
  return least;
}

Status Dispatcher::remove(int tenant) {
  Tenant* const t = find(tenant);
  if (t == nullptr) return no_tenant(tenant);
  std::erase_if(queue_, [&](const Call& c) { return c.tenant == tenant; });
  std::erase_if(lost_, [&](const Running& r) { return r.call.tenant == tenant; });
  set_early(t, false);
  if (t->held) actuator_.hold(tenant, t->held = false);
  t->there = t->wants = false;
  pace();
  return {};
}

double Dispatcher::longest_stretch() const {
  double longest = 0;
  for (const Tenant& t : tenants_)
    if (lower(t)) longest = std::max(longest, t.demand.times.stretch_us);
  return longest;
}

/// Device time until a call ordered by `order` could begin, at worst.
double Dispatcher::work_before(double order, double now) const {
  const double between = longest_stretch() + capacity_.handover_us;
  double sum = between;
  if (running_)
    sum += std::max(0.0, running_->began + tenants_[static_cast<size_t>(running_->call.tenant)].demand.times.worst_us +
                             between - now);
  for (const Call& c : queue_)
    if (c.order <= order) sum += tenants_[static_cast<size_t>(c.tenant)].demand.times.worst_us + between;
  return sum;
}

std::optional<Dispatcher::Refusal> Dispatcher::submit(int tenant, double now, double deadline_us, Call* call) {
  Tenant* const t = find(tenant);
  if (t == nullptr) return Refusal{no_tenant(tenant)};
  const Demand& d = t->demand;
  if (d.qos.cls != Class::guaranteed)
    return Refusal{Status(Code::kFailedPrecondition, strf("tenant %s: %s tenants want(), they do not submit calls",
                                                          d.name.c_str(), name(d.qos.cls)))};
  if (t->paused) return Refusal{Status(Code::kFailedPrecondition, strf("tenant %s: it is paused", d.name.c_str()))};
  if (t->stats.asleep)
    return Refusal{Status(Code::kFailedPrecondition, strf("tenant %s: it sleeps; wake it first", d.name.c_str()))};
  if (deadline_us < 0 || deadline_us != deadline_us)
    return Refusal{Status(Code::kInvalidArgument, strf("tenant %s: a deadline of %g us", d.name.c_str(), deadline_us))};
  const double relative = deadline_us != 0 ? deadline_us : relative_deadline(d.qos);
  const double release = std::max(now, t->last_order_release + d.qos.period_us);
  const Call made = {next_call_, tenant, now, now + relative, release + std::max(relative, relative_deadline(d.qos))};
  const auto mine = std::count_if(queue_.begin(), queue_.end(), [&](const Call& c) { return c.tenant == tenant; });
  const double begins = work_before(made.order, now);
  const auto refuse = [&](std::string why, double retry) {
    ++t->stats.rejected;
    return Refusal{Status(Code::kLimitExceeded, std::move(why)), retry};
  };
  if (mine >= d.qos.queue)
    return refuse(
        strf("tenant %s: %d calls wait, no more than %d may", d.name.c_str(), static_cast<int>(mine), d.qos.queue),
        d.times.worst_us + capacity_.handover_us);
  if (begins + d.times.worst_us > relative)
    return refuse(strf("tenant %s: a call would end in %.0f us, its deadline is in %.0f us", d.name.c_str(),
                       begins + d.times.worst_us, relative),
                  begins + d.times.worst_us - relative);
  ++next_call_;
  t->last_order_release = release;
  queue_.push_back(made);
  learn(t, now);
  *call = made;
  return std::nullopt;
}

void Dispatcher::learn(Tenant* t, double now) {
  const double gap = now - t->last_submitted;
  const bool alike = t->steady > 0 && std::abs(gap - t->gap) <= kSteady * t->gap;
  if (t->last_submitted >= 0)
    t->steady = alike ? t->steady + 1 : 1, t->gap = alike ? t->gap + (gap - t->gap) / kSteadyGaps : gap;
  t->last_submitted = now;
}

Status Dispatcher::cancel(uint64_t call, double now) {
  if (running_ && running_->call.number == call) return done(call, now, 0);
  if (std::erase_if(queue_, [&](const Call& c) { return c.number == call; }) == 0)
    return Status(Code::kNotFound,
                  strf("scheduler: no call %llu waits or runs", static_cast<unsigned long long>(call)));
  return {};
}

std::optional<Dispatcher::Call> Dispatcher::next(double now) {
  if (running_ || queue_.empty()) return std::nullopt;
  const auto first = std::min_element(queue_.begin(), queue_.end(), [](const Call& a, const Call& b) {
    return a.order != b.order ? a.order < b.order : a.number < b.number;
  });
  const Call call = *first;
  queue_.erase(first);
  Tenant& t = tenants_[static_cast<size_t>(call.tenant)];
  running_ = Running{call, now, kBudget * t.demand.times.worst_us + longest_stretch() + capacity_.handover_us};
  running_->call.shuts = !t.stats.demoted;
  t.stats.wait_worst_us = std::max(t.stats.wait_worst_us, now - call.submitted);
  t.stats.wait.add(now - call.submitted);
  if (t.early) ++t.stats.early;
  // Who calls faster than was promised is not waited for as well: others would have nothing.
  t.hinted = t.steady >= kSteadyGaps && t.gap >= (1 - kSteady) * t.demand.qos.period_us ? call.submitted + t.gap : -1;
  set_early(&t, false);  // its own word is shut from here on
  return running_->call;
}

/// Of a call that ran over by the host's clock.
void Dispatcher::judge(const Running& r, double took) {
  Tenant& t = tenants_[static_cast<size_t>(r.call.tenant)];
  if (r.overrun && took >= r.budget && ++t.recent_overruns >= kMostOverruns) t.stats.demoted = true;
}

Status Dispatcher::done(uint64_t call, double now, double device_us) {
  if (!running_ || running_->call.number != call) {
    const auto late = std::find_if(lost_.begin(), lost_.end(), [&](const Running& r) { return r.call.number == call; });
    if (late != lost_.end()) {
      judge(*late, device_us >= 0 ? device_us : now - late->began);
      lost_.erase(late);
    }
    return Status(Code::kNotFound, strf("scheduler: call %llu does not run", static_cast<unsigned long long>(call)));
  }
  const Running r = *running_;
  running_.reset();
  if (device_us < 0) device_us = now - r.began;
  judge(r, device_us);
  Tenant& t = tenants_[static_cast<size_t>(r.call.tenant)];
  ++t.stats.calls;
  t.stats.device_us += device_us;
  t.stats.worst_us = std::max(t.stats.worst_us, device_us);
  t.stats.response.add(now - r.call.submitted);
  if (now > r.call.deadline) ++t.stats.missed;
  t.recent_worst_us = std::max(t.recent_worst_us, device_us);
  if (++t.recent_calls == kRecent) {
    grow(&t);
    t.recent_calls = t.recent_overruns = 0, t.recent_worst_us = 0;
  }
  return {};
}

/// Of a thousand calls the longest counts from here on, for budgets and for whoever asks to be admitted. It never
/// shrinks by itself: times of a cooler device, or of shorter prompts, promise nothing.
void Dispatcher::grow(Tenant* t) {
  double& worst = t->demand.times.worst_us;
  if (t->recent_worst_us <= worst) return;
  worst = t->recent_worst_us;
  for (Tenant& other : tenants_) {
    if (!other.there) continue;
    other.there = false;
    Demand now = other.demand;
    if (other.stats.asleep) now.qos.bytes = 0;
    const Result<Verdict> v = evaluate(now);
    other.there = true;
    other.stats.fits = v.ok() && v->admitted;
  }
}

Status Dispatcher::hint(int tenant, double when) {
  Tenant* const t = find(tenant);
  if (t == nullptr) return no_tenant(tenant);
  if (t->demand.qos.cls != Class::guaranteed)
    return Status(Code::kFailedPrecondition,
                  strf("tenant %s: only guaranteed tenants have a cadence", t->demand.name.c_str()));
  set_early(t, false);
  t->hinted = when;
  return {};
}

void Dispatcher::set_early(Tenant* t, bool early) {
  if (t->early == early) return;
  t->early = early;
  early_closes_ += early ? 1 : -1;
  if (early_closes_ == (early ? 1 : 0)) actuator_.close_early(early);
}

/// What a tenant gets while all want to run: its least share and its part of what nobody was promised.
double Dispatcher::share(const Tenant& t) const {
  double weights = 0, promised = utilisation(), least = 0;
  int background = 0;
  for (const Tenant& o : tenants_) {
    if (!lower(o)) continue;
    if (o.demand.qos.cls == Class::burstable) weights += o.demand.qos.weight, least += o.demand.qos.min_share;
    else ++background;
  }
  const double guaranteed = promised - least;
  const double spare = std::max(0.0, 1 - guaranteed - least - (background != 0 ? kBackground : 0));
  if (t.demand.qos.cls == Class::best_effort) return (kBackground + (weights == 0 ? spare : 0)) / background;
  return std::max(1e-6, t.demand.qos.min_share + spare * t.demand.qos.weight / weights);
}

double Dispatcher::promised(int tenant) const {
  const Tenant& t = tenants_[static_cast<size_t>(tenant)];
  return lower(t) ? share(t) : t.demand.times.worst_us / t.demand.qos.period_us;
}

Status Dispatcher::want(int tenant, double now, bool work) {
  Tenant* const t = find(tenant);
  if (t == nullptr) return no_tenant(tenant);
  if (t->demand.qos.cls == Class::guaranteed)
    return Status(Code::kFailedPrecondition,
                  strf("tenant %s: guaranteed tenants submit calls", t->demand.name.c_str()));
  if (work && !t->wants) catch_up(t);
  t->wants = work;
  t->last_wanted = now;
  pace();
  return {};
}

Status Dispatcher::charge(int tenant, double, double device_us, double waited_us) {
  Tenant* const t = find(tenant);
  if (t == nullptr) return no_tenant(tenant);
  t->stats.device_us += device_us;
  t->stats.worst_us = std::max(t->stats.worst_us, device_us);
  ++t->stats.calls;
  t->stats.wait.add(waited_us);
  t->stats.response.add(device_us + waited_us);
  if (t->demand.qos.cls != Class::guaranteed) {
    t->virtual_us += device_us / share(*t);
    pace();
  }
  return {};
}

bool Dispatcher::beside(int tenant) const {
  const auto another = [&](const Call& c) { return c.tenant != tenant; };
  if (std::any_of(lost_.begin(), lost_.end(), [&](const Running& r) { return another(r.call); })) return true;
  if (running_ && !another(running_->call) && running_->call.shuts) return false;
  const bool own = running_ && !another(running_->call);  // then calls that wait, wait for it
  if (!own && (running_ || std::any_of(queue_.begin(), queue_.end(), another))) return true;
  for (size_t i = 0; i < tenants_.size(); ++i) {
    const Tenant& t = tenants_[i];
    if (static_cast<int>(i) != tenant && lower(t) && t.demand.times.apart && t.wants && !t.paused) return true;
  }
  return false;
}

/// Who is furthest behind always runs; who is too far ahead of it stands back.
void Dispatcher::pace() {
  for (size_t i = 0; i < tenants_.size(); ++i) {
    Tenant& t = tenants_[i];
    if (!lower(t)) continue;
    const double least = least_virtual_us(t);
    // Held until it is level again: a lead that is let go at once would shut and open at every step.
    const bool ahead = least != kForever && (t.held ? t.virtual_us > least : t.virtual_us > least + kLeadUs);
    const bool hold = t.wants && (t.paused || ahead);
    if (hold != t.held) actuator_.hold(static_cast<int>(i), t.held = hold);
  }
}

void Dispatcher::overran(double now) {
  Running& r = *running_;
  Tenant& t = tenants_[static_cast<size_t>(r.call.tenant)];
  const double taken = now - r.began, last = std::max(2 * r.budget, kWatchdogUs);
  if (!r.overrun && taken >= r.budget) {
    r.overrun = true;
    ++t.stats.overruns;
  }
  const double opens = t.demand.qos.overrun == Overrun::hold && !t.stats.demoted ? 2 * r.budget : r.budget;
  if (!r.opened && taken >= opens) {
    r.opened = true;
    actuator_.open();
  }
  if (taken >= last) {
    ++t.stats.lost;
    lost_.push_back(r);
    running_.reset();
  }
}

void Dispatcher::tick(double now) {
  if (running_) overran(now);
  for (Tenant& t : tenants_) {
    if (!t.there || t.hinted < 0) continue;
    if (!t.early && now >= t.hinted - longest_stretch() - kEarlyUs && now < t.hinted + kEarlyWaitUs)
      set_early(&t, true);
    if (now >= t.hinted + kEarlyWaitUs) {
      if (t.early) ++t.stats.early_wrong;
      set_early(&t, false);
      t.hinted = -1;
    }
  }
}

double Dispatcher::wake() const {
  double at = kForever;
  if (running_) {
    const Running& r = *running_;
    const Tenant& t = tenants_[static_cast<size_t>(r.call.tenant)];
    const double opens = t.demand.qos.overrun == Overrun::hold && !t.stats.demoted ? 2 * r.budget : r.budget;
    at = r.began + (!r.overrun ? r.budget : !r.opened ? opens : std::max(2 * r.budget, kWatchdogUs));
  }
  for (const Tenant& t : tenants_) {
    if (!t.there || t.hinted < 0) continue;
    at = std::min(at, t.early ? t.hinted + kEarlyWaitUs : t.hinted - longest_stretch() - kEarlyUs);
  }
  return at;
}

}  // namespace vivace::sched
