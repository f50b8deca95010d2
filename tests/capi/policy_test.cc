// A robot's call through the C ABI: nothing is allocated and no page is touched for the first time, whatever changes
// between calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/exec/alloc_count.h"
#include "vivace/capi/policy.h"
#include "vivace/device/device.h"
#include "vivace/jit/nvrtc.h"

namespace vivace {
namespace {

/// The small pi0, two cameras, four actions, in f32; null, and a failure, where it does not load.
vv_policy* load(const char* device, int steps) {
  vv_policy_options options{};
  options.struct_size = sizeof options;
  options.path = VV_SOURCE_DIR "/tests/fixtures/vla/pi0_tiny";
  options.config = "pi0";
  options.device = device;
  options.precision = "f32";
  options.statistics = "none";
  options.threads = 1;
  options.views = 2;
  options.horizon = 4;
  options.steps = steps;
  vv_policy* policy = nullptr;
  EXPECT_EQ(vv_policy_load(&options, &policy), VV_OK) << vv_last_error();
  return policy;
}

/// Without Python: what the host answers, a GPU answers too; a refused call leaves the actions as they were.
TEST(PolicyCApiOnGpu, AnswersAsTheHost) {
  const Result<device::Device*> gpu = device::Device::get(0);
  if (!gpu.ok() || !jit::nvrtc().ok()) GTEST_SKIP() << "no GPU, or no compiler for its kernels";
  std::vector<unsigned char> frame(200 * 250 * 3);
  for (size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<unsigned char>(i * 7 % 251);
  const vv_frame views[] = {{frame.data(), 200, 250, 250 * 3}, {nullptr, 0, 0, 0}};
  std::vector<float> state(32, 0.25f), answer[2];
  const int32_t tokens[] = {2, 5, 9, 11};
  vv_observation o{};
  o.struct_size = sizeof o;
  o.views = views;
  o.view_count = 2;
  o.tokens = tokens;
  o.token_count = 4;
  o.state = state.data();
  o.state_count = 32;
  o.seed = 3;
  int at = 0;
  for (const char* device : {"cpu", "cuda"}) {
    vv_policy* const policy = load(device, 2);
    ASSERT_NE(policy, nullptr);
    std::vector<float>& actions = answer[at++];
    actions.assign(4 * 32, 1e30f);
    o.view_count = 1;
    EXPECT_NE(vv_policy_predict(policy, &o, 1, actions.data(), actions.size()), VV_OK);
    EXPECT_EQ(std::count(actions.begin(), actions.end(), 1e30f), 4 * 32);
    o.view_count = 2;
    EXPECT_EQ(vv_policy_predict(policy, &o, 1, actions.data(), actions.size()), VV_OK) << vv_last_error();
    vv_policy_destroy(policy);
  }
  for (size_t i = 0; i < answer[0].size(); ++i) EXPECT_NEAR(answer[0][i], answer[1][i], 2e-4) << i;
}

TEST(PolicyCApi, CallsAllocateNothing) {
  if (!vivace::testing::counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
  vv_policy* const policy = load("cpu", 1);
  ASSERT_NE(policy, nullptr);
  std::vector<unsigned char> small(200 * 250 * 3, 90), large(300 * 400 * 3, 200);
  std::vector<float> state(32, 0.5f), actions(4 * 32);
  const int32_t tokens[] = {2, 5, 9, 11, 200, 31};
  int calls = 0;
  const auto q = vivace::testing::watch(60, [&] {
    ++calls;
    // Another camera, prompt, state and seed each time; sizes that were seen before.
    const vv_frame views[] = {{calls % 3 == 0 ? nullptr : small.data(), 200, 250, 250 * 3},
                              {large.data(), 300, 400, 400 * 3}};
    state[1] = static_cast<float>(calls);
    vv_observation o{};
    o.struct_size = sizeof o;
    o.views = views;
    o.view_count = 2;
    o.tokens = tokens;
    o.token_count = 1 + calls % 6;
    o.state = state.data();
    o.state_count = 32;
    o.seed = static_cast<uint64_t>(calls);
    return vv_policy_predict(policy, &o, 1, actions.data(), actions.size()) == VV_OK;
  });
  EXPECT_EQ(q.allocations, 0u);
  EXPECT_EQ(q.faults, 0);
  EXPECT_EQ(q.failures, 0) << vv_last_error();
  vv_policy_destroy(policy);
}

}  // namespace
}  // namespace vivace
