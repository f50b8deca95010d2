// What one owner has in the pool, put to sleep and woken as a whole, on a host device of 64 MiB.
#include "vivace/device/residence.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "vivace/base/check.h"
#include "vivace/device/host_memory.h"

namespace vivace::device {
namespace {

constexpr size_t kMiB = 1024 * 1024;
constexpr StreamId kMine = 1, kFirst = 2;

class ResidenceTest : public testing::Test {
 protected:
  void SetUp() override { pool_ = std::move(Pool::create(device_, {})).value(); }
  std::shared_ptr<Residence> make(const char* name = "llm", int64_t quota = 0) {
    auto r = Residence::create(*pool_, name, quota);
    r->add_stream(kMine);
    return r;
  }
  static Block* get(Residence& r, size_t bytes, uint8_t salt) {
    Result<Block*> b = r.allocate("b", bytes, kFirst);
    EXPECT_TRUE(b.ok()) << b.status().to_string();
    for (size_t i = 0; b.ok() && i < bytes; ++i) at(*b)[i] = static_cast<uint8_t>(i * 7 + salt);
    return b.ok() ? *b : nullptr;
  }
  static uint8_t* at(Block* b) { return static_cast<uint8_t*>(b->data()); }
  static bool holds(Block* b, uint8_t salt) {
    for (size_t i = 0; i < b->bytes(); ++i)
      if (at(b)[i] != static_cast<uint8_t>(i * 7 + salt)) return false;
    return true;
  }
  static void expect(const Status& s, Code code, const std::string& part) {
    EXPECT_STREQ(vivace::name(s.code()), vivace::name(code)) << s.to_string();
    EXPECT_NE(s.message().find(part), std::string::npos) << s.to_string();
  }
  HostMemory device_{64 * kMiB, 64 * 1024};
  std::unique_ptr<Pool> pool_;
};

TEST_F(ResidenceTest, SleepGivesTheBytesBackAndWakeFindsThemAtTheirAddresses) {
  const auto r = make();
  Block *large = get(*r, 3 * kMiB + 5, 1), *small = get(*r, 1000, 2), *other = get(*r, kMiB, 3);
  const uint64_t address = large->address();
  const int64_t before = device_.mapped();
  device_.finish(kMine);
  const auto slept = r->sleep();
  ASSERT_TRUE(slept.ok()) << slept.status().to_string();
  EXPECT_TRUE(r->asleep());
  EXPECT_EQ(slept->bytes, static_cast<int64_t>(4 * kMiB + 1005));
  EXPECT_GE(before - device_.mapped(), slept->bytes);
  EXPECT_FALSE(large->resident());
  EXPECT_FALSE(small->resident());
  expect(r->sleep().status(), Code::kFailedPrecondition, "llm sleeps already");
  expect(r->allocate("more", kMiB, kFirst).status(), Code::kFailedPrecondition, "llm sleeps; wake it first");
  const auto woke = r->wake();
  ASSERT_TRUE(woke.ok()) << woke.status().to_string();
  EXPECT_EQ(woke->bytes, slept->bytes);
  EXPECT_EQ(large->address(), address);
  EXPECT_TRUE(holds(large, 1) && holds(small, 2) && holds(other, 3));
  EXPECT_EQ(device_.live_host_blocks(), 0);
  expect(r->wake().status(), Code::kFailedPrecondition, "llm does not sleep");
}

/// A model of a few kilobytes: all of it goes, and says so.
TEST_F(ResidenceTest, TheSmallestSleepsToo) {
  const auto r = make();
  Block *a = get(*r, 1, 1), *b = get(*r, 46'848, 2);
  const int64_t before = device_.mapped();
  device_.finish(kMine);
  const auto slept = r->sleep();
  ASSERT_TRUE(slept.ok());
  EXPECT_EQ(slept->bytes, 46'849);
  EXPECT_GE(before - device_.mapped(), slept->bytes);
  EXPECT_FALSE(a->resident() || b->resident());
  ASSERT_TRUE(r->wake().ok());
  EXPECT_EQ(device_.mapped(), before);
  EXPECT_TRUE(holds(a, 1) && holds(b, 2));
}

/// For what is no block of its own: its streams' work is over, others' is not asked about.
TEST_F(ResidenceTest, WaitsForItsOwnStreams) {
  const auto r = make();
  Block* const b = get(*r, kMiB, 1);
  const uint64_t address = b->address();
  ASSERT_TRUE(r->free(b).ok());
  ASSERT_TRUE(r->wait().ok());  // the host's device finishes what is waited for
  EXPECT_EQ(get(*r, kMiB, 2)->address(), address);
  const int64_t events = device_.live_events();
  ASSERT_TRUE(r->wait().ok());
  EXPECT_EQ(device_.live_events(), events);
}

TEST_F(ResidenceTest, WhoIsAwakeIsNeverEvicted) {
  const auto awake = make("arm"), asleep = make("llm");
  Block *mine = get(*awake, 20 * kMiB, 1), *theirs = get(*asleep, 30 * kMiB, 2);
  expect(make("third")->allocate("b", 30 * kMiB, kFirst).status(), Code::kOutOfMemory, "");
  EXPECT_TRUE(mine->resident() && theirs->resident());
  device_.finish(kMine);
  ASSERT_TRUE(asleep->sleep().ok());
  const auto third = make("third");
  EXPECT_NE(get(*third, 30 * kMiB, 3), nullptr);  // in the room that was given back
  expect(asleep->wake().status(), Code::kOutOfMemory, "llm cannot wake");
  EXPECT_TRUE(asleep->asleep() && mine->resident());
  device_.finish(kMine);
  ASSERT_TRUE(third->sleep().ok());
  ASSERT_TRUE(asleep->wake().ok());
  EXPECT_TRUE(holds(mine, 1) && holds(theirs, 2));
}

TEST_F(ResidenceTest, WhatIsFreedWaitsForItsOwnStreamsAndNobodyElse) {
  const auto r = make();
  Block* const b = get(*r, kMiB, 1);
  const uint64_t address = b->address();
  ASSERT_TRUE(r->free(b).ok());  // returns while stream 1 has work: nobody waited
  Block* const other = get(*r, kMiB, 2);
  EXPECT_NE(other->address(), address) << "stream 1 has not finished";
  device_.finish(kMine);
  EXPECT_EQ(get(*r, kMiB, 3)->address(), address);
  EXPECT_EQ(device_.stream_waits(), 0);
  r->remove_stream(kMine);
  EXPECT_TRUE(r->free(other).ok());
  expect(r->free(other), Code::kInvalidArgument, "a block of somebody else's");
}

TEST_F(ResidenceTest, AQuotaIsOfAllThatItAsksFor) {
  const auto r = make("llm", static_cast<int64_t>(3 * kMiB));
  Block* const b = get(*r, 2 * kMiB, 1);
  expect(r->allocate("kv", kMiB + 1, kFirst).status(), Code::kLimitExceeded,
         "kv: 1048577 bytes are wanted, 1048576 of a limit of 3145728 are left");
  EXPECT_NE(get(*r, kMiB, 1), nullptr);
  ASSERT_TRUE(r->free(b).ok());
  EXPECT_NE(get(*r, 2 * kMiB, 1), nullptr);
}

/// Whatever fails on the way: nothing is lost, and it is awake as before or asleep as before.
TEST_F(ResidenceTest, EveryFailureIsSurvived) {
  const auto r = make();
  std::vector<Block*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(get(*r, kMiB + static_cast<size_t>(i), static_cast<uint8_t>(i)));
  device_.finish(kMine);
  for (int after = 0; after < 5; ++after) {
    device_.fail_host_after(after);
    EXPECT_FALSE(r->sleep().ok());
    EXPECT_FALSE(r->asleep());
    for (size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(holds(blocks[i], static_cast<uint8_t>(i)));
  }
  device_.fail_host_after(-1);
  ASSERT_TRUE(r->sleep().ok());
  for (int after = 0; after < 5; ++after) {
    device_.fail_map_after(after);
    if (r->wake().ok()) {  // the pool tried again by itself
      ASSERT_TRUE(r->sleep().ok());
    }
    EXPECT_TRUE(r->asleep());
  }
  device_.fail_map_after(-1);
  ASSERT_TRUE(r->wake().ok());
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(holds(blocks[i], static_cast<uint8_t>(i)));
}

TEST_F(ResidenceTest, WhoGoesWhileItSleepsLeavesNothing) {
  {
    const auto r = make();
    Block* const b = get(*r, kMiB, 1);
    get(*r, 2 * kMiB, 2), get(*r, 100, 3);
    device_.finish(kMine);
    ASSERT_TRUE(r->sleep().ok());
    ASSERT_TRUE(r->free(b).ok());
    const auto stats = pool_->stats();
    EXPECT_EQ(stats->tenants.size(), 2u);
    EXPECT_EQ(stats->tenants[1].evicted_bytes, static_cast<int64_t>(2 * kMiB + 100));
  }
  const auto stats = pool_->stats();
  EXPECT_EQ(stats->tenants.size(), 1u);
  EXPECT_EQ(stats->used + stats->evicted, 0);
  EXPECT_EQ(device_.live_host_blocks(), 0);
  ASSERT_TRUE(pool_->trim().ok());
  EXPECT_EQ(device_.mapped(), 0);
  EXPECT_EQ(device_.live_events(), 0);
}

TEST_F(ResidenceTest, CopiesStandStillWhileTheyArePaused) {
  const auto r = make();
  Block* const b = get(*r, 9 * kMiB, 1);
  device_.finish(kMine);
  std::atomic<bool> pause{true}, over{false};
  for (const bool out : {true, false}) {
    std::thread moving([&] {
      EXPECT_TRUE((out ? r->sleep(&pause) : r->wake(&pause)).ok());
      over = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(over);
    pause = false;
    moving.join();
    EXPECT_EQ(r->asleep(), out);
    pause = true, over = false;
  }
  EXPECT_TRUE(holds(b, 1));
}

/// Several owners that come, sleep, wake and go in any order, from threads: contents stay, accounts agree.
TEST_F(ResidenceTest, RandomOwners) {
  std::vector<std::thread> owners;
  for (unsigned seed = 0; seed < 4; ++seed)
    owners.emplace_back([&, seed] {
      std::mt19937 draw(seed);
      for (int round = 0; round < 20; ++round) {
        const auto r = Residence::create(*pool_, strf("owner %u", seed), 0);
        std::vector<std::pair<Block*, uint8_t>> blocks;
        for (int i = 0; i < 40; ++i) {
          const unsigned what = draw() % 5;
          if (what < 2 && !r->asleep() && blocks.size() < 6) {
            const auto salt = static_cast<uint8_t>(draw());
            Result<Block*> b = r->allocate("b", 1 + draw() % (2 * kMiB), 0);
            if (!b.ok()) continue;
            for (size_t k = 0; k < (*b)->bytes(); ++k) at(*b)[k] = static_cast<uint8_t>(k * 7 + salt);
            blocks.emplace_back(*b, salt);
          } else if (what == 2 && !blocks.empty()) {
            const size_t which = draw() % blocks.size();
            const bool whole = r->asleep() || holds(blocks[which].first, blocks[which].second);
            EXPECT_TRUE(whole);
            EXPECT_TRUE(r->free(blocks[which].first).ok());
            blocks.erase(blocks.begin() + static_cast<ptrdiff_t>(which));
          } else if (what == 3) {
            static_cast<void>(r->sleep());
          } else {
            static_cast<void>(r->wake());
          }
        }
      }
    });
  for (auto& t : owners) t.join();
  const auto stats = pool_->stats();
  EXPECT_EQ(stats->used + stats->evicted, 0);
  EXPECT_EQ(device_.live_host_blocks(), 0);
}

}  // namespace
}  // namespace vivace::device
