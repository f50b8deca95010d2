// The noise of `sample`: Philox's known answers, and what gumbel() promises at its ends.
#include "vivace/kernels/sampling/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace vivace::kernels {
namespace {

void expect_words(const PhiloxWords& got, const PhiloxWords& want) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got.w[i], want.w[i]) << "word " << i;
}

TEST(Philox, KnownAnswersOfRandom123) {
  expect_words(philox4x32_10({{0, 0, 0, 0}}, 0, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  constexpr uint32_t kOnes = 0xffffffff;
  expect_words(philox4x32_10({{kOnes, kOnes, kOnes, kOnes}}, kOnes, kOnes),
               {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect_words(philox4x32_10({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
               {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(Philox, NoiseWordsUseBothHalvesOfTheSeed) {
  expect_words(noise_words(0x299f31d0a4093822u, 7, 9), philox4x32_10({{9, 7, 0, 0}}, 0xa4093822, 0x299f31d0));
}

TEST(Gumbel, IsFiniteMonotoneAndBounded) {
  EXPECT_LT(gumbel(0), kMaxGumbel);
  EXPECT_GT(gumbel(0), kMaxGumbel - 0.1f) << "a wide bound skips less";
  EXPECT_TRUE(std::isfinite(gumbel(0xffffffffu)));
  float last = gumbel(0);
  for (uint64_t w = 1; w <= 0xffffffffu; w = w * 3 / 2 + 1) {
    const float g = gumbel(static_cast<uint32_t>(w));
    EXPECT_LE(g, last) << w;
    last = g;
  }
}

TEST(Gumbel, MatchesItsDefinition) {
  for (uint64_t w :
       {uint64_t{0}, uint64_t{1}, uint64_t{12345}, uint64_t{1} << 20, uint64_t{1} << 31, uint64_t{0xfffff000u}}) {
    const double u = (static_cast<double>(w) + 0.5) / 4294967296.0;
    EXPECT_NEAR(gumbel(static_cast<uint32_t>(w)), -std::log(-std::log1p(-u)), 1e-5) << w;
  }
}

}  // namespace
}  // namespace vivace::kernels
