// What a persistent kernel of a cooperative grid is made of: bounded waits, self-validating words, counters. Words that
// validate themselves ("LL"): a reader polls the data itself against kUnwritten, so that no fence and no flag stands
// between a writer and its readers. A wait in vain ends in a trap: a mistake here must end the program, not hang the
// device.
#pragma once
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/mbarrier.cuh"
#include "vivace/kernels/ptx/tma.cuh"
#include "vivace/kernels/ptx/wgmma_rows.cuh"

namespace lab {
using namespace vivace::kernels;

constexpr int kCluster = 8, kClusters = 15, kCtas = kCluster * kClusters;
constexpr int kTokens = 50, kTokensOfRank = 7, kColumns = 72;  // what a block finishes: 7 tokens x 72 columns
constexpr int kChunkBytes = 56 * 128;         // 64 columns of 16-bit activations: 56 rows, 128-byte swizzle
constexpr uint32_t kUnwritten = 0xffffffffu;  // two bf16 NaNs; a writer's pair with these bits is stored as kNans
constexpr uint32_t kNans = 0xfffeffffu;
constexpr int kWarpsNoted = 16;
/// Host memory where a warp that waits in vain is named, before its block traps: [block][warp], place and layer.
__device__ volatile uint32_t* g_given_up;
__device__ __forceinline__ void note(int warp, uint32_t place) {
  if (g_given_up != nullptr) g_given_up[blockIdx.x * kWarpsNoted + warp] = place;
  __threadfence_system();
}
/// After what others have to say.
__device__ __forceinline__ void trap_soon() {
#pragma unroll 1
  for (int i = 0; i < 100; ++i) __nanosleep(1'000'000);
  __trap();
}

/// A loop of its own in front of all else: with a way out for waits in vain, the compiler takes what surrounds the wait
/// for divergent and multiplies with addresses from ordinary registers, twice the instructions.
__device__ __forceinline__ void wait(uint32_t at, int parity) {
  ptx::mbarrier_wait<false>(at, parity);
}
constexpr uint32_t kTurns = 1'000'000;  // of a loop that waits by itself: some 0.02 to 1 s
__device__ __forceinline__ void wait_bounded(uint32_t at, int parity, uint32_t place) {
  uint32_t turns = 0;
  for (;;) {
    uint32_t done;
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, %3;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(at), "r"(parity), "r"(1000)  // ns of a turn, at most
        : "memory");
    if (done) return;
    if (++turns == kTurns) note(static_cast<int>(threadIdx.x) / 32, place), trap_soon();
  }
}

__device__ __forceinline__ uint4 load_relaxed(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_relaxed(void* to, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t written(uint32_t v) {
  return v == kUnwritten ? kNans : v;
}
__device__ __forceinline__ bool arrived(uint4 v) {
  return v.x != kUnwritten && v.y != kUnwritten && v.z != kUnwritten && v.w != kUnwritten;
}
__device__ __forceinline__ void store_shared(uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/// Adds one; what this thread has written or seen written before is visible to who acquires the count.
__device__ __forceinline__ void count_release(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ void wait_count(const uint32_t* counter, uint32_t least, uint32_t place) {
  uint32_t turns = 0;
  for (uint32_t v = 0;;) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(counter) : "memory");
    if (static_cast<int>(v - least) >= 0) return;
    if (++turns == kTurns) note(static_cast<int>(threadIdx.x) / 32, place), trap_soon();
  }
}
/// Between ordinary accesses of global memory and those of TMA, on the writer's and on the reader's side.
__device__ __forceinline__ void global_proxy_fence() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// `bytes` consecutive bytes of global memory to shared memory; they count down `barrier`.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, int bytes, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

/// A slice of activations as words that validate themselves: kRows rows of 512 bytes each, `pitch` bytes apart, into
/// four chunks of 56 rows of 128 bytes, swizzled as TMA does it. By kWarps whole warps, `warp` of them this one; a lane
/// keeps to one column of 16 bytes. kCanary: one vector of the column is polled until it is there, then all others are
/// asked for at once; else all are asked for at once and those that are not there again.
template <int kWarps, int kRows, bool kCanary>
__device__ __forceinline__ void load_words_when_written(const uint8_t* from, int pitch, uint32_t to, int warp,
                                                        uint32_t place) {
  constexpr int kVectors = (kRows + kWarps - 1) / kWarps;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint8_t* column = from + lane * 16;
  const uint32_t chunk = to + (lane / 8) * kChunkBytes;
  uint32_t turns = 0;
  if constexpr (kCanary)
    while (!__all_sync(~0u, arrived(load_relaxed(column + warp * pitch))))
      if (++turns == kTurns) note(static_cast<int>(threadIdx.x) / 32, place), trap_soon();
  uint4 v[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) v[i] = load_relaxed(column + min(warp + i * kWarps, kRows - 1) * pitch);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int row = min(warp + i * kWarps, kRows - 1);
    while (!arrived(v[i])) {
      v[i] = load_relaxed(column + row * pitch);
      if (++turns == kTurns) note(static_cast<int>(threadIdx.x) / 32, place), trap_soon();
    }
    store_shared(chunk + row * 128 + ((lane % 8 ^ row % 8) << 4), v[i]);
  }
  ptx::tensor_fence();
  __syncwarp();
}

}  // namespace lab
