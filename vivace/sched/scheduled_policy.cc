#include "vivace/sched/scheduled_policy.h"

#include <algorithm>
#include <chrono>

#include "vivace/base/check.h"

namespace vivace::sched {
namespace {

using engine::Observation;
using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

class ScheduledPolicy final : public engine::PolicyModel {
 public:
  ScheduledPolicy(std::unique_ptr<engine::PolicyModel> policy, std::shared_ptr<Tenant> tenant, bool switches)
      : tenant_(std::move(tenant)), policy_(std::move(policy)), switches_(switches) {}
  const std::string& family() const override { return policy_->family(); }
  engine::Report report() const override { return policy_->report(); }
  std::vector<engine::MemoryLine> memory() const override { return policy_->memory(); }
  Result<engine::Moved> sleep() override { return policy_->sleep(); }
  Result<engine::Moved> wake() override { return policy_->wake(); }
  engine::PolicyLimits limits() const override { return policy_->limits(); }
  Status predict(std::span<const Observation> observations, std::span<float> actions) override {
    return call([&] { return policy_->predict(observations, actions); });
  }
  Status generate(std::span<const Observation> observations) override {
    return call([&] { return policy_->generate(observations); });
  }
  Result<std::span<const int32_t>> tokens(int i) const override { return policy_->tokens(i); }
  Result<std::span<const float>> normalized(int i) const override { return policy_->normalized(i); }
  Result<std::vector<float>> normalized_state(std::span<const float> state) const override {
    return policy_->normalized_state(state);
  }
  Status observe(std::span<const Observation> observations, const Probe& probe) override {
    return policy_->observe(observations, probe);
  }
  Result<std::vector<float>> calibrate(std::span<const Observation> observations, double percentile) override {
    return policy_->calibrate(observations, percentile);
  }
  Status set_act_scales(std::span<const float> scales) override { return policy_->set_act_scales(scales); }
  double device_us() const override { return policy_->device_us(); }
  Result<engine::Profile> profile(Stage stage, bool in_step) override { return policy_->profile(stage, in_step); }

 private:
  template <class Work>
  Status call(Work&& work) {
    if (tenant_->cls() == Class::guaranteed) {
      double retry_us = 0;
      Result<Turn> turn = tenant_->enter(0, &retry_us);
      if (!turn.ok())
        return retry_us == 0
                   ? std::move(turn).status()
                   : Status(turn.status().code(), turn.status().message() + strf("; come again in %.0f us", retry_us));
      Status s = run(work);
      if (s.ok() && policy_->device_us() > 0) turn->took(policy_->device_us());
      return s;
    }
    tenant_->want(true);
    const auto start = Clock::now();
    Status s = run(work);
    tenant_->charge(us_since(start));
    tenant_->want(false);
    return s;
  }

  template <class Work>
  Status run(Work&& work) {
    if (switches_) VV_TRY(policy_->use_whole(tenant_->take_whole()));
    return work();
  }

  std::shared_ptr<Tenant> tenant_;  // outlives the policy, whose stream uses its gate
  std::unique_ptr<engine::PolicyModel> policy_;
  const bool switches_;
};

/// Frames, words and a state of zeros, as many as there may be.
Status sample_call(engine::PolicyModel& policy) {
  const engine::PolicyLimits limits = policy.limits();
  const int64_t height = limits.image_height, width = limits.image_width;
  const std::vector<uint8_t> pixels(static_cast<size_t>(height * width * 3));
  const std::vector<engine::Frame> views(static_cast<size_t>(limits.views),
                                         engine::Frame{pixels.data(), height, width, width * 3});
  std::vector<int32_t> tokens(static_cast<size_t>(limits.prompt_tokens));
  if (limits.image_token >= 0) tokens.insert(tokens.end(), static_cast<size_t>(limits.views), limits.image_token);
  const std::vector<float> state(static_cast<size_t>(limits.state_dim > 0 ? limits.state_dim : limits.network_state));
  std::vector<float> actions(static_cast<size_t>(limits.batch) *
                             static_cast<size_t>(limits.horizon * limits.robot_dim));
  Observation one;
  one.views = views, one.tokens = tokens, one.state = state, one.end_token = -1, one.embodiment = limits.embodiment;
  const std::vector<Observation> all(static_cast<size_t>(limits.batch), one);
  Status s = policy.predict(all, actions);
  return s.ok() || limits.max_action_tokens == 0 ? s : policy.generate(all);  // without a codec there are tokens alone
}

}  // namespace

Status admit(Tenant& tenant, const engine::Model& model, Times times, double worst_us) {
  int64_t bytes = 0;
  for (const engine::MemoryLine& line : model.memory()) bytes += line.bytes;
  if (worst_us > 0) times.worst_us = worst_us;
  return tenant.admit(times, bytes);
}

Status check_text(const Tenant& tenant) {
  if (tenant.cls() != Class::guaranteed) return {};
  return Status(
      Code::kInvalidArgument,
      "tenant " + tenant.name() + ": a language model's steps have no deadline; it is burstable or best_effort");
}

Status check_speech(const Tenant& tenant) {
  if (tenant.cls() != Class::guaranteed) return {};
  return Status(Code::kInvalidArgument,
                "tenant " + tenant.name() + ": a speech model's work has no deadline; it is burstable or best_effort");
}

Status admit_speech(Tenant& tenant, const engine::SpeechModel& model, double worst_us) {
  VV_TRY(check_speech(tenant));
  VV_ASSIGN(const engine::WorkTimes times, model.work_times());
  return admit(tenant, model, {times.worst_us, times.stretch_us}, worst_us);
}

Status admit_text(Tenant& tenant, const engine::TextModel& model, double worst_us) {
  VV_TRY(check_text(tenant));
  VV_ASSIGN(const engine::WorkTimes times, model.work_times());
  return admit(tenant, model, {times.worst_us, times.stretch_us}, worst_us);
}

Result<std::unique_ptr<engine::PolicyModel>> admit_policy(std::unique_ptr<engine::PolicyModel> policy,
                                                          std::shared_ptr<Tenant> tenant, double worst_us,
                                                          Partition partition) {
  const bool switches = partition == Partition::switched;
  Times times{worst_us, worst_us};
  times.apart = partition != Partition::none;
  const bool stands_back = tenant->cls() != Class::guaranteed;
  bool asked = false;
  if (worst_us == 0) {
    if (switches) {
      VV_TRY(policy->use_whole(true));
      VV_ASSIGN(const Times whole, time_calls(*policy));
      times.whole_us = whole.worst_us;
      VV_TRY(policy->use_whole(false));
    }
    VV_ASSIGN(const Times here, time_calls(*policy));
    times.worst_us = times.stretch_us = std::max(here.worst_us, times.whole_us);
    asked = true;
  } else if (stands_back) {
    asked = sample_call(*policy).ok();
  }
  if (stands_back && asked) {  // a long call lets others by within
    Result<engine::WorkTimes> work = policy->place_gates();
    if (work.ok())
      times.stretch_us = std::min(work->stretch_us, times.worst_us);
    else if (work.status().code() != Code::kUnsupported)
      return std::move(work).status();
  }
  VV_TRY(admit(*tenant, *policy, times));
  return make_scheduled(std::move(policy), std::move(tenant), switches);
}

Result<Times> time_calls(engine::PolicyModel& policy) {
  constexpr int kMost = 30, kLeast = 3;
  constexpr double kMostUs = 2e6, kMargin = 1.03;
  double worst = 0;
  const auto begun = Clock::now();
  for (int i = 0; i < kMost && (i < kLeast || us_since(begun) < kMostUs); ++i) {
    const auto start = Clock::now();
    if (const Status s = sample_call(policy); !s.ok())
      return Status(Code::kFailedPrecondition,
                    "its calls cannot be timed, say what one takes at worst: " + s.message());
    if (i > 0) worst = std::max(worst, us_since(start));  // the first finds caches cold
  }
  return Times{worst * kMargin, worst * kMargin};
}

std::unique_ptr<engine::PolicyModel> make_scheduled(std::unique_ptr<engine::PolicyModel> policy,
                                                    std::shared_ptr<Tenant> tenant, bool switches) {
  return std::make_unique<ScheduledPolicy>(std::move(policy), std::move(tenant), switches);
}

}  // namespace vivace::sched
