// Policies that hold their graphs twice, in a partition and for the whole device. On the host both streams have all of
// it, so that what is held here is the switching: graphs, plans, gates, inputs and answers of both.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/exec/alloc_count.h"
#include "vivace/models/policies.h"
#include "vivace/sched/scheduled_policy.h"

namespace vivace::models {
namespace {

struct Row {
  const char* fixture;
  bool codes = false;  // answers are tokens
};
void PrintTo(const Row& row, std::ostream* out) {
  *out << row.fixture;
}

class PolicySwitch : public ::testing::TestWithParam<Row> {
 protected:
  static std::unique_ptr<engine::PolicyModel> load(bool switches, const sched::Tenant* tenant = nullptr) {
    engine::PolicyOptions o;
    o.device = "cpu", o.precision = "f32", o.statistics = "none", o.threads = 1, o.views = 2;
    o.max_action_tokens = GetParam().codes ? 6 : 0, o.steps = GetParam().codes ? 0 : 2;
    o.switches = switches;
    if (tenant != nullptr) o.gates = tenant->gates(), o.urgent = tenant->urgent();
    auto policy = models::load_policy(std::string(VV_SOURCE_DIR) + "/tests/fixtures/vla/" + GetParam().fixture, o);
    EXPECT_TRUE(policy.ok()) << policy.status().to_string();
    return policy.ok() ? std::move(*policy) : nullptr;
  }
  /// Call number `n`: other frames, cameras, words and noise each time.
  struct Asked {
    Asked(const engine::PolicyModel& policy, uint32_t n) {
      const engine::PolicyLimits l = policy.limits();
      std::mt19937 dice(n);
      pixels.resize(static_cast<size_t>(l.image_height * l.image_width * 3));
      for (uint8_t& p : pixels) p = static_cast<uint8_t>(dice());
      views.assign(static_cast<size_t>(l.views), {pixels.data(), l.image_height, l.image_width, l.image_width * 3});
      if (n % 3 == 1) views.back() = {};
      for (uint32_t i = 0; i < 3 + n % 5; ++i) tokens.push_back(static_cast<int32_t>(2 + dice() % 60));
      if (l.image_token >= 0)
        tokens.insert(tokens.end(), n % 3 == 1 ? static_cast<size_t>(l.views) - 1 : static_cast<size_t>(l.views),
                      l.image_token);
      state.assign(static_cast<size_t>(l.network_state), 0.25f);
      o.views = views, o.tokens = tokens, o.state = state, o.seed = n, o.end_token = -1, o.embodiment = l.embodiment;
    }
    std::vector<uint8_t> pixels;
    std::vector<engine::Frame> views;
    std::vector<int32_t> tokens;
    std::vector<float> state;
    engine::Observation o;
  };
  static std::vector<float> answer(engine::PolicyModel& policy, uint32_t n) {
    const Asked asked(policy, n);
    const engine::PolicyLimits l = policy.limits();
    if (GetParam().codes) {
      const Status s = policy.generate({&asked.o, 1});
      EXPECT_TRUE(s.ok()) << s.to_string();
      const auto codes = policy.tokens(0);
      return codes.ok() ? std::vector<float>(codes->begin(), codes->end()) : std::vector<float>();
    }
    std::vector<float> actions(static_cast<size_t>(l.horizon * l.robot_dim));
    const Status s = policy.predict({&asked.o, 1}, actions);
    EXPECT_TRUE(s.ok()) << s.to_string();
    return actions;
  }
  static std::string field(const engine::PolicyModel& policy, const std::string& name) {
    for (const auto& [key, value] : policy.report())
      if (key == name) return value;
    return "";
  }
};
INSTANTIATE_TEST_SUITE_P(Families, PolicySwitch,
                         ::testing::Values(Row{"pi05_tiny"}, Row{"smolvla_tiny"}, Row{"pi0_fast_tiny", true},
                                           Row{"groot_n17_tiny"}),
                         [](const auto& info) { return std::string(info.param.fixture); });

TEST_P(PolicySwitch, DrawnVariantsHaveTheSameAnswers) {
  const auto plain = load(false), both = load(true);
  ASSERT_TRUE(plain && both);
  EXPECT_EQ(field(*plain, "switches"), "false");
  EXPECT_EQ(field(*both, "switches"), "true");
  for (const char* launches : {"context_launches", "action_launches"})
    EXPECT_EQ(field(*both, launches), field(*plain, launches));
  const Status refused = plain->use_whole(true);
  EXPECT_EQ(refused.code(), Code::kUnsupported) << refused.to_string();
  EXPECT_NE(refused.message().find("one part of its device"), std::string::npos) << refused.to_string();
  EXPECT_TRUE(plain->use_whole(false).ok());
  std::mt19937 dice(5);
  for (uint32_t n = 0; n < 12; ++n) {
    const Status s = both->use_whole(dice() % 2 == 0);
    ASSERT_TRUE(s.ok()) << s.to_string();
    EXPECT_EQ(answer(*both, n), answer(*plain, n)) << "call " << n;
  }
}

TEST_P(PolicySwitch, ASwitchedCallAllocatesNothing) {
  if (!testing::counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
  const auto policy = load(true);
  ASSERT_TRUE(policy);
  const Asked asked(*policy, 0);
  const engine::PolicyLimits l = policy->limits();
  std::vector<float> actions(static_cast<size_t>(l.horizon * l.robot_dim));
  bool whole = false;
  const testing::Quiet q = testing::watch(8, [&] {
    whole = !whole;
    return policy->use_whole(whole).ok() &&
           (GetParam().codes ? policy->generate({&asked.o, 1}) : policy->predict({&asked.o, 1}, actions)).ok();
  });
  EXPECT_EQ(q.allocations, 0u);
  EXPECT_EQ(q.failures, 0);
}

/// A tenant that has gates within its calls, beside one that comes and goes: every answer is that of the policy alone,
/// on either part.
TEST_P(PolicySwitch, UnderAScheduler) {
  const auto plain = load(false);
  auto scheduler = std::move(sched::Scheduler::open("cpu", {.handover_us = 2000})).value();
  sched::Qos qos;
  qos.cls = sched::Class::burstable;
  qos.blocking_us = 100;
  std::shared_ptr<sched::Tenant> tenant = std::move(scheduler->join("arm", qos)).value();
  auto other =
      std::move(scheduler->admit({"other", qos, {.worst_us = 4000, .stretch_us = 200, .apart = true}})).value();
  auto policy =
      sched::admit_policy(load(true, tenant.get()), tenant, GetParam().codes ? 50e3 : 0, sched::Partition::switched);
  ASSERT_TRUE(policy.ok()) << policy.status().to_string();
  EXPECT_NE(field(**policy, "gates"), "0");
  std::atomic<bool> over{false};
  std::thread steps([&] {
    std::mt19937 dice(3);
    while (!over) {
      other->want(true);
      std::this_thread::sleep_for(std::chrono::microseconds(dice() % 3000));
      other->charge(50);
      other->want(false);
      std::this_thread::sleep_for(std::chrono::microseconds(dice() % 3000));
    }
  });
  int calls = 0;
  const auto both = [&] {
    const auto s = tenant->stats();
    return s.whole_calls >= 3 && s.calls - s.whole_calls >= 3;
  };
  for (uint32_t n = 0; n < 60 && (n < 8 || !both()); ++n, ++calls)
    EXPECT_EQ(answer(**policy, n), answer(*plain, n)) << "call " << n;
  over = true;
  steps.join();
  EXPECT_TRUE(both());
  EXPECT_EQ(tenant->stats().calls, calls);
}

}  // namespace
}  // namespace vivace::models
