// Compiler and packs: where binaries come from, strict mode, progress, job cap, failures.
#include "vivace/jit/compiler.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "vivace/jit/nvrtc.h"

namespace vivace::jit {
namespace {

#define VV_NEED_NVRTC() \
  if (!nvrtc().ok()) GTEST_SKIP() << nvrtc().status().message()

Source add_source(int k, Arch arch = Arch::sm90a) {
  return {strf("add%d.cu", k),
          "extern \"C\" __global__ void add(float* x) { x[threadIdx.x] += " + std::to_string(k) + ".0f; }",
          {"add"},
          {},
          arch};
}

class CompilerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string t = testing::TempDir() + "vv_compiler_XXXXXX";
    ASSERT_NE(mkdtemp(t.data()), nullptr);
    root_ = t;
  }
  void TearDown() override { ASSERT_EQ(std::system(("rm -rf '" + root_ + "'").c_str()), 0); }
  std::unique_ptr<Compiler> make(CompilerOptions o = {}) {
    o.cache_folder = root_ + "/cache";
    Result<std::unique_ptr<Compiler>> c = Compiler::create(std::move(o));
    EXPECT_TRUE(c.ok()) << c.status().to_string();
    return c.ok() ? std::move(c).value() : nullptr;
  }
  std::string root_;
};

TEST_F(CompilerTest, CompilesOnceThenMemoryThenDisk) {
  VV_NEED_NVRTC();
  std::vector<Source> sources;
  for (int k = 0; k < 6; ++k) sources.push_back(add_source(k % 5));  // the last equals the first
  CompilerOptions o;
  std::vector<Progress> seen;
  o.on_progress = [&](const Progress& p) { seen.push_back(p); };
  o.jobs = 2;
  const auto a = make(o);
  const Result<std::vector<BinaryPtr>> r = a->get(sources);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ((*r)[0], (*r)[5]);
  EXPECT_NE((*r)[0]->cubin, (*r)[1]->cubin);
  ASSERT_EQ(seen.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(seen[i].done, i + 1);
    EXPECT_EQ(seen[i].total, 5u);
  }
  ASSERT_EQ(a->timings().size(), 5u);
  for (const Timing& t : a->timings()) {
    EXPECT_EQ(t.origin, Origin::compiled) << t.source;
    EXPECT_GT(t.milliseconds, 0.0);
  }
  ASSERT_TRUE(a->get(sources).ok());
  EXPECT_EQ(a->timings().size(), 5u) << "memory hits are free";

  const auto b = make();
  const Result<std::vector<BinaryPtr>> again = b->get(sources);
  ASSERT_TRUE(again.ok());
  for (const Timing& t : b->timings()) EXPECT_EQ(t.origin, Origin::cache) << t.source;
  for (size_t i = 0; i < sources.size(); ++i) EXPECT_EQ((*again)[i]->cubin, (*r)[i]->cubin);
}

TEST_F(CompilerTest, StrictForbidsCompilingButNotCachedKernels) {
  VV_NEED_NVRTC();
  ASSERT_TRUE(make()->get(add_source(1)).ok());
  const auto c = make();
  c->forbid_compiling();
  EXPECT_TRUE(c->get(add_source(1)).ok());
  const Status s = c->get(add_source(2)).status();
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_NE(s.message().find("add2.cu for sm_90a"), std::string::npos) << s.message();
  EXPECT_TRUE(make()->get(add_source(2)).ok()) << "the refused key is not left locked or bad";
}

TEST_F(CompilerTest, OneBadSourceFailsTheCallAndNotTheCompiler) {
  VV_NEED_NVRTC();
  Source bad = add_source(1);
  bad.name = "bad.cu";
  bad.text = "extern \"C\" __global__ void add(float* x) { oops }";
  const Source sources[] = {add_source(1), bad, add_source(2)};
  CompilerOptions o;
  o.jobs = 1;
  const auto c = make(o);
  const Status s = c->get(sources).status();
  EXPECT_EQ(s.code(), Code::kCompileError);
  EXPECT_EQ(s.message().rfind("bad.cu(1): error", 0), 0u) << s.message();
  EXPECT_TRUE(c->get(add_source(2)).ok());
  const size_t at = s.message().find("full log and source: ");
  if (at != std::string::npos) std::remove(s.message().substr(at + 21).c_str());
}

TEST_F(CompilerTest, PacksNeedNoCompiler) {
  VV_NEED_NVRTC();
  std::vector<std::pair<std::string, BinaryPtr>> entries;
  for (Arch arch : {Arch::sm80, Arch::sm90a})
    for (int k = 0; k < 3; ++k) {
      const Source s = add_source(k, arch);
      Result<Binary> b = compile(s);
      ASSERT_TRUE(b.ok()) << b.status().to_string();
      entries.emplace_back(cache_key(s), std::make_shared<Binary>(std::move(b).value()));
    }
  const std::string path = root_ + "/kernels.pack";
  ASSERT_TRUE(write_pack(path, entries).ok());
  CompilerOptions o;
  o.packs = {path};
  o.use_cache = false;
  const auto c = make(o);
  c->forbid_compiling();
  const Result<BinaryPtr> b = c->get(add_source(2, Arch::sm80));
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  EXPECT_EQ(c->timings().at(0).origin, Origin::pack);
  EXPECT_EQ((*b)->arch, "sm_80");
  EXPECT_EQ(c->get(add_source(7)).status().code(), Code::kFailedPrecondition);
}

// A folder that cannot be opened, or none at all: packs serve, and what is in none is compiled and used.
TEST_F(CompilerTest, GoesOnWithoutACache) {
  std::ofstream(root_ + "/cache") << "a file where a folder is wanted";
  Binary packed;
  packed.cubin = "cubin", packed.arch = "sm_80";
  const std::pair<std::string, BinaryPtr> entry(cache_key(add_source(1, Arch::sm80)),
                                                std::make_shared<Binary>(std::move(packed)));
  ASSERT_TRUE(write_pack(root_ + "/kernels.pack", {&entry, 1}).ok());
  CompilerOptions o;
  o.packs = {root_ + "/kernels.pack"};
  testing::internal::CaptureStderr();
  const auto c = make(o);
  const auto second = make(o);
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_NE(c, nullptr);
  EXPECT_NE(said.find(root_ + "/cache"), std::string::npos) << said;
  EXPECT_EQ(said.find("vivace:"), said.rfind("vivace:")) << "one warning: " << said;
  const Result<BinaryPtr> b = c->get(add_source(1, Arch::sm80));
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  EXPECT_EQ(c->timings().at(0).origin, Origin::pack);
  VV_NEED_NVRTC();
  EXPECT_TRUE(c->get(add_source(2)).ok());
}

class PackTest : public CompilerTest {
 protected:
  static BinaryPtr binary(char fill) {
    Binary b;
    b.cubin = std::string(30, fill);
    b.arch = "sm_80";
    return std::make_shared<Binary>(std::move(b));
  }
  static std::string key(char c) { return std::string(64, c); }
  static std::string slurp(const std::string& path) {
    std::ifstream f(path, std::ios::binary);
    std::stringstream s;
    s << f.rdbuf();
    return s.str();
  }
};

TEST_F(PackTest, FindsEveryKeyAndIsDeterministic) {
  const std::vector<std::pair<std::string, BinaryPtr>> list = {
      {key('c'), binary('3')}, {key('a'), binary('1')}, {key('b'), binary('2')}};
  const std::vector<std::pair<std::string, BinaryPtr>> other = {list[1], list[2], list[0]};
  ASSERT_TRUE(write_pack(root_ + "/p", list).ok());
  ASSERT_TRUE(write_pack(root_ + "/q", other).ok());
  EXPECT_EQ(slurp(root_ + "/p"), slurp(root_ + "/q"));
  const Result<Pack> p = Pack::open(root_ + "/p");
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->keys(), (std::vector<std::string>{key('a'), key('b'), key('c')}));
  for (const auto& [k, b] : list) {
    const Result<Binary> found = p->find(k);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->cubin, b->cubin);
  }
  EXPECT_EQ(p->find(key('d')).status().code(), Code::kNotFound);
  EXPECT_EQ(p->find("").status().code(), Code::kNotFound);
  EXPECT_EQ(write_pack(root_ + "/r", std::vector{list[0], list[0]}).code(), Code::kInvalidArgument);
  EXPECT_EQ(write_pack(root_ + "/r", std::vector{std::pair<std::string, BinaryPtr>{"../x", binary('1')}}).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(Pack::open(root_ + "/none").status().code(), Code::kNotFound);
}

TEST_F(PackTest, EveryDamageIsFound) {
  const std::vector<std::pair<std::string, BinaryPtr>> list = {{key('a'), binary('1')}, {key('b'), binary('2')}};
  const std::string path = root_ + "/p";
  ASSERT_TRUE(write_pack(path, list).ok());
  const std::string good = slurp(path);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 4);
    std::ofstream(path, std::ios::binary) << bad;
    const Result<Pack> p = Pack::open(path);
    const bool refused = !p.ok() || !p->find(key('a')).ok() || !p->find(key('b')).ok();
    EXPECT_TRUE(refused) << "byte " << i;
  }
  for (size_t n = 0; n < good.size(); n += 11) {
    std::ofstream(path, std::ios::binary) << good.substr(0, n);
    EXPECT_FALSE(Pack::open(path).ok()) << "cut to " << n;
  }
}

}  // namespace
}  // namespace vivace::jit
