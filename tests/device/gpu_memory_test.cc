// The pool on a GPU: stable addresses through eviction, live graphs across churn, exact accounts.
#include <gtest/gtest.h>

#include <vector>

#include "vivace/device/cuda_memory.h"
#include "vivace/device/graph.h"
#include "vivace/device/memory.h"

namespace vivace::device {
namespace {

#define VV_OK(expr)                                         \
  do {                                                      \
    const Status vv_status_ = (expr);                       \
    ASSERT_TRUE(vv_status_.ok()) << vv_status_.to_string(); \
  } while (0)

class GpuPool : public testing::Test {
 protected:
  static constexpr size_t kMiB = 1024 * 1024;
  void SetUp() override {
    const Result<Device*> d = Device::get(0);
    if (!d.ok()) GTEST_SKIP() << d.status().message();
    device_ = *d;
    if (!device_->info().virtual_memory) GTEST_SKIP() << "no virtual memory API";
    Result<std::unique_ptr<CudaMemory>> m = CudaMemory::create(*device_);
    ASSERT_TRUE(m.ok()) << m.status().to_string();
    memory_ = std::move(m).value();
    Result<std::unique_ptr<Pool>> p = Pool::create(*memory_, {.capacity = 64 * static_cast<int64_t>(kMiB)});
    ASSERT_TRUE(p.ok()) << p.status().to_string();
    pool_ = std::move(p).value();
    Result<Stream> s = Stream::create(*device_);
    ASSERT_TRUE(s.ok());
    stream_ = std::move(s).value();
    id_ = reinterpret_cast<StreamId>(stream_.handle());
  }
  // Whether all of the block's bytes are `v`.
  bool holds(Block* b, uint8_t v) {
    std::vector<uint8_t> host(b->bytes());
    EXPECT_TRUE(stream_.copy(host.data(), b->data(), host.size()).ok());
    EXPECT_TRUE(stream_.synchronize().ok());
    for (uint8_t x : host)
      if (x != v) return false;
    return true;
  }
  Device* device_ = nullptr;
  std::unique_ptr<CudaMemory> memory_;  // before pool_: it must outlive it
  std::unique_ptr<Pool> pool_;
  Stream stream_;
  StreamId id_ = 0;
};

TEST_F(GpuPool, EvictionKeepsAddressAndContents) {
  std::vector<Block*> blocks;
  for (int i = 0; i < 20; ++i) {  // 20 x 8 MiB in a pool of 64
    Result<Block*> b = pool_->allocate({8 * kMiB - 77, 0, id_, "cold", true});
    ASSERT_TRUE(b.ok()) << b.status().to_string();
    blocks.push_back(*b);
    VV_OK(pool_->acquire(*b));
    VV_OK(stream_.fill((*b)->data(), static_cast<unsigned char>(i + 1), (*b)->bytes()));
    VV_OK(pool_->release(*b, id_));
  }
  for (int round = 0; round < 2; ++round)
    for (size_t i = 0; i < blocks.size(); ++i) {
      const uint64_t address = blocks[i]->address();
      VV_OK(pool_->acquire(blocks[i]));
      EXPECT_EQ(blocks[i]->address(), address);
      EXPECT_TRUE(holds(blocks[i], static_cast<uint8_t>(i + 1))) << i;
      VV_OK(pool_->release(blocks[i], id_));
    }
  const Result<PoolStats> s = pool_->stats();
  ASSERT_TRUE(s.ok());
  EXPECT_LE(s->mapped, 64 * static_cast<int64_t>(kMiB));
  EXPECT_EQ(s->mapped, s->used + s->cached);
  EXPECT_GE(s->restores, 20);
  EXPECT_GE(s->outside, 0);
  std::printf("%s\n", s->to_string().c_str());
}

TEST_F(GpuPool, AGraphsPinnedBuffersSurviveChurn) {
  Result<Block*> from = pool_->allocate({8 * kMiB, 0, id_, "from", true}),
                 to = pool_->allocate({8 * kMiB, 0, id_, "to", true});
  ASSERT_TRUE(from.ok() && to.ok());
  VV_OK(pool_->acquire(*from));
  VV_OK(pool_->acquire(*to));
  VV_OK(stream_.fill((*from)->data(), 42, (*from)->bytes()));
  VV_OK(begin_capture(stream_));
  VV_OK(stream_.copy((*to)->data(), (*from)->data(), 8 * kMiB));
  Result<CapturedGraph> g = end_capture(stream_);
  ASSERT_TRUE(g.ok());
  Result<GraphExec> e = g->instantiate();
  ASSERT_TRUE(e.ok());
  for (int i = 0; i < 200; ++i) {
    Result<Block*> b = pool_->allocate({1 + static_cast<size_t>(i) * 200000, 0, id_, "churn"});
    if (b.ok()) {
      VV_OK(stream_.fill((*b)->data(), 0xff, (*b)->bytes()));
      VV_OK(pool_->free(*b, id_));
    } else {
      EXPECT_EQ(b.status().code(), Code::kOutOfMemory);
    }
    VV_OK(stream_.fill((*to)->data(), 0, (*to)->bytes()));
    VV_OK(e->launch(stream_));
    if (i % 20 == 0) {
      ASSERT_TRUE(holds(*to, 42)) << i;
    }
  }
  EXPECT_EQ(pool_->evict(*to).code(), Code::kFailedPrecondition);
  VV_OK(stream_.synchronize());  // leased blocks go with the pool: nothing may still use them
}

TEST_F(GpuPool, OutOfDeviceMemoryIsAnOrdinaryError) {
  const Result<MemoryInfo> m = device_->memory();
  ASSERT_TRUE(m.ok());
  Result<std::unique_ptr<Pool>> big = Pool::create(*memory_, {.capacity = m->total_bytes * 2});
  ASSERT_TRUE(big.ok());
  const Status s = (*big)->allocate({static_cast<size_t>(m->total_bytes), 0, id_, "too big"}).status();
  EXPECT_EQ(s.code(), Code::kOutOfMemory);
  EXPECT_NE(s.message().find("too big"), std::string::npos) << s.message();
  EXPECT_TRUE((*big)->allocate({kMiB, 0, id_, "small"}).ok());
  EXPECT_TRUE(healthy());
}

}  // namespace
}  // namespace vivace::device
