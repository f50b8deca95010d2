// Dispatcher: which tenant runs next. A state machine without threads and without a clock of its own: whoever drives it
// says the time, so that tests run it on a virtual one.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "vivace/sched/admission.h"
#include "vivace/sched/histogram.h"

namespace vivace::sched {

/// What the dispatcher does to the device. Calls come from within its own.
class Actuator {
 public:
  virtual ~Actuator() = default;
  /// A burstable or best-effort tenant stands back at its next gate (true) or goes on.
  virtual void hold(int tenant, bool stand_back) = 0;
  /// All of them stand back, before a guaranteed call that is expected; or go on, for nobody came or it has begun.
  virtual void close_early(bool shut) = 0;
  /// Opens what the running guaranteed call has shut: it took too long, or whoever was to open it is lost.
  virtual void open() = 0;
};

/// What a tenant had so far. Times in microseconds.
struct TenantStats {
  int64_t calls = 0, missed = 0, rejected = 0, overruns = 0, lost = 0, early = 0, early_wrong = 0;
  int64_t whole_calls = 0;  // of a policy that switches: calls on the whole device
  double device_us = 0, worst_us = 0, wait_worst_us = 0;
  bool demoted = false;  // guaranteed once; overran too often
  bool fits = true;      // what was admitted holds with the times that were seen since
  bool asleep = false;   // its memory is on the host
  Histogram wait, response;  // of a call: until it began, until it was done; of a step the time at gates, and all of it
};

/// Not thread-safe. Guaranteed calls run one at a time by earliest deadline; those that come faster than their period
/// have the deadline that they would have had in time, so nobody else pays. Burstable work is held back by virtual
/// device time: who is more than kLead ahead of the others by share stands back while they want to run; those that have
/// a partition each do not stand back for one another. Best effort shares what kBackground leaves.
class Dispatcher {
 public:
  static constexpr double kLeadUs = 4000;       // virtual time ahead before a tenant stands back
  static constexpr double kBackground = 0.02;   // least share of best effort, all together
  static constexpr double kBudget = 1.2;        // of a call's worst time, before it counts as an overrun
  static constexpr double kWatchdogUs = 50'000;
  static constexpr double kEarlyUs = 30;        // on top of the longest stretch
  static constexpr double kEarlyWaitUs = 1000;
  static constexpr int kSteadyGaps = 8;         // alike, before the next call is expected without a hint
  static constexpr double kSteady = 0.02;       // of a gap: how alike
  static constexpr int kMostOverruns = 3;       // of kRecent calls, before a tenant is demoted
  static constexpr int kRecent = 1000;          // calls, of whose longest admission learns

  Dispatcher(const Capacity& capacity, Actuator& actuator) : capacity_(capacity), actuator_(actuator) {}

  /// Nothing is kept. Errors and meaning: evaluate() of admission.h.
  Result<Verdict> evaluate(const Demand& candidate) const;
  /// Admits and returns the tenant's number. Errors: those of evaluate(); FailedPrecondition with the verdict's text.
  Result<int> add(const Demand& demand);
  /// Other demands of a tenant that is there, by the test of add(): where they are refused nothing changes. A demotion
  /// and what was learnt of its pace are forgotten; bytes of 0 stay what they were. Errors: those of add(); NotFound;
  /// InvalidArgument where its model would have to be loaded anew: guaranteed or not, and the bound of steps.
  Status change(int tenant, Qos qos);
  /// Until it is told otherwise it stands back whatever its share, or, guaranteed, its calls are refused. What it was
  /// promised stays promised. NotFound.
  Status pause(int tenant, bool paused);
  /// Its model's memory has left the device: its bytes are others' until it is awake, its time stays promised, and its
  /// calls are refused. Errors: NotFound; FailedPrecondition (it sleeps; a call of it waits or runs).
  Status sleep(int tenant);
  /// Its bytes are its own again, by the test of add(). Errors: NotFound; FailedPrecondition (it does not sleep; with
  /// the verdict's text, and `bytes_short`, where given, says how many are not there). `anyway`: without the test, for
  /// one whose memory never left.
  Status wake(int tenant, int64_t* bytes_short = nullptr, bool anyway = false);
  /// Whose memory others may have first: of best effort, else, where `burstable`, of those, who is awake and has had no
  /// work for longest. -1: nobody.
  int coldest(bool burstable) const;
  /// The tenant's waiting calls are gone; one that runs ends with done() or the watchdog. NotFound.
  Status remove(int tenant);

  struct Call {
    uint64_t number = 0;
    int tenant = -1;
    double submitted = 0, deadline = 0;  // absolute; deadline is the caller's
    double order = 0;                    // the deadline that it is dispatched by
    bool shuts = true;                   // others stand back while it runs; not for a tenant that was demoted
  };
  struct Refusal {
    Status why;
    double retry_after_us = 0;
  };
  /// Queues a guaranteed call. `deadline_us`: from now, 0 the tenant's. Refused where the queue is full or the deadline
  /// cannot be met any more by what is queued: LimitExceeded with both numbers, and when to come again.
  std::optional<Refusal> submit(int tenant, double now, double deadline_us, Call* call);
  /// Takes a call that waits out of the queue, or forgets one that runs. NotFound.
  Status cancel(uint64_t call, double now);
  /// The call that is to begin now; none while one runs or none waits. From here on its budget counts.
  std::optional<Call> next(double now);
  /// The running call's work is done. `device_us`: what it took of the device, by which an overrun is judged, for a
  /// host that is slow to look is no fault of the call's; below 0: not measured, the time since it began counts.
  /// NotFound if it does not run: one that was given up has come back late.
  Status done(uint64_t call, double now, double device_us);
  /// When the tenant will submit next: others stand back shortly before. Replaces the one before, and what was learnt:
  /// calls at a steady pace are expected by themselves.
  Status hint(int tenant, double when);

  /// A burstable or best-effort tenant has work, or has none.
  Status want(int tenant, double now, bool work);
  /// A step of it used the device for so long, and stood back for `waited_us`.
  Status charge(int tenant, double now, double device_us, double waited_us = 0);

  /// Whether others' work is on the device beside a call of the tenant that begins now, or wants to be: a call of
  /// another one that runs, was given up, or waits where this one does not keep it waiting; work of a lower tenant that
  /// has a partition and is not paused. One without fills the caller's multiprocessors as well, and is held at its
  /// next gate. Of a guaranteed call that others stand back for only what was given up counts: nobody else runs
  /// until it ends.
  bool beside(int tenant) const;
  /// Its call begins on the whole device.
  void count_whole(int tenant) { ++tenants_[static_cast<size_t>(tenant)].stats.whole_calls; }

  /// Timers that are due: overruns, the watchdog, early closes.
  void tick(double now);
  /// When tick() is due; infinity: never.
  double wake() const;

  /// What it was admitted with, and what is promised it of the device's time while all want to run.
  const Demand& demand(int tenant) const { return tenants_[static_cast<size_t>(tenant)].demand; }
  double promised(int tenant) const;
  const TenantStats& stats(int tenant) const { return tenants_[static_cast<size_t>(tenant)].stats; }
  bool running() const { return running_.has_value(); }
  size_t waiting() const { return queue_.size(); }
  /// No call is lost: all that were given up have come back, or their tenants have gone.
  bool healthy() const { return lost_.empty(); }
  double utilisation() const;

 private:
  struct Tenant {
    Demand demand;
    TenantStats stats;
    bool there = true;
    double last_order_release = -1e300;  // guaranteed: release that the last call was ordered by
    double hinted = -1;
    double last_submitted = -1, gap = 0; // of calls at a steady pace
    int steady = 0;                      // gaps that were alike
    bool early = false;
    int recent_overruns = 0;
    int64_t recent_calls = 0;
    double recent_worst_us = 0;
    double virtual_us = 0;               // burstable: device time over share
    bool wants = false, held = false, paused = false;
    double last_wanted = 0;              // when it last had work
  };
  struct Running {
    Call call;
    double began = 0, budget = 0;
    bool overrun = false, opened = false;  // by the host's clock
  };
  bool lower(const Tenant& t) const { return t.there && t.demand.qos.cls != Class::guaranteed; }
  Tenant* find(int tenant);
  double share(const Tenant& t) const;
  double longest_stretch() const;
  double work_before(double order, double now) const;
  std::vector<Demand> demands() const;
  void grow(Tenant* t);
  void pace();
  double least_virtual_us(const Tenant& beside) const;
  void catch_up(Tenant* t) const;
  void set_early(Tenant* t, bool early);
  static void learn(Tenant* t, double now);
  void overran(double now);
  void judge(const Running& r, double took);

  Capacity capacity_;
  Actuator& actuator_;
  std::vector<Tenant> tenants_;
  std::vector<Call> queue_;
  std::optional<Running> running_;
  std::vector<Running> lost_;  // given up by the watchdog, and not back
  uint64_t next_call_ = 1;
  int early_closes_ = 0;
};

}  // namespace vivace::sched
