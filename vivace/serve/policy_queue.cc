#include "vivace/serve/policy_queue.h"

#include <pthread.h>

#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/base/forks.h"
#include "vivace/serve/thread.h"

namespace vivace::serve {
namespace {

constexpr std::chrono::microseconds kSleep{1'000'000};  // only a bound: every request rings

double seconds(PolicyRequest::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

PolicyQueue::PolicyQueue(int places, PolicyMetrics* metrics, std::function<void()> answered)
    : metrics_(*metrics), answered_(std::move(answered)) {
  for (int i = 0; i < places; ++i) places_.push_back(std::make_unique<PolicyRequest>());
  waiting_.reserve(places_.size());
  taken_.reserve(places_.size());
}

Status PolicyQueue::start(engine::PolicyModel& model, const models::vla::Robot& robot) {
  model_ = &model, robot_ = &robot, limits_ = model.limits();
  const auto batch = static_cast<size_t>(limits_.batch), horizon = static_cast<size_t>(limits_.horizon);
  observations_.resize(batch);
  actions_.resize(batch * horizon * static_cast<size_t>(limits_.robot_dim));
  for (auto& p : places_) {
    p->actions.resize(horizon * static_cast<size_t>(robot.dims(limits_.robot_dim)));
    p->normalized.resize(horizon * static_cast<size_t>(limits_.action_dim));
  }
  process_ = forks();
  return start_thread("the policy host", &thread_, [this] { run(); });
}

void PolicyQueue::stop() {
  if (thread_ == nullptr) return;
  if (forks() != process_) {
    static_cast<void>(thread_.release());  // it is in the parent
    return;
  }
  stop_.store(true, std::memory_order_release);
  bell_.ring();
  thread_->join();
  thread_.reset();
}

void PolicyQueue::submit(PolicyRequest& request) {
  request.status = {};
  request.missed = false;
  request.queue_s = request.infer_s = request.device_s = 0, request.together = 0;
  metrics_.waiting.fetch_add(1, std::memory_order_relaxed);
  request.state.store(PolicyRequest::queued, std::memory_order_release);
  bell_.ring();
}

bool PolicyQueue::cancel(PolicyRequest& request) {
  int was = PolicyRequest::queued;
  if (!request.state.compare_exchange_strong(was, PolicyRequest::idle, std::memory_order_acq_rel))
    return was != PolicyRequest::running;
  metrics_.waiting.fetch_sub(1, std::memory_order_relaxed);
  metrics_.abandoned.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void PolicyQueue::run() {
  pthread_setname_np(pthread_self(), "vivace-policy");
  while (!stop_.load(std::memory_order_acquire)) {
    const uint32_t seen = bell_.now();
    waiting_.clear();
    for (const auto& p : places_)
      if (p->state.load(std::memory_order_acquire) == PolicyRequest::queued)
        waiting_.emplace_back(p->deadline.load(std::memory_order_relaxed), p.get());
    if (waiting_.empty()) {
      bell_.wait(seen, kSleep);
      continue;
    }
    std::sort(waiting_.begin(), waiting_.end());
    taken_.clear();
    const auto now = PolicyRequest::Clock::now();
    for (const auto& [deadline, r] : waiting_) {
      if (taken_.size() == observations_.size()) break;
      int was = PolicyRequest::queued;
      if (!r->state.compare_exchange_strong(was, PolicyRequest::running, std::memory_order_acq_rel)) continue;
      r->queue_s = seconds(now - r->arrived);
      if (r->strict && now.time_since_epoch().count() > r->deadline.load(std::memory_order_relaxed))
        r->missed = true, finish(*r);
      else taken_.push_back(r);
    }
    if (!taken_.empty()) answer(taken_);
    answered_();
  }
}

void PolicyQueue::answer(std::span<PolicyRequest* const> requests) {
  const size_t each = static_cast<size_t>(limits_.horizon) * static_cast<size_t>(limits_.robot_dim),
               n = requests.size();
  for (size_t i = 0; i < n; ++i) observations_[i] = requests[i]->observation;
  const auto begin = PolicyRequest::Clock::now();
  metrics_.calls.fetch_add(1, std::memory_order_relaxed);
  const Status s = model_->predict(std::span(observations_).first(n), std::span(actions_).first(n * each));
  const double took = seconds(PolicyRequest::Clock::now() - begin), device = s.ok() ? model_->device_us() * 1e-6 : 0;
  if (!s.ok() && n > 1) {  // whose fault it is, each finds out alone
    for (PolicyRequest* r : requests) answer(std::span(&r, 1));
    return;
  }
  metrics_.infer.add(took);
  for (size_t i = 0; i < n; ++i) {
    PolicyRequest& r = *requests[i];
    r.infer_s = took, r.device_s = device, r.together = static_cast<int>(n);
    r.status = s;
    if (s.ok()) take(r, static_cast<int64_t>(i));
  }
  for (PolicyRequest* r : requests) finish(*r);
}

void PolicyQueue::take(PolicyRequest& request, int64_t index) {
  const auto horizon = static_cast<size_t>(limits_.horizon), wide = static_cast<size_t>(limits_.robot_dim),
             dims = static_cast<size_t>(robot_->dims(limits_.robot_dim));
  for (size_t row = 0; row < horizon; ++row) {
    const auto action = std::span(actions_).subspan((static_cast<size_t>(index) * horizon + row) * wide, wide);
    robot_->to_robot(action);
    std::copy_n(action.begin(), dims, request.actions.begin() + static_cast<ptrdiff_t>(row * dims));
  }
  if (!request.wants_normalized) return;
  const auto own = model_->normalized(static_cast<int>(index));
  if (own.ok()) std::copy(own->begin(), own->end(), request.normalized.begin());
  else request.status = own.status();
}

void PolicyQueue::finish(PolicyRequest& request) {
  metrics_.queue.add(request.queue_s);
  metrics_.waiting.fetch_sub(1, std::memory_order_relaxed);
  request.state.store(PolicyRequest::answered, std::memory_order_release);
}

}  // namespace vivace::serve
