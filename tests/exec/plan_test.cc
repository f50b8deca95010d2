// Contract of Plan: order, equality with the single graph, and refusals.
#include "vivace/exec/plan.h"

#include <cmath>

#include "tests/exec/subject.h"

namespace vivace::exec::testing {
namespace {

constexpr ShapeKey kKey{7};

class PlanContract : public ContractTest {
 protected:
  void SetUp() override {
    ContractTest::SetUp();
    if (subject_ == nullptr) return;
    second_ = make_stream();
    // Two stages: `context` works on x from y, `action` works on y from x.
    VV_EXPECT_OK(context_.capture(kKey, *stream_, [&](Stream& s) { return context_stage(s); }));
    VV_EXPECT_OK(action_.capture(kKey, *second_, [&](Stream& s) { return action_stage(s); }));
    VV_EXPECT_OK(whole_.capture(kKey, *stream_, [&](Stream& s) {
      const Status first = context_stage(s);
      return first.ok() ? action_stage(s) : first;
    }));
  }
  Status context_stage(Stream& s) { return stage(s, x_, y_, 0.73f); }
  Status action_stage(Stream& s) { return stage(s, y_, x_, 0.61f); }
  Status stage(Stream& s, const Buffer& to, const Buffer& from, float a) {
    for (int i = 0; i < 40; ++i)
      if (Status e = affine(s, to, from, a, 0.1f * static_cast<float>(i)); !e.ok()) return e;
    return {};
  }
  Plan::Step add(Plan& plan, Graph& graph, Stream& stream) {
    auto step = plan.add(graph, kKey, stream);
    EXPECT_TRUE(step.ok()) << step.status().to_string();
    return step.ok() ? *step : -1;
  }

  Graph context_{"context", 2}, action_{"action", 2}, whole_{"whole", 2};
  std::unique_ptr<Stream> second_;
};
VV_CONTRACT_SUITE(PlanContract);

TEST_P(PlanContract, EqualsTheSingleGraphBitForBit) {
  constexpr int kRuns = 20;
  for (int i = 0; i < kRuns; ++i) VV_EXPECT_OK(whole_.replay(kKey, *stream_));
  const auto want_x = read(x_), want_y = read(y_);
  for (float v : want_y) ASSERT_TRUE(std::isfinite(v));
  write(x_, ramp(0.25f));
  write(y_, ramp(-1.5f));

  Plan plan("cut", subject_->backend());
  const auto action = add(plan, action_, *second_);  // added first: the edge decides, not the order of add()
  const auto context = add(plan, context_, *stream_);
  VV_EXPECT_OK(plan.edge(context, action));
  VV_EXPECT_OK(plan.edge(context, action));  // twice is once
  VV_EXPECT_OK(plan.freeze());
  EXPECT_TRUE(plan.frozen());
  // No synchronisation between runs: each context stage overwrites what the last action stage reads.
  for (int i = 0; i < kRuns; ++i) VV_EXPECT_OK(plan.run());
  VV_EXPECT_OK(plan.synchronize());
  EXPECT_EQ(read(x_), want_x);
  EXPECT_EQ(read(y_), want_y);
}

TEST_P(PlanContract, OneStreamRunsInOrderOfAdd) {
  VV_EXPECT_OK(action_.replay(kKey, *stream_));
  VV_EXPECT_OK(context_.replay(kKey, *stream_));
  VV_EXPECT_OK(context_.replay(kKey, *stream_));
  const auto want = read(x_);
  write(x_, ramp(0.25f));
  write(y_, ramp(-1.5f));
  Plan plan("chain", subject_->backend());
  add(plan, action_, *stream_);
  add(plan, context_, *stream_);
  add(plan, context_, *stream_);
  VV_EXPECT_OK(plan.freeze());
  VV_EXPECT_OK(plan.run());
  EXPECT_EQ(read(x_), want);
}

TEST_P(PlanContract, DiamondOverThreeStreams) {
  auto third = make_stream();
  Buffer z = make_region("z", ramp(3));
  Graph left("left", 1), right("right", 1), join("join", 1);
  VV_EXPECT_OK(left.capture(kKey, *second_, [&](Stream& s) { return stage(s, y_, x_, 0.5f); }));
  VV_EXPECT_OK(right.capture(kKey, *third, [&](Stream& s) { return stage(s, z, x_, 0.25f); }));
  VV_EXPECT_OK(join.capture(kKey, *stream_, [&](Stream& s) {
    const Status first = affine(s, x_, y_, 1, 0);
    return first.ok() ? affine(s, x_, z, 1, 0) : first;
  }));
  const auto serial = [&] {
    VV_EXPECT_OK(context_.replay(kKey, *stream_));
    VV_EXPECT_OK(left.replay(kKey, *stream_));
    VV_EXPECT_OK(right.replay(kKey, *stream_));
    VV_EXPECT_OK(join.replay(kKey, *stream_));
  };
  for (int i = 0; i < 5; ++i) serial();
  const auto want = read(x_);
  write(x_, ramp(0.25f));
  write(y_, ramp(-1.5f));
  write(z, ramp(3));

  Plan plan("diamond", subject_->backend());
  const auto top = add(plan, context_, *stream_), bottom = add(plan, join, *stream_);
  const auto a = add(plan, left, *second_), b = add(plan, right, *third);
  VV_EXPECT_OK(plan.edge(top, a));
  VV_EXPECT_OK(plan.edge(top, b));
  VV_EXPECT_OK(plan.edge(a, bottom));
  VV_EXPECT_OK(plan.edge(b, bottom));
  VV_EXPECT_OK(plan.freeze());
  for (int i = 0; i < 5; ++i) VV_EXPECT_OK(plan.run());
  VV_EXPECT_OK(plan.synchronize());
  EXPECT_EQ(read(x_), want);
}

TEST_P(PlanContract, TheNextRunWaitsForTheWholeRunBefore) {
  // Stream one: top, bottom. Stream two: side, which nothing orders after top, and which overwrites what
  // bottom read in the run before. Sums, so that one wrong read shows to the end.
  Buffer z = make_region("z", ramp(3));
  Graph top("top", 1), side("side", 1), bottom("bottom", 1);
  VV_EXPECT_OK(top.capture(kKey, *stream_, [&](Stream& s) { return affine(s, x_, y_, 0.5f, 1); }));
  VV_EXPECT_OK(side.capture(kKey, *second_, [&](Stream& s) { return affine(s, z, y_, 1, 1); }));
  VV_EXPECT_OK(bottom.capture(kKey, *stream_, [&](Stream& s) { return affine(s, x_, z, 1, 0); }));
  constexpr int kRuns = 20;
  for (int i = 0; i < kRuns; ++i)
    for (Graph* g : {&top, &side, &bottom}) VV_EXPECT_OK(g->replay(kKey, *stream_));
  const auto want = read(x_);
  write(x_, ramp(0.25f));
  write(z, ramp(3));

  Plan plan("overlap", subject_->backend());
  add(plan, top, *stream_);
  const auto late = add(plan, bottom, *stream_), early = add(plan, side, *second_);
  VV_EXPECT_OK(plan.edge(early, late));
  VV_EXPECT_OK(plan.freeze());
  for (int i = 0; i < kRuns; ++i) VV_EXPECT_OK(plan.run());
  VV_EXPECT_OK(plan.synchronize());
  EXPECT_EQ(read(x_), want);
}

TEST_P(PlanContract, RefusesCyclesAndBadEdges) {
  Plan plan("bad", subject_->backend());
  expect_error(plan.add(context_, ShapeKey{8}, *stream_).status(), Code::kNoVariant,
               "plan bad: add: graph context has no variant 0x8");
  const auto a = add(plan, context_, *stream_), b = add(plan, action_, *second_), c = add(plan, context_, *stream_);
  expect_error(plan.edge(a, c), Code::kInvalidArgument, "on one stream");
  expect_error(plan.edge(a, a), Code::kInvalidArgument, "on one stream");
  expect_error(plan.edge(a, 3), Code::kInvalidArgument, "no step 3; the plan has 3");
  expect_error(plan.edge(-1, a), Code::kInvalidArgument, "no step -1");
  VV_EXPECT_OK(plan.edge(c, b));
  expect_error(plan.edge(b, c), Code::kInvalidArgument,
               "cycle: 1 (graph action, key 0x7) -> 2 (graph context, key 0x7) -> 1 (");
  // Through the order within the first stream: a runs before c.
  expect_error(plan.edge(b, a), Code::kInvalidArgument, "cycle");
  VV_EXPECT_OK(plan.freeze());
  VV_EXPECT_OK(plan.run());
  VV_EXPECT_OK(plan.synchronize());
}

TEST_P(PlanContract, IsFrozenBeforeItRuns) {
  Plan plan("late", subject_->backend());
  expect_error(plan.freeze(), Code::kFailedPrecondition, "no step");
  const auto a = add(plan, context_, *stream_), b = add(plan, action_, *second_);
  expect_error(plan.run(), Code::kFailedPrecondition, "freeze() the plan first");
  EXPECT_EQ(read(x_), ramp(0.25f));
  VV_EXPECT_OK(plan.freeze());
  expect_error(plan.freeze(), Code::kFailedPrecondition, "frozen");
  expect_error(plan.add(context_, kKey, *stream_).status(), Code::kFailedPrecondition, "frozen");
  expect_error(plan.edge(a, b), Code::kFailedPrecondition, "frozen");
}

TEST_P(PlanContract, PinsItsVariantsWhileFrozen) {
  {
    Plan plan("pins", subject_->backend());
    add(plan, context_, *stream_);
    EXPECT_FALSE(context_.pinned(kKey));
    VV_EXPECT_OK(plan.freeze());
    EXPECT_TRUE(context_.pinned(kKey));
    expect_error(context_.evict(kKey), Code::kFailedPrecondition, "pins");
  }
  EXPECT_FALSE(context_.pinned(kKey));
  VV_EXPECT_OK(context_.evict(kKey));

  Plan gone("gone", subject_->backend());
  add(gone, action_, *stream_);
  add(gone, whole_, *stream_);
  VV_EXPECT_OK(whole_.evict(kKey));
  expect_error(gone.freeze(), Code::kNoVariant, "graph whole");
  EXPECT_FALSE(action_.pinned(kKey));  // a failed freeze holds no pin
}

TEST_P(PlanContract, AFailedRunNamesTheStepAndMayRunAgain) {
  ASSERT_TRUE(context_.adopt(ShapeKey{9}, std::make_unique<ForeignExecutable>()).ok());
  Plan plan("foreign", subject_->backend());
  add(plan, context_, *stream_);
  ASSERT_TRUE(plan.add(context_, ShapeKey{9}, *second_).ok());
  VV_EXPECT_OK(plan.freeze());
  auto want = ramp(0.25f), got = want;
  auto third = make_stream();
  for (int run = 0; run < 8; ++run) {
    expect_error(plan.run(), Code::kInvalidArgument, "plan foreign: step 1 (graph context, key 0x9)");
    for (int i = 0; i < 40; ++i) reference(&want, ramp(-1.5f), 0.73f, 0.1f * static_cast<float>(i));
    // What was issued is done: a stream that nothing orders sees it.
    VV_EXPECT_OK(third->copy(got.data(), x_.data(), x_.bytes()));
    VV_EXPECT_OK(third->synchronize());
    EXPECT_EQ(got, want);
  }
}

}  // namespace
}  // namespace vivace::exec::testing
