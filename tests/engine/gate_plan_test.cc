// plan_gates(): no stretch above the bound where points allow it, and no gate more than that takes.
#include "vivace/engine/gate_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace vivace::engine {
namespace {

/// The longest work between two gates of a step that follows itself without a pause.
double longest(const StepTimes& t, const std::vector<bool>& at) {
  double longest = 0, run = 0;
  for (int round = 0; round < 2; ++round) {
    size_t p = 0;
    for (size_t i = 0; i <= t.us.size(); ++i) {
      for (; p < t.points.size() && t.points[p] == i; ++p)
        if (at[p]) run = 0;
      if (i < t.us.size()) longest = std::max(longest, run += t.us[i]);
    }
  }
  return longest;
}

TEST(GatePlan, ALanguageModelsStep) {
  StepTimes t;
  for (double us : {2.3, 2.1, 4.8}) t.us.push_back(us);
  for (int layer = 0; layer < 36; ++layer) {
    t.points.push_back(t.us.size());
    for (double us : {13.1, 7.2, 9.4}) t.us.push_back(us);
    t.points.push_back(t.us.size());
    for (double us : {47.6, 24.7}) t.us.push_back(us);
  }
  t.points.push_back(t.us.size());
  for (double us : {290.0, 10.0}) t.us.push_back(us);
  const GatePlan wide = plan_gates(t, 310);
  EXPECT_EQ(wide.gates, 13);  // layers of 102 us, so three of them, and one before the head
  EXPECT_LE(wide.stretch_us, 310);
  const GatePlan narrow = plan_gates(t, 220);
  EXPECT_NEAR(narrow.stretch_us, 309.2, 0.1);  // the head, and what the next step begins with: no point divides it
  EXPECT_EQ(plan_gates(t, 1e9).gates, 1);
  EXPECT_EQ(plan_gates({{5, 6}, {}}, 1).gates, 0);
  EXPECT_DOUBLE_EQ(plan_gates({{5, 6}, {}}, 1).stretch_us, 22);
}

TEST(GatePlan, DrawnStepsKeepTheBoundWithTheFewestGates) {
  std::mt19937 dice(7);
  for (int round = 0; round < 3000; ++round) {
    StepTimes t;
    for (unsigned i = 0, n = 1 + dice() % 12; i < n; ++i) {
      if (dice() % 2) t.points.push_back(t.us.size());
      t.us.push_back(1 + dice() % 50);
    }
    if (t.points.empty() || t.points.size() > 8) continue;
    const double bound = 10 + dice() % 150;
    const GatePlan plan = plan_gates(t, bound);
    EXPECT_DOUBLE_EQ(plan.stretch_us, longest(t, plan.at)) << "round " << round;
    // Of all choices that have the first point: none keeps a bound that this one misses, and none keeps it with fewer
    // gates.
    double best = 1e300;
    int fewest = 1 << 30;
    for (unsigned choice = 0; choice < 1u << (t.points.size() - 1); ++choice) {
      std::vector<bool> at = {true};
      for (size_t p = 1; p < t.points.size(); ++p) at.push_back(choice >> (p - 1) & 1);
      const double got = longest(t, at);
      best = std::min(best, got);
      if (got <= bound) fewest = std::min(fewest, static_cast<int>(std::count(at.begin(), at.end(), true)));
    }
    if (best <= bound) {
      EXPECT_LE(plan.stretch_us, bound) << "round " << round;
      EXPECT_EQ(plan.gates, fewest) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace vivace::engine
