// Policies with a partition that have the whole device while nobody else works: who says so, and that a call keeps to
// it. tests/exec/stream_switch_test.cc has the order of memory, tests/models/switch_test.cc policies themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "vivace/base/check.h"
#include "vivace/sched/scheduled_policy.h"

namespace vivace::sched {
namespace {

using namespace std::chrono_literals;

Demand arm(const char* name, double worst_us = 500) {
  Demand d = {name, {}, {worst_us, worst_us}};
  d.qos.cls = Class::guaranteed;
  d.qos.period_us = 200e3;
  d.qos.deadline_us = 190e3;
  return d;
}
Demand lower(const char* name, Class cls = Class::burstable) {
  Demand d = {name, {}, {4000, 200}};
  d.qos.cls = cls;
  return d;
}

/// A lower tenant that has a partition.
Demand apart(const char* name, Class cls = Class::burstable) {
  Demand d = lower(name, cls);
  d.times.apart = true;
  return d;
}

struct NoDevice final : Actuator {
  void hold(int, bool) override {}
  void close_early(bool) override {}
  void open() override {}
};

/// Everything that the rule depends on, kept beside the dispatcher in the plainest form.
struct Seen {
  std::map<int, bool> lower, paused;  // wants; tenants of both kinds
  std::set<int> apart;                // lower tenants that have a partition
  std::set<int> waiting, lost;        // guaranteed tenants, of at most one call each
  int running = -1;
  bool demoted_runs = false;
  enum class Fault : uint8_t { none, lost, waiting, running, paused, gate, apart };
  bool beside(int who, Fault f) const {
    const bool own = running == who;
    for (const int t : lost)
      if (t != who && f != Fault::lost) return true;
    if (own && !demoted_runs && f != Fault::gate) return false;
    if (!own && running >= 0 && f != Fault::running) return true;
    if (!own && f != Fault::waiting && std::any_of(waiting.begin(), waiting.end(), [&](int t) { return t != who; }))
      return true;
    return std::any_of(lower.begin(), lower.end(), [&](const auto& t) {
      return t.first != who && t.second && (f == Fault::paused || !paused.at(t.first)) &&
             (f == Fault::apart || apart.contains(t.first));
    });
  }
};

/// Drawn calls, steps, pauses and losses on a virtual clock; how often the rule says another thing than `fault`'s, and
/// how often it says each.
struct Tally {
  int other = 0, whole = 0, share = 0;
};
Tally drawn(uint32_t seed, Seen::Fault fault) {
  std::mt19937 dice(seed);
  const auto draw = [&](size_t of) { return std::uniform_int_distribution<size_t>(0, of - 1)(dice); };
  NoDevice device;
  Dispatcher d({}, device);
  std::vector<int> all, low, arms;
  for (const Demand& demand : {arm("a"), arm("b"), apart("c"), apart("d", Class::best_effort), lower("e")}) {
    auto t = d.add(demand);
    EXPECT_TRUE(t.ok()) << t.status().to_string();
    all.push_back(*t);
    (demand.qos.cls == Class::guaranteed ? arms : low).push_back(*t);
  }
  Seen seen;
  for (const int t : all) seen.paused[t] = false;
  for (const int t : low) seen.lower[t] = false;
  seen.apart = {low[0], low[1]};
  std::map<int, Dispatcher::Call> calls;  // by tenant: the one that waits, runs or is lost
  double now = 0;
  Tally tally;
  const auto judge = [&](int who) {
    const bool says = d.beside(who);
    ++(says ? tally.share : tally.whole);
    tally.other += says != seen.beside(who, fault);
  };
  for (int event = 0; event < 400; ++event) {
    now += static_cast<double>(1 + draw(3000));
    switch (draw(6)) {
      case 0: {  // a guaranteed call is asked for
        const int t = arms[draw(arms.size())];
        if (seen.paused[t] || calls.contains(t)) break;
        Dispatcher::Call c;
        if (d.submit(t, now, 0, &c)) break;
        calls[t] = c, seen.waiting.insert(t);
        break;
      }
      case 1:  // ... begins
        if (const auto c = d.next(now)) {
          calls[c->tenant] = *c, seen.waiting.erase(c->tenant);
          seen.running = c->tenant, seen.demoted_runs = !c->shuts;
          judge(c->tenant);
        }
        break;
      case 2:  // ... ends, also one that was given up
        if (calls.empty()) break;
        if (const auto c = std::next(calls.begin(), static_cast<long>(draw(calls.size())));
            !seen.waiting.contains(c->first)) {
          static_cast<void>(d.done(c->second.number, now, 100));
          if (seen.running == c->first) seen.running = -1;
          seen.lost.erase(c->first), calls.erase(c);
        }
        break;
      case 3:  // ... is lost
        if (seen.running < 0 || draw(6) != 0) break;
        d.tick(now), d.tick(now + 1e6);
        seen.lost.insert(std::exchange(seen.running, -1));
        break;
      case 4: {  // a step's work comes, or has gone
        const int t = low[draw(low.size())];
        seen.lower[t] = draw(3) == 0;
        EXPECT_TRUE(d.want(t, now, seen.lower[t]).ok());
        if (seen.lower[t]) judge(t);
        break;
      }
      default: {
        const int t = all[draw(all.size())];
        if (draw(3) != 0) break;
        seen.paused[t] = !seen.paused[t];
        EXPECT_TRUE(d.pause(t, seen.paused[t]).ok());
        break;
      }
    }
  }
  return tally;
}

TEST(Beside, IsWhatRunsOrWantsTo) {
  Tally sum;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Tally t = drawn(seed, Seen::Fault::none);
    EXPECT_EQ(t.other, 0) << "seed " << seed;
    sum.whole += t.whole, sum.share += t.share;
  }
  EXPECT_GT(sum.whole, 2000);
  EXPECT_GT(sum.share, 2000);
}

TEST(Beside, ARuleThatForgetsOneOfThemIsSeen) {
  for (const auto fault :
       {Seen::Fault::lost, Seen::Fault::waiting, Seen::Fault::running, Seen::Fault::paused, Seen::Fault::gate,
                           Seen::Fault::apart}) {
    int other = 0;
    for (uint32_t seed = 0; seed < 200; ++seed) other += drawn(seed, fault).other;
    EXPECT_GT(other, 0) << "fault " << static_cast<int>(fault);
  }
}

TEST(Beside, AGuaranteedCallHasTheDeviceUnlessItIsDemoted) {
  NoDevice device;
  Dispatcher d({}, device);
  const int a = *d.add(arm("a")), b = *d.add(arm("b")), other = *d.add(apart("other"));
  ASSERT_TRUE(d.want(other, 0, true).ok());
  Dispatcher::Call call, next;
  double now = 0;
  ASSERT_FALSE(d.submit(a, now, 0, &call));
  ASSERT_FALSE(d.submit(b, now, 0, &next));
  ASSERT_TRUE(d.next(now));
  EXPECT_FALSE(d.beside(a));  // the other policy stands back, and b waits for its turn
  EXPECT_TRUE(d.beside(other));
  ASSERT_TRUE(d.done(call.number, now, 100).ok());
  ASSERT_TRUE(d.next(now));
  ASSERT_TRUE(d.done(next.number, now, 100).ok());
  for (int i = 0; i < Dispatcher::kMostOverruns; ++i) {
    now += 1e6;
    ASSERT_FALSE(d.submit(a, now, 0, &call));
    ASSERT_TRUE(d.next(now));
    d.tick(now + 10e3);
    ASSERT_TRUE(d.done(call.number, now + 10e3, 10e3).ok());
  }
  now += 1e6;
  ASSERT_TRUE(d.stats(a).demoted);
  ASSERT_FALSE(d.submit(a, now, 0, &call));
  ASSERT_FALSE(d.submit(b, now, 0, &next));
  ASSERT_TRUE(d.next(now));
  EXPECT_TRUE(d.beside(a));  // nobody stands back for it any more
  ASSERT_TRUE(d.want(other, now, false).ok());
  EXPECT_FALSE(d.beside(a));
}

/// It fills the policy's multiprocessors too, whatever the policy does.
TEST(Beside, ALowerTenantWithoutAPartitionDoesNotCount) {
  NoDevice device;
  Dispatcher d({}, device);
  const int a = *d.add(apart("a")), llm = *d.add(lower("llm")), b = *d.add(apart("b"));
  ASSERT_TRUE(d.want(llm, 0, true).ok());
  EXPECT_FALSE(d.beside(a));
  ASSERT_TRUE(d.want(b, 0, true).ok());
  EXPECT_TRUE(d.beside(a));
}

/// Two partitions have no multiprocessor in common; whoever has the whole device has all of both.
TEST(Apart, PartitionsDoNotStandBackForOneAnother) {
  struct Held final : Actuator {
    std::map<int, bool> held;
    void hold(int tenant, bool back) override { held[tenant] = back; }
    void close_early(bool) override {}
    void open() override {}
  } device;
  Dispatcher d({}, device);
  const int a = *d.add(apart("a")), b = *d.add(apart("b")), llm = *d.add(lower("llm"));
  for (const int t : {a, b}) ASSERT_TRUE(d.want(t, 0, true).ok());
  ASSERT_TRUE(d.charge(a, 0, 50e3).ok());
  EXPECT_FALSE(device.held[a]);
  ASSERT_TRUE(d.want(llm, 0, true).ok());  // level with the one that had least of what it wants
  EXPECT_TRUE(device.held[a]);
  EXPECT_FALSE(device.held[b]);
  ASSERT_TRUE(d.charge(b, 0, 50e3).ok());
  EXPECT_TRUE(device.held[b]);
  ASSERT_TRUE(d.charge(llm, 0, 100e3).ok());
  EXPECT_FALSE(device.held[a] || device.held[b]);
  EXPECT_TRUE(device.held[llm]);
}

/// A policy that only notes where it runs: its answer is 1 on the whole device and 0 in its partition.
class Noted final : public engine::PolicyModel {
 public:
  const std::string& family() const override { return family_; }
  engine::Report report() const override { return {}; }
  std::vector<engine::MemoryLine> memory() const override { return {{"weights", 10}}; }
  engine::PolicyLimits limits() const override { return limits_; }
  Status predict(std::span<const engine::Observation>, std::span<float> actions) override {
    inside = true;
    const bool at_begin = whole;
    for (int i = 0; i < 50 && !(hold && !release); ++i) std::this_thread::yield();
    entered = true;
    while (hold && !release) std::this_thread::sleep_for(100us);
    changed_within += at_begin != whole;
    if (!actions.empty()) actions[0] = whole ? 1 : 0;
    if (slow_in_partition && !whole) std::this_thread::sleep_for(4ms);
    inside = false;
    return fails ? Status(Code::kCorruptData, "planted") : Status();
  }
  Result<std::span<const float>> normalized(int) const override { return std::span<const float>(); }
  Result<std::vector<float>> normalized_state(std::span<const float>) const override { return std::vector<float>(); }
  Status observe(std::span<const engine::Observation>, const Probe&) override { return {}; }
  Result<engine::Profile> profile(Stage, bool) override { return engine::Profile(); }
  Status use_whole(bool w) override {
    if (cannot) return PolicyModel::use_whole(w);
    changed_within += inside;
    asked.push_back(w);
    whole = w;
    return {};
  }
  std::atomic<bool> whole{false}, inside{false}, entered{false}, hold{false}, release{false};
  std::vector<bool> asked;
  int changed_within = 0;
  bool fails = false, cannot = false, slow_in_partition = false;

 private:
  std::string family_ = "noted";
  engine::PolicyLimits limits_{.views = 0, .horizon = 1, .steps = 1, .batch = 1, .robot_dim = 1};
};

class SwitchTest : public ::testing::Test {
 protected:
  void SetUp() override { scheduler_ = *Scheduler::open("cpu", {.handover_us = 2000}); }
  std::shared_ptr<Tenant> admit(const Demand& d) {
    auto t = scheduler_->admit(d);
    EXPECT_TRUE(t.ok()) << t.status().to_string();
    return t.ok() ? std::move(*t) : nullptr;
  }
  /// A policy of `d`, its own object to look at, and its tenant.
  void load(const Demand& d, bool switches = true) {
    tenant_ = admit(d);
    auto own = std::make_unique<Noted>();
    policy_ = own.get();
    scheduled_ = make_scheduled(std::move(own), tenant_, switches);
  }
  bool whole() {  // where a call ran
    float answer = -1;
    EXPECT_TRUE(scheduled_->predict({}, {&answer, 1}).ok());
    return answer == 1;
  }
  std::shared_ptr<Scheduler> scheduler_;
  std::shared_ptr<Tenant> tenant_;
  Noted* policy_ = nullptr;
  std::unique_ptr<engine::PolicyModel> scheduled_;
};

TEST_F(SwitchTest, AloneTheWholeDeviceBesideOthersItsShare) {
  load(lower("arm"));
  auto second = admit(apart("second")), other = admit(arm("other"));
  EXPECT_TRUE(whole());
  second->want(true);
  EXPECT_FALSE(whole());
  EXPECT_FALSE(whole());
  second->want(false);
  EXPECT_TRUE(whole());
  {
    auto turn = other->enter();
    ASSERT_TRUE(turn.ok());
    EXPECT_FALSE(whole());
  }
  EXPECT_TRUE(whole());
  second->want(true);
  second.reset();  // who has gone does not work
  EXPECT_TRUE(whole());
  const TenantStats s = tenant_->stats();
  EXPECT_EQ(s.calls, 7);
  EXPECT_EQ(s.whole_calls, 4);
}

TEST_F(SwitchTest, WithoutTheOptionNothingIsAsked) {
  load(lower("arm"), false);
  EXPECT_FALSE(whole());
  EXPECT_TRUE(policy_->asked.empty());
  EXPECT_EQ(tenant_->stats().whole_calls, 0);
}

/// Others that come or go within a call change the next one.
TEST_F(SwitchTest, ACallKeepsToWhatItBeganWith) {
  load(lower("arm"));
  auto second = admit(apart("second"));
  for (const bool beside : {false, true}) {
    second->want(beside);
    policy_->hold = true, policy_->release = false, policy_->entered = false;
    bool first = beside;
    std::thread call([&] { first = whole(); });
    while (!policy_->entered) std::this_thread::sleep_for(100us);
    second->want(!beside);
    policy_->release = true;
    call.join();
    EXPECT_EQ(first, !beside);
    EXPECT_EQ(whole(), beside);
  }
  EXPECT_EQ(policy_->changed_within, 0);
}

TEST_F(SwitchTest, AGuaranteedCallHasTheWholeDeviceFromItsTurnOn) {
  load(arm("arm"));
  auto second = admit(apart("second"));
  second->want(true);
  EXPECT_TRUE(whole());  // the language model stands back
  EXPECT_EQ(tenant_->stats().whole_calls, 1);
}

TEST_F(SwitchTest, AnErrorEndsTheCallAndTheNextAsksAnew) {
  load(lower("arm"));
  auto second = admit(apart("second"));
  policy_->fails = true;
  EXPECT_EQ(scheduled_->predict({}, {}).code(), Code::kCorruptData);
  policy_->fails = false;
  second->want(true);
  EXPECT_FALSE(whole());
  policy_->cannot = true;
  const Status s = scheduled_->predict({}, {});
  EXPECT_EQ(s.code(), Code::kUnsupported) << s.to_string();
  EXPECT_EQ(tenant_->stats().calls, 3);  // what it had begun is over for the scheduler, too
  policy_->cannot = false;
  second->want(false);
  EXPECT_TRUE(whole());
}

/// Timed on both, admitted by the longer, and its own partition again before the first call.
TEST_F(SwitchTest, AdmissionGoesByThePartition) {
  auto own = std::make_unique<Noted>();
  Noted* const noted = own.get();
  noted->slow_in_partition = true;
  std::shared_ptr<Tenant> tenant = *scheduler_->join("arm", lower("arm").qos);
  auto admitted = admit_policy(std::move(own), tenant, 0, Partition::switched);
  ASSERT_TRUE(admitted.ok()) << admitted.status().to_string();
  EXPECT_EQ(noted->asked, (std::vector<bool>{true, false}));
  const auto rows = scheduler_->rows();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_GT(rows[0].demand.times.worst_us, 4000);
  EXPECT_GT(rows[0].demand.times.whole_us, 0);
  // Above the partition's by nature; a host that was taken away while the GPU was whole makes both the same.
  EXPECT_LE(rows[0].demand.times.whole_us, rows[0].demand.times.worst_us);
  EXPECT_TRUE(rows[0].demand.times.apart);
  auto cannot = std::make_unique<Noted>();
  cannot->cannot = true;
  std::shared_ptr<Tenant> second = *scheduler_->join("second", lower("second").qos);
  EXPECT_EQ(admit_policy(std::move(cannot), second, 0, Partition::switched).status().code(), Code::kUnsupported);
}

/// Calls one after the other while two threads come and go: never within a call, every answer of the variant that was
/// counted, and both have been there.
TEST_F(SwitchTest, BothDirectionsUnderLoad) {
  load(lower("arm"));
  std::atomic<bool> over{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&, i] {
      std::mt19937 dice(static_cast<unsigned>(i));
      auto t = admit(apart(i == 0 ? "x" : "y"));
      while (!over) {
        t->want(true);
        std::this_thread::sleep_for(std::chrono::microseconds(dice() % 200));
        t->charge(100);
        t->want(false);
        std::this_thread::sleep_for(std::chrono::microseconds(dice() % 400));
      }
    });
  int calls = 0, on_whole = 0;
  const auto until = std::chrono::steady_clock::now() + 20s;
  while ((calls < 2000 || on_whole < 50 || calls - on_whole < 50) && std::chrono::steady_clock::now() < until) {
    on_whole += whole();
    ++calls;
  }
  over = true;
  for (auto& t : others) t.join();
  EXPECT_GE(on_whole, 50);
  EXPECT_GE(calls - on_whole, 50);
  EXPECT_EQ(tenant_->stats().whole_calls, on_whole);
  EXPECT_EQ(tenant_->stats().calls, calls);
  EXPECT_EQ(policy_->changed_within, 0);
}

}  // namespace
}  // namespace vivace::sched
