// A site fixes what its calls share; a call differs in layer and rows alone.
#include "vivace/models/layer/attention_sites.h"

#include <gtest/gtest.h>

#include <array>

#include "vivace/cpu/pool.h"
#include "vivace/exec/cpu_stream.h"

namespace vivace::models {
namespace {

class AttentionSitesTest : public ::testing::Test {
 protected:
  AttentionSitesTest() : pool_(1), stream_(pool_), rec_(stream_) {
    for (int layer = 0; layer < 2; ++layer)
      for (size_t i = 0; i < keys_[layer].size(); ++i)
        keys_[layer][i] = 0, values_[layer][i] = static_cast<float>(100 * layer + static_cast<int>(i));
    for (int layer = 0; layer < 2; ++layer) {
      k_[layer] = tensor(keys_[layer].data(), DType::f32, Shape(1, 4, 1, 1));
      v_[layer] = tensor(values_[layer].data(), DType::f32, Shape(1, 4, 1, 1));
    }
  }
  Status run(const AttentionSites& sites, int site, int64_t layer) {
    return sites.run(rec_, site, layer,
                     {.q = tensor(q_.data(), DType::f32, Shape(1, 1, 1)),
                      .out = tensor(out_.data(), DType::f32, Shape(1, 1, 1)),
                      .pos = tensor(pos_.data(), DType::i32, Shape(1))});
  }
  cpu::Pool pool_;
  exec::CpuStream stream_;
  ops::Recorder rec_;
  std::array<float, 4> keys_[2], values_[2];  // keys are 0: out is the mean of the values that are seen
  std::array<float, 1> q_ = {1}, out_ = {-1};
  std::array<int32_t, 1> pos_ = {2};
  Tensor k_[2], v_[2];
};

TEST_F(AttentionSitesTest, LayersHaveTheirKeysAndSitesTheirMask) {
  AttentionSites sites(k_, v_);
  const int global = sites.add({.name = "global"}), local = sites.add({.name = "local", .window = 1}),
            full = sites.add({.name = "full", .mask = "full"});
  ASSERT_TRUE(run(sites, global, 0).ok());
  EXPECT_FLOAT_EQ(out_[0], 1);  // places 0 to 2
  ASSERT_TRUE(run(sites, global, 1).ok());
  EXPECT_FLOAT_EQ(out_[0], 101);
  ASSERT_TRUE(run(sites, local, 1).ok());
  EXPECT_FLOAT_EQ(out_[0], 102);
  ASSERT_TRUE(run(sites, full, 0).ok());
  EXPECT_FLOAT_EQ(out_[0], 1.5f);
}

TEST_F(AttentionSitesTest, ProjectedRowsAreAppendedFirst) {
  AttentionSites sites(k_, v_);
  const int global = sites.add({.name = "global"}), full = sites.add({.name = "full", .mask = "full"}),
            apart = sites.add({.name = "apart", .mask = "full", .one_op = false}),
            odd = sites.add({.name = "odd", .mask = "prefix", .one_op = false});
  std::array<float, 3> qkv = {1, 0, 40};  // a query, a key, a value
  const auto run = [&](int site, int64_t layer) {
    return sites.run(rec_, site, layer, {.qkv = tensor(qkv.data(), DType::f32, Shape(1, 3))},
                     {.q = tensor(q_.data(), DType::f32, Shape(1, 1, 1)),
                      .out = tensor(out_.data(), DType::f32, Shape(1, 1, 1)),
                      .pos = tensor(pos_.data(), DType::i32, Shape(1))});
  };
  ASSERT_TRUE(run(global, 1).ok());
  EXPECT_FLOAT_EQ(out_[0], (100 + 101 + 40) / 3.0f);
  EXPECT_EQ(values_[1][2], 40);
  EXPECT_EQ(values_[0][2], 2);
  EXPECT_NE(run(full, 0).message().find("attention site full: rows that are yet to be rotated want mask=causal"),
            std::string::npos);
  EXPECT_EQ(run(global, 2).code(), Code::kInvalidArgument);
  ASSERT_TRUE(run(apart, 0).ok());  // appended, and then all places are seen
  EXPECT_FLOAT_EQ(out_[0], (0 + 1 + 40 + 3) / 4.0f);
  EXPECT_EQ(values_[0][2], 40);
  EXPECT_EQ(run(apart, 2).code(), Code::kInvalidArgument);
  EXPECT_NE(run(odd, 0).message().find("attention site odd: attention: port prefix"), std::string::npos);
}

TEST_F(AttentionSitesTest, WhatIsNotThereIsAnError) {
  AttentionSites sites(k_, v_);
  const int site = sites.add({.name = "global"}), wrong = sites.add({.name = "odd", .mask = "prefix"});
  EXPECT_EQ(run(sites, 2, 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(run(sites, -1, 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(run(sites, site, 2).code(), Code::kInvalidArgument);
  EXPECT_NE(run(sites, site, 2).message().find("global"), std::string::npos);
  EXPECT_NE(run(sites, wrong, 0).message().find("attention site odd: attention: port prefix"), std::string::npos);
  EXPECT_EQ(out_[0], -1);
}

}  // namespace
}  // namespace vivace::models
