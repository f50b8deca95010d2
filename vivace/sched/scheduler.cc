#include "vivace/sched/scheduler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "vivace/base/check.h"
#include "vivace/exec/held_streams.h"

namespace vivace::sched {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kUrgentWord = 0, kFirstHold = 1;  // of the gate: one of streams, then the host's, one a tenant

std::mutex g_open;
std::set<std::string> g_devices;  // that have a scheduler

Status not_admitted(const std::string& name) {
  return Status(Code::kFailedPrecondition, strf("tenant %s: it is not admitted yet", name.c_str()));
}
Status closed() { return Status(Code::kClosed, "the scheduler is closed"); }

}  // namespace

Turn::~Turn() {
  if (scheduler_ != nullptr) scheduler_->finish(call_, device_us_);
}

Tenant::~Tenant() { scheduler_->remove(*this); }

const std::string& Tenant::device() const {
  return scheduler_->device();
}

Status Tenant::admit(const Times& times, int64_t bytes) {
  Scheduler& s = *scheduler_;
  const std::lock_guard<std::mutex> lock(s.mutex_);
  if (s.closed_) return closed();
  if (number_ >= 0) return Status(Code::kFailedPrecondition, strf("tenant %s: it is admitted already", name_.c_str()));
  if (qos_.bytes != 0 && bytes > qos_.bytes)
    return Status(Code::kFailedPrecondition,
                  strf("tenant %s: its model has %lld bytes, %lld more than the %lld it was given", name_.c_str(),
                       static_cast<long long>(bytes), static_cast<long long>(bytes - qos_.bytes),
                       static_cast<long long>(qos_.bytes)));
  Demand demand{name_, qos_, times};
  if (demand.qos.bytes == 0) demand.qos.bytes = bytes;
  if (const auto v = s.dispatcher_.evaluate(demand); v.ok()) bytes_short_ = v->bytes_short;
  VV_ASSIGN(number_, s.dispatcher_.add(demand));
  s.tenants_.resize(static_cast<size_t>(number_) + 1);
  s.tenants_[static_cast<size_t>(number_)] = this;
  s.note_blocked();
  return {};
}

Status Tenant::set(const Qos& qos) {
  Scheduler& s = *scheduler_;
  VV_TRY(check(name_, qos));
  const std::lock_guard<std::mutex> lock(s.mutex_);
  if (s.closed_) return closed();
  if (number_ < 0) return not_admitted(name_);
  VV_TRY(s.dispatcher_.change(number_, qos));
  s.timer_.notify_one();
  return {};
}

Status Tenant::pause(bool paused) {
  Scheduler& s = *scheduler_;
  const std::lock_guard<std::mutex> lock(s.mutex_);
  if (s.closed_) return closed();
  if (number_ < 0) return not_admitted(name_);
  VV_TRY(s.dispatcher_.pause(number_, paused));
  s.timer_.notify_one();
  return {};
}

Result<engine::Moved> Tenant::sleep(engine::Model& model) {
  Scheduler& s = *scheduler_;
  {
    const std::lock_guard<std::mutex> lock(s.mutex_);
    if (s.closed_) return closed();
    if (number_ < 0) return not_admitted(name_);
    VV_TRY(s.dispatcher_.sleep(number_));
  }
  Result<engine::Moved> moved = model.sleep();  // takes long: others go on
  if (!moved.ok()) {
    const std::lock_guard<std::mutex> lock(s.mutex_);
    static_cast<void>(s.dispatcher_.wake(number_, nullptr, true));
  }
  return moved;
}

Result<engine::Moved> Tenant::wake(engine::Model& model) {
  Scheduler& s = *scheduler_;
  {
    const std::lock_guard<std::mutex> lock(s.mutex_);
    if (s.closed_) return closed();
    if (number_ < 0) return not_admitted(name_);
    bytes_short_ = 0;
    VV_TRY(s.dispatcher_.wake(number_, &bytes_short_));
  }
  Result<engine::Moved> moved = model.wake();
  if (!moved.ok()) {
    const std::lock_guard<std::mutex> lock(s.mutex_);
    static_cast<void>(s.dispatcher_.sleep(number_));
  }
  return moved;
}

int64_t Tenant::bytes_short() const {
  const std::lock_guard<std::mutex> lock(scheduler_->mutex_);
  return bytes_short_;
}

Result<Turn> Tenant::enter(double deadline_us, double* retry_after_us) {
  Scheduler& s = *scheduler_;
  std::unique_lock<std::mutex> lock(s.mutex_);
  if (s.closed_) return closed();
  if (number_ < 0) return not_admitted(name_);
  Dispatcher::Call call;
  if (auto refusal = s.dispatcher_.submit(number_, s.now(), deadline_us, &call)) {
    if (retry_after_us != nullptr) *retry_after_us = refusal->retry_after_us;
    return std::move(refusal->why);
  }
  s.dispatch();
  s.turn_.wait(lock, [&] { return s.begun_ == call.number || s.closed_; });
  if (s.begun_ != call.number) return closed();
  return Turn(scheduler_, call);
}

Status Tenant::expect_in(double us) {
  Scheduler& s = *scheduler_;
  const std::lock_guard<std::mutex> lock(s.mutex_);
  if (s.closed_) return closed();
  if (number_ < 0) return not_admitted(name_);
  VV_TRY(s.dispatcher_.hint(number_, s.now() + us));
  s.timer_.notify_one();
  return {};
}

bool Tenant::take_whole() {
  Scheduler& s = *scheduler_;
  const std::lock_guard<std::mutex> lock(s.mutex_);
  if (number_ < 0) return true;
  if (s.dispatcher_.beside(number_)) return false;
  s.dispatcher_.count_whole(number_);
  return true;
}

void Tenant::want(bool work) {
  Scheduler& s = *scheduler_;
  const std::lock_guard<std::mutex> lock(s.mutex_);
  if (number_ < 0) return;
  blocked_seen_ = blocked_us_ + (blocked_since_ >= 0 ? s.now() - blocked_since_ : 0);
  static_cast<void>(s.dispatcher_.want(number_, s.now(), work));
}

void Tenant::charge(double us) {
  Scheduler& s = *scheduler_;
  const std::lock_guard<std::mutex> lock(s.mutex_);
  if (number_ < 0) return;
  const double at = s.now(), blocked = blocked_us_ + (blocked_since_ >= 0 ? at - blocked_since_ : 0);
  const double stood_back = std::clamp(blocked - std::exchange(blocked_seen_, blocked), 0.0, us);
  s.timeline_.add(name_, Timeline::Kind::step, at - us, us);
  if (stood_back > 0) s.timeline_.add(name_, Timeline::Kind::stand_back, at - us, stood_back);
  static_cast<void>(s.dispatcher_.charge(number_, at, us - stood_back, stood_back));
}

TenantStats Tenant::stats() const {
  const std::lock_guard<std::mutex> lock(scheduler_->mutex_);
  return number_ >= 0 ? scheduler_->dispatcher_.stats(number_) : TenantStats();
}

Result<std::shared_ptr<Scheduler>> Scheduler::open(const std::string& device, const Capacity& capacity) {
  VV_ASSIGN(std::unique_ptr<engine::Runtime> runtime, engine::Runtime::open(device, 1));
  const std::string name = runtime->name();
  VV_ASSIGN(std::unique_ptr<exec::Gate> gate, runtime->backend().make_gate(1, kMostLower));
  {
    const std::lock_guard<std::mutex> lock(g_open);
    if (!g_devices.insert(name).second)
      return Status(Code::kFailedPrecondition,
                    strf("scheduler: this process has one for %s; share it, or close it first", name.c_str()));
  }
  const Result<exec::HeldStreams> held = exec::held_streams(*gate, kMostLower + 2);
  std::shared_ptr<Scheduler> s(new Scheduler(name, std::move(runtime), std::move(gate), capacity));
  s->streams_held_ = held.ok() ? held->count : -1;
  s->urgent_held_ = held.ok() && held->urgent;
  return s;
}

Scheduler::Scheduler(std::string device, std::unique_ptr<engine::Runtime> runtime, std::unique_ptr<exec::Gate> gate,
                     const Capacity& capacity)
    : device_(std::move(device)),
      runtime_(std::move(runtime)),
      gate_(std::move(gate)),
      dispatcher_(capacity, *this),
      words_(kMostLower),
      held_(kMostLower),
      opened_(now()),
      thread_([this] { watch(); }) {}

Scheduler::~Scheduler() {
  close();
  thread_.join();
}

void Scheduler::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  closed_ = true;
  urgent_ = false;
  static_cast<void>(gate_->open_all());
  turn_.notify_all();
  timer_.notify_all();
  const std::lock_guard<std::mutex> devices(g_open);
  g_devices.erase(device_);
}

double Scheduler::now() const {
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

Result<Verdict> Scheduler::evaluate(const Demand& demand) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return dispatcher_.evaluate(demand);
}

Result<std::unique_ptr<Tenant>> Scheduler::join(const std::string& name, const Qos& qos) {
  VV_TRY(check(name, qos));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return closed();
  if (names_.contains(name))
    return Status(Code::kInvalidArgument, strf("tenant %s: there is one of this name", name.c_str()));
  const bool lower = qos.cls != Class::guaranteed;
  if (!lower && urgent_held_)
    return Status(
        Code::kFailedPrecondition,
        strf("tenant %s: nobody can be guaranteed on %s: its streams share hardware queues, and an urgent one "
             "stands still behind one that waits; set CUDA_DEVICE_MAX_CONNECTIONS=32 before anything starts "
             "CUDA in this process",
             name.c_str(), device_.c_str()));
  const auto word = std::find(words_.begin(), words_.end(), false);
  if (lower && word == words_.end())
    return Status(
        Code::kLimitExceeded,
        strf("scheduler: %d burstable and best-effort tenants are there, no more than that may be", kMostLower));
  std::unique_ptr<Tenant> tenant(new Tenant(shared_from_this(), name, qos));
  names_.insert(name);
  if (lower) {
    *word = true;
    tenant->hold_word_ = static_cast<int>(word - words_.begin());
    show(tenant->hold_word_);
    // Two words: each more is a part of a microsecond at every gate.
    tenant->gates_ = {gate_.get(), 1u << kUrgentWord | 1u << (kFirstHold + tenant->hold_word_), qos.blocking_us,
                      &urgent_};
  } else {
    tenant->urgent_ = std::make_shared<engine::UrgentGate>();
    tenant->urgent_->gate = gate_.get();
    tenant->urgent_->word = kUrgentWord;
    tenant->urgent_->shuts = false;  // until it is its turn: the word has one writer
  }
  return tenant;
}

Result<std::unique_ptr<Tenant>> Scheduler::admit(const Demand& demand) {
  VV_TRY(check(demand));
  VV_ASSIGN(std::unique_ptr<Tenant> tenant, join(demand.name, demand.qos));
  VV_TRY(tenant->admit(demand.times));
  return tenant;
}

void Scheduler::remove(const Tenant& tenant) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (tenant.number_ >= 0) {
    static_cast<void>(dispatcher_.remove(tenant.number_));
    tenants_[static_cast<size_t>(tenant.number_)] = nullptr;
  }
  if (tenant.hold_word_ >= 0) words_[static_cast<size_t>(tenant.hold_word_)] = false;
  names_.erase(tenant.name_);
  dispatch();
}

void Scheduler::note_blocked() {
  const double at = now();
  for (Tenant* const t : tenants_) {
    if (t == nullptr || t->hold_word_ < 0) continue;
    const bool blocked = !closed_ && (urgent_ || early_ || held_[static_cast<size_t>(t->hold_word_)]);
    if (blocked && t->blocked_since_ < 0) t->blocked_since_ = at;
    else if (!blocked && t->blocked_since_ >= 0) t->blocked_us_ += at - std::exchange(t->blocked_since_, -1);
  }
}

void Scheduler::hold(int tenant, bool stand_back) {
  const Tenant* const t = at(tenant);
  if (t == nullptr || closed_) return;
  held_[static_cast<size_t>(t->hold_word_)] = stand_back;
  show(t->hold_word_);
  note_blocked();
}

void Scheduler::show(int word) {
  static_cast<void>(gate_->set(kFirstHold + word, !closed_ && (early_ || held_[static_cast<size_t>(word)])));
}

void Scheduler::close_early(bool shut) {
  early_ = shut && !closed_;
  for (int i = 0; i < kMostLower; ++i)
    if (words_[static_cast<size_t>(i)]) show(i);
  note_blocked();
}

/// Everything opens, for a word of a stream can be opened in no other way; what the host holds back is held again.
void Scheduler::open() {
  static_cast<void>(gate_->open_all());
  if (urgent_.exchange(false)) closed_us_ += now() - began_;
  if (!closed_) close_early(early_);
}

void Scheduler::dispatch() {
  if (closed_) return;
  const auto call = dispatcher_.next(now());
  if (!call) return;
  began_ = now();
  if (Tenant* const t = at(call->tenant); t != nullptr) {
    t->urgent_->shuts = call->shuts;
    timeline_.add(t->name_, Timeline::Kind::wait, call->submitted, began_ - call->submitted);
  }
  urgent_ = call->shuts;
  note_blocked();
  begun_ = call->number;
  turn_.notify_all();
  timer_.notify_one();  // its budget counts from here on
}

void Scheduler::finish(const Dispatcher::Call& call, double device_us) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const double at = now();
  if (dispatcher_.done(call.number, at, device_us).ok()) {
    if (urgent_.exchange(false)) closed_us_ += at - began_;
    note_blocked();
    if (Tenant* const t = this->at(call.tenant); t != nullptr)
      t->urgent_->shuts = false, timeline_.add(t->name_, Timeline::Kind::call, began_, at - began_);
  }
  dispatch();
}

bool Scheduler::healthy() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return dispatcher_.healthy();
}

double Scheduler::utilisation() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return dispatcher_.utilisation();
}

std::vector<Scheduler::Row> Scheduler::rows() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Row> out;
  for (int i = 0; static_cast<size_t>(i) < tenants_.size(); ++i)
    if (at(i) != nullptr) out.push_back({dispatcher_.demand(i), dispatcher_.promised(i), dispatcher_.stats(i)});
  return out;
}

Scheduler::Now Scheduler::now_of() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {dispatcher_.waiting(), dispatcher_.running(), closed_us_, now() - opened_, urgent_held_, streams_held_};
}

std::string Scheduler::coldest(bool burstable) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Tenant* const t = at(dispatcher_.coldest(burstable));
  return t != nullptr ? t->name_ : "";
}

std::vector<Timeline::Span> Scheduler::timeline(double since_us) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return timeline_.spans(since_us);
}

void Scheduler::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closed_) {
    const double wake = dispatcher_.wake();
    if (std::isinf(wake)) timer_.wait(lock);
    else timer_.wait_for(lock, std::chrono::duration<double, std::micro>(std::max(0.0, wake - now())));
    if (closed_) return;
    dispatcher_.tick(now());
    dispatch();  // after a lost call the next may begin
  }
}

}  // namespace vivace::sched
