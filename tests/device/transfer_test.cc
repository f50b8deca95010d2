// The transfer engine over lanes that copy late, as a device does: order, reuse of the ring, failures.
#include "vivace/device/transfer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "vivace/device/cuda_transfer.h"

namespace vivace::device {
namespace {

#define VV_OK(expr)                                         \
  do {                                                      \
    const Status vv_status_ = (expr);                       \
    ASSERT_TRUE(vv_status_.ok()) << vv_status_.to_string(); \
  } while (0)

// A copy reads its source only when somebody waits for a mark behind it: a ring slot that is
// overwritten too early shows as wrong bytes.
class LateCopies : public CopyBackend {
 public:
  Status attach_thread() override { return Status(); }
  Status copy(Direction lane, void* to, const void* from, size_t bytes) override {
    if (gate_) while (!open_) std::this_thread::yield();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (fail_after_ == 0) return Status(Code::kCudaError, "planted failure");
    if (fail_after_ > 0) --fail_after_;
    lanes_[lane].push_back({to, from, bytes});
    order_.push_back(to);
    return Status();
  }
  Result<Mark> mark_create() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    marks_[++last_] = {};
    return last_;
  }
  void mark_destroy(Mark m) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    marks_.erase(m);
  }
  Status mark_set(Direction lane, Mark m) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    marks_[m] = {lane, lanes_[lane].size()};
    return Status();
  }
  Status mark_wait(Mark m) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [lane, until] = marks_[m];
    for (size_t& i = ran_[lane]; i < until; ++i)
      std::memcpy(lanes_[lane][i].to, lanes_[lane][i].from, lanes_[lane][i].bytes);
    return Status();
  }
  Result<void*> host_allocate(size_t bytes) override {
    ++host_blocks_;
    return std::malloc(bytes);
  }
  void host_free(void* p) override {
    --host_blocks_;
    std::free(p);
  }

  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  std::mutex mutex_;
  std::map<Direction, std::vector<Copy>> lanes_;
  std::map<Direction, size_t> ran_;
  std::map<Mark, std::pair<Direction, size_t>> marks_;
  std::vector<void*> order_;
  Mark last_ = 0;
  int fail_after_ = -1;  // copies that succeed before all fail; -1: none fails
  std::atomic<int> host_blocks_{0};
  std::atomic<bool> gate_{false}, open_{false};
};

std::vector<uint8_t> bytes_of(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> v(n);
  for (uint8_t& b : v) b = static_cast<uint8_t>(random());
  return v;
}

class TransferTest : public testing::Test {
 protected:
  void make(TransferOptions o) {
    Result<std::unique_ptr<TransferEngine>> e = TransferEngine::create(copies_, o);
    ASSERT_TRUE(e.ok()) << e.status().to_string();
    engine_ = std::move(e).value();
  }
  LateCopies copies_;
  std::unique_ptr<TransferEngine> engine_;
};

TEST_F(TransferTest, StagedTransfersOfEverySizeArriveWhole) {
  make({.chunk_bytes = 1000, .chunks_in_flight = 2, .staging_threads = 3});
  for (size_t n : {1u, 999u, 1000u, 1001u, 64000u, 123457u}) {
    const std::vector<uint8_t> from = bytes_of(n, static_cast<unsigned>(n));
    std::vector<uint8_t> to(n + 1, 0xee);
    size_t last = 0, calls = 0;
    const Result<Ticket> t = engine_->submit({.to = to.data(),
                                              .from = from.data(),
                                              .bytes = n,
                                              .staged = true,
                                              .on_progress = [&](size_t done, size_t total) {
                                                EXPECT_EQ(total, n);
                                                EXPECT_GT(done, last);
                                                last = done;
                                                ++calls;
                                              }});
    ASSERT_TRUE(t.ok());
    VV_OK(t->wait());
    EXPECT_EQ(last, n);
    EXPECT_EQ(calls, (n + 999) / 1000);
    EXPECT_EQ(std::memcmp(to.data(), from.data(), n), 0) << n;
    EXPECT_EQ(to[n], 0xee);
    EXPECT_TRUE(t->done());
  }
  const LaneStats s = engine_->stats(Direction::to_device);
  EXPECT_EQ(s.bytes, 1 + 999 + 1000 + 1001 + 64000 + 123457);
  EXPECT_EQ(s.transfers, 6);
  EXPECT_GT(s.bytes_per_s(), 0);
  EXPECT_EQ(engine_->stats(Direction::to_host).bytes, 0);
}

TEST_F(TransferTest, UrgentTransfersOvertakeAtTheNextChunk) {
  make({.chunk_bytes = 100, .chunks_in_flight = 1, .staging_threads = 1});
  copies_.gate_ = true;
  const std::vector<uint8_t> from = bytes_of(1000, 1);
  std::vector<uint8_t> slow(1000), urgent(200), middle(200);
  const auto put = [&](std::vector<uint8_t>& to, int priority) {
    return *engine_->submit({.to = to.data(), .from = from.data(), .bytes = to.size(), .priority = priority});
  };
  const Ticket a = put(slow, 0);
  while (engine_->stats(Direction::to_device).busy_seconds == 0)
    std::this_thread::yield();  // its first chunk has begun
  const Ticket b = put(middle, 1), c = put(urgent, 9);
  copies_.open_ = true;
  for (const Ticket& t : {a, b, c}) VV_OK(t.wait());
  ASSERT_EQ(copies_.order_.size(), 14u);
  EXPECT_EQ(copies_.order_[0], slow.data());
  EXPECT_EQ(copies_.order_[1], urgent.data());
  EXPECT_EQ(copies_.order_[2], urgent.data() + 100);
  EXPECT_EQ(copies_.order_[3], middle.data());
  EXPECT_EQ(copies_.order_[5], slow.data() + 100);
}

TEST_F(TransferTest, TheBackgroundStandsStillWhileItIsPaused) {
  std::atomic<bool> pause{true};
  make({.chunk_bytes = 100, .chunks_in_flight = 2, .staging_threads = 2, .pause = &pause});
  const std::vector<uint8_t> from = bytes_of(1000, 1);
  std::vector<uint8_t> slow(1000), urgent(1000), never(1000);
  const auto put = [&](std::vector<uint8_t>& to, int priority) {
    return *engine_->submit({.to = to.data(), .from = from.data(), .bytes = to.size(), .priority = priority});
  };
  Ticket a = put(slow, -1), c = put(never, -1);
  VV_OK(put(urgent, 0).wait());  // others go on
  EXPECT_EQ(urgent, from);
  EXPECT_EQ(a.bytes_done(), 0u);
  c.cancel();
  EXPECT_FALSE(a.done());
  pause = false;
  VV_OK(a.wait());
  EXPECT_EQ(slow, from);
  EXPECT_EQ(c.wait().code(), Code::kCancelled);
  pause = true;
  a = put(slow, -1);
  engine_.reset();  // closing does not wait for the pause to end
  EXPECT_EQ(a.wait().code(), Code::kCancelled);
}

TEST_F(TransferTest, DirectionsDoNotWaitForEachOther) {
  make({.chunk_bytes = 64});
  const std::vector<uint8_t> from = bytes_of(500, 2);
  std::vector<std::vector<uint8_t>> to(3, std::vector<uint8_t>(500));
  std::vector<Ticket> tickets;
  for (int d = 0; d < kDirections; ++d)
    tickets.push_back(*engine_->submit({.direction = static_cast<Direction>(d),
                                        .to = to[static_cast<size_t>(d)].data(),
                                        .from = from.data(),
                                        .bytes = 500}));
  for (const Ticket& t : tickets) VV_OK(t.wait());
  for (const auto& v : to) EXPECT_EQ(v, from);
}

TEST_F(TransferTest, AFailingChunkFailsItsTransferAndTheEngineGoesOn) {
  for (const int good : {0, 1, 5}) {
    make({.chunk_bytes = 10, .chunks_in_flight = 2, .staging_threads = 2});
    {
      const std::lock_guard<std::mutex> lock(copies_.mutex_);
      copies_.fail_after_ = good;
    }
    std::vector<uint8_t> from = bytes_of(200, 3), to(200);
    const Ticket t = *engine_->submit({.to = to.data(), .from = from.data(), .bytes = 200, .staged = true});
    EXPECT_EQ(t.wait().code(), Code::kCudaError);
    EXPECT_LE(t.bytes_done(), static_cast<size_t>(good) * 10);
    {
      const std::lock_guard<std::mutex> lock(copies_.mutex_);
      copies_.fail_after_ = -1;
    }
    const Ticket again = *engine_->submit({.to = to.data(), .from = from.data(), .bytes = 200, .staged = true});
    VV_OK(again.wait());
    EXPECT_EQ(to, from);
  }
}

TEST_F(TransferTest, CancelAndCloseLeaveNobodyWaiting) {
  make({.chunk_bytes = 10, .chunks_in_flight = 1, .staging_threads = 1});
  copies_.gate_ = true;
  std::vector<uint8_t> from(1000, 1), to(1000);
  Ticket a = *engine_->submit({.to = to.data(), .from = from.data(), .bytes = 1000});
  Ticket b = *engine_->submit({.to = to.data(), .from = from.data(), .bytes = 1000});
  a.cancel();
  copies_.open_ = true;
  EXPECT_EQ(a.wait().code(), Code::kCancelled);
  EXPECT_LT(a.bytes_done(), 1000u);
  VV_OK(b.wait());
  copies_.open_ = false;
  Ticket c = *engine_->submit({.to = to.data(), .from = from.data(), .bytes = 1000});
  copies_.open_ = true;
  engine_.reset();
  EXPECT_TRUE(c.done());
  EXPECT_EQ(copies_.host_blocks_, 0);
  EXPECT_TRUE(copies_.marks_.empty());
}

TEST_F(TransferTest, ManyThreadsManyTransfers) {
  make({.chunk_bytes = 777, .chunks_in_flight = 2, .staging_threads = 3});
  std::vector<std::thread> threads;
  for (unsigned k = 0; k < 4; ++k)
    threads.emplace_back([this, k] {
      for (unsigned i = 0; i < 50; ++i) {
        const std::vector<uint8_t> from = bytes_of(1 + (i * 977 + k * 131) % 9000, i + k);
        std::vector<uint8_t> to(from.size());
        const Ticket t = *engine_->submit({.to = to.data(),
                                           .from = from.data(),
                                           .bytes = to.size(),
                                           .priority = static_cast<int>(i % 3),
                                           .staged = i % 2 == 0});
        EXPECT_TRUE(t.wait().ok());
        EXPECT_EQ(to, from);
      }
    });
  for (std::thread& t : threads) t.join();
}

TEST_F(TransferTest, MisuseIsNamed) {
  make({});
  int x = 0;
  EXPECT_EQ(engine_->submit({.to = nullptr, .from = &x, .bytes = 4}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(engine_->submit({.direction = Direction::to_host, .to = &x, .from = &x, .bytes = 4, .staged = true})
                .status()
                .code(),
            Code::kInvalidArgument);
  const Result<Ticket> empty = engine_->submit({});
  ASSERT_TRUE(empty.ok());
  VV_OK(empty->wait());
  EXPECT_EQ(TransferEngine::create(copies_, {.chunk_bytes = 0}).status().code(), Code::kInvalidArgument);
}

TEST(GpuTransfer, StagedUploadIsWholeAndNearTheLinksRate) {
  const Result<Device*> d = Device::get(0);
  if (!d.ok()) GTEST_SKIP() << d.status().message();
  const Device& device = **d;
  Result<std::unique_ptr<CudaCopies>> copies = CudaCopies::create(device);
  ASSERT_TRUE(copies.ok()) << copies.status().to_string();
  constexpr size_t kBytes = size_t{1} << 30;
  cu::DevicePtr memory = 0;
  VV_OK(device.bind());
  VV_OK(VV_CU_STATUS(cuMemAlloc_v2, &memory, kBytes));
  Result<PinnedBuffer> pinned = PinnedBuffer::create(device, kBytes);
  ASSERT_TRUE(pinned.ok());
  std::vector<uint64_t> pageable(kBytes / 8);
  for (size_t i = 0; i < pageable.size(); ++i) pageable[i] = i * 0x9e3779b97f4a7c15ull;
  void* const device_memory = reinterpret_cast<void*>(memory);
  const auto rate = [&](const void* from, bool staged, int threads) {
    Result<std::unique_ptr<TransferEngine>> e = TransferEngine::create(**copies, {.staging_threads = threads});
    EXPECT_TRUE(e.ok());
    for (int i = 0; i < 2; ++i)  // the first warms the pages up
      EXPECT_TRUE((*e)->submit({.to = device_memory, .from = from, .bytes = kBytes, .staged = staged})->wait().ok());
    return (*e)->stats(Direction::to_device).bytes_per_s();
  };
  std::memcpy(pinned->data(), pageable.data(), kBytes);
  const double link = rate(pinned->data(), false, 1);
  double best = 0;
  for (int threads : {1, 2, 4, 8}) {
    const double r = rate(pageable.data(), true, threads);
    std::printf("staged upload, %d threads: %.2f GB/s, %.0f %% of the link's %.2f GB/s\n", threads, r * 1e-9,
                r / link * 100, link * 1e-9);
    best = std::max(best, r);
  }
  Result<std::unique_ptr<TransferEngine>> e = TransferEngine::create(**copies, {});
  ASSERT_TRUE(e.ok());
  VV_OK((*e)->submit({.direction = Direction::to_host, .to = pinned->data(), .from = device_memory, .bytes = kBytes})
            ->wait());
  EXPECT_EQ(std::memcmp(pinned->data(), pageable.data(), kBytes), 0);
  EXPECT_GE(best, 0.8 * link);
  VV_CU_IGNORE(cuMemFree_v2, memory);
}

}  // namespace
}  // namespace vivace::device
