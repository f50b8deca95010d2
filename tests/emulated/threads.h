// What a C++ compiler lacks to read a CUDA kernel, and a loop over blocks and threads that runs it: each thread of a
// block is a context of its own, and __syncthreads() goes on with the next. For tests; one block at a time.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct Dim3 {
  unsigned x, y, z;
};

namespace emulated {

inline Dim3 block_index, thread_index;
inline constexpr unsigned kThreads = 1024;
inline constexpr size_t kStack = 64 << 10;
inline uint32_t exchanged[kThreads];
inline ucontext_t contexts[kThreads];
inline jmp_buf scheduler, threads[kThreads];  // swapcontext() would enter the kernel each time
inline bool started[kThreads], finished[kThreads], running = false;
inline unsigned current;
inline const std::function<void()>* body;

/// On with the scheduler; comes back when that resumes the thread.
inline void yield() {
  if (!running) abort();  // a kernel that was said to have no barrier has one
  if (_setjmp(threads[current]) == 0) _longjmp(scheduler, 1);
}
/// One context for a thread of every block, one after another.
inline void thread_main() {
  for (;;) {
    (*body)();
    finished[current] = true;
    yield();
  }
}
/// Until the thread yields.
[[gnu::noinline]] inline void resume(unsigned t) {
  current = t, thread_index = {t, 0, 0};
  if (_setjmp(scheduler) != 0) return;
  if (started[t]) _longjmp(threads[t], 1);
  started[t] = true;
  setcontext(&contexts[t]);
}

/// `barriers`: whether threads may meet; without, each runs to its end by itself.
inline void run(const unsigned* grid, const unsigned* block, bool barriers, const std::function<void()>& kernel) {
  const unsigned count = block[0];
  static std::unique_ptr<char[]> stacks;
  body = &kernel;
  if (barriers && !stacks) {
    stacks.reset(new char[kThreads * kStack]);
    for (unsigned t = 0; t < kThreads; ++t) {
      getcontext(&contexts[t]);
      contexts[t].uc_stack.ss_sp = stacks.get() + t * kStack;
      contexts[t].uc_stack.ss_size = kStack;
      contexts[t].uc_link = nullptr;
      makecontext(&contexts[t], &thread_main, 0);
    }
  }
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; ++x) {
        block_index = {x, y, z};
        if (!barriers) {
          for (unsigned t = 0; t < count; ++t) thread_index = {t, 0, 0}, kernel();
          continue;
        }
        running = true;
        for (unsigned t = 0; t < count; ++t) finished[t] = false;
        for (unsigned left = count; left > 0;) {
          left = 0;
          for (unsigned t = 0; t < count; ++t) {
            if (finished[t]) continue;
            resume(t);
            left += !finished[t];
          }
        }
        running = false;
      }
}

}  // namespace emulated

#define blockIdx emulated::block_index
#define threadIdx emulated::thread_index
inline void __syncthreads() {
  emulated::yield();
}
inline uint32_t __shfl_down_sync(uint32_t, uint32_t x, int by) {
  const unsigned me = emulated::current;
  emulated::exchanged[me] = x;
  emulated::yield();
  const unsigned from = me % 32 + static_cast<unsigned>(by) < 32 ? me + static_cast<unsigned>(by) : me;
  const uint32_t got = emulated::exchanged[from];
  emulated::yield();
  return got;
}
