// Contract of StreamSwitch: what is put on either stream runs in the order of the calls, whichever is in use.
#include "vivace/exec/stream_switch.h"

#include <optional>
#include <random>

#include "tests/exec/subject.h"
#include "vivace/exec/graph.h"

namespace vivace::exec::testing {
namespace {

/// Planted: what a switch must not do.
enum class Fault : uint8_t { none, no_order, within_a_call };

class StreamSwitchContract : public ContractTest {
 protected:
  void SetUp() override {
    ContractTest::SetUp();
    if (IsSkipped()) return;
    second_ = make_stream();
    switch_.emplace(*stream_, *second_, make_event());
  }
  Stream& stream(int which) { return which == 0 ? *stream_ : *second_; }
  /// `calls` of the shape of a policy's: an input is written, two graphs of the stream at hand carry a sum on with it;
  /// some calls are not waited for, as after an error. Whether the sum is that of one stream.
  bool same_as_one_stream(uint32_t seed, Fault fault = Fault::none) {
    constexpr size_t kCalls = 24;
    std::mt19937 dice(seed);
    const auto odds = [&](uint32_t of) { return dice() % of == 0; };
    std::vector<float> want(kCount);
    write(x_, want);
    Graph graph("call", 4);
    const auto key = [](int which, int part) { return ShapeKey(static_cast<uint64_t>(2 * which + part)); };
    for (const int which : {0, 1})
      for (const int part : {0, 1})
        VV_EXPECT_OK(graph.capture(key(which, part), stream(which),
                                   [&](Stream& s) { return affine(s, x_, y_, part == 0 ? 3 : 0.25f, 1); }));
    int now = switch_->second() ? 1 : 0;
    const auto change = [&] {
      now = 1 - now;
      if (fault != Fault::no_order) VV_EXPECT_OK(switch_->use(now == 1));
    };
    std::vector<std::vector<float>> given(kCalls);  // read when the copy runs
    for (auto& input : given) {
      if (odds(2)) change();
      const int mine = now;  // graphs and their plan stay with the stream that they were captured on
      input.assign(kCount, static_cast<float>(dice() % 64));
      VV_EXPECT_OK(stream(mine).copy(y_.data(), input.data(), y_.bytes()));
      VV_EXPECT_OK(graph.replay(key(mine, 0), stream(mine)));
      if (fault == Fault::within_a_call && odds(2)) change();
      VV_EXPECT_OK(graph.replay(key(mine, 1), stream(mine)));
      reference(&want, input, 3, 1);
      reference(&want, input, 0.25f, 1);
      if (odds(3)) VV_EXPECT_OK(stream(now).synchronize());
    }
    std::vector<float> got(kCount);
    VV_EXPECT_OK(stream(now).copy(got.data(), x_.data(), x_.bytes()));
    for (const int which : {now, 1 - now}) VV_EXPECT_OK(stream(which).synchronize());
    return got == want;
  }
  std::unique_ptr<Stream> second_;
  std::optional<StreamSwitch> switch_;
};
VV_CONTRACT_SUITE(StreamSwitchContract);

TEST_P(StreamSwitchContract, TheFirstIsInUseUntilItIsTold) {
  EXPECT_EQ(&switch_->stream(), stream_.get());
  EXPECT_FALSE(switch_->second());
  VV_EXPECT_OK(switch_->use(false));
  EXPECT_EQ(&switch_->stream(), stream_.get());
  VV_EXPECT_OK(switch_->use(true));
  EXPECT_EQ(&switch_->stream(), second_.get());
  EXPECT_TRUE(switch_->second());
  VV_EXPECT_OK(switch_->use(false));
  EXPECT_EQ(&switch_->stream(), stream_.get());
}

TEST_P(StreamSwitchContract, WithinACaptureItStaysAsItWas) {
  VV_EXPECT_OK(stream_->begin_capture());
  expect_error(switch_->use(true), Code::kFailedPrecondition, "capturing");
  EXPECT_EQ(&switch_->stream(), stream_.get());
  EXPECT_TRUE(stream_->end_capture().ok());
  VV_EXPECT_OK(switch_->use(true));
  VV_EXPECT_OK(stream_->begin_capture());  // the one to go to
  expect_error(switch_->use(false), Code::kFailedPrecondition, "capturing");
  EXPECT_EQ(&switch_->stream(), second_.get());
  EXPECT_TRUE(stream_->end_capture().ok());
}

TEST_P(StreamSwitchContract, DrawnCallsHaveTheBitsOfOneStream) {
  for (uint32_t seed = 0; seed < 60; ++seed) EXPECT_TRUE(same_as_one_stream(seed)) << "seed " << seed;
}

/// The deferred backend must see both faults: else the test above says nothing of order.
class StreamSwitchFaults : public StreamSwitchContract {};
VV_SUBJECT_SUITE(StreamSwitchFaults, SubjectRow{"deferred", make_deferred_subject});

TEST_P(StreamSwitchFaults, ASwitchWithoutOrderIsSeen) {
  int wrong = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) wrong += !same_as_one_stream(seed, Fault::no_order);
  EXPECT_GT(wrong, 30);
}

TEST_P(StreamSwitchFaults, ASwitchWithinACallIsSeen) {
  int wrong = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) wrong += !same_as_one_stream(seed, Fault::within_a_call);
  EXPECT_GT(wrong, 30);
}

}  // namespace
}  // namespace vivace::exec::testing
