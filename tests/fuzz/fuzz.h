// What every fuzz target uses: a bound on memory, and checks that survive NDEBUG.
#pragma once
#include <sanitizer/allocator_interface.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace vivace::fuzz {

inline void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

/// Counts live bytes from construction on; the destructor requires that their peak stayed linear in
/// the input. The factor covers the smallest entries (a 2-byte JSON value makes a 32-byte node);
/// kMax... caps in parse.h turn it into 4 x the file plus 64 MB for large files.
class MemoryBound {
 public:
  explicit MemoryBound(size_t input_bytes)
      : limit_(static_cast<int64_t>(40 * input_bytes + (64 << 10))) {
    static const int installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    require(installed != 0, "allocation hooks can be installed");
    live = peak = 0;
  }
  ~MemoryBound() {
    const int64_t seen = peak;
    if (seen > limit_)
      std::fprintf(stderr, "peak %lld bytes, limit %lld\n", static_cast<long long>(seen),
                   static_cast<long long>(limit_));
    require(seen <= limit_, "memory linear in the input");
  }

 private:
  static void on_malloc(const volatile void*, size_t bytes) {
    live += static_cast<int64_t>(bytes);
    if (live > peak) peak = live;
  }
  static void on_free(const volatile void* p) {
    if (p) live -= static_cast<int64_t>(__sanitizer_get_allocated_size(p));
  }
  static inline thread_local int64_t live = 0, peak = 0;
  int64_t limit_;
};

}  // namespace vivace::fuzz
