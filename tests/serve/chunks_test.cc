// ChunkRunner between two threads: a chunk is picked up whole or not at all, and neither side waits. What it decides is
// tested in tests/test_control.py.
#include "vivace/serve/chunks.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

namespace vivace::serve {
namespace {

constexpr int kHorizon = 4096, kDims = 8;
constexpr int64_t kAnswers = 300;

TEST(ChunkRunner, ChunksPassBetweenThreadsWhole) {
  ChunkOptions options;
  options.horizon = kHorizon;
  options.dims = kDims;
  options.ask_after = 1;
  options.max_action_age = options.watchdog = 1e9;
  auto made = ChunkRunner::make(options);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  ChunkRunner& runner = **made;
  const std::vector<float> origin(kDims, 0.0f);
  ASSERT_TRUE(runner.start(origin, 0).ok());

  // One question at a time goes over; its chunk holds its number everywhere.
  std::atomic<int64_t> asked{0}, answered{0};
  std::array<ChunkRequest, 2> questions;  // by parity of their number: the other one may still be read
  std::atomic<bool> over{false};
  std::thread policy([&] {
    std::vector<float> actions(static_cast<size_t>(kHorizon) * kDims);
    for (int64_t done = 0; !over;) {
      if (asked.load(std::memory_order_acquire) == done) {
        std::this_thread::yield();
        continue;
      }
      ++done;
      const ChunkRequest q = questions[static_cast<size_t>(done % 2)];
      if (done % 7 == 0) {
        EXPECT_TRUE(runner.cancel(q).ok());
      } else {
        actions.assign(actions.size(), static_cast<float>(done));
        EXPECT_TRUE(runner.complete(q, actions, {}).ok());
      }
      answered.store(done, std::memory_order_release);
    }
  });
  std::vector<float> action(kDims);
  Tick tick;
  int64_t torn = 0, used = 0, backwards = 0;
  float last = 0;
  // A tick lasts as long as the other thread needs to get its turn: chunks arrive while they are of use.
  for (int64_t i = 0; answered.load() < kAnswers && i < 100'000'000; ++i) {
    if (asked.load() != answered.load()) std::this_thread::yield();
    if (runner.needs_inference(static_cast<double>(i)) && asked.load() == answered.load(std::memory_order_acquire)) {
      const int64_t number = asked.load() + 1;
      ASSERT_TRUE(runner.start_request(static_cast<double>(i), &questions[static_cast<size_t>(number % 2)], {}).ok());
      asked.store(number, std::memory_order_release);
    }
    ASSERT_TRUE(runner.next(static_cast<double>(i), action, &tick).ok());
    for (const float a : action) torn += a != action[0] ? 1 : 0;
    backwards += action[0] < last ? 1 : 0;
    used += tick.source == TickSource::chunk ? 1 : 0;
    last = action[0];
  }
  over = true;
  policy.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(backwards, 0);
  EXPECT_GT(used, 0);
  EXPECT_GE(answered.load(), kAnswers);
}

}  // namespace
}  // namespace vivace::serve
