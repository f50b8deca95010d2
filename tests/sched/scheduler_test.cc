// The scheduler with threads, on the host's machine.
#include "vivace/sched/scheduler.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "vivace/cpu/pool.h"
#include "vivace/exec/cpu_gate.h"
#include "vivace/exec/cpu_stream.h"

namespace vivace::sched {
namespace {

using namespace std::chrono_literals;

Demand robot(const char* name, double period_us, double deadline_us, double worst_us) {
  Demand d = {name, {}, {worst_us, worst_us}};
  d.qos.cls = Class::guaranteed;
  d.qos.period_us = period_us;
  d.qos.deadline_us = deadline_us;
  return d;
}
Demand lower(const char* name, Class cls, double min_share = 0) {
  Demand d = {name, {}, {4000, 200}};
  d.qos.cls = cls;
  d.qos.min_share = min_share;
  return d;
}

class SchedulerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto s = Scheduler::open("cpu", {.handover_us = 2000});  // threads of a busy machine wake late
    ASSERT_TRUE(s.ok()) << s.status().to_string();
    scheduler_ = *s;
  }
  std::unique_ptr<Tenant> admit(const Demand& d) {
    auto t = scheduler_->admit(d);
    EXPECT_TRUE(t.ok()) << t.status().to_string();
    return t.ok() ? std::move(*t) : nullptr;
  }
  static void expect(const Status& s, Code code, const std::string& part) {
    EXPECT_STREQ(vivace::name(s.code()), vivace::name(code)) << s.to_string();
    EXPECT_NE(s.message().find(part), std::string::npos) << s.to_string();
  }
  std::shared_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, OneADeviceAndProcess) {
  expect(Scheduler::open("cpu").status(), Code::kFailedPrecondition, "this process has one for cpu");
  scheduler_->close();
  EXPECT_TRUE(Scheduler::open("cpu").ok());
  expect(scheduler_->admit(lower("late", Class::best_effort)).status(), Code::kClosed, "closed");
}

TEST_F(SchedulerTest, AModelJoinsBeforeItsTimesAreKnown) {
  auto joined = scheduler_->join("llm", lower("llm", Class::burstable, 0.3).qos);
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  Tenant& llm = **joined;
  EXPECT_NE(llm.gates().gate, nullptr);
  llm.want(true), llm.charge(100);  // of nobody yet
  EXPECT_TRUE(scheduler_->rows().empty());
  expect(scheduler_->join("llm", {}).status(), Code::kInvalidArgument, "there is one of this name");
  expect(llm.admit({}), Code::kFailedPrecondition, "profile the model first");
  EXPECT_TRUE(llm.admit({4000, 200}, 77).ok());
  expect(llm.admit({4000, 200}), Code::kFailedPrecondition, "admitted already");
  ASSERT_EQ(scheduler_->rows().size(), 1u);
  EXPECT_EQ(scheduler_->rows()[0].demand.qos.bytes, 77);
  EXPECT_NEAR(scheduler_->rows()[0].promised, 1, 1e-9);
  Qos urgent = robot("arm", 1e6, 900e3, 1).qos;
  auto arm = scheduler_->join("arm", urgent);
  ASSERT_TRUE(arm.ok());
  EXPECT_FALSE((*arm)->urgent()->shuts);
  expect((*arm)->enter().status(), Code::kFailedPrecondition, "not admitted yet");
  urgent.queue = 0;
  expect(scheduler_->join("bad", urgent).status(), Code::kInvalidArgument, "queue is 0");
  { const auto gone = std::move(*joined); }
  EXPECT_TRUE(scheduler_->join("llm", {}).ok());
}

/// What a step waited while a call ran is not charged to it.
TEST_F(SchedulerTest, WaitsAtGatesAreNotCharged) {
  auto arm = admit(robot("arm", 1e6, 900e3, 100e3));
  auto llm = admit(lower("llm", Class::burstable, 0.2));
  llm->want(true);
  {
    auto turn = arm->enter();
    ASSERT_TRUE(turn.ok());
    std::this_thread::sleep_for(30ms);
  }
  llm->charge(31e3);
  const TenantStats s = llm->stats();
  EXPECT_LT(s.device_us, 2e3);
  EXPECT_GT(s.wait.max_us(), 29e3);
  EXPECT_NEAR(s.response.max_us(), 31e3, 1);
  const auto spans = scheduler_->timeline();
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[1].kind, Timeline::Kind::call);
  EXPECT_STREQ(spans[1].tenant.data(), "arm");
  EXPECT_GE(spans[1].us, 30e3);
  EXPECT_EQ(scheduler_->timeline(spans[1].at_us + spans[1].us).size(), 3u);  // all but the wait, which was over
  EXPECT_TRUE(scheduler_->timeline(1e300).empty());
}

TEST(Timeline, KeepsTheLastOnesInOrder) {
  Timeline t;
  for (size_t i = 0; i < Timeline::kMost + 100; ++i) t.add("t", Timeline::Kind::step, static_cast<double>(i), 0.5);
  const auto all = t.spans(), some = t.spans(static_cast<double>(Timeline::kMost));
  ASSERT_EQ(all.size(), Timeline::kMost);
  EXPECT_EQ(all.front().at_us, 100);
  EXPECT_EQ(all.back().at_us, static_cast<double>(Timeline::kMost + 99));
  ASSERT_EQ(some.size(), 100u);
  EXPECT_EQ(some.front().at_us, static_cast<double>(Timeline::kMost));
}

/// A model that moves nothing, or cannot.
struct Mover final : engine::Model {
  const std::string& family() const override { return family_; }
  engine::Report report() const override { return {}; }
  std::vector<engine::MemoryLine> memory() const override { return {{"weights", 10}}; }
  Result<engine::Moved> sleep() override { return move(); }
  Result<engine::Moved> wake() override { return move(); }
  Result<engine::Moved> move() {
    if (fails) return Status(Code::kOutOfMemory, "planted");
    return engine::Moved{10, 0.5};
  }
  bool fails = false;
  std::string family_ = "mover";
};

TEST_F(SchedulerTest, ATenantSleepsAndWakesWithItsModel) {
  Mover model;
  auto llm = scheduler_->join("llm", lower("llm", Class::burstable).qos);
  ASSERT_TRUE(llm.ok());
  expect((*llm)->sleep(model).status(), Code::kFailedPrecondition, "it is not admitted yet");
  ASSERT_TRUE((*llm)->admit({4000, 200}, 10).ok());
  EXPECT_EQ(scheduler_->coldest(true), "llm");
  EXPECT_EQ(scheduler_->coldest(false), "");
  model.fails = true;
  expect((*llm)->sleep(model).status(), Code::kOutOfMemory, "planted");
  EXPECT_FALSE((*llm)->stats().asleep) << "its memory never left";
  model.fails = false;
  const auto slept = (*llm)->sleep(model);
  ASSERT_TRUE(slept.ok()) << slept.status().to_string();
  EXPECT_EQ(slept->bytes, 10);
  EXPECT_TRUE((*llm)->stats().asleep);
  EXPECT_EQ(scheduler_->coldest(true), "");
  model.fails = true;
  expect((*llm)->wake(model).status(), Code::kOutOfMemory, "planted");
  EXPECT_TRUE((*llm)->stats().asleep);
  model.fails = false;
  EXPECT_TRUE((*llm)->wake(model).ok());
  EXPECT_FALSE((*llm)->stats().asleep);
  // More than its Qos names.
  Qos small = lower("small", Class::best_effort).qos;
  small.bytes = 9;
  auto tight = scheduler_->join("tight", small);
  ASSERT_TRUE(tight.ok());
  expect((*tight)->admit({4000, 200}, 10), Code::kFailedPrecondition,
         "tenant tight: its model has 10 bytes, 1 more than the 9 it was given");
  EXPECT_EQ((*tight)->bytes_short(), 0) << "nobody else's memory would help";
  scheduler_->close();
  expect((*llm)->sleep(model).status(), Code::kClosed, "closed");
  expect((*llm)->wake(model).status(), Code::kClosed, "closed");
}

TEST(RuntimeTest, TheHostKeepsToItsLimitAndCannotSleep) {
  auto r = engine::Runtime::open("cpu", 1, 0, false, 1000);
  ASSERT_TRUE(r.ok());
  {
    auto one = (*r)->reserve("weights", 900);
    ASSERT_TRUE(one.ok());
    const Status s = (*r)->reserve("arena", 101).status();
    EXPECT_EQ(s.code(), Code::kLimitExceeded);
    EXPECT_EQ(
        s.message(),
        "arena: 101 bytes are wanted, 100 of a limit of 1000 are left; raise bytes, or lower context or max_batch");
  }
  EXPECT_TRUE((*r)->reserve("arena", 1000).ok());
  EXPECT_EQ((*r)->sleep().status().code(), Code::kUnsupported);
  EXPECT_EQ((*r)->wake().status().code(), Code::kUnsupported);
}

TEST(Histogram, QuantilesAreWithinABucket) {
  Histogram h;
  EXPECT_EQ(h.quantile_us(0.5), 0);
  for (int i = 1; i <= 1000; ++i) h.add(i);
  EXPECT_NEAR(h.quantile_us(0.5), 500, 50);
  EXPECT_NEAR(h.quantile_us(0.99), 990, 20);
  EXPECT_EQ(h.quantile_us(1), 1000);
  EXPECT_NEAR(static_cast<double>(h.below(100)), 100, 10);
  h.add(1e12);
  EXPECT_EQ(h.max_us(), 1e12);
}

TEST(Timeline, TheOldestGoFirst) {
  Timeline t;
  for (size_t i = 0; i < Timeline::kMost + 3; ++i)
    t.add("a tenant whose name is longer than the place for it", Timeline::Kind::step, static_cast<double>(i), 1);
  const auto spans = t.spans();
  ASSERT_EQ(spans.size(), Timeline::kMost);
  EXPECT_EQ(spans.front().at_us, 3);
  EXPECT_EQ(spans.back().at_us, Timeline::kMost + 2);
  EXPECT_EQ(std::string(spans[0].tenant.data()).size(), 31u);
}

TEST_F(SchedulerTest, CallsRunOneAtATimeInTheOrderOfTheirDeadlines) {
  auto slow = admit(robot("slow", 1e6, 900e3, 20e3)), fast = admit(robot("fast", 1e6, 300e3, 20e3)),
       first = admit(robot("first", 1e6, 800e3, 20e3));
  std::mutex mutex;
  std::vector<std::string> order;
  std::atomic<int> inside{0};
  auto run = [&](Tenant& t) {
    auto turn = t.enter();
    ASSERT_TRUE(turn.ok()) << turn.status().to_string();
    EXPECT_EQ(inside.fetch_add(1), 0);
    std::this_thread::sleep_for(5ms);
    const std::lock_guard<std::mutex> lock(mutex);
    order.push_back(t.name());
    inside.fetch_sub(1);
  };
  auto holder = first->enter();
  ASSERT_TRUE(holder.ok());
  std::thread a([&] { run(*slow); });
  std::this_thread::sleep_for(10ms);
  std::thread b([&] { run(*fast); });
  std::this_thread::sleep_for(10ms);
  { const Turn ends = std::move(*holder); }
  a.join(), b.join();
  EXPECT_EQ(order, (std::vector<std::string>{"fast", "slow"}));
  EXPECT_EQ(fast->stats().calls, 1);
  EXPECT_EQ(fast->stats().missed, 0);
}

TEST_F(SchedulerTest, ARefusalSaysWhenToComeAgain) {
  auto arm = admit(robot("arm", 1e6, 900e3, 100e3));
  auto turn = arm->enter();
  ASSERT_TRUE(turn.ok());
  double retry = 0;
  expect(arm->enter(120e3, &retry).status(), Code::kLimitExceeded, "its deadline is in 120000 us");
  EXPECT_GT(retry, 50e3);
  expect(scheduler_->admit(robot("arm", 1e6, 900e3, 100e3)).status(), Code::kInvalidArgument,
         "there is one of this name");
  expect(scheduler_->admit(robot("second", 120e3, 0, 100e3)).status(), Code::kFailedPrecondition, "second is refused");
}

TEST_F(SchedulerTest, AGateThatNobodyOpensIsOpenedByTheWatchdog) {
  auto arm = admit(robot("arm", 1e6, 900e3, 1000));
  auto turn = std::make_unique<Result<Turn>>(arm->enter());
  ASSERT_TRUE(turn->ok());
  auto llm = admit(lower("llm", Class::burstable, 0.2));
  auto* const gate = static_cast<exec::CpuGate*>(llm->gates().gate);
  gate->write(arm->urgent()->word, true);  // as the policy's stream does; then its thread is killed
  const auto start = std::chrono::steady_clock::now();
  gate->pass(llm->gates().mask);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 1s);
  const auto end = std::chrono::steady_clock::now() + 1s;
  while (scheduler_->healthy() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(scheduler_->healthy());
  EXPECT_EQ(arm->stats().overruns, 1);
  EXPECT_EQ(arm->stats().lost, 1);
  turn.reset();  // late: nothing happens, but that nobody is lost any more
  EXPECT_TRUE(scheduler_->healthy());
  EXPECT_TRUE(arm->enter().ok());
}

/// A thread that is ended in the middle of a policy's call, as pthread_cancel() does it: what it holds is let go.
TEST_F(SchedulerTest, AThreadThatIsKilledInACallLeavesNoGateShut) {
  auto arm = admit(robot("arm", 1e6, 900e3, 700e3));  // the watchdog would come in two seconds
  auto llm = admit(lower("llm", Class::burstable, 0.2));
  cpu::Pool pool(1);
  exec::CpuStream stream(pool);
  std::atomic<bool> inside{false};
  std::thread robot_thread([&] {
    auto turn = arm->enter();
    ASSERT_TRUE(turn.ok());
    const engine::GateSite none;
    engine::GatedCall call(arm->urgent().get(), none, stream);
    ASSERT_TRUE(call.begin().ok());
    inside = true;
    for (;;) std::this_thread::sleep_for(1ms);  // where a cancellation finds it
  });
  while (!inside) std::this_thread::yield();
  auto* const gate = static_cast<exec::CpuGate*>(llm->gates().gate);
  EXPECT_FALSE(gate->open(llm->gates().mask));
  ASSERT_EQ(pthread_cancel(robot_thread.native_handle()), 0);
  robot_thread.join();
  EXPECT_TRUE(gate->open(llm->gates().mask));
  EXPECT_EQ(arm->stats().lost, 0);
  EXPECT_EQ(arm->stats().calls, 1);
  EXPECT_TRUE(arm->enter().ok());
}

/// And a call whose stream takes nothing more.
TEST_F(SchedulerTest, AStreamThatIsLostLeavesNoGateShut) {
  auto arm = admit(robot("arm", 1e6, 900e3, 700e3));
  cpu::Pool pool(1);
  exec::CpuStream stream(pool);
  auto turn = arm->enter();
  ASSERT_TRUE(turn.ok());
  const engine::GateSite none;
  {
    engine::GatedCall call(arm->urgent().get(), none, stream);
    ASSERT_TRUE(call.begin().ok());
    arm->urgent()->word = 99;  // from here on set() fails
    EXPECT_FALSE(call.end().ok());
    EXPECT_FALSE(static_cast<exec::CpuGate*>(arm->urgent()->gate)->open(1));
  }
  EXPECT_TRUE(static_cast<exec::CpuGate*>(arm->urgent()->gate)->open(1));
}

TEST_F(SchedulerTest, CloseEndsWaitsAndHoldsNobody) {
  auto arm = admit(robot("arm", 1e6, 900e3, 100e3));
  auto llm = admit(lower("llm", Class::burstable, 0.2));
  auto turn = arm->enter();
  auto* const gate = static_cast<exec::CpuGate*>(llm->gates().gate);
  gate->write(0, true);
  std::thread waits([&] { expect(arm->enter().status(), Code::kClosed, "closed"); });
  std::thread passes([&] { gate->pass(llm->gates().mask); });
  std::this_thread::sleep_for(20ms);
  scheduler_->close();
  waits.join(), passes.join();
  expect(arm->enter().status(), Code::kClosed, "closed");
}

TEST_F(SchedulerTest, WhoHasMoreThanItsShareStandsBack) {
  auto a = admit(lower("a", Class::burstable, 0.5)), b = admit(lower("b", Class::burstable, 0.1));
  auto* const gate = static_cast<exec::CpuGate*>(a->gates().gate);
  EXPECT_NE(a->gates().mask, b->gates().mask);
  a->want(true), b->want(true);
  b->charge(5000);
  EXPECT_FALSE(gate->open(b->gates().mask));
  EXPECT_TRUE(gate->open(a->gates().mask));
  a->charge(50e3);
  EXPECT_TRUE(gate->open(b->gates().mask));
  EXPECT_FALSE(gate->open(a->gates().mask));
  b->want(false);  // it has nothing to do: nobody waits for it
  EXPECT_TRUE(gate->open(a->gates().mask));
}

/// Threads that come and go, calls that are drawn, some never ended, tenants that leave while others wait: it ends,
/// nothing is held back at the end, and every call that ran was counted.
TEST_F(SchedulerTest, RandomCallersEnd) {
  auto llm = admit(lower("llm", Class::burstable, 0.1));
  auto* const gate = static_cast<exec::CpuGate*>(llm->gates().gate);
  std::atomic<bool> stop{false};
  std::thread steps([&] {
    while (!stop) {
      gate->pass(llm->gates().mask);
      llm->want(true);
      std::this_thread::sleep_for(100us);
      llm->charge(100);
    }
    llm->want(false);
  });
  std::vector<std::thread> threads;
  std::atomic<int> inside{0}, ran{0}, refused{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 dice(static_cast<unsigned>(i));
      for (int round = 0; round < 8; ++round) {
        auto t = scheduler_->admit(robot(strf("r%d", i).c_str(), 200e3, 180e3, 500));
        ASSERT_TRUE(t.ok()) << t.status().to_string();
        for (int call = 0; call < 5; ++call) {
          auto turn = (*t)->enter(dice() % 5 == 0 ? 600 : 0);
          if (!turn.ok()) {
            ++refused;
            continue;
          }
          EXPECT_EQ(inside.fetch_add(1), 0);
          gate->write(0, true);
          std::this_thread::sleep_for(std::chrono::microseconds(dice() % 400));
          gate->write(0, false);
          inside.fetch_sub(1);
          ++ran;
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  stop = true;
  steps.join();
  EXPECT_GT(ran, 50);
  EXPECT_TRUE(gate->open(llm->gates().mask));
  EXPECT_EQ(scheduler_->rows().size(), 1u);
}

}  // namespace
}  // namespace vivace::sched
