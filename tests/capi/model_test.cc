// Models through the C ABI: the tokens of the C++ face, and a hot path that neither allocates nor faults.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tests/exec/alloc_count.h"
#include "vivace/capi/model.h"
#include "vivace/models/models.h"
#include "vivace/serve/batcher.h"

namespace vivace {
namespace {

const std::string kModel = VV_SOURCE_DIR "/tests/fixtures/tiny_gguf/llama_q4_1.gguf";
constexpr int kContext = 128;

struct Loaded {
  vv_model* model = nullptr;
  int token = 0, pos = 0, slot = 0, sample = 0, next = 0;
  explicit Loaded(int max_batch) {
    vv_model_options options = {};
    options.struct_size = sizeof options;
    options.path = kModel.c_str(), options.device = "cpu";
    options.threads = 2, options.context = kContext, options.max_batch = max_batch, options.prefill_chunk = 16;
    EXPECT_EQ(vv_model_load(&options, &model), VV_OK) << vv_last_error();
    for (auto [name, port] :
         {std::pair{"token", &token}, {"pos", &pos}, {"slot", &slot}, {"sample", &sample}, {"next", &next}})
      EXPECT_EQ(vv_model_find_port(model, name, port), VV_OK) << vv_last_error();
  }
  ~Loaded() { vv_model_destroy(model); }
  bool set(const int32_t* tokens, const int32_t* positions, const int32_t* slots, const int32_t* samples, size_t n) {
    return vv_model_set_input(model, token, tokens, 4 * n) == VV_OK &&
           vv_model_set_input(model, pos, positions, 4 * n) == VV_OK &&
           vv_model_set_input(model, slot, slots, 4 * n) == VV_OK &&
           vv_model_set_input(model, sample, samples, 4 * n) == VV_OK;
  }
};

TEST(CApiModel, TokensAreThoseOfTheCppFace) {
  const std::vector<int32_t> prompt = {3, 9, 27, 81, 100, 44};
  constexpr int kTokens = 40;
  auto loaded = models::load_model(kModel, {.device = "cpu", .threads = 2, .context = kContext, .prefill_chunk = 16});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  serve::Batcher batcher(dynamic_cast<engine::TextModel&>(**loaded));
  serve::Request request;
  request.prompt = prompt;
  request.max_tokens = kTokens;
  ASSERT_TRUE(batcher.submit(request).ok());
  std::vector<int32_t> want;
  for (std::vector<serve::Event> events; !batcher.idle();) {
    ASSERT_TRUE(batcher.step(&events).ok());
    for (const serve::Event& e : events)
      if (e.token >= 0) want.push_back(e.token);
  }
  ASSERT_EQ(want.size(), size_t{kTokens});

  Loaded m(1);
  std::vector<int32_t> got, row_pos, zeros(prompt.size(), 0), samples(prompt.size(), 0);
  for (size_t i = 0; i < prompt.size(); ++i) row_pos.push_back(static_cast<int32_t>(i));
  samples.back() = 1;
  ASSERT_TRUE(m.set(prompt.data(), row_pos.data(), zeros.data(), samples.data(), prompt.size()));
  for (int32_t at = static_cast<int32_t>(prompt.size()); got.size() < want.size(); ++at) {
    ASSERT_EQ(vv_model_step(m.model), VV_OK) << vv_last_error();
    int32_t token = -1;
    size_t bytes = 0;
    ASSERT_EQ(vv_model_get_output(m.model, m.next, &token, sizeof token, &bytes), VV_OK);
    got.push_back(token);
    const int32_t zero = 0, one = 1;
    ASSERT_TRUE(m.set(&token, &at, &zero, &one, 1));
  }
  EXPECT_EQ(got, want);
}

TEST(CApiModel, TenThousandStepsAllocateAndFaultNothing) {
  if (!vivace::testing::counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
  Loaded m(2);
  ASSERT_NE(m.model, nullptr);
  int port = 0;
  ASSERT_EQ(vv_model_find_port(m.model, "logits", &port), VV_OK);
  vv_port_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(vv_model_get_port(m.model, port, &info), VV_OK);
  std::vector<float> logits(2 * info.entry_bytes / sizeof(float));
  ASSERT_EQ(vv_model_swap(m.model, port, logits.data(), 2 * info.entry_bytes), VV_OK) << vv_last_error();
  int32_t tokens[2] = {5, 6}, positions[2] = {0, 0};
  const int32_t slots[2] = {0, 1}, samples[2] = {1, 1};
  int calls = 0;
  const auto q = vivace::testing::watch(10'000, [&] {
    size_t bytes = 0;
    positions[0] = calls % kContext;
    positions[1] = (calls + 7) % kContext;
    ++calls;
    // Both slots advance; now and then one goes alone, through the same captured step.
    const size_t n = calls % 5 == 0 ? 1 : 2;
    return m.set(tokens, positions, slots, samples, n) && vv_model_step(m.model) == VV_OK &&
           vv_model_get_output(m.model, m.next, tokens, sizeof tokens, &bytes) == VV_OK && bytes == 4 * n;
  });
  EXPECT_EQ(q.allocations, 0u);
  EXPECT_EQ(q.faults, 0);
  EXPECT_EQ(q.failures, 0) << vv_last_error();
  EXPECT_NE(logits[0], 0);
}

TEST(CApiModel, StructsOfANewerHeaderAreServed) {
  // A caller whose struct is larger than ours, as after an upgrade of its header, is served too.
  struct Newer {
    vv_model_options options;
    char more[32];
  } newer = {};
  newer.options.struct_size = sizeof newer;
  newer.options.path = kModel.c_str();
  newer.options.device = "cpu";
  vv_model* model = nullptr;
  ASSERT_EQ(vv_model_load(&newer.options, &model), VV_OK) << vv_last_error();
  struct NewerInfo {
    vv_model_info info;
    int64_t more = 77;
  } info = {};
  info.info.struct_size = sizeof info;
  EXPECT_EQ(vv_model_get_info(model, &info.info), VV_OK);
  EXPECT_EQ(info.info.struct_size, sizeof info);
  EXPECT_EQ(info.more, 77);  // what this library does not know stays untouched
  vv_model_destroy(model);
  newer.options.struct_size = offsetof(vv_model_options, lm_head_dtype) - 1;  // less than the first version
  EXPECT_EQ(vv_model_load(&newer.options, &model), VV_INVALID_ARGUMENT);
  EXPECT_EQ(model, nullptr);
}

}  // namespace
}  // namespace vivace
