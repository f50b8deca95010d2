// The pool's policy on a host device of 64 MiB: classes, reuse, quotas, eviction, accounts.
#include "vivace/device/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "vivace/device/host_memory.h"

namespace vivace::device {
namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * 1024;

#define VV_OK(expr)                                         \
  do {                                                      \
    const Status vv_status_ = (expr);                       \
    ASSERT_TRUE(vv_status_.ok()) << vv_status_.to_string(); \
  } while (0)

class PoolTest : public testing::Test {
 protected:
  void SetUp() override { make({}); }
  void make(PoolOptions o) {
    pool_.reset();
    Result<std::unique_ptr<Pool>> p = Pool::create(device_, o);
    ASSERT_TRUE(p.ok()) << p.status().to_string();
    pool_ = std::move(p).value();
  }
  Block* get(size_t bytes, StreamId stream = 1, TenantId tenant = 0, bool evictable = false) {
    Result<Block*> b = pool_->allocate({bytes, tenant, stream, strf("b%zu", bytes), evictable});
    EXPECT_TRUE(b.ok()) << b.status().to_string();
    return b.ok() ? *b : nullptr;
  }
  // The accounts must agree with each other and with what the backend really mapped.
  PoolStats check() {
    const Result<PoolStats> r = pool_->stats();
    EXPECT_TRUE(r.ok());
    const PoolStats& s = *r;
    EXPECT_EQ(s.mapped, device_.mapped());
    EXPECT_EQ(s.mapped, s.used + s.cached);
    EXPECT_GE(s.used, s.requested);
    EXPECT_GE(s.cached, s.stranded);
    EXPECT_LE(s.mapped, s.capacity);
    int64_t used = 0, evicted = 0;
    for (const TenantStats& t : s.tenants) {
      used += t.used_bytes;
      evicted += t.evicted_bytes;
      EXPECT_GE(t.peak_bytes, t.used_bytes);
      if (t.quota_bytes > 0) {
        EXPECT_LE(t.used_bytes, t.quota_bytes);
      }
    }
    EXPECT_EQ(used, s.used);
    EXPECT_EQ(evicted, s.evicted);
    return s;
  }
  static void write(Block* b, uint8_t salt) {
    for (size_t i = 0; i < b->bytes(); ++i) static_cast<uint8_t*>(b->data())[i] = static_cast<uint8_t>(i * 7 + salt);
  }
  static bool holds(Block* b, uint8_t salt) {
    for (size_t i = 0; i < b->bytes(); ++i)
      if (static_cast<uint8_t*>(b->data())[i] != static_cast<uint8_t>(i * 7 + salt)) return false;
    return true;
  }
  HostMemory device_{64 * kMiB, 64 * kKiB};
  std::unique_ptr<Pool> pool_;
};

TEST(SizeClass, CoversTheRequestAndWastesAtMostAQuarter) {
  for (size_t n = 1; n < 4 * kMiB; n += n / 37 + 1) {
    const size_t c = size_class(n, 64 * kKiB);
    ASSERT_GE(c, n);
    ASSERT_EQ(c % 256, 0u);
    if (n >= 1024) {
      ASSERT_LE(static_cast<double>(c), static_cast<double>(n) * 1.25) << n;
    }
    ASSERT_EQ(size_class(c, 64 * kKiB), c) << "a class is its own class";
  }
  EXPECT_EQ(size_class(~size_t{0}, 64 * kKiB), 0u);
}

// A GPU maps 2 MiB at a time, and its driver refuses any other size: every class is a cell of a slab or whole units.
TEST(SizeClass, EveryRequestMapsWholeUnits) {
  for (const size_t unit : {4 * kKiB, 64 * kKiB, 2 * kMiB}) {
    HostMemory device(64 * kMiB, unit);
    Result<std::unique_ptr<Pool>> pool = Pool::create(device, {});
    ASSERT_TRUE(pool.ok()) << pool.status().to_string();
    for (const size_t edge : {448 * kKiB, 512 * kKiB, kMiB, 2 * kMiB})
      for (const size_t n : {edge - 257, edge - 256, edge - 255, edge - 1, edge, edge + 1, edge + 64 * kKiB - 1}) {
        const Result<Block*> b = (*pool)->allocate({n, 0, 1, "b", false});  // HostMemory::map checks the size
        ASSERT_TRUE(b.ok()) << n << " bytes in units of " << unit << ": " << b.status().to_string();
        ASSERT_EQ(size_class(size_class(n, unit), unit), size_class(n, unit)) << n;
        std::memset((*b)->data(), 1, n);
        ASSERT_EQ(device.mapped() % static_cast<int64_t>(unit), 0);
        ASSERT_TRUE((*pool)->free(*b, 1).ok());
      }
    device.finish(1);
    ASSERT_TRUE((*pool)->trim().ok());
    EXPECT_EQ(device.mapped(), 0);
  }
}

TEST_F(PoolTest, ALimitAndAPeakOfLater) {
  Block *a = get(8 * kMiB), *b = get(16 * kMiB);
  ASSERT_EQ(pool_->blocks().size(), 2u);
  VV_OK(pool_->free(b, 1));
  EXPECT_EQ(pool_->blocks().size(), 1u);
  EXPECT_EQ(pool_->blocks()[0].requested, static_cast<int64_t>(8 * kMiB));
  EXPECT_EQ(check().peak_used, static_cast<int64_t>(24 * kMiB));
  pool_->reset_peak();
  EXPECT_EQ(check().peak_used, static_cast<int64_t>(8 * kMiB));
  VV_OK(pool_->set_capacity(8 * kMiB));  // what was cached goes back
  EXPECT_EQ(check().cached, 0);
  VV_OK(pool_->set_capacity(4 * kMiB));  // below what lives: that stays, and nothing more fits
  EXPECT_EQ(pool_->stats()->mapped, static_cast<int64_t>(8 * kMiB));
  const Result<Block*> more = pool_->allocate({kMiB, 0, 1, "more", false});
  EXPECT_EQ(more.status().code(), Code::kOutOfMemory);
  VV_OK(pool_->set_capacity(0));
  EXPECT_EQ(check().capacity, static_cast<int64_t>(64 * kMiB));
  VV_OK(pool_->free(get(kMiB), 1));
  EXPECT_EQ(pool_->set_capacity(-1).code(), Code::kInvalidArgument);
  VV_OK(pool_->free(a, 1));
}

TEST_F(PoolTest, BlocksAreDisjointAlignedAndAccounted) {
  std::vector<Block*> blocks;
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) blocks.push_back(get(1 + random() % (40 * kKiB)));
  blocks.push_back(get(kMiB));
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i]->address() % 256, 0u);
    std::memset(blocks[i]->data(), static_cast<int>(i), blocks[i]->bytes());
  }
  for (size_t i = 0; i < blocks.size(); ++i)
    for (size_t k = 0; k < blocks[i]->bytes(); k += 97)
      ASSERT_EQ(static_cast<uint8_t*>(blocks[i]->data())[k], static_cast<uint8_t>(i)) << i;
  const PoolStats s = check();
  int64_t asked = 0;
  for (Block* b : blocks) asked += static_cast<int64_t>(b->bytes());
  EXPECT_EQ(s.requested, asked);
  for (Block* b : blocks) VV_OK(pool_->free(b, 1));
  EXPECT_EQ(check().used, 0);
  ASSERT_TRUE(pool_->trim().ok());
  EXPECT_EQ(device_.mapped(), 0);
  EXPECT_EQ(check().fragmentation(), 0.0);
}

TEST_F(PoolTest, ReuseFollowsStreamOrder) {
  Block* a = get(kMiB, 1);
  const uint64_t address = a->address();
  VV_OK(pool_->free(a, 1));
  Block* same = get(kMiB, 1);
  EXPECT_EQ(same->address(), address) << "the same stream may reuse at once";
  VV_OK(pool_->free(same, 1));
  Block* other = get(kMiB, 2);
  EXPECT_NE(other->address(), address) << "stream 1 has not finished";
  device_.finish(1);
  Block* later = get(kMiB, 2);
  EXPECT_EQ(later->address(), address);
  EXPECT_EQ(device_.stream_waits(), 0);
  check();
}

TEST_F(PoolTest, WhenFullAStreamWaitsForAPendingBlockInsteadOfFailing) {
  make({.capacity = 2 * kMiB});
  Block* a = get(2 * kMiB, 1);
  VV_OK(pool_->free(a, 1));
  Block* b = get(2 * kMiB, 2);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(device_.stream_waits(), 1);
  check();
}

TEST_F(PoolTest, SmallCellsComeBackAndFullyFreeSlabsAreTrimmed) {
  Block* a = get(1000);
  Block* b = get(1000);
  EXPECT_EQ(check().mapped, static_cast<int64_t>(2 * kMiB));
  VV_OK(pool_->free(a, 1));
  EXPECT_GT(check().stranded, 0);
  ASSERT_TRUE(pool_->trim().ok());
  EXPECT_EQ(device_.mapped(), static_cast<int64_t>(2 * kMiB)) << "one cell is live";
  VV_OK(pool_->free(b, 1));
  EXPECT_EQ(*pool_->trim(), static_cast<int64_t>(2 * kMiB));
  EXPECT_EQ(device_.live_events(), 0);
}

TEST_F(PoolTest, QuotaHoldsForOneTenantAndNamesTheSizes) {
  const TenantId small = pool_->add_tenant("robot", 2 * kMiB);
  Block* a = get(kMiB + kMiB / 2, 1, small);
  const Result<Block*> over = pool_->allocate({kMiB, small, 1, "kv"});
  ASSERT_EQ(over.status().code(), Code::kOutOfMemory);
  for (const char* part :
       {"kv", "1048576 bytes", "tenant robot", "1572864 used", "quota 2097152", "its quota is used up"})
    EXPECT_NE(over.status().message().find(part), std::string::npos)
        << part << " is not in: " << over.status().message();
  EXPECT_NE(get(4 * kMiB, 1, 0), nullptr) << "other tenants go on";
  VV_OK(pool_->free(a, 1));
  EXPECT_NE(get(kMiB, 1, small), nullptr);
  EXPECT_EQ(check().failures, 1);
}

TEST_F(PoolTest, EvictionMovesBytesAndAcquireBringsThemBackInPlace) {
  Block* a = get(kMiB + 123, 1, 0, true);
  const uint64_t address = a->address();
  write(a, 3);
  VV_OK(pool_->evict(a));
  EXPECT_FALSE(a->resident());
  EXPECT_EQ(device_.mapped(), 0);
  EXPECT_EQ(device_.live_host_blocks(), 1);
  EXPECT_EQ(check().evicted, static_cast<int64_t>(kMiB + 123));
  EXPECT_EQ(pool_->evict(a).code(), Code::kFailedPrecondition);
  VV_OK(pool_->acquire(a));
  EXPECT_EQ(a->address(), address);
  EXPECT_TRUE(holds(a, 3));
  EXPECT_EQ(device_.live_host_blocks(), 0);
  const PoolStats s = check();
  EXPECT_EQ(s.restores, 1);
  EXPECT_EQ(s.pinned, static_cast<int64_t>(size_class(kMiB + 123, 64 * kKiB)));
  EXPECT_EQ(pool_->evict(a).code(), Code::kFailedPrecondition) << "leased";
  EXPECT_EQ(pool_->free(a, 1).code(), Code::kFailedPrecondition) << "leased";
  VV_OK(pool_->release(a, 1));
  EXPECT_EQ(pool_->release(a, 1).code(), Code::kFailedPrecondition);
  VV_OK(pool_->evict(a));
  VV_OK(pool_->free(a, 1));  // a block may be freed while it is away
  EXPECT_EQ(device_.live_host_blocks(), 0);
  EXPECT_EQ(check().evicted, 0);
  const int64_t mapped = device_.mapped();
  Block* const tiny = get(1000, 1, 0, true);  // pages of its own
  EXPECT_EQ(device_.mapped() - mapped, static_cast<int64_t>(512 * kKiB));
  VV_OK(pool_->evict(tiny));
  EXPECT_EQ(device_.mapped(), mapped);
}

TEST_F(PoolTest, TheColdestUnleasedBlockGoesFirst) {
  make({.capacity = 4 * kMiB});
  Block* b[4];
  for (int i = 0; i < 4; ++i) write(b[i] = get(kMiB, 1, 0, true), static_cast<uint8_t>(i));
  VV_OK(pool_->acquire(b[0]));  // leased: may not go
  VV_OK(pool_->acquire(b[1]));
  VV_OK(pool_->release(b[1], 1));  // touched last
  Block* more = get(kMiB, 1);
  ASSERT_NE(more, nullptr);
  EXPECT_TRUE(b[0]->resident());
  EXPECT_TRUE(b[1]->resident());
  EXPECT_FALSE(b[2]->resident());
  EXPECT_TRUE(b[3]->resident());
  VV_OK(pool_->acquire(b[2]));  // brings it back; b[3] goes
  EXPECT_TRUE(holds(b[2], 2));
  EXPECT_FALSE(b[3]->resident());
  VV_OK(pool_->acquire(b[3]));
  EXPECT_TRUE(holds(b[3], 3));
  EXPECT_FALSE(b[1]->resident());
  // Everything is leased or not evictable now: one request fails, the others stay whole.
  const Status s = pool_->acquire(b[1]);
  EXPECT_EQ(s.code(), Code::kOutOfMemory);
  EXPECT_NE(s.message().find("acquire b1048576"), std::string::npos) << s.message();
  for (int i : {0, 2, 3}) EXPECT_TRUE(holds(b[i], static_cast<uint8_t>(i)));
  VV_OK(pool_->release(b[0], 1));
  VV_OK(pool_->acquire(b[1]));
  EXPECT_TRUE(holds(b[1], 1));
  check();
}

TEST_F(PoolTest, QuotaEvictsOnlyTheTenantsOwnBlocks) {
  const TenantId a = pool_->add_tenant("a", 2 * kMiB), b = pool_->add_tenant("b", 2 * kMiB);
  Block* other = get(kMiB, 1, b, true);
  Block* first = get(kMiB, 1, a, true);
  Block* second = get(kMiB, 1, a, true);
  Block* third = get(kMiB, 1, a, true);
  EXPECT_TRUE(other->resident());
  EXPECT_FALSE(first->resident());
  EXPECT_TRUE(second->resident() && third->resident());
  check();
}

TEST_F(PoolTest, MemoryTakenByOthersIsAnOrdinaryShortage) {
  device_.take_outside(static_cast<int64_t>(63 * kMiB));
  Block* a = get(kMiB);
  ASSERT_NE(a, nullptr);
  const Status s = pool_->allocate({kMiB, 0, 1, "x"}).status();
  EXPECT_EQ(s.code(), Code::kOutOfMemory);
  EXPECT_NE(s.message().find(std::to_string(63 * kMiB) + " outside the pool"), std::string::npos) << s.message();
  EXPECT_EQ(check().outside, static_cast<int64_t>(63 * kMiB));
  device_.take_outside(-static_cast<int64_t>(63 * kMiB));
  EXPECT_NE(get(kMiB), nullptr);
}

TEST_F(PoolTest, EveryFailingMapAndHostAllocationIsSurvived) {
  for (int64_t n = 0; n < 12; ++n) {
    make({.capacity = 6 * kMiB});
    device_.fail_map_after(n);
    std::vector<Block*> live;
    for (int i = 0; i < 12; ++i) {
      Result<Block*> b = pool_->allocate({kMiB + static_cast<size_t>(i) * 1000, 0, 1, "b", i % 4 != 0});
      if (b.ok()) {
        write(*b, static_cast<uint8_t>(live.size()));
        live.push_back(*b);
      } else {
        EXPECT_EQ(b.status().code(), Code::kOutOfMemory);
      }
      check();
    }
    device_.fail_host_after(n % 3);
    for (size_t i = 0; i < live.size(); ++i) {
      const Status s = pool_->acquire(live[i]);
      if (s.ok()) {
        EXPECT_TRUE(holds(live[i], static_cast<uint8_t>(i))) << i;
        VV_OK(pool_->release(live[i], 1));
      } else {
        EXPECT_EQ(s.code(), Code::kOutOfMemory) << s.to_string();
      }
      check();
    }
    device_.fail_map_after(-1);
    device_.fail_host_after(-1);
    for (size_t i = 0; i < live.size(); ++i) {
      VV_OK(pool_->acquire(live[i]));
      EXPECT_TRUE(holds(live[i], static_cast<uint8_t>(i))) << i;
      VV_OK(pool_->release(live[i], 1));
      VV_OK(pool_->free(live[i], 1));
    }
    check();
  }
  pool_.reset();
  EXPECT_EQ(device_.mapped(), 0);
  EXPECT_EQ(device_.live_events(), 0);
  EXPECT_EQ(device_.live_host_blocks(), 0);
}

TEST_F(PoolTest, RandomChurnKeepsContentsAndAccounts) {
  make({.capacity = 8 * kMiB});
  const TenantId tenants[] = {0, pool_->add_tenant("a", 5 * kMiB), pool_->add_tenant("b", 3 * kMiB)};
  std::mt19937 random(7);
  std::vector<std::pair<Block*, uint8_t>> live;
  int failures = 0;
  for (int step = 0; step < 3000; ++step) {
    const auto stream = static_cast<StreamId>(1 + random() % 3);
    if (random() % 5 == 0) device_.finish(stream);
    if (live.size() < 30 && random() % 2 == 0) {
      const bool large = random() % 3 == 0;
      const size_t bytes = large ? 512 * kKiB + random() % kMiB : 1 + random() % (100 * kKiB);
      Result<Block*> b = pool_->allocate({bytes, tenants[random() % 3], stream, "c", large && random() % 4 != 0});
      if (b.ok()) {
        live.emplace_back(*b, static_cast<uint8_t>(step));
        write(*b, static_cast<uint8_t>(step));
      } else {
        ASSERT_EQ(b.status().code(), Code::kOutOfMemory) << b.status().to_string();
        ++failures;
      }
    } else if (!live.empty()) {
      const size_t i = random() % live.size();
      const Status s = pool_->acquire(live[i].first);
      if (s.ok()) {
        ASSERT_TRUE(holds(live[i].first, live[i].second)) << "step " << step;
        VV_OK(pool_->release(live[i].first, stream));
      } else {
        ASSERT_EQ(s.code(), Code::kOutOfMemory) << s.to_string();
      }
      if (random() % 2 == 0) {
        VV_OK(pool_->free(live[i].first, stream));
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (step % 50 == 0) check();
  }
  const PoolStats s = check();
  EXPECT_GT(s.evictions, 10);
  EXPECT_GT(s.restores, 10);
  EXPECT_GT(s.reuses, 100);
  EXPECT_GT(failures, 0) << "the test is to reach the limits";
}

TEST_F(PoolTest, ThreadsShareIt) {
  make({.capacity = 8 * kMiB});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([this, t] {
      const auto stream = static_cast<StreamId>(t + 1);
      const auto salt = static_cast<uint8_t>(t * 50);
      std::mt19937 random(static_cast<unsigned>(t));
      Result<Block*> kept = pool_->allocate({kMiB, 0, stream, "kept", true});
      ASSERT_TRUE(kept.ok());
      write(*kept, salt);
      for (int i = 0; i < 300; ++i) {
        Result<Block*> b = pool_->allocate({1 + random() % kMiB, 0, stream, "t"});
        if (b.ok()) {
          write(*b, salt);
          EXPECT_TRUE(holds(*b, salt));
          EXPECT_TRUE(pool_->free(*b, stream).ok());
        }
        if (pool_->acquire(*kept).ok()) {
          EXPECT_TRUE(holds(*kept, salt)) << "thread " << t << " round " << i;
          EXPECT_TRUE(pool_->release(*kept, stream).ok());
        }
        if (i % 7 == 0) static_cast<void>(pool_->evict(*kept));
      }
    });
  for (std::thread& t : threads) t.join();
  check();
}

TEST_F(PoolTest, ArenaGrowsInPlaceThenFreezes) {
  const TenantId t = pool_->add_tenant("graphs", 4 * kMiB);
  Result<std::unique_ptr<Arena>> a = Arena::create(*pool_, t, 3 * kMiB, "workspace");
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(device_.mapped(), 0) << "addresses only";
  Result<void*> first = (*a)->allocate(100);
  Result<void*> second = (*a)->allocate(kMiB, 4096);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(reinterpret_cast<uint64_t>(*second) % 4096, 0u);
  EXPECT_GE(static_cast<char*>(*second), static_cast<char*>(*first) + 100);
  std::memset(*first, 1, 100);
  std::memset(*second, 2, kMiB);
  EXPECT_EQ(check().tenants[static_cast<size_t>(t)].used_bytes, static_cast<int64_t>((*a)->mapped_bytes()));
  (*a)->freeze();
  EXPECT_TRUE((*a)->allocate(64).ok()) << "what is mapped may still be handed out";
  const Status s = (*a)->allocate(kMiB).status();
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_NE(s.message().find("arena workspace is frozen"), std::string::npos) << s.message();
  (*a)->reset();
  EXPECT_EQ(*(*a)->allocate(100), *first) << "addresses are stable";
  EXPECT_EQ((*a)->allocate(4 * kMiB).status().code(), Code::kLimitExceeded);
  EXPECT_EQ((*a)->allocate(1, 3).status().code(), Code::kInvalidArgument);
  a->reset();
  EXPECT_EQ(device_.mapped(), 0);
  check();
}

TEST_F(PoolTest, MisuseIsNamed) {
  EXPECT_EQ(pool_->allocate({0, 0, 1, "z"}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(pool_->allocate({~size_t{0}, 0, 1, "z"}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(pool_->allocate({1, 9, 1, "z"}).status().code(), Code::kInvalidArgument);
  Block* a = get(kMiB);
  VV_OK(pool_->free(a, 1));
  EXPECT_EQ(pool_->free(a, 1).code(), Code::kFailedPrecondition);
  EXPECT_EQ(pool_->evict(get(kMiB)).code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace vivace::device
