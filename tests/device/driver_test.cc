// The driver layer where there is no GPU, and errors from drivers that will not do.
#include "vivace/device/driver.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "vivace/device/device.h"

namespace vivace::device {
namespace {

TEST(Driver, AnswersTheSameTwice) {
  const Result<const Driver*> a = driver(), b = driver();
  ASSERT_EQ(a.ok(), b.ok());
  if (a.ok()) {
    EXPECT_EQ(*a, *b);
    EXPECT_GE((*a)->version, kMinDriverVersion);
    EXPECT_GE((*a)->device_count, 1);
  } else {
    EXPECT_NE(a.status().code(), Code::kOk);
    EXPECT_FALSE(Device::count().ok());
    EXPECT_FALSE(Device::get(0).ok());
  }
}

TEST(Driver, MissingLibrarySaysWhatToDo) {
  cu::Api api;
  const Result<Driver> d = load_driver("libnot_a_driver.so.1", &api);
  ASSERT_EQ(d.status().code(), Code::kUnsupported);
  EXPECT_NE(d.status().message().find("install the driver (CUDA 12.4 or newer)"), std::string::npos)
      << d.status().message();
}

// A shared library that answers as a driver of the given kind would.
std::string fake_driver(const std::string& name, const std::string& body) {
  const std::string base = testing::TempDir() + "vv_fake_" + name;
  std::ofstream(base + ".c") << body;
  const std::string command = "cc -shared -fPIC -o " + base + ".so " + base + ".c 2>/dev/null";
  return std::system(command.c_str()) == 0 ? base + ".so" : "";
}

TEST(Driver, OldDriverIsToldItsVersion) {
  const std::string path = fake_driver("old", "int cuDriverGetVersion(int* v) { *v = 12020; return 0; }\n");
  if (path.empty()) GTEST_SKIP() << "no C compiler";
  cu::Api api;
  const Result<Driver> d = load_driver(path.c_str(), &api);
  ASSERT_EQ(d.status().code(), Code::kUnsupported);
  EXPECT_NE(d.status().message().find("supports CUDA 12.2, Vivace needs 12.4 or newer; update the driver"),
            std::string::npos)
      << d.status().message();
}

TEST(Driver, MissingSymbolsAreNamed) {
  const std::string path = fake_driver(
      "part", "int cuDriverGetVersion(int* v) { *v = 13000; return 0; }\nint cuInit(unsigned f) { return 0; }\n");
  if (path.empty()) GTEST_SKIP() << "no C compiler";
  cu::Api api;
  const Result<Driver> d = load_driver(path.c_str(), &api);
  ASSERT_EQ(d.status().code(), Code::kUnsupported);
  EXPECT_NE(d.status().message().find("cuLaunchKernelEx"), std::string::npos) << d.status().message();
  EXPECT_EQ(d.status().message().find("cuGreenCtxCreate"), std::string::npos) << "optional: " << d.status().message();
}

TEST(Driver, DriverWithoutDevicesAndFailingInit) {
#define VV_STUB_(name, params) "int " #name "() { return 0; }\n"
  const std::string all = VV_CUDA_FUNCTIONS(VV_STUB_);
#undef VV_STUB_
  // The macro defines cuDriverGetVersion, cuInit and cuDeviceGetCount too: take those out, then answer.
  const auto with = [&](const std::string& init) {
    std::string text = all;
    for (const char* name :
         {"cuDriverGetVersion", "cuInit", "cuDeviceGetCount", "cuGetErrorName", "cuGetErrorString"}) {
      const std::string line = std::string("int ") + name + "() { return 0; }\n";
      text.erase(text.find(line), line.size());
    }
    return text +
           "int cuDriverGetVersion(int* v) { *v = 13000; return 0; }\nint cuDeviceGetCount(int* n) { *n = 0; return 0; "
           "}\n" +
           "int cuGetErrorName(int e, const char** s) { *s = \"FAKE_NAME\"; return 0; }\n"
           "int cuGetErrorString(int e, const char** s) { *s = \"fake text\"; return 0; }\n" +
           "int cuInit(unsigned f) { return " + init + "; }\n";
  };
  const std::string none = fake_driver("none", with("100")), zero = fake_driver("zero", with("0")),
                    bad = fake_driver("bad", with("802"));
  if (none.empty()) GTEST_SKIP() << "no C compiler";
  cu::Api api;
  for (const std::string& path : {none, zero}) {
    const Result<Driver> d = load_driver(path.c_str(), &api);
    ASSERT_EQ(d.status().code(), Code::kUnsupported) << path;
    EXPECT_NE(d.status().message().find("sees no GPU"), std::string::npos) << d.status().message();
  }
  const Result<Driver> d = load_driver(bad.c_str(), &api);
  ASSERT_EQ(d.status().code(), Code::kCudaError);
  EXPECT_NE(d.status().message().find("FAKE_NAME, 802 (fake text)"), std::string::npos) << d.status().message();
}

cu::Result refuse(void*, size_t, const char*, double) { return 1; }

TEST(Driver, FailedCallPrintsCallErrorAndArguments) {
  void* pointer = reinterpret_cast<void*>(0xabc0);
  const size_t bytes = 77;
  const char* text = "kernel";
  const Status s = detail::call(&refuse, "cuMemThing", "pointer, bytes, text, 1.5", pointer, bytes, text, 1.5);
  ASSERT_EQ(s.code(), Code::kCudaError);
  EXPECT_NE(s.message().find("cuMemThing(pointer, bytes, text, 1.5) failed"), std::string::npos) << s.message();
  EXPECT_NE(s.message().find("arguments: 0xabc0, 77, \"kernel\", 1.5"), std::string::npos) << s.message();
  EXPECT_TRUE(healthy());
}

TEST(Driver, CodesOfFailures) {
  const auto code = [](cu::Result r) { return detail::call_failed(r, "cuX", "", nullptr, 0).code(); };
  EXPECT_EQ(code(cu::kOutOfMemory), Code::kOutOfMemory);
  EXPECT_EQ(code(cu::kNotSupported), Code::kUnsupported);
  EXPECT_EQ(code(400), Code::kCudaError);
  EXPECT_TRUE(healthy());
}

// In a child process: health stays red for good.
TEST(DriverDeathTest, StickyErrorTurnsHealthRed) {
  EXPECT_EXIT(
      {
        if (!healthy()) std::exit(1);
        const Status s = detail::call_failed(700, "cuStreamSynchronize", "stream", nullptr, 0);
        const Status later = detail::call_failed(719, "cuEventRecord", "event", nullptr, 0);
        const bool told = s.message().find("restart this process") != std::string::npos;
        const bool first = health().message().find("cuStreamSynchronize") != std::string::npos;
        std::exit(!healthy() && told && first && health().code() == Code::kCudaError ? 42 : 2);
      },
      testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace vivace::device
