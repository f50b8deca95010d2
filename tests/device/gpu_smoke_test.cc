// The driver layer with real kernels: compile, load, launch, capture, partitions. Needs a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "vivace/device/graph.h"
#include "vivace/device/green.h"
#include "vivace/device/kernel.h"
#include "vivace/jit/nvrtc.h"

namespace vivace::device {
namespace {

#define VV_OK(expr)                                            \
  do {                                                         \
    const Status vv_status_ = (expr);                          \
    ASSERT_TRUE(vv_status_.ok()) << vv_status_.to_string();    \
  } while (0)

struct Args {
  float* x;
  float by;
  int n;
  int delay;  // clock cycles spent before the first access
};

constexpr const char* kText =
    "struct Args { float* x; float by; int n; int delay; };\n"
    "extern \"C\" __global__ void scale(const __grid_constant__ Args a) {\n"
    "  asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n"
    "  const long long start = clock64();\n"
    "  while (clock64() - start < a.delay) {}\n"
    "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < a.n) a.x[i] = a.x[i] * a.by + 1.0f;\n}\n"
    "extern \"C\" __global__ void where(unsigned* ids) {\n"
    "  unsigned id; asm volatile(\"mov.u32 %0, %smid;\" : \"=r\"(id));\n"
    "  if (threadIdx.x == 0) ids[blockIdx.x] = id;\n}\n"
    "extern \"C\" __global__ void crash(int* p) { *p = 1; }\n"
    "extern \"C\" __global__ void big(int* p) { extern __shared__ int s[]; s[threadIdx.x] = 3; __syncthreads(); "
    "p[threadIdx.x] = s[31 - threadIdx.x]; }\n";

class GpuDevice : public testing::Test {
 protected:
  void SetUp() override {
    const Result<Device*> d = Device::get(0);
    if (!d.ok()) GTEST_SKIP() << d.status().message();
    if (!(*d)->check_arch().ok()) GTEST_SKIP() << (*d)->check_arch().message();
    if (!jit::nvrtc().ok()) GTEST_SKIP() << jit::nvrtc().status().message();
    device_ = *d;
    std::string text = kText;
    if (device_->info().major < 9)
      text.erase(text.find("  asm volatile(\"griddep"),
                 text.find("  const long") - text.find("  asm volatile(\"griddep"));
    Result<jit::Binary> b =
        jit::compile({"smoke.cu", text, {"scale", "where", "crash", "big"}, {}, device_->info().arch});
    ASSERT_TRUE(b.ok()) << b.status().to_string();
    Result<Module> m = Module::load(*device_, std::as_bytes(std::span(b->cubin)), "smoke.cu");
    ASSERT_TRUE(m.ok()) << m.status().to_string();
    module_ = std::move(m).value();
    Result<Stream> s = Stream::create(*device_);
    ASSERT_TRUE(s.ok()) << s.status().to_string();
    stream_ = std::move(s).value();
    VV_OK(VV_CU_STATUS(cuMemAlloc_v2, &memory_, kCount * sizeof(float)));
  }
  void TearDown() override {
    if (memory_ != 0) VV_CU_IGNORE(cuMemFree_v2, memory_);
  }
  float* x() const { return reinterpret_cast<float*>(memory_); }
  std::vector<float> read() {
    std::vector<float> v(kCount);
    EXPECT_TRUE(stream_.copy(v.data(), x(), kCount * sizeof(float)).ok());
    EXPECT_TRUE(stream_.synchronize().ok());
    return v;
  }
  Kernel* kernel(const char* name) {
    Result<Kernel*> k = module_.kernel(name);
    EXPECT_TRUE(k.ok()) << k.status().to_string();
    return k.ok() ? *k : nullptr;
  }

  static constexpr int kCount = 100003;  // not a multiple of the block
  static constexpr uint32_t kGrid = (kCount + 255) / 256;
  Device* device_ = nullptr;
  Module module_;
  Stream stream_;
  cu::DevicePtr memory_ = 0;
};

TEST_F(GpuDevice, InfoIsPlausible) {
  const DeviceInfo& i = device_->info();
  EXPECT_GT(i.sm_count, 0);
  EXPECT_GT(i.memory_bytes, 1ll << 28);
  EXPECT_GE(i.smem_per_block, 48 * 1024);
  EXPECT_EQ(i.uuid.size(), 32u);
  EXPECT_GT(i.peak_bytes_per_s(), 1e10);
  const Result<MemoryInfo> m = device_->memory();
  ASSERT_TRUE(m.ok());
  EXPECT_GT(m->total_bytes, m->free_bytes - 1);
  std::printf("%s, sm_%d%d, %d SMs, %.1f GiB, L2 %d KiB, peak %.2f TB/s, priorities %d, green contexts %d\n",
              i.name.c_str(), i.major, i.minor, i.sm_count, static_cast<double>(i.memory_bytes) / (1 << 30),
              i.l2_bytes / 1024, i.peak_bytes_per_s() * 1e-12, device_->priority_levels(), i.green_contexts);
  const Result<BoardState> b = device_->board();
  if (b.ok()) {
    std::printf("driver %s, SM %d of %d MHz, memory %d of %d MHz, PCIe gen %d x%d, %d C\n", b->driver.c_str(),
                b->sm_mhz, b->max_sm_mhz, b->memory_mhz, b->max_memory_mhz, b->pcie_generation, b->pcie_width,
                b->temperature_c);
  }
}

TEST_F(GpuDevice, LaunchesEagerlyAndCaptured) {
  std::vector<float> host(kCount);
  std::iota(host.begin(), host.end(), 0.0f);
  VV_OK(stream_.copy(x(), host.data(), kCount * sizeof(float)));
  Kernel* k = kernel("scale");
  const LaunchShape shape = {.grid = {kGrid, 1, 1}, .block = {256, 1, 1}, .pdl = true};
  const Args args = {x(), 2.0f, kCount, 0};
  VV_OK(launch(*k, shape, stream_.handle(), args));
  std::vector<float> eager = read();
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(eager[static_cast<size_t>(i)], static_cast<float>(i) * 2.0f + 1.0f) << i;

  // Two dependent launches, captured, from the same start: bit-identical to the eager pair.
  VV_OK(launch(*k, shape, stream_.handle(), args));
  const std::vector<float> twice = read();
  VV_OK(begin_capture(stream_));
  EXPECT_TRUE(*is_capturing(stream_));
  VV_OK(launch(*k, shape, stream_.handle(), args));
  VV_OK(launch(*k, shape, stream_.handle(), args));
  Result<CapturedGraph> g = end_capture(stream_);
  ASSERT_TRUE(g.ok()) << g.status().to_string();
  EXPECT_EQ(*g->node_count(), 2u);
  Result<GraphExec> e = g->instantiate();
  ASSERT_TRUE(e.ok()) << e.status().to_string();
  VV_OK(e->upload(stream_));
  VV_OK(stream_.copy(x(), host.data(), kCount * sizeof(float)));
  VV_OK(e->launch(stream_));
  EXPECT_EQ(read(), twice);

  // An update changes arguments; a graph of another shape is refused and changes nothing.
  VV_OK(begin_capture(stream_));
  VV_OK(launch(*k, shape, stream_.handle(), Args{x(), 0.0f, kCount, 0}));
  VV_OK(launch(*k, shape, stream_.handle(), Args{x(), 0.0f, kCount, 0}));
  Result<CapturedGraph> zero = end_capture(stream_);
  ASSERT_TRUE(zero.ok());
  VV_OK(e->update(*zero));
  VV_OK(e->launch(stream_));
  EXPECT_EQ(read(), std::vector<float>(kCount, 1.0f));
  VV_OK(begin_capture(stream_));
  VV_OK(launch(*k, shape, stream_.handle(), args));
  Result<CapturedGraph> one = end_capture(stream_);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(e->update(*one).code(), Code::kFailedPrecondition);
}

TEST_F(GpuDevice, LaunchChecksNameTheKernelAndTheLimit) {
  Kernel* k = kernel("scale");
  EXPECT_EQ(k->param_count, 1);
  EXPECT_EQ(k->param_bytes, sizeof(Args));
  const Args args = {x(), 2.0f, kCount, 0};
  const auto code = [&](const LaunchShape& s) { return launch(*k, s, stream_.handle(), args).code(); };
  EXPECT_EQ(code({.grid = {0, 1, 1}}), Code::kInvalidArgument);
  EXPECT_EQ(code({.grid = {1, 70000, 1}}), Code::kInvalidArgument);
  EXPECT_EQ(code({.block = {2048, 1, 1}}), Code::kInvalidArgument);
  EXPECT_EQ(code({.block = {64, 64, 1}}), Code::kInvalidArgument);
  EXPECT_EQ(code({.smem_bytes = 64 * 1024}), Code::kInvalidArgument);
  EXPECT_EQ(code({.grid = {3, 1, 1}, .cluster = {2, 1, 1}}), Code::kInvalidArgument);
  EXPECT_EQ(code({.grid = {64, 1, 1}, .cluster = {32, 1, 1}}), Code::kUnsupported);
  EXPECT_EQ(launch(*k, {}, stream_.handle(), args.n).code(), Code::kInvalidArgument);
  EXPECT_EQ(module_.kernel("absent").status().code(), Code::kNotFound);
  EXPECT_TRUE(healthy());
}

TEST_F(GpuDevice, DynamicSharedMemoryUpToTheChipsLimit) {
  Kernel* k = kernel("big");
  const int limit = device_->info().smem_per_block;
  EXPECT_EQ(k->allow_dynamic_smem(limit + 1).code(), Code::kUnsupported);
  VV_OK(k->allow_dynamic_smem(limit));
  float* p = x();
  void* params[] = {&p};
  VV_OK(launch_params(*k, {.block = {32, 1, 1}, .smem_bytes = static_cast<uint32_t>(limit)}, stream_.handle(), params));
  const std::vector<float> out = read();
  EXPECT_EQ(std::bit_cast<int>(out[7]), 3);
}

TEST_F(GpuDevice, EventsOrderStreamsAndMeasure) {
  Result<Stream> other = Stream::create(*device_, device_->priority_levels() - 1);
  ASSERT_TRUE(other.ok());
  EXPECT_LT(*other->priority(), *stream_.priority());
  EXPECT_EQ(Stream::create(*device_, device_->priority_levels()).status().code(), Code::kInvalidArgument);
  Result<Event> start = Event::create(*device_, true), end = Event::create(*device_, true);
  ASSERT_TRUE(start.ok() && end.ok());
  VV_OK(stream_.fill(x(), 0, kCount * sizeof(float)));
  VV_OK(start->record(stream_.handle()));
  Kernel* k = kernel("scale");
  const LaunchShape shape = {.grid = {kGrid, 1, 1}, .block = {256, 1, 1}};
  VV_OK(launch(*k, shape, stream_.handle(), Args{x(), 1.0f, kCount, 2000000}));
  VV_OK(end->record(stream_.handle()));
  VV_OK(other->wait(*end));
  VV_OK(launch(*k, shape, other->handle(), Args{x(), 10.0f, kCount, 0}));
  VV_OK(other->synchronize());
  EXPECT_TRUE(*end->done());
  EXPECT_GT(*Event::elapsed_us(*start, *end), 500.0);  // 2 M cycles are at least 1 ms at 2 GHz
  EXPECT_EQ(read(), std::vector<float>(kCount, 11.0f));
}

TEST_F(GpuDevice, PartitionsKeepToTheirMultiprocessors) {
  if (!device_->info().green_contexts) GTEST_SKIP() << "no green contexts here";
  const int shares[] = {device_->info().sm_count / 4, 0};
  Result<std::vector<Partition>> parts = split(*device_, shares);
  ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  ASSERT_EQ(parts->size(), 2u);
  EXPECT_GE((*parts)[0].sm_count(), shares[0]);
  std::vector<std::vector<bool>> used(2, std::vector<bool>(1024));
  for (size_t p = 0; p < 2; ++p) {
    Result<Stream> s = (*parts)[p].stream();
    ASSERT_TRUE(s.ok()) << s.status().to_string();
    float* ids = x();
    void* params[] = {&ids};
    VV_OK(launch_params(*kernel("where"), {.grid = {4096, 1, 1}, .block = {256, 1, 1}}, s->handle(), params));
    VV_OK(s->synchronize());
    const std::vector<float> out = read();
    int distinct = 0;
    for (size_t i = 0; i < 4096; ++i) {
      const auto id = std::bit_cast<uint32_t>(out[i]);
      ASSERT_LT(id, 1024u);
      distinct += !used[p][id];
      used[p][id] = true;
    }
    EXPECT_LE(distinct, (*parts)[p].sm_count());
  }
  for (size_t i = 0; i < 1024; ++i)
    EXPECT_FALSE(used[0][i] && used[1][i]) << "multiprocessor " << i << " served both partitions";
  const int three[] = {device_->info().sm_count / 4, device_->info().sm_count / 3, 0};
  const Result<std::vector<Partition>> more = split(*device_, three);
  ASSERT_TRUE(more.ok()) << more.status().to_string();
  int sum = 0;
  for (size_t p = 0; p < 3; ++p) {
    EXPECT_GE((*more)[p].sm_count(), three[p]);
    sum += (*more)[p].sm_count();
  }
  EXPECT_EQ(sum, device_->info().sm_count);
  const int too_many[] = {device_->info().sm_count + 1};
  EXPECT_EQ(split(*device_, too_many).status().code(), Code::kInvalidArgument);
}

TEST_F(GpuDevice, PointersAreTold) {
  int on_host = 0;
  EXPECT_EQ(device_of(&on_host).status().code(), Code::kInvalidDevice);
  EXPECT_EQ(device_of(nullptr).status().code(), Code::kInvalidDevice);
  const Result<int> d = device_of(x());
  ASSERT_TRUE(d.ok()) << d.status().to_string();
  EXPECT_EQ(*d, 0);
  const Result<PinnedBuffer> pinned = PinnedBuffer::create(*device_, 4096);
  ASSERT_TRUE(pinned.ok());
  EXPECT_EQ(device_of(pinned->data()).status().code(), Code::kInvalidDevice);
}

TEST_F(GpuDevice, CubinForAnotherChipIsRefused) {
  const Arch other = device_->info().arch == Arch::sm120a ? Arch::sm90a : Arch::sm120a;
  Result<jit::Binary> b = jit::compile({"other.cu", "extern \"C\" __global__ void k() {}", {"k"}, {}, other});
  if (!b.ok()) GTEST_SKIP() << b.status().message();
  const Result<Module> m = Module::load(*device_, std::as_bytes(std::span(b->cubin)), "other.cu");
  Result<Kernel*> k = m.ok() ? Module(*m).kernel("k") : Result<Kernel*>(m.status());
  ASSERT_FALSE(k.ok());
  EXPECT_NE(k.status().message().find("cu"), std::string::npos);
  EXPECT_TRUE(healthy());
}

// In a fresh process: the error must not reach the other tests' context.
TEST(GpuDeathTest, IllegalAccessTurnsHealthRed) {
  if (!Device::count().ok()) GTEST_SKIP() << Device::count().status().message();
  if (!jit::nvrtc().ok()) GTEST_SKIP() << jit::nvrtc().status().message();
  testing::GTEST_FLAG(death_test_style) = "threadsafe";  // a forked child cannot use the parent's context
  EXPECT_EXIT(
      {
        Device* d = *Device::get(0);
        Result<jit::Binary> b = jit::compile(
            {"crash.cu", "extern \"C\" __global__ void crash(int* p) { *p = 1; }", {"crash"}, {}, d->info().arch});
        Module m = *Module::load(*d, std::as_bytes(std::span(b->cubin)), "crash.cu");
        Stream s = std::move(Stream::create(*d)).value();
        int* nowhere = reinterpret_cast<int*>(0x10);
        void* params[] = {&nowhere};
        const Status launched = launch_params(**m.kernel("crash"), {}, s.handle(), params);
        const Status synced = s.synchronize();
        std::exit(launched.ok() && synced.code() == Code::kCudaError && !healthy() ? 42 : 3);
      },
      testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace vivace::device
