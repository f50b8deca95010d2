// Models of several threads at once: loaders, pools and batchers share nothing, so that answers are those of one
// model alone. Meant for a build with ThreadSanitizer; the answers are held in every build.
#include <gtest/gtest.h>

#include <thread>

#include "vivace/models/models.h"
#include "vivace/serve/batcher.h"

namespace vivace::models {
namespace {

/// Loads a file, answers three requests in two slots, and gives their tokens, request after request.
std::vector<int32_t> answers(const std::string& name, int threads, int max_in_flight_steps) {
  const std::string path = std::string(VV_SOURCE_DIR) + "/tests/fixtures/tiny_gguf/" + name;
  engine::LoadOptions options;
  options.device = "cpu";
  options.threads = threads;
  options.context = 64;
  options.max_batch = 2;
  options.max_in_flight_steps = max_in_flight_steps;
  auto model = models::load_model(path, options);
  if (!model.ok()) return {};
  serve::Batcher batcher(dynamic_cast<engine::TextModel&>(**model));
  std::vector<std::vector<int32_t>> tokens(3);
  std::vector<int64_t> ids;
  for (int32_t i = 0; i < 3; ++i) {
    engine::Sampling sampling;
    sampling.temperature = i == 1 ? 0.9f : 0.0f;
    sampling.seed = 7;
    auto id = batcher.submit({{1 + i, 2, 3}, 20, sampling, {}});
    if (!id.ok()) return {};
    ids.push_back(*id);
  }
  std::vector<serve::Event> events;
  while (!batcher.idle()) {
    if (!batcher.step(&events).ok()) return {};
    for (const serve::Event& e : events)
      for (size_t i = 0; i < ids.size(); ++i)
        if (e.request == ids[i] && e.token >= 0) tokens[i].push_back(e.token);
  }
  std::vector<int32_t> all;
  for (const auto& t : tokens) all.insert(all.end(), t.begin(), t.end());
  return all;
}

TEST(ModelThreads, ManyAtOnceAnswerAsOneAlone) {
  for (const char* name : {"llama_q4_1.gguf", "qwen3_q8_0.gguf"}) {
    const std::vector<int32_t> alone = answers(name, 1, 1);
    ASSERT_EQ(alone.size(), 60u) << name;
    std::vector<std::vector<int32_t>> got(4);
    std::vector<std::thread> callers;
    for (size_t i = 0; i < got.size(); ++i)
      callers.emplace_back([&got, name, i] { got[i] = answers(name, 1 + static_cast<int>(i % 3), i % 2 ? 4 : 1); });
    for (std::thread& t : callers) t.join();
    for (const auto& g : got) EXPECT_EQ(g, alone) << name;
  }
}

}  // namespace
}  // namespace vivace::models
