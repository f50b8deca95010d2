// Calls that may wait for a whole device: none while somebody has gates, all of them afterwards.
#include "vivace/device/waits.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "vivace/device/host_blocks.h"

namespace vivace::device {
namespace {

TEST(Waits, CallsArePutOffUntilTheLastGateHasGone) {
  std::vector<int> made;
  when_no_gates([&] { made.push_back(0); });
  EXPECT_EQ(made, std::vector<int>{0});
  auto first = std::make_unique<GatesAlive>(), second = std::make_unique<GatesAlive>();
  when_no_gates([&] { made.push_back(1); });
  first.reset();
  when_no_gates([&] { made.push_back(2); });
  EXPECT_EQ(made, std::vector<int>{0});
  EXPECT_TRUE(gates_alive());
  second.reset();
  EXPECT_EQ(made, (std::vector<int>{0, 1, 2}));
  EXPECT_FALSE(gates_alive());
}

/// malloc() that a driver is said to have: whoever frees while gates are alive would wait.
struct Driver {
  std::set<void*> live;
  int gets = 0, gives = 0, waited = 0, fails = 0;
  HostBlocks blocks{[this](size_t bytes) -> Result<void*> {
                      if (fails > 0 && --fails == 0) return Status(Code::kOutOfMemory, "no page-locked memory");
                      ++gets;
                      return *live.insert(std::malloc(bytes)).first;
                    },
                    [this](void* p) {
                      ++gives, waited += gates_alive();
                      EXPECT_EQ(live.erase(p), 1u);
                      std::free(p);
                    }};
  void* get(size_t bytes) {
    Result<void*> p = blocks.allocate(bytes);
    EXPECT_TRUE(p.ok()) << p.status().to_string();
    return p.ok() ? *p : nullptr;
  }
};

TEST(HostBlocks, AreGivenBackAtOnceWhereNobodyHasGates) {
  Driver d;
  d.blocks.free(d.get(100));
  d.blocks.free(nullptr);
  EXPECT_EQ(d.gives, 1);
  EXPECT_EQ(d.blocks.kept(), 0);
  EXPECT_STREQ(name(d.blocks.allocate(0).status().code()), name(Code::kInvalidArgument));
}

TEST(HostBlocks, AreKeptForTheNextWhileSomebodyHas) {
  Driver d;
  {
    const GatesAlive gates;
    void *const large = d.get(1 << 20), *const small = d.get(256);
    d.blocks.free(large);
    d.blocks.free(small);
    EXPECT_EQ(d.gives, 0);
    EXPECT_EQ(d.blocks.kept(), (1 << 20) + 4096);
    EXPECT_EQ(d.get(4096), small);
    EXPECT_NE(d.get(1 << 19), large) << "half of it would be lost";
    EXPECT_EQ(d.get((1 << 20) - 100'000), large);
    EXPECT_EQ(d.gets, 3);
    EXPECT_EQ(d.blocks.kept(), 0);
    d.blocks.free(large);
    d.fails = 1;
    const Status refused = d.blocks.allocate(1 << 22).status();
    EXPECT_STREQ(name(refused.code()), name(Code::kOutOfMemory));
    EXPECT_NE(refused.message().find("1048576 are kept"), std::string::npos) << refused.to_string();
    d.blocks.free(small);
  }
  EXPECT_EQ(d.gives, 2);
  EXPECT_EQ(d.waited, 0);
  EXPECT_EQ(d.blocks.kept(), 0);
  for (void* const p : std::set<void*>(d.live)) d.blocks.free(p);
  EXPECT_TRUE(d.live.empty());
}

/// Who takes and frees, beside gates that come and go: nobody waits, no block has two owners, nothing is lost.
TEST(HostBlocks, RandomOwnersBesideGates) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    Driver d;
    std::mt19937 draw(seed);
    std::vector<std::unique_ptr<GatesAlive>> gates;
    std::set<void*> mine;
    for (int i = 0; i < 300; ++i) {
      const unsigned what = draw() % 6;
      if (what == 0 && gates.size() < 3) {
        gates.push_back(std::make_unique<GatesAlive>());
      } else if (what == 1 && !gates.empty()) {
        gates.erase(gates.begin() + static_cast<ptrdiff_t>(draw() % gates.size()));
      } else if (what < 4 || mine.empty()) {
        EXPECT_TRUE(mine.insert(d.get(1 + draw() % 100'000)).second) << "seed " << seed;
      } else {
        const auto it = std::next(mine.begin(), static_cast<ptrdiff_t>(draw() % mine.size()));
        d.blocks.free(*it);
        mine.erase(it);
      }
      if (gates.empty()) {
        EXPECT_EQ(d.live.size(), mine.size()) << "seed " << seed;
      }
    }
    gates.clear();
    for (void* const p : mine) d.blocks.free(p);
    EXPECT_TRUE(d.live.empty()) << "seed " << seed;
    EXPECT_EQ(d.waited, 0) << "seed " << seed;
  }
}

TEST(HostBlocks, Threads) {
  static std::atomic<int> live{0};
  HostBlocks blocks([](size_t bytes) -> Result<void*> { return ++live, std::malloc(bytes); },
                    [](void* p) { --live, std::free(p); });
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 draw(t);
      for (int i = 0; i < 300; ++i) {
        std::unique_ptr<GatesAlive> gates;
        if (draw() % 2 == 0) gates = std::make_unique<GatesAlive>();
        Result<void*> p = blocks.allocate(1 + draw() % 20'000);
        ASSERT_TRUE(p.ok());
        *static_cast<unsigned*>(*p) = t;
        std::this_thread::yield();
        EXPECT_EQ(*static_cast<unsigned*>(*p), t);
        blocks.free(*p);
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(live, 0);
  EXPECT_EQ(blocks.kept(), 0);
}

}  // namespace
}  // namespace vivace::device
