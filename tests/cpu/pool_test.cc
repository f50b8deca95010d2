#include "vivace/cpu/pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

namespace vivace::cpu {
namespace {

TEST(CpuPoolTest, EveryChunkRunsOnceAndIsVisibleAfterRun) {
  for (int threads : {1, 2, 3, 7}) {
    Pool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    std::vector<int> count;  // plain ints: run() itself must order them
    for (int round = 0; round < 3000; ++round) {
      const int64_t chunks = round % 41;
      count.assign(chunks, 0);
      pool.run(chunks, [&](int64_t i) { ++count[i]; });
      for (int64_t i = 0; i < chunks; ++i)
        ASSERT_EQ(count[i], 1) << "threads " << threads << " round " << round << " chunk " << i;
    }
  }
}

TEST(CpuPoolTest, SleepingWorkersWakeUp) {
  Pool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // beyond the spin
    std::atomic<int> inside{0};
    std::atomic<bool> met{false};
    // Chunk 0 waits until another thread entered chunk 1: only a woken worker can do that.
    pool.run(2, [&](int64_t) {
      ++inside;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (inside.load() < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      if (inside.load() == 2) met = true;
    });
    EXPECT_TRUE(met) << "round " << round;
  }
}

TEST(CpuPoolTest, ManyPoolsOnALoadedMachine) {
  std::vector<std::thread> users;
  std::atomic<int64_t> total{0};
  for (int u = 0; u < 4; ++u)
    users.emplace_back([&] {
      Pool pool(4);
      for (int round = 0; round < 300; ++round) pool.run(16, [&](int64_t i) { total += i; });
    });
  for (std::thread& u : users) u.join();
  EXPECT_EQ(total.load(), 4 * 300 * 120);
}

TEST(CpuPoolTest, ManyCallersOfOnePool) {
  Pool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int c = 0; c < 6; ++c)
    callers.emplace_back([&] {
      std::vector<int> count;
      for (int round = 0; round < 2000; ++round) {
        const int64_t chunks = round % 23;
        count.assign(static_cast<size_t>(chunks), 0);
        pool.run(chunks, [&](int64_t i) { ++count[static_cast<size_t>(i)]; });
        for (const int n : count) wrong += n != 1;
      }
    });
  for (std::thread& c : callers) c.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CpuPoolTest, ChunksMayRun) {
  Pool pool(3);
  std::atomic<int64_t> total{0};
  for (int round = 0; round < 200; ++round)
    pool.run(5, [&](int64_t) { pool.run(7, [&](int64_t i) { total += i; }); });
  EXPECT_EQ(total.load(), 200 * 5 * 21);
}

TEST(CpuPoolTest, DestructionWithSpinningAndSleepingWorkers) {
  for (int round = 0; round < 50; ++round) {
    Pool pool(4);
    if (round % 2) pool.run(8, [](int64_t) {});
    if (round % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(CpuPoolTest, ScratchIsAlignedAndKeptOnceGrown) {
  Pool pool(1);
  void* a = pool.scratch(10000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(pool.scratch(5000), a);
  EXPECT_EQ(pool.scratch(10000), a);
}

}  // namespace
}  // namespace vivace::cpu
