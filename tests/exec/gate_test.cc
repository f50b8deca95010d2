// Contract of Gate: what passes, what waits, and that captures wait anew at each replay.
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "tests/exec/subject.h"

namespace vivace::exec::testing {
namespace {

using std::chrono::milliseconds;

class GateContract : public ContractTest {
 protected:
  std::unique_ptr<Gate> make_gate(int stream_words, int host_words) {
    auto g = subject_->backend().make_gate(stream_words, host_words);
    EXPECT_TRUE(g.ok()) << g.status().to_string();
    return std::move(g).value();
  }
  void expect_shut(Gate& gate, int word, bool want) {
    auto got = gate.shut(word);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(*got, want) << "word " << word;
  }
  /// x = 3 x + y + 7 behind a gate, captured.
  std::unique_ptr<Executable> capture_behind(Gate& gate, uint32_t mask) {
    VV_EXPECT_OK(stream_->begin_capture());
    VV_EXPECT_OK(stream_->pass(gate, mask));
    VV_EXPECT_OK(affine(*stream_, x_, y_, 3, 7));
    auto captured = stream_->end_capture();
    EXPECT_TRUE(captured.ok()) << captured.status().to_string();
    EXPECT_EQ((*captured)->launches(), 2u);
    return std::move(captured).value();
  }
  std::vector<float> once() {
    auto want = ramp(0.25f);
    reference(&want, ramp(-1.5f), 3, 7);
    return want;
  }
};
VV_CONTRACT_SUITE(GateContract);

TEST_P(GateContract, AnOpenGateHoldsNothing) {
  auto gate = make_gate(2, 1);
  auto captured = capture_behind(*gate, 0b111);
  EXPECT_EQ(read(x_), ramp(0.25f));
  VV_EXPECT_OK(stream_->pass(*gate, 0b101));
  VV_EXPECT_OK(stream_->replay(*captured));
  EXPECT_EQ(read(x_), once());
}

TEST_P(GateContract, WordsAreSetInTheStreamsOrder) {
  auto gate = make_gate(2, 0);
  VV_EXPECT_OK(stream_->set(*gate, 1, true));
  VV_EXPECT_OK(stream_->synchronize());
  expect_shut(*gate, 0, false);
  expect_shut(*gate, 1, true);
  VV_EXPECT_OK(stream_->set(*gate, 1, false));
  VV_EXPECT_OK(stream_->pass(*gate, 0b10));
  VV_EXPECT_OK(stream_->synchronize());
  expect_shut(*gate, 1, false);
}

TEST_P(GateContract, SetsAreCaptured) {
  auto gate = make_gate(1, 0);
  VV_EXPECT_OK(stream_->begin_capture());
  VV_EXPECT_OK(stream_->set(*gate, 0, true));
  auto shuts = stream_->end_capture();
  ASSERT_TRUE(shuts.ok()) << shuts.status().to_string();
  expect_shut(*gate, 0, false);
  VV_EXPECT_OK(stream_->replay(**shuts));
  VV_EXPECT_OK(stream_->synchronize());
  expect_shut(*gate, 0, true);
  VV_EXPECT_OK(gate->open_all());
}

TEST_P(GateContract, AShutGateHoldsAReplayUntilItOpensAndAnewEachTime) {
  auto gate = make_gate(1, 1);
  auto captured = capture_behind(*gate, 0b10);
  auto want = ramp(0.25f);
  for (int round = 0; round < 3; ++round) {
    VV_EXPECT_OK(gate->set(1, true));
    std::atomic<bool> opened{false};
    std::thread opener([&] {
      std::this_thread::sleep_for(milliseconds(20));
      opened = true;
      VV_EXPECT_OK(gate->set(1, false));
    });
    if (GetParam().name == std::string("deferred"))
      opener.join();  // it has one thread: whoever synchronises runs the streams
    VV_EXPECT_OK(stream_->replay(*captured));
    VV_EXPECT_OK(stream_->synchronize());
    EXPECT_TRUE(opened);
    if (opener.joinable()) opener.join();
    reference(&want, ramp(-1.5f), 3, 7);
    EXPECT_EQ(read(x_), want);
  }
}

TEST_P(GateContract, AStreamOpensWhatAnotherWaitsFor) {
  auto gate = make_gate(2, 0);
  auto urgent = make_stream();
  auto captured = capture_behind(*gate, 0b1);
  VV_EXPECT_OK(urgent->set(*gate, 0, true));
  std::thread runner;
  const bool host_runs = GetParam().name == std::string("cpu");  // there a pass holds up the thread that replays
  const auto replay = [&] { VV_EXPECT_OK(stream_->replay(*captured)); };
  if (host_runs) runner = std::thread(replay);
  else replay();
  VV_EXPECT_OK(affine(*urgent, y_, y_, 1, 0));
  VV_EXPECT_OK(urgent->set(*gate, 0, false));
  VV_EXPECT_OK(urgent->synchronize());
  if (runner.joinable()) runner.join();
  VV_EXPECT_OK(stream_->synchronize());
  auto y = ramp(-1.5f), want = ramp(0.25f);
  reference(&y, ramp(-1.5f), 1, 0);
  reference(&want, y, 3, 7);
  EXPECT_EQ(read(x_), want);  // what stood behind the gate came after what the opener queued before it opened
}

TEST_P(GateContract, OpenAllOpensWordsOfStreamsToo) {
  auto gate = make_gate(3, 2);
  for (int i : {0, 2}) VV_EXPECT_OK(stream_->set(*gate, i, true));
  VV_EXPECT_OK(gate->set(4, true));
  VV_EXPECT_OK(stream_->synchronize());
  VV_EXPECT_OK(gate->open_all());
  for (int i = 0; i < 5; ++i) expect_shut(*gate, i, false);
  VV_EXPECT_OK(stream_->pass(*gate, 0b11111));
  VV_EXPECT_OK(stream_->synchronize());
}

TEST_P(GateContract, RefusesWhatIsNoWord) {
  auto gate = make_gate(2, 1);
  expect_error(stream_->pass(*gate, 0), Code::kInvalidArgument, "mask 0x0: the gate has words 0 to 2");
  expect_error(stream_->pass(*gate, 0b1000), Code::kInvalidArgument, "mask 0x8: the gate has words 0 to 2");
  expect_error(stream_->set(*gate, 2, true), Code::kInvalidArgument, "words that a stream writes are 0 to 1");
  expect_error(stream_->set(*gate, -1, true), Code::kInvalidArgument, "words that a stream writes are 0 to 1");
  expect_error(gate->set(1, true), Code::kInvalidArgument, "words that the host writes are 2 to 2");
  expect_error(gate->set(3, false), Code::kInvalidArgument, "words that the host writes are 2 to 2");
  expect_error(gate->shut(3).status(), Code::kInvalidArgument, "word 3 of 3");
  for (auto [s, h] : {std::pair{0, 0}, {-1, 2}, {33, 0}, {32, 1}})
    expect_error(subject_->backend().make_gate(s, h).status(), Code::kInvalidArgument, "wanted 1 to 32 words in all");
  class Foreign final : public Gate {
   public:
    Foreign() : Gate(1, 1) {}
    Status set(int, bool) override { return {}; }
    Status open_all() override { return {}; }
    Result<bool> shut(int) override { return false; }
  } foreign;
  expect_error(stream_->pass(foreign, 1), Code::kInvalidArgument, "another backend");
  expect_error(stream_->set(foreign, 0, true), Code::kInvalidArgument, "another backend");
}

TEST_P(GateContract, AFullLineOfWords) {
  auto gate = make_gate(31, 1);
  for (int i = 0; i < 31; ++i) VV_EXPECT_OK(stream_->set(*gate, i, i % 2 == 1));
  VV_EXPECT_OK(stream_->pass(*gate, 0x55555555));
  VV_EXPECT_OK(stream_->synchronize());
  for (int i = 0; i < 31; ++i) expect_shut(*gate, i, i % 2 == 1);
  VV_EXPECT_OK(gate->open_all());
}

/// Streams and the host that shut and open their words at random beside a lower stream that passes all of them: a lost
/// opening would hold the lower stream for ever.
TEST(CpuGate, RandomClosersLoseNoOpening) {
  auto subject = std::move(make_cpu_subject()).value();
  auto gate = std::move(subject->backend().make_gate(3, 1)).value();
  std::atomic<bool> stop{false};
  std::vector<std::thread> closers;
  for (int w = 0; w < 4; ++w) {
    closers.emplace_back([&, w] {
      auto s = std::move(subject->backend().make_stream()).value();
      const auto write = [&](bool shut) { VV_EXPECT_OK(w == 3 ? gate->set(3, shut) : s->set(*gate, w, shut)); };
      std::mt19937 dice(static_cast<unsigned>(w));
      while (!stop) {
        write(true);
        for (unsigned spin = dice() % 2000; spin-- != 0;) static_cast<void>(stop.load());
        write(false);
        if (dice() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(dice() % 200));
      }
    });
  }
  auto lower = std::move(subject->backend().make_stream()).value();
  VV_EXPECT_OK(lower->begin_capture());
  for (int i = 0; i < 4; ++i) VV_EXPECT_OK(lower->pass(*gate, 0b1111));
  auto captured = std::move(lower->end_capture()).value();
  const auto end = std::chrono::steady_clock::now() + milliseconds(300);
  int replays = 0;
  for (; std::chrono::steady_clock::now() < end; ++replays) VV_EXPECT_OK(lower->replay(*captured));
  stop = true;
  for (auto& t : closers) t.join();
  EXPECT_GT(replays, 10);
}

}  // namespace
}  // namespace vivace::exec::testing
