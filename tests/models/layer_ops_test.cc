// A norm that is left to the product behind it, folded or deferred, gives what the two give one after the other.
#include "vivace/models/layer/layer_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <list>
#include <random>
#include <vector>

#include "vivace/cpu/pool.h"
#include "vivace/exec/cpu_stream.h"

namespace vivace::models {
namespace {

constexpr int64_t T = 3, K = 16, N = 8;

class LayerOpsTest : public ::testing::Test {
 protected:
  LayerOpsTest() : pool_(1), stream_(pool_), rec_(stream_) {}
  /// A drawn tensor.
  Tensor draw(const Shape& shape) {
    std::vector<float>& all = memory_.emplace_back(static_cast<size_t>(shape.elements()));
    for (float& v : all) v = std::normal_distribution<float>()(random_);
    return tensor(all.data(), DType::f32, shape);
  }
  static std::vector<float> values(const Tensor& t) {
    const float* const from = static_cast<const float*>(t.data);
    return {from, from + t.shape.elements()};
  }
  cpu::Pool pool_;
  exec::CpuStream stream_;
  ops::Recorder rec_;
  std::mt19937 random_{7};
  std::list<std::vector<float>> memory_;
};

TEST_F(LayerOpsTest, AFoldedNormHasTheBitsOfTwoOps) {
  for (const bool plus_one : {false, true})
    for (const bool gated : {false, true}) {
      LayerOps op(rec_, 1e-5, "f32", plus_one);
      const Matrix m{draw(Shape(N, K)), draw(Shape(N))};
      NormBy by{.weight = draw(Shape(K))};
      if (!plus_one) by.bias = draw(Shape(K)), by.kind = "layer";
      const Tensor x = draw(Shape(T, K)), residual = draw(Shape(T, N));
      const int64_t width = gated ? N / 2 : N;
      const Tensor want = draw(Shape(T, width)), got = draw(Shape(T, width));
      const Rows normed{draw(Shape(T, K))}, raw{.x = draw(Shape(T, K)), .raw = x, .norm = by};
      ASSERT_TRUE(op.norm(x, by, normed).ok());
      for (const auto& [rows, out] : {std::pair{&normed, &want}, {&raw, &got}}) {
        const Status s = gated ? op.gated(*rows, m, {*out}, "silu") : op.linear(*rows, m, *out, {.residual = residual});
        ASSERT_TRUE(s.ok()) << s.to_string();
      }
      EXPECT_EQ(values(got), values(want)) << plus_one << gated;
    }
}

class DeferredNormTest : public LayerOpsTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(WeightsLessOne, DeferredNormTest, ::testing::Bool());

TEST_P(DeferredNormTest, IsTheNormOfItsProduct) {
  LayerOps op(rec_, 1e-5, "f32", GetParam());
  const Matrix first{draw(Shape(K, K))}, second{draw(Shape(N, K))};
  const NormBy by{.weight = draw(Shape(K))};
  const Tensor x = draw(Shape(T, K)), hidden = draw(Shape(T, K)), again = draw(Shape(T, K)), want = draw(Shape(T, N)),
               got = draw(Shape(T, N));
  const Rows normed{draw(Shape(T, K))};
  const Rows deferred{.x = draw(Shape(T, K)), .squares = draw(Shape(T, K / 8)), .factors = draw(Shape(T))};
  ASSERT_TRUE(op.linear({x}, first, hidden).ok());
  ASSERT_TRUE(op.norm(hidden, by, normed).ok());
  ASSERT_TRUE(op.linear(normed, second, want).ok());
  ASSERT_TRUE(op.linear_then_defer({x}, first, again, {}, by, deferred).ok());
  EXPECT_EQ(values(again), values(hidden));
  ASSERT_TRUE(op.linear(deferred, second, got).ok());
  for (size_t i = 0; i < values(want).size(); ++i)  // one rounding stands elsewhere: f32's, of sums of K
    EXPECT_NEAR(values(got)[i], values(want)[i], 1e-5f * (1 + std::fabs(values(want)[i])));
  const Tensor scaled = draw(Shape(T, K)), squares = draw(Shape(T, K / 8));
  ASSERT_TRUE(op.defer_norm(again, by, {.x = scaled, .squares = squares}).ok());
  EXPECT_EQ(values(scaled), values(deferred.x));
  EXPECT_EQ(values(squares), values(deferred.squares));
}

TEST_F(LayerOpsTest, RowsHoldEveryOp) {
  LayerOps op(rec_, 1e-5);
  int32_t one = 1;
  op.rows = tensor(&one, DType::i32, Shape(1));
  const Tensor x = draw(Shape(T, K)), out = draw(Shape(T, N));
  const std::vector<float> before = values(out);
  ASSERT_TRUE(op.linear({x}, {draw(Shape(N, K))}, out).ok());
  const std::vector<float> after = values(out);
  EXPECT_NE(after[0], before[0]);
  EXPECT_EQ(std::vector(after.begin() + N, after.end()), std::vector(before.begin() + N, before.end()));
}

TEST_F(LayerOpsTest, WhatAProductCannotTakeIsAnError) {
  LayerOps op(rec_, 1e-5);
  const Matrix m{draw(Shape(K, K))};
  const Tensor x = draw(Shape(T, K)), out = draw(Shape(T, K));
  const Rows deferred{.x = x, .squares = draw(Shape(T, K / 8)), .factors = draw(Shape(T))};
  EXPECT_EQ(op.linear(deferred, m, out, {.residual = out}).code(), Code::kInternal);
  EXPECT_EQ(op.linear(deferred, m, out, {.gate = out}).code(), Code::kInternal);
  EXPECT_EQ(op.linear({.x = draw(Shape(T, K)), .raw = x}, m, out, {.gate = draw(Shape(T, K))}).code(), Code::kInternal);
  EXPECT_EQ(op.linear({x}, {draw(Shape(K, N))}, out).code(), Code::kInvalidShape);
}

}  // namespace
}  // namespace vivace::models
