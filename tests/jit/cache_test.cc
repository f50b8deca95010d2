// The disk cache: content, tampering, strangers, crashes at every step of a write, many processes.
#include "vivace/jit/cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace vivace::jit {
namespace {

Binary sample(const std::string& salt, size_t bytes = 5000) {
  Binary b;
  for (size_t i = 0; i < bytes; ++i) b.cubin += static_cast<char>(i * 31 + salt.size());
  b.symbols = {{"f<float>", "_Z1fIfEvv" + salt}, {"g", "g"}};
  b.resources = {{"_Z1fIfEvv", 40, 1024, 16, 4, 8}};
  b.arch = "sm_90a";
  b.compiler = "NVRTC 13.0";
  b.warnings = "w\n";
  return b;
}
bool same(const Binary& a, const Binary& b) { return serialize(a) == serialize(b); }

class CacheTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string t = testing::TempDir() + "vv_cache_XXXXXX";
    ASSERT_NE(mkdtemp(t.data()), nullptr);
    root_ = t;
    Result<Cache> c = Cache::open(root_ + "/a/b");
    ASSERT_TRUE(c.ok()) << c.status().to_string();
    cache_ = std::move(c).value();
  }
  void TearDown() override {
    g_write_step_hook = nullptr;
    if (!root_.empty()) {
      ASSERT_EQ(std::system(("rm -rf '" + root_ + "'").c_str()), 0);
    }
  }
  std::string entry(const std::string& key) const { return cache_.folder() + "/" + key + ".vvc"; }
  static std::string slurp(const std::string& path) {
    std::ifstream f(path, std::ios::binary);
    std::stringstream s;
    s << f.rdbuf();
    return s.str();
  }
  int count_files(const std::string& prefix) const {
    int n = 0;
    DIR* d = opendir(cache_.folder().c_str());
    while (const dirent* e = readdir(d)) n += std::string(e->d_name).rfind(prefix, 0) == 0;
    closedir(d);
    return n;
  }
  std::string root_;
  Cache cache_;
  const std::string key_ = std::string(60, 'a') + "0123";
};

TEST_F(CacheTest, StoresAndLoadsWithPrivateModes) {
  EXPECT_EQ(cache_.load(key_).status().code(), Code::kNotFound);
  ASSERT_TRUE(cache_.store(key_, sample("x")).ok());
  const Result<Binary> b = cache_.load(key_);
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  EXPECT_TRUE(same(*b, sample("x")));
  struct stat s = {};
  ASSERT_EQ(stat(cache_.folder().c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0700u);
  ASSERT_EQ(stat(entry(key_).c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600u);
  EXPECT_EQ(count_files(".tmp-"), 0);
  EXPECT_EQ(count_files(key_ + ".lock"), 0);
}

TEST_F(CacheTest, KeysAreHexOnly) {
  for (const std::string& bad : {std::string("../../etc/passwd"), std::string(64, 'g'), std::string(63, 'a'),
                                 std::string(64, 'A'), std::string(32, '.') + std::string(32, '/')}) {
    EXPECT_EQ(cache_.load(bad).status().code(), Code::kInvalidArgument) << bad;
    EXPECT_EQ(cache_.store(bad, sample("x")).code(), Code::kInvalidArgument) << bad;
  }
}

TEST_F(CacheTest, EveryTamperedByteIsFoundAndRebuilt) {
  ASSERT_TRUE(cache_.store(key_, sample("x", 40)).ok());
  const std::string good = slurp(entry(key_));
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    std::ofstream(entry(key_), std::ios::binary) << bad;
    EXPECT_EQ(cache_.load(key_).status().code(), Code::kCorruptData) << "byte " << i;
  }
  for (size_t n = 0; n < good.size(); n += 7) {
    std::ofstream(entry(key_), std::ios::binary) << good.substr(0, n);
    EXPECT_EQ(cache_.load(key_).status().code(), Code::kCorruptData) << "cut to " << n;
  }
  int builds = 0;
  const Result<Binary> b = cache_.get_or_build(key_, [&] { ++builds; return Result<Binary>(sample("x", 40)); });
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(builds, 1);
  EXPECT_EQ(cache_.stats().repaired, 1);
  EXPECT_EQ(slurp(entry(key_)), good);
}

TEST_F(CacheTest, EntryOfAnotherKeyIsRefused) {
  const std::string other(64, 'b');
  ASSERT_TRUE(cache_.store(other, sample("other")).ok());
  ASSERT_EQ(rename(entry(other).c_str(), entry(key_).c_str()), 0);
  EXPECT_EQ(cache_.load(key_).status().code(), Code::kCorruptData);
}

TEST_F(CacheTest, SymbolicLinksAreNotFollowed) {
  const std::string other(64, 'b');
  ASSERT_TRUE(cache_.store(other, sample("x")).ok());
  ASSERT_EQ(symlink(entry(other).c_str(), entry(key_).c_str()), 0);
  EXPECT_EQ(cache_.load(key_).status().code(), Code::kCorruptData);
  ASSERT_TRUE(cache_.get_or_build(key_, [] { return Result<Binary>(sample("y")); }).ok());
  EXPECT_TRUE(same(*cache_.load(other), sample("x"))) << "the link's target was written";
  EXPECT_TRUE(same(*cache_.load(key_), sample("y")));
  // A linked lock or folder is an error, and the target is untouched.
  const std::string victim = root_ + "/victim", third(64, 'c');
  std::ofstream(victim) << "v";
  ASSERT_EQ(symlink(victim.c_str(), (cache_.folder() + "/" + third + ".lock").c_str()), 0);
  EXPECT_EQ(cache_.store(third, sample("z")).code(), Code::kIoError);
  EXPECT_EQ(slurp(victim), "v");
  ASSERT_EQ(symlink(cache_.folder().c_str(), (root_ + "/link").c_str()), 0);
  EXPECT_EQ(Cache::open(root_ + "/link").status().code(), Code::kFailedPrecondition);
}

TEST_F(CacheTest, WritableByOthersIsRefused) {
  ASSERT_TRUE(cache_.store(key_, sample("x")).ok());
  ASSERT_EQ(chmod(entry(key_).c_str(), 0666), 0);
  EXPECT_EQ(cache_.load(key_).status().code(), Code::kFailedPrecondition);
  const std::string before = slurp(entry(key_));
  const Result<Binary> built = cache_.get_or_build(key_, [] { return Result<Binary>(sample("y")); });
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  EXPECT_TRUE(same(*built, sample("y"))) << "what others could have written was read";
  EXPECT_EQ(slurp(entry(key_)), before);
  EXPECT_EQ(cache_.stats().unkept, 1);
  ASSERT_EQ(chmod(cache_.folder().c_str(), 0777), 0);
  const Status s = Cache::open(cache_.folder()).status();
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_NE(s.message().find("chmod go-w"), std::string::npos) << s.message();
}

TEST_F(CacheTest, ForeignOwnerIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a file that belongs to somebody else";
  ASSERT_TRUE(cache_.store(key_, sample("x")).ok());
  ASSERT_EQ(chown(entry(key_).c_str(), 12345, 12345), 0);
  EXPECT_EQ(cache_.load(key_).status().code(), Code::kFailedPrecondition);
  ASSERT_EQ(chown(cache_.folder().c_str(), 12345, 12345), 0);
  EXPECT_EQ(Cache::open(cache_.folder()).status().code(), Code::kFailedPrecondition);
}

TEST_F(CacheTest, StaleTemporariesAndLocksGoAndFreshOnesStay) {
  const utimbuf long_ago = {1000, 1000};
  const std::string folder = cache_.folder() + "/", lock = ".lock";
  for (const auto& [old, fresh] :
       {std::pair(folder + ".tmp-old", folder + ".tmp-fresh"),
        std::pair(folder + std::string(64, 'e') + lock, folder + std::string(64, 'f') + lock)}) {
    std::ofstream(old) << "o";
    std::ofstream(fresh) << "f";
    ASSERT_EQ(utime(old.c_str(), &long_ago), 0);
    ASSERT_TRUE(Cache::open(cache_.folder()).ok());
    EXPECT_EQ(access(old.c_str(), F_OK), -1) << old;
    EXPECT_EQ(access(fresh.c_str(), F_OK), 0) << fresh;
  }
  // A lock that somebody holds stays, however old.
  const std::string held = cache_.folder() + "/" + std::string(64, 'd') + ".lock";
  const int fd = open(held.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  ASSERT_EQ(utime(held.c_str(), &long_ago), 0);
  ASSERT_TRUE(Cache::open(cache_.folder()).ok());
  EXPECT_EQ(access(held.c_str(), F_OK), 0);
  close(fd);
}

// A disk that refuses: a child whose files may have 100 bytes, as on a full disk, with a corrupt entry in its way.
TEST_F(CacheTest, WhatCannotBeStoredIsUsedWithOneWarning) {
  std::ofstream(entry(key_)) << "corrupt";
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit most = {100, 100};
    const std::string said = root_ + "/said";
    const int err = open(said.c_str(), O_WRONLY | O_CREAT, 0600);
    if (setrlimit(RLIMIT_FSIZE, &most) != 0 || dup2(err, 2) != 2) _exit(2);
    for (int i = 0; i < 3; ++i) {
      const Result<Binary> b = cache_.get_or_build(key_, [] { return Result<Binary>(sample("x")); });
      if (!b.ok() || !same(*b, sample("x"))) _exit(3);
    }
    _exit(cache_.stats().unkept == 3 && cache_.stats().repaired == 0 ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const std::string said = slurp(root_ + "/said");
  EXPECT_NE(said.find("cache of compiled kernels is not used"), std::string::npos) << said;
  EXPECT_EQ(said.find("vivace:"), said.rfind("vivace:")) << "one warning: " << said;
  EXPECT_EQ(count_files(".tmp-"), 0);
  EXPECT_TRUE(cache_.get_or_build(key_, [] { return Result<Binary>(sample("x")); }).ok());
  EXPECT_EQ(cache_.stats().repaired, 1);
}

TEST_F(CacheTest, ALockThatCannotBeTakenIsNoReasonToFail) {
  const std::string victim = root_ + "/victim";
  std::ofstream(victim) << "v";
  ASSERT_EQ(symlink(victim.c_str(), (cache_.folder() + "/" + key_ + ".lock").c_str()), 0);
  EXPECT_TRUE(same(*cache_.get_or_build(key_, [] { return Result<Binary>(sample("x")); }), sample("x")));
  EXPECT_EQ(slurp(victim), "v");
  EXPECT_EQ(cache_.stats().unkept, 1);
}

TEST_F(CacheTest, ThreadsBuildOnce) {
  std::atomic<int> builds{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i)
    threads.emplace_back([&] {
      const Result<Binary> b = cache_.get_or_build(key_, [&] {
        ++builds;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return Result<Binary>(sample("x"));
      });
      EXPECT_TRUE(b.ok() && same(*b, sample("x")));
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(builds, 1);
  EXPECT_EQ(cache_.stats().hits, 15);
}

TEST_F(CacheTest, FailedBuildStoresNothingAndFreesTheLock) {
  const Result<Binary> b = cache_.get_or_build(key_, [] { return Result<Binary>(Status(Code::kCompileError, "no")); });
  EXPECT_EQ(b.status().code(), Code::kCompileError);
  EXPECT_EQ(count_files(key_), 0);
  EXPECT_TRUE(cache_.get_or_build(key_, [] { return Result<Binary>(sample("x")); }).ok());
}

WriteStep g_die_at;

// 64 processes want the same entry while some of them are killed in the middle of writing it.
TEST_F(CacheTest, KilledWritersNeverLeaveABadEntryOrALock) {
  int round = 0;
  for (const WriteStep die : {WriteStep::locked, WriteStep::created, WriteStep::half_written, WriteStep::written,
                              WriteStep::synced, WriteStep::renamed, WriteStep::done}) {
    const std::string key = strf("%064d", round++);
    std::vector<pid_t> children;
    for (int i = 0; i < 64; ++i) {
      const pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        alarm(60);  // a lock that is never freed ends the child, and the test sees it
        g_die_at = die;
        if (i % 4 == 0) g_write_step_hook = [](WriteStep s) { if (s == g_die_at) kill(getpid(), SIGKILL); };
        Result<Cache> mine = Cache::open(cache_.folder());
        if (!mine.ok()) _exit(2);
        const Result<Binary> b = mine->get_or_build(key, [] { return Result<Binary>(sample("x")); });
        _exit(b.ok() && same(*b, sample("x")) ? 0 : 3);
      }
      children.push_back(pid);
    }
    int killed = 0;
    for (size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      ASSERT_EQ(waitpid(children[i], &status, 0), children[i]);
      if (WIFSIGNALED(status)) {
        ASSERT_EQ(WTERMSIG(status), SIGKILL) << "child " << i << " hung";
        ASSERT_EQ(i % 4, 0u);
        ++killed;
      } else {
        ASSERT_EQ(WEXITSTATUS(status), 0) << "child " << i;
      }
    }
    const Result<Binary> b = cache_.load(key);
    ASSERT_TRUE(b.ok()) << b.status().to_string();
    EXPECT_TRUE(same(*b, sample("x")));
    RecordProperty(strf("killed_at_%d", static_cast<int>(die)), killed);
  }
}

// The same, without luck: the first writer certainly dies, the next process finds the entry good or absent.
TEST_F(CacheTest, EachStepAloneIsSurvived) {
  for (const WriteStep die : {WriteStep::locked, WriteStep::created, WriteStep::half_written, WriteStep::written,
                              WriteStep::synced, WriteStep::renamed, WriteStep::done}) {
    const std::string key = strf("%064d", 100 + static_cast<int>(die));
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      g_die_at = die;
      g_write_step_hook = [](WriteStep s) { if (s == g_die_at) kill(getpid(), SIGKILL); };
      static_cast<void>(cache_.store(key, sample("x")));
      _exit(9);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it was to die at step " << static_cast<int>(die);
    const bool there = die >= WriteStep::renamed;
    EXPECT_EQ(cache_.load(key).status().code(), there ? Code::kOk : Code::kNotFound) << static_cast<int>(die);
    int builds = 0;
    const Result<Binary> b = cache_.get_or_build(key, [&] { ++builds; return Result<Binary>(sample("x")); });
    ASSERT_TRUE(b.ok()) << b.status().to_string();
    EXPECT_EQ(builds, there ? 0 : 1);
    EXPECT_TRUE(same(*cache_.load(key), sample("x")));
  }
}

TEST(Binary, RoundTripAndEveryCutIsRefused) {
  const std::string bytes = serialize(sample("x", 100));
  const Result<Binary> b = parse_binary(bytes);
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(serialize(*b), bytes);
  EXPECT_EQ(b->resources[0].spill_loads, 8);
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_EQ(parse_binary(std::string_view(bytes).substr(0, n)).status().code(), Code::kCorruptData) << n;
  EXPECT_EQ(parse_binary(bytes + "x").status().code(), Code::kCorruptData);
  std::string huge = bytes;
  for (size_t i = 8; i < 12; ++i) huge[i] = '\xff';  // a length of 4 GiB
  EXPECT_EQ(parse_binary(huge).status().code(), Code::kCorruptData);
}

TEST(CacheKey, ChangesWithEverythingThatMatters) {
  const Source s{"n.cu", "#include \"vivace/base/dtype.h\"\nint x;", {"a", "b"}, {"-DA=1"}, Arch::sm90a};
  const std::string key = cache_key(s);
  EXPECT_EQ(key.size(), 64u);
  Source t = s;
  t.name = "other.cu";  // only a label
  EXPECT_EQ(cache_key(t), key);
  t = s, t.text += " ";
  EXPECT_NE(cache_key(t), key);
  t = s, t.arch = Arch::sm80;
  EXPECT_NE(cache_key(t), key);
  t = s, t.flags = {"-DA=2"};
  EXPECT_NE(cache_key(t), key);
  t = s, t.expressions = {"ab"};
  EXPECT_NE(cache_key(t), key);
  t = s, t.expressions = {"a"}, t.flags = {"b", "-DA=1"};
  EXPECT_NE(cache_key(t), key);
  t = s, t.text = "#include \"vivace/base/arch.h\"\nint x;";
  EXPECT_NE(cache_key(t), key);
}

}  // namespace
}  // namespace vivace::jit
