// A GR00T's calls are predictable: after load nothing allocates, whatever images, prompts and embodiments come.
#include <gtest/gtest.h>

#include "tests/exec/alloc_count.h"
#include "vivace/models/policies.h"

namespace vivace::models {
namespace {

/// `unit`: pixels of a token's side.
void expect_quiet(const std::string& fixture, int64_t unit) {
  engine::PolicyOptions options;
  options.device = "cpu", options.precision = "f32", options.statistics = "none", options.threads = 2,
  options.views = 2, options.batch = 2;
  const auto owner = models::load_policy(std::string(VV_SOURCE_DIR) + "/tests/fixtures/vla/" + fixture, options);
  ASSERT_TRUE(owner.ok()) << owner.status().to_string();
  engine::PolicyModel& model = *owner.value();
  const engine::PolicyLimits limits = model.limits();
  const std::vector<uint8_t> pixels(256 * 256 * 3, 7);
  const std::vector<float> state(static_cast<size_t>(limits.network_state), 0.5f),
      chunk(static_cast<size_t>(limits.horizon * limits.action_dim), 0.1f);
  std::vector<int32_t> words(static_cast<size_t>(limits.prompt_tokens) + 2, 5);
  words[1] = words[7] = limits.image_token;
  std::vector<float> actions(2 * chunk.size());
  int call = 0;
  const auto ask = [&] {
    const int64_t side = unit + unit * (call % 4), two = 2 * unit;  // other images, prompts and embodiments each time
    const engine::Frame both[] = {{pixels.data(), side, two, two * 3, 0}, {pixels.data(), two, side, side * 3, 0}},
                        one[] = {{}, {pixels.data(), side, side, side * 3, 0}};
    engine::Observation o[2];
    o[0].views = both, o[0].tokens = std::span(words).first(words.size() - static_cast<size_t>(call % 100)),
    o[0].state = state, o[0].embodiment = call % 3, o[0].prev_actions = chunk, o[0].overlap = 3, o[0].frozen = 1;
    o[1].views = one, o[1].tokens = std::span(words).first(7), o[1].state = state, o[1].embodiment = (call + 1) % 3,
    o[1].seed = static_cast<uint64_t>(call);
    const size_t asked = ++call % 5 == 0 ? 1 : 2;
    return model.predict(std::span(o).first(asked), std::span(actions).first(asked * chunk.size())).ok();
  };
  const testing::Quiet q = testing::watch(60, ask);
  EXPECT_EQ(q.allocations, 0u);
  EXPECT_EQ(q.failures, 0);
}

TEST(GrootHotPath, CallsAllocateNothing) {
  if (!testing::counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
  expect_quiet("groot_n17_tiny", 32);
  expect_quiet("groot_n16_tiny", 28);
}

}  // namespace
}  // namespace vivace::models
