// Contract of Graph: exact keys, a bound, pins, explicit eviction, and captures that fail cleanly.
#include "vivace/exec/graph.h"

#include "tests/exec/subject.h"

namespace vivace::exec::testing {
namespace {

constexpr ShapeKey kA{1}, kB{2}, kC{0xffffffffffffffffull};

class GraphContract : public ContractTest {
 protected:
  /// A variant that shows which one ran: x = x * 0 + y * 1 + mark.
  Status capture(ShapeKey key, float mark) {
    return graph_.capture(key, *stream_, [&](Stream& s) { return affine(s, x_, y_, 0, mark); });
  }
  /// Replays `key`; the mark it left.
  float replayed(ShapeKey key) {
    write(y_, std::vector<float>(kCount, 0));
    VV_EXPECT_OK(graph_.replay(key, *stream_));
    const auto x = read(x_);
    EXPECT_EQ(x, std::vector<float>(kCount, x[0]));
    return x[0];
  }
  Graph graph_{"step", 3};
};
VV_CONTRACT_SUITE(GraphContract);

TEST_P(GraphContract, ReplaysTheVariantOfTheExactKey) {
  VV_EXPECT_OK(capture(kC, 30));
  VV_EXPECT_OK(capture(kA, 10));
  VV_EXPECT_OK(capture(kB, 20));
  EXPECT_EQ(graph_.keys(), (std::vector<ShapeKey>{kA, kB, kC}));
  EXPECT_EQ(replayed(kB), 20);
  EXPECT_EQ(replayed(kA), 10);
  EXPECT_EQ(replayed(kC), 30);
}

TEST_P(GraphContract, AMissIsNoVariantNotACapture) {
  expect_error(graph_.replay(kA, *stream_), Code::kNoVariant, "captured keys: none");
  VV_EXPECT_OK(capture(kA, 10));
  VV_EXPECT_OK(capture(ShapeKey{0x20}, 20));
  const Status s = graph_.replay(kB, *stream_);
  expect_error(s, Code::kNoVariant, "graph step has no variant 0x2;");
  expect_error(s, Code::kNoVariant, "captured keys: 0x1, 0x20");
  EXPECT_EQ(graph_.size(), 2u);
  expect_error(graph_.pin(kB), Code::kNoVariant, "0x2");
  expect_error(graph_.unpin(kB), Code::kNoVariant, "0x2");
  expect_error(graph_.evict(kB), Code::kNoVariant, "0x2");
  EXPECT_EQ(graph_.executable(kB), nullptr);
}

TEST_P(GraphContract, TheBoundFailsAtCapture) {
  for (uint64_t k : {1, 2, 3}) VV_EXPECT_OK(capture(ShapeKey{k}, static_cast<float>(k)));
  bool ran = false;
  const Status s = graph_.capture(ShapeKey{4}, *stream_, [&](Stream&) {
    ran = true;
    return Status();
  });
  expect_error(s, Code::kLimitExceeded, "number 4 of at most 3");
  EXPECT_FALSE(ran);
  EXPECT_FALSE(stream_->capturing());
  EXPECT_FALSE(graph_.has(ShapeKey{4}));
  VV_EXPECT_OK(capture(kA, 15));  // replacing needs no room
  EXPECT_EQ(replayed(kA), 15);
  EXPECT_EQ(replayed(kB), 2);

  Graph empty("empty", 0);
  expect_error(empty.capture(kA, *stream_, [](Stream&) { return Status(); }), Code::kLimitExceeded, "at most 0");
}

TEST_P(GraphContract, EvictsTheLeastRecentlyUsedOnlyWhenAsked) {
  expect_error(graph_.evict_lru().status(), Code::kFailedPrecondition, "nothing to evict");
  VV_EXPECT_OK(capture(kA, 10));
  VV_EXPECT_OK(capture(kB, 20));
  VV_EXPECT_OK(capture(kC, 30));
  EXPECT_EQ(replayed(kA), 10);  // oldest now: B, C, A
  VV_EXPECT_OK(graph_.pin(kB));
  auto first = graph_.evict_lru();
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(*first, kC);
  auto second = graph_.evict_lru();
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(*second, kA);
  expect_error(graph_.evict_lru().status(), Code::kFailedPrecondition, "1 variants, all pinned");
  EXPECT_EQ(graph_.keys(), std::vector<ShapeKey>{kB});
  EXPECT_EQ(replayed(kB), 20);
}

TEST_P(GraphContract, PinnedVariantsStay) {
  VV_EXPECT_OK(capture(kA, 10));
  VV_EXPECT_OK(graph_.pin(kA));
  VV_EXPECT_OK(graph_.pin(kA));
  EXPECT_TRUE(graph_.pinned(kA));
  Executable* const before = graph_.executable(kA);
  expect_error(capture(kA, 11), Code::kFailedPrecondition, "has 2 pins");
  expect_error(graph_.adopt(kA, std::make_unique<ForeignExecutable>()), Code::kFailedPrecondition, "pins");
  expect_error(graph_.evict(kA), Code::kFailedPrecondition, "pins");
  VV_EXPECT_OK(graph_.unpin(kA));
  EXPECT_TRUE(graph_.pinned(kA));  // pins count
  EXPECT_EQ(graph_.executable(kA), before);
  EXPECT_EQ(replayed(kA), 10);
  VV_EXPECT_OK(graph_.unpin(kA));
  expect_error(graph_.unpin(kA), Code::kFailedPrecondition, "not pinned");
  VV_EXPECT_OK(capture(kA, 11));
  EXPECT_EQ(replayed(kA), 11);
  VV_EXPECT_OK(graph_.evict(kA));
  EXPECT_FALSE(graph_.has(kA));
}

TEST_P(GraphContract, AFailedCaptureLeavesTheGraphAsItWas) {
  VV_EXPECT_OK(capture(kA, 10));
  const auto fails = [&](Stream& s) {
    VV_EXPECT_OK(affine(s, x_, y_, 0, 99));
    return Status(Code::kInvalidShape, "attention: port q: wanted 64, got 63");
  };
  expect_error(graph_.capture(kA, *stream_, fails), Code::kInvalidShape,
               "graph step: capture of 0x1: attention: port q");
  EXPECT_FALSE(stream_->capturing());
  EXPECT_EQ(replayed(kA), 10);
  expect_error(graph_.capture(kB, *stream_, fails), Code::kInvalidShape, "0x2");
  EXPECT_FALSE(graph_.has(kB));

  expect_error(graph_.capture(kB, *stream_, [](Stream& s) { return s.end_capture().status(); }),
               Code::kFailedPrecondition, "ended the capture");
  expect_error(graph_.capture(kB, *stream_, {}), Code::kInvalidArgument, "without a function");
  EXPECT_FALSE(graph_.has(kB));
}

TEST_P(GraphContract, NestedAndForeignCapturesAreRefused) {
  Graph inner("inner", 2);
  Status nested;
  VV_EXPECT_OK(graph_.capture(kA, *stream_, [&](Stream& s) {
    nested = inner.capture(kA, s, [](Stream&) { return Status(); });
    return affine(s, x_, y_, 0, 10);
  }));
  expect_error(nested, Code::kFailedPrecondition, "already capturing");
  EXPECT_EQ(replayed(kA), 10);
  EXPECT_EQ(inner.size(), 0u);

  Status inside;
  VV_EXPECT_OK(graph_.capture(kB, *stream_, [&](Stream& s) {
    inside = graph_.replay(kA, s);
    return Status();
  }));
  expect_error(inside, Code::kFailedPrecondition, "capturing");
}

TEST_P(GraphContract, AdoptsWhatOthersMade) {
  VV_EXPECT_OK(stream_->begin_capture());
  VV_EXPECT_OK(affine(*stream_, x_, y_, 0, 42));
  auto made = stream_->end_capture();
  ASSERT_TRUE(made.ok());
  VV_EXPECT_OK(graph_.adopt(kB, std::move(made).value()));
  EXPECT_EQ(replayed(kB), 42);
  expect_error(graph_.adopt(kA, nullptr), Code::kInvalidArgument, "null executable");
  VV_EXPECT_OK(graph_.adopt(kA, std::make_unique<ForeignExecutable>()));
  expect_error(graph_.replay(kA, *stream_), Code::kInvalidArgument, "another backend");
  EXPECT_EQ(replayed(kB), 42);
}

}  // namespace
}  // namespace vivace::exec::testing
