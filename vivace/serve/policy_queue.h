// PolicyQueue: one policy, several robots. Requests in fixed places, and the thread that answers the most urgent of
// them.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "vivace/models/vla/robots.h"
#include "vivace/serve/notifier.h"
#include "vivace/serve/policy_metrics.h"

namespace vivace::serve {

/// A connection's request, of which there is one at a time. Its owner writes it while it is idle and reads it once it
/// is answered; between, it is the queue's, and so is the memory that its observation points to.
struct PolicyRequest {
  using Clock = std::chrono::steady_clock;
  enum State : int { idle, queued, running, answered };
  std::atomic<int> state{idle};

  models::vla::RobotInputs inputs;
  std::vector<int32_t> tokens;
  std::vector<float> noise, action_prefix, future_actions;
  engine::Observation observation;
  Clock::time_point arrived;
  std::atomic<Clock::rep> deadline{0};  // of Clock; the queue reads it before the request is its own
  bool strict = false;            // past its deadline it is not begun
  bool wants_normalized = false;
  bool future_steps = false;      // future_actions are steps, not targets

  Status status;                  // why there is no answer
  bool missed = false;            // its deadline; the status is OK and there are no actions
  std::vector<float> actions;     // [horizon, dims of the robot]
  std::vector<float> normalized;  // [horizon, action_dim], where wanted
  double queue_s = 0, infer_s = 0, device_s = 0;
  int together = 0;               // requests of the same call
};

/// The earliest deadline first; a call takes what waits, up to the policy's batch, and never waits for more. No lock:
/// requests change hands by their state.
class PolicyQueue {
 public:
  /// `answered` is called on the policy's thread when requests were.
  PolicyQueue(int places, PolicyMetrics* metrics, std::function<void()> answered);
  ~PolicyQueue() { stop(); }

  /// Begins to answer. `model` must outlive the queue; nobody else calls it meanwhile. Errors: LimitExceeded.
  Status start(engine::PolicyModel& model, const models::vla::Robot& robot);
  /// After the call that is on its way.
  void stop();

  /// A place that is idle.
  PolicyRequest& place(int i) { return *places_[static_cast<size_t>(i)]; }
  void submit(PolicyRequest& request);
  /// The owner is gone. False where the policy has it already: then its memory is needed until it is answered.
  bool cancel(PolicyRequest& request);

 private:
  void run();
  void answer(std::span<PolicyRequest* const> requests);
  void take(PolicyRequest& request, int64_t index);
  void finish(PolicyRequest& request);

  std::vector<std::unique_ptr<PolicyRequest>> places_;
  PolicyMetrics& metrics_;
  const std::function<void()> answered_;
  Notifier bell_;
  std::atomic<bool> stop_{false};
  engine::PolicyModel* model_ = nullptr;
  const models::vla::Robot* robot_ = nullptr;
  engine::PolicyLimits limits_;
  std::unique_ptr<std::thread> thread_;
  int process_ = 0;

  // The policy's thread.
  std::vector<std::pair<PolicyRequest::Clock::rep, PolicyRequest*>> waiting_;
  std::vector<PolicyRequest*> taken_;
  std::vector<engine::Observation> observations_;
  std::vector<float> actions_;
};

}  // namespace vivace::serve
