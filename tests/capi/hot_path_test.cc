// The C ABI on the hot path, and the agreement of its constants with the C++ side.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "tests/exec/alloc_count.h"
#include "vivace/base/status.h"
#include "vivace/capi/vivace.h"

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
    return vv_graph_replay(graph, 1, streams[0]) == VV_OK && vv_plan_run(plan) == VV_OK && vv_plan_synchronize(plan) == VV_OK;
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

TEST(CApi, StatusesAreTheCodesOfCpp) {
  for (int i = 0; i < kCodeCount; ++i) EXPECT_STREQ(vv_status_name(static_cast<vv_status>(i)), name(static_cast<Code>(i)));
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
