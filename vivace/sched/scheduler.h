// Scheduler: several models of one process on one device, with guarantees. One dispatcher, one gate, one timer thread.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "vivace/engine/model.h"
#include "vivace/engine/runtime.h"
#include "vivace/engine/urgent.h"
#include "vivace/sched/dispatcher.h"
#include "vivace/sched/timeline.h"

namespace vivace::sched {

class Scheduler;

/// A guaranteed call that runs: from its turn until this ends. The gate is shut and opened by the policy's own stream.
class Turn {
 public:
  Turn(Turn&& o) noexcept : scheduler_(std::move(o.scheduler_)), call_(o.call_), device_us_(o.device_us_) {}
  Turn& operator=(Turn&&) = delete;
  ~Turn();
  /// What the call took by the device's clock, for its account; else the time of this object counts.
  void took(double device_us) { device_us_ = device_us; }

 private:
  friend class Tenant;
  Turn(std::shared_ptr<Scheduler> s, const Dispatcher::Call& call) : scheduler_(std::move(s)), call_(call) {}
  std::shared_ptr<Scheduler> scheduler_;
  Dispatcher::Call call_;
  double device_us_ = -1;
};

/// One model's place in the schedule. Thread-safe. Keeps its scheduler; its end gives back what it was promised.
class Tenant final : public engine::StepAccount {
 public:
  ~Tenant() override;
  Tenant(const Tenant&) = delete;

  const std::string& name() const { return name_; }
  const std::string& device() const;      // the scheduler's
  Class cls() const { return qos_.cls; }  // as it was loaded, guaranteed or not; set() may change it between the others
  /// Other demands from here on. Errors: Dispatcher::change()'s; FailedPrecondition before admit(); Closed.
  Status set(const Qos& qos);
  /// true: it stands back at its next gate, or, guaranteed, its calls are refused with FailedPrecondition, until false.
  /// A paused model must go on before it is closed, for it waits for what it has begun. Errors: FailedPrecondition
  /// before admit(); Closed.
  Status pause(bool paused);
  /// Moves the memory of `model`, which was loaded with it and which nobody uses meanwhile, to the host, or back: see
  /// engine::Model::sleep(). While it sleeps its bytes are others' and its calls are refused; what it was promised of
  /// the time stays promised. Errors: the model's; Dispatcher::sleep()'s and wake()'s; FailedPrecondition before
  /// admit(); Closed.
  Result<engine::Moved> sleep(engine::Model& model);
  Result<engine::Moved> wake(engine::Model& model);
  /// How many bytes were not there for the last admit() or wake(), where it was they that were missing; else 0.
  int64_t bytes_short() const;
  /// Most bytes that its model may take; 0: as many as it needs.
  int64_t most_bytes() const { return qos_.bytes; }
  /// Once the times of its model are known; before it nobody waits for this tenant, nor it for anybody but the running
  /// call. `bytes`: of the model, where the Qos names none. Errors: sched::evaluate()'s; FailedPrecondition with the
  /// verdict's text, for more bytes than the Qos names, or twice; Closed.
  Status admit(const Times& times, int64_t bytes = 0);
  /// For engine::PolicyOptions and engine::LoadOptions: what the model shuts, or passes.
  std::shared_ptr<engine::UrgentGate> urgent() const { return urgent_; }
  engine::GateSite gates() const { return gates_; }

  /// Guaranteed: waits for this call's turn. FailedPrecondition before admit(). `deadline_us`: from now, 0 the
  /// tenant's. Errors: LimitExceeded at once where it could not be met or too many wait (`retry_after_us`, where given,
  /// says when to come again); Closed.
  Result<Turn> enter(double deadline_us = 0, double* retry_after_us = nullptr);
  /// Guaranteed: the next enter() comes in so long; others stand back just before.
  Status expect_in(double us);
  /// Of a policy that switches, when its call begins: whether the whole device is its own, see Dispatcher::beside().
  /// Counts such calls. true before admit().
  bool take_whole();
  // Of burstable and best-effort tenants.
  void want(bool work) override;
  void charge(double us) override;
  TenantStats stats() const;

 private:
  friend class Scheduler;
  Tenant(std::shared_ptr<Scheduler> s, std::string name, const Qos& qos)
      : scheduler_(std::move(s)), name_(std::move(name)), qos_(qos) {}
  std::shared_ptr<Scheduler> scheduler_;
  const std::string name_;
  const Qos qos_;
  int number_ = -1;     // the dispatcher's, once it is admitted
  int64_t bytes_short_ = 0;
  int hold_word_ = -1;
  double blocked_since_ = -1, blocked_us_ = 0,
         blocked_seen_ = 0;  // while it stands back; all of it; what charge() has taken off
  std::shared_ptr<engine::UrgentGate> urgent_;
  engine::GateSite gates_;
};

/// One a device and process. Thread-safe.
class Scheduler : public std::enable_shared_from_this<Scheduler>, private Actuator {
 public:
  static constexpr int kMostLower = 16;  // burstable and best-effort tenants: a word of the gate each

  /// `device`: as Runtime::open(). Errors: its own; FailedPrecondition where the process has one for this device;
  /// Unsupported where the driver has no gates.
  static Result<std::shared_ptr<Scheduler>> open(const std::string& device, const Capacity& capacity = {});
  ~Scheduler() override;

  const std::string& device() const { return device_; }
  /// A dry run. Errors: those of sched::evaluate().
  Result<Verdict> evaluate(const Demand& demand) const;
  /// A place for a model that is to be loaded with it: admit() of the tenant follows, once its times are known. Errors:
  /// check()'s; InvalidArgument for a name that is taken; LimitExceeded beyond kMostLower; FailedPrecondition for a
  /// guaranteed one where its stream would wait behind those that stand back (Now::urgent_held); Closed.
  Result<std::unique_ptr<Tenant>> join(const std::string& name, const Qos& qos);
  /// join() and Tenant::admit().
  Result<std::unique_ptr<Tenant>> admit(const Demand& demand);
  /// Calls that wait end with Closed, and nobody is held back any more. Twice is fine.
  void close();

  bool healthy() const;
  double utilisation() const;
  /// Every tenant that is there: what it was admitted with, what is promised it of the device's time, counts.
  struct Row {
    Demand demand;
    double promised = 0;
    TenantStats stats;
  };
  std::vector<Row> rows() const;
  struct Now {
    size_t waiting = 0;         // calls
    bool running = false;
    double closed_us = 0;       // how long all guaranteed calls have kept others back
    double up_us = 0;           // since open()
    bool urgent_held = false;  // of these the most urgent one: then nobody can be guaranteed
    int streams_held = 0;  // see exec::held_streams(), as found at open(): above 0 calls may miss; -1: not found out
  };
  Now now_of() const;
  /// The name of the tenant whose memory another one's load or wake() may have first; empty: nobody's. See
  /// Dispatcher::coldest().
  std::string coldest(bool burstable) const;
  /// What happened of late, or since then by the steady clock; see Timeline.
  std::vector<Timeline::Span> timeline(double since_us = 0) const;

 private:
  friend class Tenant;
  friend class Turn;
  Scheduler(std::string device, std::unique_ptr<engine::Runtime> runtime, std::unique_ptr<exec::Gate> gate,
            const Capacity& capacity);

  void hold(int tenant, bool stand_back) override;
  void close_early(bool shut) override;
  void open() override;
  double now() const;
  void show(int word);  // of holds: shut while its tenant stands back, or all do
  void note_blocked();  // with mutex_ held: who stands back from here on
  Tenant* at(int number) const {
    return static_cast<size_t>(number) < tenants_.size() ? tenants_[static_cast<size_t>(number)] : nullptr;
  }
  void dispatch();  // with mutex_ held: begins the next call
  void remove(const Tenant& tenant);
  void finish(const Dispatcher::Call& call, double device_us);
  void watch();     // the timer thread

  const std::string device_;
  std::unique_ptr<engine::Runtime> runtime_;
  std::unique_ptr<exec::Gate> gate_;
  mutable std::mutex mutex_;
  std::condition_variable turn_, timer_;
  Dispatcher dispatcher_;
  std::set<std::string> names_;        // of all that have joined
  std::vector<Tenant*> tenants_;       // by the dispatcher's number; null: gone
  std::vector<bool> words_;            // of holds: taken
  std::vector<bool> held_;             // by word
  bool early_ = false, closed_ = false;
  std::atomic<bool> urgent_{false};    // the running call has shut the gate; written with mutex_ held
  uint64_t begun_ = 0;                 // the call whose turn it is
  double began_ = 0, closed_us_ = 0;
  const double opened_;
  int streams_held_ = 0;
  bool urgent_held_ = false;
  Timeline timeline_;
  std::thread thread_;
};

}  // namespace vivace::sched
