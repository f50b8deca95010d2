#include "vivace/cpu/pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "vivace/base/forks.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace vivace::cpu {
namespace {

/// How long a thread without work spins before it sleeps: longer than the gap between two ops of a step.
constexpr auto kSpin = std::chrono::microseconds(80);
/// Chunks of one job; the low half of a ticket.
constexpr uint64_t kChunkMask = 0xffffffffu, kClosed = kChunkMask;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Calls `done` until it is true or kSpin is over; yields now and then, since on a loaded machine the
/// thread that would make it true may be waiting for this core. Returns the last answer.
template <class F>
bool spin_until(F&& done) {
  for (const auto end = std::chrono::steady_clock::now() + kSpin;;) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause_cpu();
    }
    if (std::chrono::steady_clock::now() >= end) return done();
    std::this_thread::yield();
  }
}

#if defined(__linux__)
/// The first allowed hardware thread of each physical core.
std::vector<int> allowed_cores() {
  cpu_set_t allowed;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cores;
  std::vector<int> seen;  // package << 16 | core id
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    int id[2] = {0, cpu};  // without topology files every hardware thread is a core
    const char* files[2] = {"physical_package_id", "core_id"};
    for (int i = 0; i < 2; ++i) {
      char path[96];
      std::snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, files[i]);
      if (FILE* f = std::fopen(path, "r")) {
        if (std::fscanf(f, "%d", &id[i]) != 1) id[i] = i == 0 ? 0 : cpu;
        std::fclose(f);
      }
    }
    const int key = id[0] << 16 | (id[1] & 0xffff);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
    seen.push_back(key);
    cores.push_back(cpu);
  }
  return cores;
}

void pin_to(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  // A container may forbid it; the thread then runs where the system puts it, which is only slower.
  (void)sched_setaffinity(0, sizeof(one), &one);
}
#else
std::vector<int> allowed_cores() { return std::vector<int>(std::max(1u, std::thread::hardware_concurrency())); }
void pin_to(int) {}
#endif

}  // namespace

/// A job is published as a ticket: its number in the high half, the next free chunk in the low half.
/// A thread owns a chunk once it has moved the ticket past it, and a ticket that moved still carried the
/// number under which the job's fields were read: late threads can neither run nor miscount old work,
/// and run() need not wait for threads that never woke up.
struct Pool::State {
  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) std::atomic<int64_t> finished{0};
  alignas(64) std::atomic<uint32_t> bell{0};  // what sleeping workers wait on
  std::atomic<int> sleeping{0};
  std::atomic<bool> stop{false};
  std::atomic<void (*)(void*, int64_t)> fn{nullptr};
  std::atomic<void*> ctx{nullptr};
  std::atomic<int64_t> first{0}, chunks{0};  // chunk numbers of this ticket: first + [0, chunks)
  std::vector<std::thread> workers;
  void* scratch = nullptr;
  size_t scratch_bytes = 0;
  const int process = forks();
  std::atomic<bool> taken{false};  // by the job that has the threads

  /// Runs chunks of the current job until none is free; returns the number of the last job it looked at.
  uint64_t work() {
    uint64_t t = ticket.load(std::memory_order_acquire);
    while (true) {
      auto* const f = fn.load(std::memory_order_relaxed);
      void* const c = ctx.load(std::memory_order_relaxed);
      const int64_t base = first.load(std::memory_order_relaxed);
      const int64_t n = chunks.load(std::memory_order_relaxed);
      const int64_t i = static_cast<int64_t>(t & kChunkMask);
      if ((t & kChunkMask) == kClosed) return (t >> 32) - 1;
      if (i >= n && t == ticket.load(std::memory_order_acquire)) return t >> 32;
      std::atomic_thread_fence(std::memory_order_acquire);
      if (!ticket.compare_exchange_weak(t, t + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      f(c, base + i);
      finished.fetch_add(1, std::memory_order_release);
      t = ticket.load(std::memory_order_acquire);
    }
  }

  void publish(uint64_t job, void (*f)(void*, int64_t), void* c, int64_t base, int64_t n) {
    ticket.store(job << 32 | kClosed, std::memory_order_seq_cst);  // from here on no old ticket can be taken
    std::atomic_thread_fence(std::memory_order_release);
    fn.store(f, std::memory_order_relaxed);
    ctx.store(c, std::memory_order_relaxed);
    first.store(base, std::memory_order_relaxed);
    chunks.store(n, std::memory_order_relaxed);
    finished.store(0, std::memory_order_relaxed);
    ticket.store(job << 32, std::memory_order_seq_cst);
    ring();
  }

  void ring() {
    if (sleeping.load(std::memory_order_seq_cst) == 0) return;
    bell.fetch_add(1, std::memory_order_seq_cst);
    bell.notify_all();
  }

  void worker() {
    uint64_t seen = 0;
    const auto fresh = [&] {
      const uint64_t t = ticket.load(std::memory_order_seq_cst);
      return stop.load(std::memory_order_relaxed) || (t >> 32 != seen && (t & kChunkMask) != kClosed);
    };
    while (!stop.load(std::memory_order_relaxed)) {
      seen = work();
      if (!spin_until(fresh)) {
        const uint32_t heard = bell.load(std::memory_order_seq_cst);
        sleeping.fetch_add(1, std::memory_order_seq_cst);
        // Either this thread sees the new ticket, or run() sees it in `sleeping` and rings after `heard`.
        if (!fresh()) bell.wait(heard, std::memory_order_seq_cst);
        sleeping.fetch_sub(1, std::memory_order_seq_cst);
      }
    }
  }
};

Pool::Pool(int threads) : state_(std::make_unique<State>()) {
  const std::vector<int> cores = allowed_cores();
  if (threads <= 0) threads = std::max<int>(1, static_cast<int>(cores.size()));
  const bool pin = threads > 1 && threads <= static_cast<int>(cores.size());
  for (int i = 1; i < threads; ++i)
    state_->workers.emplace_back([s = state_.get(), cpu = pin ? cores[i] : -1] {
      if (cpu >= 0) pin_to(cpu);
      s->worker();
    });
}

Pool::~Pool() {
  if (forks() != state_->process) {
    static_cast<void>(state_.release());  // its threads are in the parent: nothing here may join them
    return;
  }
  state_->stop.store(true, std::memory_order_seq_cst);
  state_->bell.fetch_add(1, std::memory_order_seq_cst);
  state_->bell.notify_all();
  for (std::thread& t : state_->workers) t.join();
  std::free(state_->scratch);
}

int Pool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void* Pool::scratch(size_t bytes) {
  if (bytes > state_->scratch_bytes) {
    std::free(state_->scratch);
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    state_->scratch = std::aligned_alloc(64, rounded);
    if (state_->scratch == nullptr) {
      std::fprintf(stderr, "vivace: no memory for %zu bytes of CPU scratch\n", rounded);
      std::abort();  // a launch has no way to report it, and memory this small is gone for everybody
    }
    state_->scratch_bytes = rounded;
  }
  return state_->scratch;
}

void Pool::run_erased(int64_t chunks, void (*fn)(void*, int64_t), void* ctx) {
  State& s = *state_;
  if (chunks <= 1 || s.workers.empty() || s.taken.exchange(true, std::memory_order_acquire)) {
    for (int64_t i = 0; i < chunks; ++i) fn(ctx, i);
    return;
  }
  for (int64_t base = 0; base < chunks;) {
    const int64_t n = std::min<int64_t>(chunks - base, kChunkMask / 2);
    s.publish((s.ticket.load(std::memory_order_relaxed) >> 32) + 1, fn, ctx, base, n);
    s.work();
    const auto done = [&] { return s.finished.load(std::memory_order_acquire) == n; };
    // A chunk is short: what is left runs now, or its thread waits for a core, perhaps this one.
    while (!spin_until(done)) std::this_thread::yield();
    base += n;
  }
  s.taken.store(false, std::memory_order_release);
}

}  // namespace vivace::cpu
