// Admission: what is admitted holds its deadlines, what is refused says the numbers, and its fixes fit.
#include "vivace/sched/admission.h"

#include <gtest/gtest.h>

namespace vivace::sched {
namespace {

Demand robot(const char* name, double hz, double deadline_ms, double worst_us) {
  Demand d = {name, {}, {worst_us, worst_us}};
  d.qos.cls = Class::guaranteed;
  d.qos.period_us = 1e6 / hz;
  d.qos.deadline_us = deadline_ms * 1e3;
  return d;
}
Demand llm(const char* name, double min_share, double stretch_us = 207) {
  Demand d = {name, {}, {4000, stretch_us}};
  d.qos.cls = Class::burstable;
  d.qos.min_share = min_share;
  return d;
}
Verdict verdict(std::vector<Demand> there, const Demand& candidate, Capacity capacity = {}) {
  auto v = evaluate(there, candidate, capacity);
  EXPECT_TRUE(v.ok()) << v.status().to_string();
  return v.ok() ? *v : Verdict();
}
void refused(const Demand& d, Code code, const std::string& part) {
  const Status s = check(d);
  EXPECT_STREQ(vivace::name(s.code()), vivace::name(code)) << s.to_string();
  EXPECT_NE(s.message().find(part), std::string::npos) << s.to_string();
}

TEST(Admission, AnArmAndALanguageModelFit) {
  const Verdict arm = verdict({}, robot("arm", 30, 15, 9650));
  EXPECT_TRUE(arm.admitted) << arm.text;
  EXPECT_NEAR(arm.response_us, 9650 + 50, 1);
  const Verdict beside = verdict({robot("arm", 30, 15, 9650)}, llm("llm", 0.66));
  EXPECT_TRUE(beside.admitted) << beside.text;
  EXPECT_NEAR(beside.utilisation, 0.2895 + 0.66, 1e-3);
  const Verdict after = verdict({llm("llm", 0.66)}, robot("arm", 30, 15, 9650));
  EXPECT_NEAR(after.response_us, 9650 + 207 + 50, 1);
}

TEST(Admission, ASecondArmIsRefusedWithNumbersAndWhatWouldFit) {
  const std::vector<Demand> there = {robot("arm", 30, 25, 9650), llm("llm", 0.66)};
  const Verdict v = verdict(there, robot("arm2", 10, 60, 9650));
  EXPECT_FALSE(v.admitted);
  EXPECT_NE(v.text.find("arm2 needs 0.097 of the device's time, 0.020 is left"), std::string::npos) << v.text;
  ASSERT_EQ(v.fixes.size(), 2u) << v.text;
  EXPECT_NE(v.text.find("arm2 at 2.1"), std::string::npos) << v.text;
  EXPECT_NE(v.text.find("a min_share of 0.58"), std::string::npos) << v.text;
}

TEST(Admission, BlockingAndBytesAndDeadlinesAreLookedAt) {
  EXPECT_NE(verdict({robot("arm", 30, 15, 9650)}, llm("llm", 0.1, 4000))
                .text.find("llm runs up to 4000 us without a gate, arm accepts 220 us"),
            std::string::npos);
  Demand large = llm("llm", 0.1);
  large.qos.bytes = 100;
  EXPECT_NE(verdict({}, large, {.bytes = 99}).text.find("100 bytes are asked for in all, the device has 99"),
            std::string::npos);
  // Two calls of 9 ms, each with a deadline of 15: the second would wait for the first.
  const Verdict two = verdict({robot("a", 10, 50, 9000)}, robot("b", 10, 15, 9000));
  EXPECT_FALSE(two.admitted);
  EXPECT_NE(two.text.find("after its deadline"), std::string::npos) << two.text;
  EXPECT_NE(two.text.find("a deadline of 18100 us for b"), std::string::npos) << two.text;
  // No rate of a second long call suits a deadline that is shorter than both: nothing is offered that would not fit.
  const Verdict none = verdict({robot("arm", 30, 15, 9650)}, robot("arm2", 10, 60, 9650));
  EXPECT_FALSE(none.admitted);
  EXPECT_TRUE(none.fixes.empty()) << none.text;
}

TEST(Admission, BadDemandsAreNamed) {
  Demand d = robot("arm", 30, 15, 9650);
  refused({"", d.qos, d.times}, Code::kInvalidArgument, "no name");
  auto with = [&](auto change) { Demand c = d; change(c); return c; };
  refused(with([](Demand& c) { c.qos.period_us = 0; }), Code::kInvalidArgument, "period_us is 0");
  refused(with([](Demand& c) { c.qos.deadline_us = -1; }), Code::kInvalidArgument, "deadline_us is -1");
  refused(with([](Demand& c) { c.qos.min_share = 0.5; }), Code::kInvalidArgument, "min_share is 0.5");
  refused(with([](Demand& c) { c.qos.weight = 0; }), Code::kInvalidArgument, "weight is 0");
  refused(with([](Demand& c) { c.qos.queue = 0; }), Code::kInvalidArgument, "queue is 0");
  refused(with([](Demand& c) { c.qos.bytes = -5; }), Code::kInvalidArgument, "bytes is -5");
  refused(with([](Demand& c) { c.qos.cls = static_cast<Class>(7); }), Code::kInvalidArgument, "class is 7");
  refused(with([](Demand& c) { c.times = {}; }), Code::kFailedPrecondition, "profile the model first");
  refused(with([](Demand& c) { c.qos.deadline_us = 9000; }), Code::kFailedPrecondition,
          "a call alone takes up to 9650 us, its deadline is 9000 us");
  Demand b = llm("llm", 0.5);
  b.qos.min_share = 1;
  refused(b, Code::kInvalidArgument, "min_share is 1");
  b.qos = {.period_us = 5};
  refused(b, Code::kInvalidArgument, "only guaranteed tenants have one");
  b.qos = {.min_share = 0.1};
  refused(b, Code::kInvalidArgument, "ask for burstable");
  const auto twice = evaluate(std::vector<Demand>{d}, d, {});
  EXPECT_FALSE(twice.ok());
}

}  // namespace
}  // namespace vivace::sched
