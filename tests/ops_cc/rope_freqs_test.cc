// Rotary frequencies against tests/reference/rope.py, which was written apart from them: the numbers
// below are its output in float64.
#include "vivace/ops/rope_freqs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace vivace::ops {
namespace {

using ::testing::HasSubstr;

struct Want {
  size_t pair;
  double inv_freq;
};

void expect_freqs(double base, int64_t dim, const RopeScaling& scaling, std::initializer_list<Want> want,
                  double attn_factor) {
  const auto got = rope_freqs(base, dim, scaling);
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  ASSERT_EQ(got->inv_freq.size(), static_cast<size_t>(dim / 2));
  for (const Want& w : want) EXPECT_NEAR(got->inv_freq[w.pair] / w.inv_freq, 1, 2e-7) << "pair " << w.pair;
  EXPECT_NEAR(got->attn_factor, attn_factor, 1e-6);
}

TEST(RopeFreqs, None) {
  expect_freqs(10000, 64, {}, {{0, 1}, {1, 0.7498942093324558}, {15, 0.01333521432163324}, {31, 0.0001333521432163324}},
               1);
}

TEST(RopeFreqs, Linear) {
  expect_freqs(10000, 64, {.kind = RopeKind::linear, .factor = 4}, {{0, 0.25}, {31, 3.33380358040831e-05}}, 1);
}

TEST(RopeFreqs, NtkKeepsTheFirstAndStretchesTheLast) {
  // base' = 10000 * 4^(64/62): the last pair, base'^(-62/64), is that of `none` divided by 4.
  expect_freqs(10000, 64, {.kind = RopeKind::ntk, .factor = 4},
               {{0, 1}, {31, 0.0001333521432163324 / 4}, {16, 0.01 * std::pow(4.0, -32.0 / 62)}}, 1);
}

TEST(RopeFreqs, Llama3) {
  expect_freqs(500000, 128,
               {.kind = RopeKind::llama3, .factor = 8, .original_context = 8192, .low_freq = 1, .high_freq = 4},
               {{0, 1},
                {20, 0.016560440080994446},
                {28, 0.003211445994752591},
                {29, 0.002166570763503359},
                {30, 0.001371893567761138},
                {32, 0.0005248461609929547},
                {34, 0.00017850781276799646},
                {35, 9.556212353964683e-05},
                {36, 7.78465527393245e-05},
                {40, 3.428102195952591e-05},
                {63, 3.068925988914511e-07}},
               1);
}

TEST(RopeFreqs, Yarn) {
  expect_freqs(1e6, 128, {.kind = RopeKind::yarn, .factor = 4, .original_context = 32768},
               {{0, 1},
                {20, 0.01333521432163324},
                {23, 0.006978305848598663},
                {24, 0.005375321490790102},
                {30, 0.001064360981247002},
                {36, 0.0001798411558739542},
                {39, 6.490394320837029e-05},
                {40, 4.445698525097307e-05},
                {63, 3.102344401879299e-07}},
               1.138629436111989);
  expect_freqs(10000, 64, {.kind = RopeKind::yarn, .factor = 16, .original_context = 2048},
               {{7, 0.1333521432163324},
                {8, 0.1},
                {9, 0.06958153000055961},
                {10, 0.048123440328789485},
                {14, 0.010088315883874658},
                {20, 0.00042569122348420473},
                {21, 0.00014821085660385346},
                {22, 0.00011114246312743267},
                {31, 8.334508951020775e-06}},
               1.2772588722239782);
}

TEST(RopeFreqs, YarnAttentionFactor) {
  RopeScaling s{.kind = RopeKind::yarn, .factor = 40, .original_context = 4096, .attn_factor = 1.5};
  EXPECT_FLOAT_EQ(rope_freqs(10000, 64, s)->attn_factor, 1.5f);
  s.attn_factor = 0, s.mscale = 0.707, s.mscale_all_dim = 1;
  EXPECT_NEAR(rope_freqs(10000, 64, s)->attn_factor, (0.0707 * std::log(40.0) + 1) / (0.1 * std::log(40.0) + 1), 1e-6);
}

TEST(RopeFreqs, ErrorsNameTheField) {
  const auto says = [](double base, int64_t dim, const RopeScaling& s, const char* part) {
    const auto r = rope_freqs(base, dim, s);
    EXPECT_EQ(r.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(r.status().message(), HasSubstr(part));
  };
  says(0.5, 64, {}, "base must be above 1, got 0.5");
  says(10000, 63, {}, "dim must be even and at least 2, got 63");
  says(10000, 64, {.kind = RopeKind::linear, .factor = 0.5}, "factor must be at least 1 and finite, got 0.5");
  says(10000, 64, {.kind = RopeKind::linear, .factor = NAN}, "factor");
  says(10000, 64, {.kind = RopeKind::yarn, .factor = 2}, "original_context of at least 1, got 0");
  says(10000, 64, {.kind = RopeKind::llama3, .factor = 2, .original_context = 8192, .low_freq = 4, .high_freq = 4},
       "high_freq must be above low_freq");
  EXPECT_EQ(rope_kind("default").value(), RopeKind::none);
  EXPECT_EQ(rope_kind("yarn").value(), RopeKind::yarn);
  EXPECT_THAT(rope_kind("longrope").status().message(), HasSubstr("none, linear, ntk, llama3, yarn"));
}

}  // namespace
}  // namespace vivace::ops
