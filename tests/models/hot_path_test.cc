// A decoder's steps are predictable: after load nothing allocates and no page faults.
#include <gtest/gtest.h>

#include "tests/exec/alloc_count.h"
#include "vivace/models/models.h"
#include "vivace/serve/engine_loop.h"

namespace vivace::models {
namespace {

std::unique_ptr<engine::Model> load(const char* name, engine::LoadOptions options) {
  options.device = "cpu";  // what follows is about the host, also on a machine with a GPU
  auto model = models::load_model(std::string(VV_SOURCE_DIR) + "/tests/fixtures/tiny_gguf/" + name, options);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return model.ok() ? std::move(model).value() : nullptr;
}

TEST(DecoderHotPath, TenThousandStepsAllocateNothing) {
  if (!testing::counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
  const auto owner = load("llama_q4_1.gguf", {.threads = 2, .max_batch = 4, .prefill_chunk = 16});
  auto& model = dynamic_cast<engine::TextModel&>(*owner);
  engine::Sampling drawn;
  drawn.temperature = 0.8f;
  drawn.top_p = 0.9f;
  drawn.top_k = 40;
  drawn.repetition = 1.1f;
  for (int slot = 0; slot < 4; ++slot) ASSERT_TRUE(model.start(slot, slot % 2 ? drawn : engine::Sampling{}).ok());
  int32_t pos = 0;
  const testing::Quiet q = testing::watch(10'000, [&] {
    // Three sequences answer, a fourth is fed a piece of its prompt: a mixed step.
    const int32_t p = pos++ % 100;
    const engine::TokenRow rows[] = {
        {5, p, 0, true}, {6, p, 1, true}, {7, p, 2, true}, {8, p, 3, false}, {9, p + 1, 3, false}};
    engine::Sampled out[3];
    return model.step(rows, out).ok() && out[0].token >= 0;
  });
  EXPECT_EQ(q.allocations, 0u);
  EXPECT_EQ(q.faults, 0);
  EXPECT_EQ(q.failures, 0);
}

TEST(DecoderHotPath, TheFirstStepAllocatesNothing) {
  if (!testing::counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
  for (const char* name : {"llama_q4_1.gguf", "../tiny/mixtral", "../tiny/gemma3", "../tiny/gpt2"}) {
    const auto owner = load(name, {.threads = 2, .max_batch = 2, .prefill_chunk = 16});
    auto& model = dynamic_cast<engine::TextModel&>(*owner);
    std::vector<engine::TokenRow> rows;
    for (int32_t i = 0; i < 16; ++i) rows.push_back({3 + i, i, 0, i == 15});
    engine::Sampled out[1];
    const uint64_t before = testing::allocations();
    ASSERT_TRUE(model.step(rows, out).ok());
    EXPECT_EQ(testing::allocations() - before, 0u) << name;
  }
}

TEST(DecoderHotPath, BatcherStepsAllocateNothing) {
  if (!testing::counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
  for (const int max_in_flight_steps : {1, 4}) {
    const auto owner = load("qwen3_q8_0.gguf",
                            {.threads = 1, .context = 128, .max_batch = 2, .max_in_flight_steps = max_in_flight_steps});
    auto& model = dynamic_cast<engine::TextModel&>(*owner);
    serve::Batcher batcher(model);
    std::vector<serve::Event> events;
    events.reserve(16);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(batcher.submit({{1, 2, 3}, 100, {}, {}}).ok());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(batcher.step(&events).ok());
    const uint64_t before = testing::allocations();
    for (int i = 0; i < 90; ++i) ASSERT_TRUE(batcher.step(&events).ok());
    EXPECT_EQ(testing::allocations() - before, 0u);
  }
}

/// Guesses nothing; sees what the engine's thread has allocated.
struct Witness final : serve::Drafter {
  Result<size_t> draft(std::span<const int32_t>, std::span<int32_t>) override {
    const uint64_t now = testing::allocations();
    if (calls++ == 0) first = now;
    last = now;
    return size_t{0};
  }
  int calls = 0;
  uint64_t first = 0, last = 0;
};

TEST(DecoderHotPath, TheEngineAllocatesNothingForTokensAndRequests) {
  if (!testing::counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
  const auto owner = load("qwen3_q8_0.gguf",
                          {.threads = 1, .context = 128, .max_batch = 2, .max_in_flight_steps = 4, .num_kv_blocks = 4});
  serve::EngineLoop loop(dynamic_cast<engine::TextModel&>(*owner));
  const auto witness = std::make_shared<Witness>();
  uint64_t read = 0;
  int tokens = 0;
  for (int round = 0; round < 34; ++round) {
    std::vector<serve::RequestHandle> handles;
    for (int i = 0; i < 3; ++i) {  // one waits
      serve::Request request{{1 + round, 2, 3 + i}, 100, {}, {}};
      request.num_speculative_tokens = 1;
      const bool seen = i == 2 && round % 4 == 0;  // the others run ahead
      auto h = loop.submit(std::move(request), {.drafter = seen ? witness : nullptr});
      ASSERT_TRUE(h.ok());
      handles.push_back(std::move(h).value());
    }
    handles.push_back(std::move(loop.submit({{5}, 100, {}, {}})).value());
    handles.pop_back();  // left
    serve::Event events[8];
    const uint64_t before = testing::allocations();
    for (serve::RequestHandle& h : handles)
      while (!h.over()) {
        h.wait(std::chrono::seconds(1));
        tokens += static_cast<int>(h.read(events));
      }
    read += testing::allocations() - before;
  }
  EXPECT_EQ(tokens, 34 * 3 * 100);
  EXPECT_EQ(read, 0u);
  EXPECT_GT(witness->calls, 500);
  EXPECT_EQ(witness->last - witness->first, 0u);
}

}  // namespace
}  // namespace vivace::models
