// Contract of Stream, Event and Buffer.
#include <cstdint>

#include "tests/exec/subject.h"

namespace vivace::exec::testing {
namespace {

using StreamContract = ContractTest;
VV_CONTRACT_SUITE(StreamContract);

TEST_P(StreamContract, EagerRunsInOrder) {
  auto want = ramp(0.25f);
  reference(&want, ramp(-1.5f), 3, 7);
  reference(&want, ramp(-1.5f), 0.5f, -2);
  VV_EXPECT_OK(affine(*stream_, x_, y_, 3, 7));
  VV_EXPECT_OK(affine(*stream_, x_, y_, 0.5f, -2));
  EXPECT_EQ(read(x_), want);
  EXPECT_EQ(read(y_), ramp(-1.5f));
}

TEST_P(StreamContract, CaptureRunsNothingAndReplayEqualsEager) {
  VV_EXPECT_OK(affine(*stream_, x_, y_, 3, 7));
  VV_EXPECT_OK(affine(*stream_, x_, y_, 0.1f, -2));
  const auto eager = read(x_);
  write(x_, ramp(0.25f));

  EXPECT_FALSE(stream_->capturing());
  VV_EXPECT_OK(stream_->begin_capture());
  EXPECT_TRUE(stream_->capturing());
  VV_EXPECT_OK(affine(*stream_, x_, y_, 3, 7));
  VV_EXPECT_OK(affine(*stream_, x_, y_, 0.1f, -2));
  auto captured = stream_->end_capture();
  EXPECT_FALSE(stream_->capturing());
  ASSERT_TRUE(captured.ok()) << captured.status().to_string();
  EXPECT_EQ((*captured)->launches(), 2u);
  EXPECT_EQ(read(x_), ramp(0.25f));

  VV_EXPECT_OK(stream_->replay(**captured));
  EXPECT_EQ(read(x_), eager);
}

TEST_P(StreamContract, ReplayReadsMemoryAsItIsThen) {
  VV_EXPECT_OK(stream_->begin_capture());
  VV_EXPECT_OK(affine(*stream_, x_, y_, 2, 1));
  auto captured = stream_->end_capture();
  ASSERT_TRUE(captured.ok());
  for (float step : {0.5f, -8.0f}) {
    write(y_, ramp(step));
    auto want = read(x_);
    reference(&want, ramp(step), 2, 1);
    VV_EXPECT_OK(stream_->replay(**captured));
    EXPECT_EQ(read(x_), want);
  }
}

TEST_P(StreamContract, ReplayOnAnotherStream) {
  auto other = make_stream();
  VV_EXPECT_OK(stream_->begin_capture());
  VV_EXPECT_OK(affine(*stream_, x_, y_, 2, 1));
  auto captured = stream_->end_capture();
  ASSERT_TRUE(captured.ok());
  auto want = ramp(0.25f);
  reference(&want, ramp(-1.5f), 2, 1);
  VV_EXPECT_OK(other->replay(**captured));
  VV_EXPECT_OK(other->synchronize());
  EXPECT_EQ(read(x_), want);
}

TEST_P(StreamContract, CopiesAreCaptured) {
  VV_EXPECT_OK(stream_->begin_capture());
  VV_EXPECT_OK(affine(*stream_, y_, x_, 1, 1));
  VV_EXPECT_OK(stream_->copy(x_.data(), y_.data(), x_.bytes() / 2));
  VV_EXPECT_OK(affine(*stream_, x_, y_, 3, 2));  // a kernel after a copy: its early start must still wait
  auto captured = stream_->end_capture();
  ASSERT_TRUE(captured.ok());
  EXPECT_EQ((*captured)->launches(), 3u);
  EXPECT_EQ(read(x_), ramp(0.25f));
  auto want_y = ramp(-1.5f);
  reference(&want_y, ramp(0.25f), 1, 1);
  auto want_x = ramp(0.25f);
  std::copy_n(want_y.begin(), kCount / 2, want_x.begin());
  reference(&want_x, want_y, 3, 2);
  VV_EXPECT_OK(stream_->replay(**captured));
  EXPECT_EQ(read(x_), want_x);
}

TEST_P(StreamContract, RefusesCallsAtTheWrongTime) {
  auto event = make_event();
  auto end = stream_->end_capture();
  expect_error(end.status(), Code::kFailedPrecondition, "begin_capture() first");

  VV_EXPECT_OK(stream_->begin_capture());
  VV_EXPECT_OK(affine(*stream_, x_, y_, 2, 1));
  auto captured = stream_->end_capture();
  ASSERT_TRUE(captured.ok());

  VV_EXPECT_OK(stream_->begin_capture());
  expect_error(stream_->begin_capture(), Code::kFailedPrecondition, "already capturing");
  expect_error(stream_->replay(**captured), Code::kFailedPrecondition, "capturing");
  expect_error(stream_->record(*event), Code::kFailedPrecondition, "capturing");
  expect_error(stream_->wait(*event), Code::kFailedPrecondition, "capturing");
  expect_error(stream_->synchronize(), Code::kFailedPrecondition, "capturing");
  VV_EXPECT_OK(affine(*stream_, x_, y_, 2, 1));
  auto again = stream_->end_capture();  // the refusals left the capture as it was
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ((*again)->launches(), 1u);
}

TEST_P(StreamContract, RefusesForeignObjects) {
  ForeignExecutable executable;
  ForeignEvent event;
  expect_error(stream_->replay(executable), Code::kInvalidArgument, "another backend");
  expect_error(stream_->record(event), Code::kInvalidArgument, "another backend");
  expect_error(stream_->wait(event), Code::kInvalidArgument, "another backend");
}

TEST_P(StreamContract, RefusesBadLaunchesAndCopies) {
  Launch nothing;
  nothing.op = "nothing";
  expect_error(stream_->launch(nothing), Code::kInvalidArgument, "launch of nothing");
  Launch big = subject_->affine(static_cast<float*>(x_.data()), static_cast<const float*>(y_.data()), 1, 0, kCount);
  big.args_bytes = kMaxArgsBytes + 1;
  expect_error(stream_->launch(big), Code::kInvalidArgument, std::to_string(kMaxArgsBytes + 1));

  char* x = static_cast<char*>(x_.data());
  expect_error(stream_->copy(x + 4, x, 8), Code::kAliasError, "overlap");
  expect_error(stream_->copy(x, x, 8), Code::kAliasError, "overlap");
  expect_error(stream_->copy(x, nullptr, 8), Code::kInvalidArgument, "null");
  expect_error(stream_->copy(nullptr, x, 8), Code::kInvalidArgument, "null");
  VV_EXPECT_OK(stream_->copy(nullptr, nullptr, 0));
  VV_EXPECT_OK(stream_->copy(x + 8, x, 8));  // adjacent is not overlapping
}

TEST_P(StreamContract, StreamsHavePriorityLevels) {
  Backend& backend = subject_->backend();
  const int levels = backend.priority_levels();
  ASSERT_GE(levels, 1);
  EXPECT_TRUE(backend.make_stream(levels - 1).ok());
  expect_error(backend.make_stream(levels).status(), Code::kInvalidArgument, "level");
  expect_error(backend.make_stream(-1).status(), Code::kInvalidArgument, "level");
}

TEST_P(StreamContract, EventsOrderStreams) {
  auto second = make_stream();
  auto event = make_event();
  VV_EXPECT_OK(second->wait(*event));  // never recorded: no wait
  VV_EXPECT_OK(event->synchronize());

  auto want_x = ramp(0.25f), want_y = ramp(-1.5f);
  for (int i = 0; i < 50; ++i) reference(&want_x, ramp(-1.5f), 0.99f, 1);
  reference(&want_y, want_x, 2, 3);
  for (int i = 0; i < 50; ++i) VV_EXPECT_OK(affine(*stream_, x_, y_, 0.99f, 1));
  VV_EXPECT_OK(stream_->record(*event));
  VV_EXPECT_OK(second->wait(*event));
  VV_EXPECT_OK(affine(*second, y_, x_, 2, 3));
  VV_EXPECT_OK(second->record(*event));  // an event may be recorded again
  VV_EXPECT_OK(event->synchronize());
  EXPECT_EQ(read(y_), want_y);
  EXPECT_EQ(read(x_), want_x);
}

TEST_P(StreamContract, BuffersAreZeroedAlignedAndGivenBackOnce) {
  auto made = subject_->backend().make_buffer("region", 1000);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  Buffer b = std::move(made).value();
  EXPECT_EQ(b.name(), "region");
  EXPECT_EQ(b.bytes(), 1000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 256, 0u);
  EXPECT_EQ(read(b), std::vector<float>(250, 0.0f));
  expect_error(subject_->backend().make_buffer("none", 0).status(), Code::kInvalidArgument, "none");
  expect_error(subject_->backend().make_buffer("vast", size_t{1} << 60).status(), Code::kOutOfMemory, "vast");

  int freed = 0;
  char data[16];
  const auto count = [](void*, size_t bytes, void* context) {
    EXPECT_EQ(bytes, 16u);
    ++*static_cast<int*>(context);
  };
  {
    Buffer owner("owner", data, sizeof data, Place::host, count, &freed);
    Buffer moved = std::move(owner);
    EXPECT_EQ(moved.data(), data);
    EXPECT_EQ(freed, 0);
    moved = Buffer("next", data, sizeof data, Place::host, count, &freed);
    EXPECT_EQ(freed, 1);
    EXPECT_EQ(moved.name(), "next");
  }
  EXPECT_EQ(freed, 2);
}

}  // namespace
}  // namespace vivace::exec::testing
