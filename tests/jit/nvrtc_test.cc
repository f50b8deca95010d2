// NVRTC for every supported chip, without a GPU. Skips where NVRTC is not installed.
#include "vivace/jit/nvrtc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "vivace/jit/embedded.h"

namespace vivace::jit {
namespace {

#define VV_NEED_NVRTC() \
  if (!nvrtc().ok()) GTEST_SKIP() << nvrtc().status().message()

Source scale_source(Arch arch) {
  return {"scale.cu",
          "#include <cuda_bf16.h>\n#include \"vivace/base/dtype.h\"\n"
          "struct Args { float* x; float by; int n; };\n"
          "template <class T> __global__ void scale(const __grid_constant__ Args a) {\n"
          "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
          "  if (i < a.n) a.x[i] = static_cast<float>(static_cast<T>(a.x[i] * a.by));\n}\n",
          {"scale<float>", "scale<__nv_bfloat16>"},
          {},
          arch};
}

TEST(Nvrtc, CompilesForEveryChip) {
  VV_NEED_NVRTC();
  for (Arch arch : kGpuArchs) {
    const Result<Binary> b = compile(scale_source(arch));
    ASSERT_TRUE(b.ok()) << name(arch) << ": " << b.status().to_string();
    EXPECT_EQ(b->arch, name(arch));
    ASSERT_GT(b->cubin.size(), 64u);
    EXPECT_EQ(std::memcmp(b->cubin.data(), "\x7f" "ELF", 4), 0) << name(arch);
    const Result<std::string> f = b->symbol("scale<float>"), h = b->symbol("scale<__nv_bfloat16>");
    ASSERT_TRUE(f.ok() && h.ok());
    EXPECT_NE(*f, *h);
    // The symbols are really in the cubin, and ptxas reported both.
    EXPECT_NE(b->cubin.find(*f), std::string::npos);
    ASSERT_EQ(b->resources.size(), 2u);
    for (const Resources& r : b->resources) {
      EXPECT_GT(r.registers, 0) << r.symbol;
      EXPECT_EQ(r.spill_stores, 0) << r.symbol;
    }
  }
}

// In a process of its own, since the first answer stays for a process.
TEST(NvrtcDeathTest, ExplicitChoiceThatIsNotThereSaysWhatToDo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("VIVACE_NVRTC", "/nowhere/libnvrtc.so", 1);
        const Status s = nvrtc().status();
        const bool told = s.message().find("install the package nvidia-cuda-nvrtc") != std::string::npos &&
                          s.message().find("\n  /nowhere/libnvrtc.so") != std::string::npos;
        const Status compiled = compile(scale_source(Arch::sm80)).status();
        std::exit(s.code() == Code::kUnsupported && told && compiled.code() == Code::kUnsupported ? 42 : 1);
      },
      testing::ExitedWithCode(42), "");
}

TEST(Nvrtc, MissingExpressionIsNamed) {
  VV_NEED_NVRTC();
  const Result<Binary> b = compile(scale_source(Arch::sm90a));
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  const Result<std::string> s = b->symbol("scale<double>");
  EXPECT_EQ(s.status().code(), Code::kNotFound);
  EXPECT_NE(s.status().message().find("scale<float>"), std::string::npos) << s.status().message();
}

TEST(Nvrtc, FirstErrorComesFirstAndTheLogIsKept) {
  VV_NEED_NVRTC();
  Source s{"bad.cu",
           "__global__ void f(float* p) {\n#warning loud\n  p[0] = undefined_one;\n  q = 2;\n}\n",
           {"f"},
           {},
           Arch::sm80};
  const Result<Binary> b = compile(s);
  ASSERT_EQ(b.status().code(), Code::kCompileError);
  const std::string& m = b.status().message();
  EXPECT_EQ(m.rfind("bad.cu(3): error: identifier \"undefined_one\" is undefined", 0), 0u) << m;
  EXPECT_NE(m.find("p[0] = undefined_one;"), std::string::npos) << m;
  EXPECT_EQ(m.find("\"q\""), std::string::npos) << "the second error is in the log only: " << m;
  const size_t at = m.find("full log and source: ");
  ASSERT_NE(at, std::string::npos) << m;
  const std::string path = m.substr(at + 21);
  std::ifstream file(path);
  std::stringstream log;
  log << file.rdbuf();
  EXPECT_NE(log.str().find("\"q\" is undefined"), std::string::npos) << log.str();
  std::remove(path.c_str());
}

TEST(Nvrtc, FirstErrorOfOtherLogs) {
  EXPECT_EQ(first_error("k.cu(2): warning #1105-D: #warning directive: hi\n  x\n\nk.cu(1): catastrophic error: could "
                        "not open source file \"n.h\"\n  #include <n.h>\n          ^\n\n1 error"),
            "k.cu(1): catastrophic error: could not open source file \"n.h\"\n  #include <n.h>\n          ^");
  EXPECT_EQ(
      first_error("ptxas application ptx input, line 27; error   : Unknown modifier '.bar'\nptxas fatal   : aborted"),
      "ptxas application ptx input, line 27; error   : Unknown modifier '.bar'");
  EXPECT_EQ(first_error("k.cu(2): warning #1: errors are fun\n"), "");
}

TEST(Nvrtc, ResourcesOfSpillingKernel) {
  const std::vector<Resources> r = parse_resources(
      "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function '_Z1kf' for 'sm_90a'\n"
      "ptxas info    : Function properties for _Z1kf\n"
      "ptxas         .     16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size, 49152 bytes smem\n");
  ASSERT_EQ(r.size(), 1u);
  EXPECT_EQ(r[0].symbol, "_Z1kf");
  EXPECT_EQ(r[0].registers, 255);
  EXPECT_EQ(r[0].stack_bytes, 16);
  EXPECT_EQ(r[0].spill_stores, 12);
  EXPECT_EQ(r[0].spill_loads, 8);
  EXPECT_EQ(r[0].static_smem, 49152);
}

TEST(Nvrtc, UnknownHostArchIsRefused) {
  VV_NEED_NVRTC();
  Source s = scale_source(Arch::cpu);
  EXPECT_EQ(compile(s).status().code(), Code::kUnsupported);
}

TEST(Embedded, HeadersAreSortedAndEqualToTheTreeButForCommentsAndIndentation) {
  if (!std::ifstream(VV_SOURCE_DIR "/vivace/base/int.h")) GTEST_SKIP() << "the source tree is not on this machine";
  const std::span<const Header> all = embedded_headers();
  ASSERT_GE(all.size(), 3u);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0) {
      EXPECT_LT(std::string(all[i - 1].name), std::string(all[i].name));
    }
    std::ifstream file(std::string(VV_SOURCE_DIR "/") + all[i].name);
    std::string text;
    for (std::string line; std::getline(file, line); text += line + "\n") {
      const size_t quote = line.rfind('"'), comment = line.find("//", quote == std::string::npos ? 0 : quote + 1);
      if (comment != std::string::npos) {  // the line stays, empty or with what stands before it
        line.erase(comment);
        line.erase(line.find_last_not_of(" \t") + 1);
      }
      line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
    }
    EXPECT_EQ(text, all[i].text) << all[i].name;
    EXPECT_EQ(find_header(all[i].name), all[i].text);
  }
  EXPECT_EQ(find_header("vivace/base/none.h"), nullptr);
}

}  // namespace
}  // namespace vivace::jit
