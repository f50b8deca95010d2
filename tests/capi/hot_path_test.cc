// The C ABI on the hot path, and the agreement of its constants with the C++ side.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/exec/alloc_count.h"
#include "vivace/base/status.h"
#include "vivace/capi/vivace.h"
#include "vivace/device/driver.h"

namespace vivace {
namespace {

struct AddArgs {
  float* to;
  float step;
};

void add(const void* raw) {
  const auto& a = *static_cast<const AddArgs*>(raw);
  *a.to += a.step;
}

vv_status launch_add(vv_stream* stream, void* context) {
  const AddArgs args = {static_cast<float*>(context), 1};
  const vv_launch launch = {sizeof(vv_launch), "add", add, &args, sizeof args};
  return vv_stream_launch(stream, &launch);
}

TEST(CApi, TenThousandCallsAllocateNothing) {
  if (!vivace::testing::counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
  const vv_backend_options options = {sizeof options, "cpu", 0, 2};
  vv_backend* backend = nullptr;
  vv_stream* streams[2] = {};
  vv_graph* graph = nullptr;
  vv_plan* plan = nullptr;
  float sum = 0;
  ASSERT_EQ(vv_backend_create(&options, &backend), VV_OK) << vv_last_error();
  for (auto& s : streams) ASSERT_EQ(vv_stream_create(backend, 0, &s), VV_OK) << vv_last_error();
  ASSERT_EQ(vv_graph_create("step", 1, &graph), VV_OK);
  ASSERT_EQ(vv_graph_capture(graph, 1, streams[0], launch_add, &sum), VV_OK) << vv_last_error();
  ASSERT_EQ(vv_plan_create(backend, "cut", &plan), VV_OK);
  int a = 0, b = 0;
  ASSERT_EQ(vv_plan_add(plan, graph, 1, streams[0], &a), VV_OK);
  ASSERT_EQ(vv_plan_add(plan, graph, 1, streams[1], &b), VV_OK);
  ASSERT_EQ(vv_plan_edge(plan, a, b), VV_OK);
  ASSERT_EQ(vv_plan_freeze(plan), VV_OK);

  int calls = 0;
  const auto q = vivace::testing::watch(10'000, [&] {
    ++calls;
    return vv_graph_replay(graph, 1, streams[0]) == VV_OK && vv_plan_run(plan) == VV_OK &&
           vv_plan_synchronize(plan) == VV_OK;
  });
  EXPECT_EQ(q.allocations, 0u);
  EXPECT_EQ(q.faults, 0);
  EXPECT_EQ(q.failures, 0);
  EXPECT_EQ(sum, static_cast<float>(3 * calls));
  vv_plan_destroy(plan);
  vv_graph_destroy(graph);
  for (auto* s : streams) vv_stream_destroy(s);
  vv_backend_destroy(backend);
}

/// Stands between Vivace and the driver's waits, and counts them.
class WaitCounter {
 public:
  WaitCounter() : saved_(device::detail::g_api) {
    waits = 0;
    cu::Api& api = device::detail::g_api;
    real = saved_;
    api.cuCtxSynchronize = [] { return ++waits, real.cuCtxSynchronize(); };
    api.cuStreamSynchronize = [](cu::Stream s) { return ++waits, real.cuStreamSynchronize(s); };
    api.cuEventSynchronize = [](cu::Event e) { return ++waits, real.cuEventSynchronize(e); };
  }
  ~WaitCounter() { device::detail::g_api = saved_; }
  static inline std::atomic<int> waits = 0;

 private:
  static inline cu::Api real;
  cu::Api saved_;
};

struct Copies {
  void *a, *b;
  size_t bytes;
};

vv_status copy_there_and_back(vv_stream* stream, void* context) {
  const auto& c = *static_cast<const Copies*>(context);
  if (const vv_status s = vv_stream_copy(stream, c.b, c.a, c.bytes); s != VV_OK) return s;
  return vv_stream_copy(stream, c.a, c.b, c.bytes);
}

TEST(CApiOnGpu, TenThousandCallsAllocateNothingAndNeverWait) {
  if (!vivace::testing::counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
  const vv_backend_options options = {sizeof options, "cuda", 0, 0};
  vv_backend* backend = nullptr;
  if (vv_backend_create(&options, &backend) != VV_OK) GTEST_SKIP() << vv_last_error();
  constexpr size_t kBytes = 4096;
  vv_buffer* buffers[2] = {};
  vv_buffer_info infos[2] = {};
  vv_stream* streams[2] = {};
  vv_graph* graph = nullptr;
  vv_plan* plan = nullptr;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(vv_buffer_create(backend, i == 0 ? "a" : "b", kBytes, &buffers[i]), VV_OK) << vv_last_error();
    infos[i].struct_size = sizeof infos[i];
    ASSERT_EQ(vv_buffer_get_info(buffers[i], &infos[i]), VV_OK) << vv_last_error();
    ASSERT_EQ(vv_stream_create(backend, 0, &streams[i]), VV_OK) << vv_last_error();
  }
  std::vector<unsigned char> put(kBytes), got(kBytes);
  for (size_t i = 0; i < kBytes; ++i) put[i] = static_cast<unsigned char>(i * 7 + 1);
  ASSERT_EQ(vv_stream_copy(streams[0], infos[0].data, put.data(), kBytes), VV_OK) << vv_last_error();
  ASSERT_EQ(vv_stream_synchronize(streams[0]), VV_OK);
  Copies copies = {infos[0].data, infos[1].data, kBytes};
  ASSERT_EQ(vv_graph_create("step", 1, &graph), VV_OK);
  ASSERT_EQ(vv_graph_capture(graph, 1, streams[0], copy_there_and_back, &copies), VV_OK) << vv_last_error();
  ASSERT_EQ(vv_plan_create(backend, "cut", &plan), VV_OK);
  int a = 0, b = 0;
  ASSERT_EQ(vv_plan_add(plan, graph, 1, streams[0], &a), VV_OK);
  ASSERT_EQ(vv_plan_add(plan, graph, 1, streams[1], &b), VV_OK);
  ASSERT_EQ(vv_plan_edge(plan, a, b), VV_OK);
  ASSERT_EQ(vv_plan_freeze(plan), VV_OK) << vv_last_error();

  vivace::testing::Quiet q;
  int waits = 0;
  {
    const WaitCounter counter;
    q = vivace::testing::watch(
        10'000, [&] { return vv_graph_replay(graph, 1, streams[0]) == VV_OK && vv_plan_run(plan) == VV_OK; });
    waits = WaitCounter::waits;
    ASSERT_EQ(vv_plan_synchronize(plan), VV_OK);
    EXPECT_GT(WaitCounter::waits, waits) << "the counter counts nothing";
  }
  EXPECT_EQ(q.allocations, 0u);
  EXPECT_EQ(q.faults, 0);
  EXPECT_EQ(q.failures, 0);
  EXPECT_EQ(waits, 0);
  ASSERT_EQ(vv_stream_copy(streams[1], got.data(), infos[1].data, kBytes), VV_OK);
  ASSERT_EQ(vv_stream_synchronize(streams[1]), VV_OK);
  EXPECT_EQ(got, put);
  vv_plan_destroy(plan);
  vv_graph_destroy(graph);
  for (auto* s : streams) vv_stream_destroy(s);
  for (auto* buffer : buffers) vv_buffer_destroy(buffer);
  vv_backend_destroy(backend);
}

TEST(CApi, StatusesAreTheCodesOfCpp) {
  for (int i = 0; i < kCodeCount; ++i)
    EXPECT_STREQ(vv_status_name(static_cast<vv_status>(i)), name(static_cast<Code>(i)));
  EXPECT_STREQ(vv_status_name(static_cast<vv_status>(kCodeCount)), "?");
  EXPECT_STREQ(vv_status_name(VV_ALIAS_ERROR), "AliasError");
  EXPECT_STREQ(vv_status_name(VV_CORRUPT_DATA), "CorruptData");
  EXPECT_STREQ(vv_status_name(VV_FAILED_PRECONDITION), "FailedPrecondition");
}

TEST(CApi, LastErrorIsTheThreadsOwn) {
  EXPECT_EQ(vv_fail(VV_CANCELLED, "here"), VV_CANCELLED);
  std::string there = "not run";
  std::thread([&] {
    there = vv_last_error();
    static_cast<void>(vv_graph_create("g", 0, nullptr));
  }).join();
  EXPECT_EQ(there, "");
  EXPECT_STREQ(vv_last_error(), "here");
}

}  // namespace
}  // namespace vivace
