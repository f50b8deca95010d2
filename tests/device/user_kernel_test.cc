// User kernels: signatures read back from NVRTC, conversion of arguments, and a real launch on a GPU.
#include "vivace/device/user_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "vivace/device/stream.h"
#include "vivace/jit/nvrtc.h"
#include "vivace/jit/user_source.h"

namespace vivace::device {
namespace {

constexpr const char* kText =
    "#include <cuda_fp16.h>\n"
    "struct Pair { int a, b; };\n"
    "namespace n { template <class T> __global__ void typed(T* y, const T* __restrict__ x, unsigned char c, Pair p, "
    "long long z, __half h) {} }\n"
    "extern \"C\" __global__ void axpy(float* y, const float* x, float a, int n, bool twice, unsigned short add) {\n"
    "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < n) y[i] = a * x[i] * (twice ? 2.0f : 1.0f) + add;\n}\n"
    "extern \"C\" __global__ void none() {}\n";

TEST(UserKernel, TypesAreReadBackFromTheBinary) {
  if (!jit::nvrtc().ok()) GTEST_SKIP() << jit::nvrtc().status().message();
  const auto types = [](const std::string& kernel) {
    const Result<jit::Binary> b = jit::compile(jit::user_source("user.cu", kText, kernel, Arch::sm90a));
    EXPECT_TRUE(b.ok()) << b.status().to_string();
    const Result<std::vector<std::string>> t = jit::parameter_types(*b, kernel);
    EXPECT_TRUE(t.ok()) << t.status().to_string();
    return *t;
  };
  EXPECT_EQ(types("axpy"),
            (std::vector<std::string>{"float*", "float const*", "float", "int", "bool", "unsigned short"}));
  EXPECT_EQ(types("n::typed<double>"),
            (std::vector<std::string>{"double*", "double const*", "unsigned char", "Pair", "long long", "__half"}));
  EXPECT_EQ(types("none"), std::vector<std::string>{});
  const Result<jit::Binary> missing = jit::compile(jit::user_source("user.cu", kText, "absent", Arch::sm90a));
  EXPECT_EQ(missing.status().code(), Code::kCompileError);
  EXPECT_NE(missing.status().message().find("absent"), std::string::npos) << missing.status().message();
}

template <class T>
Result<T> converted(const char* type, const UserArg& arg) {
  std::byte out[16] = {};
  if (Status s = convert(user_param(type, sizeof(T)), arg, out); !s.ok()) return s;
  T v;
  std::memcpy(&v, out, sizeof(T));
  return v;
}

TEST(UserKernel, NumbersBecomeTheDeclaredType) {
  EXPECT_EQ(*converted<int32_t>("int", UserArg::of_integer(-7)), -7);
  EXPECT_EQ(*converted<uint8_t>("unsigned char", UserArg::of_integer(255)), 255);
  EXPECT_EQ(*converted<uint32_t>("unsigned int", UserArg::of_integer(0xffffffffll)), 0xffffffffu);
  EXPECT_EQ(*converted<int64_t>("long long", UserArg::of_integer(INT64_MIN)), INT64_MIN);
  EXPECT_EQ(*converted<float>("float", UserArg::of_real(0.1)), 0.1f);
  EXPECT_EQ(*converted<float>("float", UserArg::of_integer(3)), 3.0f);
  EXPECT_EQ(*converted<double>("double", UserArg::of_real(0.1)), 0.1);
  EXPECT_EQ(*converted<uint16_t>("__half", UserArg::of_real(1.5)), 0x3e00);
  EXPECT_EQ(*converted<uint16_t>("__nv_bfloat16", UserArg::of_real(1.5)), 0x3fc0);
  EXPECT_EQ(*converted<bool>("bool", UserArg::of_bool(true)), true);
  EXPECT_TRUE(std::isinf(*converted<float>("float", UserArg::of_real(INFINITY))));
}

TEST(UserKernel, WrongArgumentsAreNamedErrors) {
  EXPECT_EQ(converted<uint8_t>("unsigned char", UserArg::of_integer(256)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(converted<uint8_t>("unsigned char", UserArg::of_integer(-1)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(converted<int32_t>("int", UserArg::of_integer(1ll << 31)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(converted<uint64_t>("unsigned long", UserArg::of_integer(-1)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(converted<int32_t>("int", UserArg::of_real(1.0)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(converted<bool>("bool", UserArg::of_integer(1)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(converted<float>("float", UserArg::of_real(1e300)).status().code(), Code::kInvalidArgument);
  float x = 0;
  const Tensor t = tensor(&x, DType::bf16, Shape(1), Place::device);
  const Status s = converted<void*>("float const*", UserArg::of(t)).status();
  EXPECT_EQ(s.code(), Code::kInvalidDType);
  EXPECT_NE(s.message().find("wants a tensor of f32, bf16 came"), std::string::npos) << s.message();
  EXPECT_EQ(*converted<void*>("void*", UserArg::of(t)), &x);
  EXPECT_EQ(*converted<void*>("Thing*", UserArg::of(t)), &x);
  EXPECT_EQ(converted<void*>("float*", UserArg::of_integer(5)).status().code(), Code::kInvalidArgument);
  const int pair[2] = {1, 2};
  EXPECT_EQ(*converted<int64_t>("Pair", UserArg::of_bytes(pair, 8)), (2ll << 32) + 1);
  EXPECT_EQ(converted<int64_t>("Pair", UserArg::of_bytes(pair, 4)).status().code(), Code::kInvalidArgument);
}

TEST(GpuUserKernel, LaunchesOnAStreamWithCheckedArguments) {
  const Result<Device*> device = Device::get(0);
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  if (!jit::nvrtc().ok()) GTEST_SKIP() << jit::nvrtc().status().message();
  const Device& d = **device;
  const Result<jit::Binary> b = jit::compile(jit::user_source("user.cu", kText, "axpy", d.info().arch));
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  Result<Module> m = Module::load(d, std::as_bytes(std::span(b->cubin)), "user.cu");
  ASSERT_TRUE(m.ok()) << m.status().to_string();
  const Result<UserKernel> k = UserKernel::create(*m, *b->symbol("axpy"), *jit::parameter_types(*b, "axpy"));
  ASSERT_TRUE(k.ok()) << k.status().to_string();

  constexpr int kCount = 1000;
  Result<Stream> stream = Stream::create(d);
  ASSERT_TRUE(stream.ok());
  cu::DevicePtr memory = 0;
  ASSERT_TRUE(VV_CU_STATUS(cuMemAlloc_v2, &memory, 2 * kCount * sizeof(float)).ok());
  float* y = reinterpret_cast<float*>(memory);
  std::vector<float> host(2 * kCount);
  for (int i = 0; i < kCount; ++i) host[static_cast<size_t>(kCount + i)] = static_cast<float>(i);
  ASSERT_TRUE(stream->copy(y, host.data(), host.size() * sizeof(float)).ok());
  const Tensor ty = tensor(y, DType::f32, Shape(kCount), Place::device),
               tx = tensor(y + kCount, DType::f32, Shape(kCount), Place::device);
  std::vector<UserArg> args = {UserArg::of(ty),        UserArg::of(tx),
                               UserArg::of_real(0.5),  UserArg::of_integer(kCount),
                               UserArg::of_bool(true), UserArg::of_integer(7)};
  const LaunchShape shape = {.grid = {8, 1, 1}, .block = {128, 1, 1}};
  const Status launched = k->launch(shape, stream->handle(), args);
  ASSERT_TRUE(launched.ok()) << launched.to_string();
  ASSERT_TRUE(stream->copy(host.data(), y, kCount * sizeof(float)).ok());
  ASSERT_TRUE(stream->synchronize().ok());
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(host[static_cast<size_t>(i)], static_cast<float>(i) + 7.0f) << i;

  std::vector<UserArg> bad = args;
  bad[0] = UserArg::of_pointer(host.data());
  const Status host_pointer = k->launch(shape, stream->handle(), bad);
  EXPECT_EQ(host_pointer.code(), Code::kInvalidDevice);
  EXPECT_NE(host_pointer.message().find("axpy, argument 0"), std::string::npos) << host_pointer.message();
  bad = args;
  bad.pop_back();
  EXPECT_EQ(k->launch(shape, stream->handle(), bad).code(), Code::kInvalidArgument);
  VV_CU_IGNORE(cuMemFree_v2, memory);
}

}  // namespace
}  // namespace vivace::device
