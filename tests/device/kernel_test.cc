// launch() without a GPU: what reaches the driver's entry, and what never gets there.
#include "vivace/device/kernel.h"

#include <gtest/gtest.h>

#include <cstring>

namespace vivace::device {
namespace {

// What the driver was called with last.
struct Seen {
  int calls = 0;
  cu::LaunchConfig config = {};
  cu::LaunchAttr attrs[4];
  cu::Function function = nullptr;
  int first_arg = 0;
  cu::Result answer = cu::kSuccess;
} g_seen;

cu::Result fake_launch(const cu::LaunchConfig* config, cu::Function function, void** params, void** extra) {
  ++g_seen.calls;
  g_seen.config = *config;
  for (unsigned i = 0; i < config->attr_count; ++i) g_seen.attrs[i] = config->attrs[i];
  g_seen.function = function;
  std::memcpy(&g_seen.first_arg, params[0], sizeof(int));
  EXPECT_EQ(extra, nullptr);
  return g_seen.answer;
}

struct Args {
  int a, b;
};

class LaunchTest : public testing::Test {
 protected:
  void SetUp() override {
    saved_ = detail::g_api.cuLaunchKernelEx;
    detail::g_api.cuLaunchKernelEx = &fake_launch;
    g_seen = {};
    kernel_.name = "norm";
    kernel_.handle = reinterpret_cast<cu::Kernel>(0x77);
    kernel_.max_threads = 512;
    kernel_.max_dynamic_smem = 1000;
    kernel_.max_cluster = 8;
    kernel_.pdl = true;
    kernel_.param_count = 1;
    kernel_.param_bytes = sizeof(Args);
  }
  void TearDown() override { detail::g_api.cuLaunchKernelEx = saved_; }
  Status go(const LaunchShape& s) { return launch(kernel_, s, stream_, Args{41, 42}); }
  const cu::Stream stream_ = reinterpret_cast<cu::Stream>(0x55);
  Kernel kernel_;
  decltype(cu::Api::cuLaunchKernelEx) saved_ = nullptr;
};

TEST_F(LaunchTest, PassesGeometryArgumentsAndAttributes) {
  ASSERT_TRUE(go({.grid = {6, 2, 1}, .block = {128, 1, 1}, .smem_bytes = 999, .cluster = {3, 2, 1}, .pdl = true}).ok());
  EXPECT_EQ(g_seen.calls, 1);
  EXPECT_EQ(g_seen.function, kernel_.function());
  EXPECT_EQ(g_seen.first_arg, 41);
  EXPECT_EQ(g_seen.config.grid[0], 6u);
  EXPECT_EQ(g_seen.config.grid[1], 2u);
  EXPECT_EQ(g_seen.config.block[0], 128u);
  EXPECT_EQ(g_seen.config.smem_bytes, 999u);
  EXPECT_EQ(g_seen.config.stream, stream_);
  ASSERT_EQ(g_seen.config.attr_count, 2u);
  EXPECT_EQ(g_seen.attrs[0].id, cu::kLaunchClusterDim);
  EXPECT_EQ(g_seen.attrs[0].dim[0], 3u);
  EXPECT_EQ(g_seen.attrs[0].dim[1], 2u);
  EXPECT_EQ(g_seen.attrs[0].dim[2], 1u);
  EXPECT_EQ(g_seen.attrs[1].id, cu::kLaunchPdl);
  EXPECT_EQ(g_seen.attrs[1].flag, 1);
}

TEST_F(LaunchTest, ChipsWithoutDependentLaunchGetPlainOnes) {
  kernel_.pdl = false;
  ASSERT_TRUE(go({.pdl = true}).ok());
  EXPECT_EQ(g_seen.config.attr_count, 0u);
  ASSERT_TRUE(go({.cooperative = true}).ok());
  ASSERT_EQ(g_seen.config.attr_count, 1u);
  EXPECT_EQ(g_seen.attrs[0].id, cu::kLaunchCooperative);
}

TEST_F(LaunchTest, EveryLimitIsCheckedBeforeTheDriver) {
  const struct {
    LaunchShape shape;
    Code code;
    const char* part;  // of the message
  } rows[] = {
      {{.grid = {0, 1, 1}}, Code::kInvalidArgument, "grid (0, 1, 1): axis 0 must be 1 to 2147483647"},
      {{.grid = {1, 1, 65536}}, Code::kInvalidArgument, "axis 2 must be 1 to 65535"},
      {{.block = {0, 1, 1}}, Code::kInvalidArgument, "block (0, 1, 1)"},
      {{.block = {513, 1, 1}}, Code::kInvalidArgument, "1 to 512 threads"},
      {{.block = {1024, 1024, 4294967295u}}, Code::kInvalidArgument, "block (1024, 1024, 4294967295)"},
      {{.smem_bytes = 1001}, Code::kInvalidArgument, "1001 bytes of dynamic shared memory, 1000 are allowed"},
      {{.grid = {5, 1, 1}, .cluster = {2, 1, 1}}, Code::kInvalidArgument, "not a multiple of the cluster's 2"},
      {{.cluster = {0, 1, 1}}, Code::kInvalidArgument, "not a multiple of the cluster's 0"},
  };
  for (const auto& row : rows) {
    const Status s = go(row.shape);
    EXPECT_EQ(s.code(), row.code) << s.to_string();
    EXPECT_NE(s.message().find(row.part), std::string::npos) << row.part << " is not in: " << s.message();
    EXPECT_EQ(s.message().rfind("norm: ", 0), 0u) << s.message();
    EXPECT_EQ(check_launch(kernel_, row.shape, sizeof(Args)).code(), row.code);
  }
  const Status wrong = launch(kernel_, {}, stream_, 5);
  EXPECT_EQ(wrong.code(), Code::kInvalidArgument);
  EXPECT_NE(wrong.message().find("takes 1 parameters of 8 bytes together; one argument struct of 4 bytes came"),
            std::string::npos)
      << wrong.message();
  kernel_.param_count = 2;
  EXPECT_EQ(go({}).code(), Code::kInvalidArgument);
  EXPECT_EQ(g_seen.calls, 0);
}

TEST_F(LaunchTest, DriverErrorsCarryTheKernelAndGeometry) {
  g_seen.answer = 701;  // LAUNCH_OUT_OF_RESOURCES: not sticky
  const Status s = go({.grid = {6, 1, 1}, .block = {96, 1, 1}});
  EXPECT_EQ(s.code(), Code::kCudaError);
  EXPECT_NE(s.message().find("cuLaunchKernelEx"), std::string::npos);
  EXPECT_NE(s.message().find("\"norm\", 6, 1, 1, 96, 1, 1, 0, 1, 0x55"), std::string::npos) << s.message();
  EXPECT_TRUE(healthy());
}

}  // namespace
}  // namespace vivace::device
