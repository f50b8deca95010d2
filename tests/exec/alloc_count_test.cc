// The interposer itself: this binary's malloc family forwards to glibc's and counts.
#include "tests/exec/alloc_count.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <thread>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VV_OWN_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define VV_OWN_MALLOC 0
#endif
#endif
#ifndef VV_OWN_MALLOC
#define VV_OWN_MALLOC 1
#endif

namespace {
// initial-exec: reading it must not itself allocate.
[[gnu::tls_model("initial-exec")]] thread_local uint64_t t_allocations = 0;
}  // namespace

#if VV_OWN_MALLOC
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t n) {
  ++t_allocations;
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t m) {
  ++t_allocations;
  return __libc_calloc(n, m);
}
void* realloc(void* p, size_t n) {
  ++t_allocations;
  return __libc_realloc(p, n);
}
void* memalign(size_t align, size_t n) {
  ++t_allocations;
  return __libc_memalign(align, n);
}
void* aligned_alloc(size_t align, size_t n) {
  ++t_allocations;
  return __libc_memalign(align, n);
}
int posix_memalign(void** out, size_t align, size_t n) {
  ++t_allocations;
  *out = __libc_memalign(align, n);
  return *out == nullptr ? ENOMEM : 0;
}
}
#else
// As the plain allocator does: a refused size is an answer, which a test asks for.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#endif

namespace vivace::testing {

bool counts_allocations() { return VV_OWN_MALLOC != 0; }
uint64_t allocations() { return t_allocations; }
int64_t minor_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

namespace {

TEST(AllocCount, CountsThisThreadOnly) {
  if (!counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
  uint64_t before = allocations();
  void* volatile p = std::malloc(24);
  std::free(p);
  EXPECT_EQ(allocations() - before, 1u);
  before = allocations();
  auto* volatile q = new int[7];
  delete[] q;
  EXPECT_EQ(allocations() - before, 1u);
  before = allocations();
  void* volatile r = std::aligned_alloc(256, 512);
  std::free(r);
  EXPECT_EQ(allocations() - before, 1u);

  uint64_t inside = 0;
  std::thread other([&] {
    const uint64_t start = allocations();
    for (int i = 0; i < 100; ++i) {
      void* volatile s = std::malloc(8);
      std::free(s);
    }
    inside = allocations() - start;
  });
  const uint64_t here = allocations();
  other.join();
  EXPECT_EQ(inside, 100u);
  EXPECT_EQ(allocations(), here);
}

TEST(AllocCount, WatchSeesWhatAStepDoes) {
  if (!counts_allocations()) GTEST_SKIP() << "the sanitizer has its own allocator";
  const Quiet quiet = watch(100, [] { return true; });
  EXPECT_EQ(quiet.allocations, 0u);
  EXPECT_EQ(quiet.faults, 0);
  EXPECT_EQ(quiet.failures, 0);
  // One allocation in a hundred calls, and one page touched for the first time.
  constexpr size_t kPage = 4096, kPages = 64;
  char* const pages =
      static_cast<char*>(mmap(nullptr, kPage * kPages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  int turn = 0;
  const Quiet loud = watch(100, [&] {
    if (++turn % 100 != 0) return true;
    pages[static_cast<size_t>(turn / 100) % kPages * kPage] = 1;
    delete new volatile int(turn);
    return false;
  });
  EXPECT_EQ(loud.allocations, 5u);
  EXPECT_EQ(loud.faults, 1);
  EXPECT_EQ(loud.failures, 6);
  munmap(pages, kPage * kPages);
}

}  // namespace
}  // namespace vivace::testing
