// Replay is predictable: no allocation on the calling thread and no page fault once warm.
#include "tests/exec/alloc_count.h"
#include "tests/exec/subject.h"
#include "vivace/exec/plan.h"

namespace vivace::exec::testing {
namespace {

class HotPath : public ContractTest {
 protected:
  template <class Step>
  void expect_quiet(Step&& step) {
    if (!vivace::testing::counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
    const vivace::testing::Quiet q = vivace::testing::watch(10'000, [&] { return step().ok(); });
    EXPECT_EQ(q.allocations, 0u);
    EXPECT_EQ(q.faults, 0);
    EXPECT_EQ(q.failures, 0);
  }
};
VV_SUBJECT_SUITE(HotPath, SubjectRow{"cpu", make_cpu_subject}, SubjectRow{"cuda", make_cuda_subject});

TEST_P(HotPath, GraphReplay) {
  Graph graph("step", 64);
  for (uint64_t key = 0; key < 64; ++key)
    VV_EXPECT_OK(graph.capture(ShapeKey{key * 977}, *stream_, [&](Stream& s) {
      const Status first = affine(s, x_, y_, 0.5f, 1);
      return first.ok() ? s.copy(x_.data(), y_.data(), 64) : first;
    }));
  uint64_t turn = 0;
  expect_quiet([&] {
    const Status s = graph.replay(ShapeKey{turn++ % 64 * 977}, *stream_);
    return s.ok() && turn % 64 == 0 ? stream_->synchronize() : s;
  });
}

TEST_P(HotPath, PlanRun) {
  auto second = make_stream();
  Graph context("context", 1), action("action", 1);
  VV_EXPECT_OK(context.capture(ShapeKey{1}, *stream_, [&](Stream& s) { return affine(s, x_, y_, 0.5f, 1); }));
  VV_EXPECT_OK(action.capture(ShapeKey{1}, *second, [&](Stream& s) { return affine(s, y_, x_, 0.5f, 1); }));
  Plan plan("cut", subject_->backend());
  auto a = plan.add(context, ShapeKey{1}, *stream_), b = plan.add(action, ShapeKey{1}, *second);
  ASSERT_TRUE(a.ok() && b.ok());
  VV_EXPECT_OK(plan.edge(*a, *b));
  VV_EXPECT_OK(plan.freeze());
  int turn = 0;
  expect_quiet([&] {
    const Status s = plan.run();
    return s.ok() && ++turn % 64 == 0 ? plan.synchronize() : s;
  });
}

}  // namespace
}  // namespace vivace::exec::testing
