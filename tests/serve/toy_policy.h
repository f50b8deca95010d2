// A policy that thinks nothing: each action follows from every byte of its observation, so that a stale picture,
// another robot's state or half a message gives other actions. It also notices two callers at once, and waits where a
// test says so.
#pragma once
#include <atomic>
#include <cmath>
#include <thread>

#include "vivace/engine/policy.h"

namespace vivace::serve::testing {

class ToyPolicy final : public engine::PolicyModel {
 public:
  explicit ToyPolicy(int batch = 1) { limits_.batch = batch; }
  std::atomic<bool> hold{false};        // predict() does not end while it is set
  std::atomic<int> calls{0}, most_together{0};
  std::atomic<bool> two_callers{false}, inside{false};
  std::atomic<int> spin_us{0};
  std::shared_ptr<engine::HostPool> pool;  // of messages; null: there is no device
  std::atomic<int> locked_frames{0}, plain_frames{0};

  static float digest(const engine::Observation& o) {
    uint64_t h = 1469598103934665603ull ^ o.seed;
    const auto add = [&h](uint64_t v) { h = (h ^ v) * 1099511628211ull; };
    for (const engine::Frame& f : o.views) {
      const int64_t planes = f.plane == 0 ? 1 : 3, line = f.plane == 0 ? f.width * 3 : f.width;
      for (int64_t p = 0; p < planes && f.data != nullptr; ++p)
        for (int64_t y = 0; y < f.height; ++y)
          for (int64_t x = 0; x < line; ++x) add(f.data[p * f.plane + y * f.stride + x]);
    }
    for (const int32_t t : o.tokens) add(static_cast<uint64_t>(t));
    for (const float v : o.state) add(static_cast<uint64_t>(v * 1000));
    for (const float v : o.action_prefix) add(static_cast<uint64_t>(v * 1000));
    return static_cast<float>(h % 1000003) / 1000003.0f;
  }

  const std::string& family() const override { return family_; }
  engine::HostPool& host_pool() override { return pool != nullptr ? *pool : engine::PolicyModel::host_pool(); }
  engine::Report report() const override { return {}; }
  std::vector<engine::MemoryLine> memory() const override { return {}; }
  engine::PolicyLimits limits() const override { return limits_; }
  Status predict(std::span<const engine::Observation> observations, std::span<float> actions) override {
    if (inside.exchange(true)) two_callers = true;
    ++calls;
    most_together = std::max(most_together.load(), static_cast<int>(observations.size()));
    while (hold.load()) std::this_thread::yield();
    for (size_t i = 0; i < observations.size(); ++i) {
      const auto& o = observations[i];
      for (const engine::Frame& f : o.views) ++(f.page_locked ? locked_frames : plain_frames);
      if (o.views[0].data != nullptr && o.views[0].height > 64) {
        inside = false;
        return Status(Code::kInvalidShape, "observation " + std::to_string(i) + ": too high");
      }
      for (size_t k = 0; k < each(); ++k) actions[i * each() + k] = digest(o) + static_cast<float>(k);
    }
    answered_.assign(observations.size() * static_cast<size_t>(limits_.horizon * limits_.action_dim), 0.5f);
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us.load());
    while (std::chrono::steady_clock::now() < until) {
    }
    inside = false;
    return {};
  }
  Result<std::span<const float>> normalized(int i) const override {
    const auto n = static_cast<size_t>(limits_.horizon * limits_.action_dim);
    return std::span<const float>(answered_).subspan(static_cast<size_t>(i) * n, n);
  }
  Result<std::vector<float>> normalized_state(std::span<const float> state) const override {
    return std::vector<float>(state.begin(), state.end());
  }
  Status observe(std::span<const engine::Observation>, const Probe&) override { return none(); }
  Result<std::vector<float>> calibrate(std::span<const engine::Observation>, double) override { return none(); }
  Status set_act_scales(std::span<const float>) override { return none(); }
  Result<engine::Profile> profile(Stage, bool) override { return none(); }
  size_t each() const { return static_cast<size_t>(limits_.horizon * limits_.robot_dim); }

 private:
  static Status none() { return Status(Code::kUnsupported, "a toy"); }
  std::string family_ = "pi05";
  engine::PolicyLimits limits_{.views = 2,
                               .horizon = 5,
                               .steps = 1,
                               .batch = 1,
                               .prompt_tokens = 64,
                               .max_action_tokens = 0,
                               .action_dim = 4,
                               .robot_dim = 3,
                               .state_dim = 3,
                               .takes_state = false};
  std::vector<float> answered_;
};

}  // namespace vivace::serve::testing
