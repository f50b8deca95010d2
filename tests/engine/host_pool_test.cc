// HostPool: page-locked pieces that come back, a bound that holds, plain memory beyond it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "tests/engine/fake_lock.h"

namespace vivace::engine {
namespace {

using testing::FakeLock;

TEST(HostPool, KeepsWhatItLocked) {
  FakeLock fake;
  {
    const auto pool = HostPool::make(fake.lock(), 1 << 20);
    std::byte* first = nullptr;
    {
      const auto piece = pool->take(300'000);
      ASSERT_TRUE(piece.ok());
      EXPECT_TRUE(piece->page_locked());
      EXPECT_EQ(piece->size(), 300'000u);
      first = piece->data();
    }
    EXPECT_EQ(pool->stats().kept, pool->stats().locked);
    HostBytes again = std::move(pool->take(280'000)).value();
    EXPECT_EQ(again.data(), first) << "a piece of about that size is not locked anew";
    EXPECT_EQ(fake.calls, 1);
    const HostBytes small = std::move(pool->take(1000)).value(), large = std::move(pool->take(900'000)).value();
    EXPECT_TRUE(small.page_locked());
    EXPECT_FALSE(large.page_locked()) << "beyond the bound";
    again = {};
    const HostBytes larger = std::move(pool->take(800'000)).value();
    EXPECT_TRUE(larger.page_locked()) << "what nobody has gives way";
    fake.fails = true;
    EXPECT_FALSE(pool->take(1000)->page_locked());
    EXPECT_EQ(pool->take(0)->size(), 0u);
  }
  EXPECT_EQ(fake.held, 0u);
}

TEST(HostPool, OfTheHostHasNone) {
  const auto pool = HostPool::make(nullptr, 1 << 30);
  EXPECT_FALSE(pool->take(5000)->page_locked());
  EXPECT_EQ(pool->stats().most, 0u);
  EXPECT_EQ(pool->take(size_t{1} << 62).status().code(), Code::kOutOfMemory);
}

TEST(HostPool, RandomPiecesOfManyThreads) {
  FakeLock fake;
  constexpr size_t kMost = 4 << 20;
  {
    const auto pool = HostPool::make(fake.lock(), kMost);
    std::atomic<int> wrong{0}, locked{0}, plain{0};
    const auto work = [&](unsigned seed) {
      std::mt19937 random(seed);
      std::deque<std::pair<HostBytes, int>> mine;
      for (int turn = 0; turn < 2000; ++turn) {
        if (mine.size() < 6 && random() % 2 == 0) {
          auto piece = pool->take(1 + random() % 700'000);
          if (!piece.ok()) return void(++wrong);
          const int mark = static_cast<int>(random() % 256);
          std::memset(piece->data(), mark, piece->size());
          ++(piece->page_locked() ? locked : plain);
          mine.emplace_back(std::move(piece).value(), mark);
        } else if (!mine.empty()) {
          const auto& [piece, mark] = mine.front();
          wrong += piece.data()[0] != std::byte(mark) || piece.data()[piece.size() - 1] != std::byte(mark) ||
                   piece.data()[piece.size() / 2] != std::byte(mark);
          mine.pop_front();
        }
        if (random() % 64 == 0) fake.fails = !fake.fails;
      }
    };
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(locked, 100);
    EXPECT_GT(plain, 100);
    EXPECT_LE(fake.most, kMost);
    EXPECT_EQ(pool->stats().kept, pool->stats().locked) << "all came back";
  }
  EXPECT_EQ(fake.held, 0u);
}

}  // namespace
}  // namespace vivace::engine
