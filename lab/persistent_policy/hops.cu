// What the exchanges of a persistent action loop cost, each alone: X1 to X5 and X10 of README.md.
//   nvcc -std=c++20 -O2 -gencode=arch=compute_90a,code=sm_90a -I. lab/persistent_policy/hops.cu -o hops && ./hops
//   ./hops x1|x2|x3|x4|x5|x10
#include <cstring>

#include "lab/persistent_policy/host.h"
#include "lab/persistent_policy/parts.cuh"
#include "vivace/kernels/ptx/remote.cuh"

namespace lab {
constexpr int kWhole = 16 * kChunkBytes, kSlot = kColumns * 128, kSlots = 9;  // x whole; a slot of the weight ring
constexpr int kWholeBytes = 16 * 64 * 2 * kTokens;

extern __shared__ __align__(1024) uint8_t smem[];

// X1: `map`'s 50 x 1024 activations into every block of each cluster of kCast, each block asks for its share.
template <int kCast>
__global__ void __launch_bounds__(128, 1)
    x1_ingest(const __grid_constant__ TensorMap map, int turns, unsigned long long* cycles) {
  const uint32_t base = ptx::shared_address(smem), full = base + kWhole;
  const int rank = ptx::cluster_rank<kCast>();
  if (threadIdx.x == 0) ptx::mbarrier_init(full, 1), ptx::mbarrier_fence();
  ptx::cluster_sync<kCast>();
  unsigned long long sum = 0;
  for (int i = 0; i < turns; ++i) {
    ptx::cluster_sync<kCast>();
    const long long begin = clock64();
    if (threadIdx.x == 0) {
      ptx::mbarrier_expect(full, kWholeBytes);
      for (int k = rank * 16 / kCast; k < (rank + 1) * 16 / kCast; ++k)
        if constexpr (kCast == 1)
          ptx::tma_load(base + k * kChunkBytes, map, full, k * 64, 0);
        else
          ptx::tma_load_multicast(base + k * kChunkBytes, map, full, k * 64, 0, ptx::evict_normal(), (1 << kCast) - 1);
    }
    wait_bounded(full, i & 1, 1);
    sum += clock64() - begin;
  }
  ptx::cluster_sync<kCast>();
  if (threadIdx.x == 0) cycles[blockIdx.x] = sum / turns;
}

struct HopArgs {
  uint8_t* words[3];  // [50][columns] bf16: three sets, by phase
  const uint8_t* w;
  size_t w_bytes;
  uint32_t* flags;  // a cluster, 128 bytes apart; flags[32 * 16] counts errors
  uint32_t epoch;
  int phases, slots;
};

// The weight ring beside X2 and X3, by one thread: the slots that a phase takes are asked for again.
struct Stream {
  uint32_t ring, full;
  const uint8_t* w;
  size_t bytes, at;
  int slot = 0, parity = 0;
  uint64_t policy;
  __device__ Stream(uint32_t ring_, uint32_t full_, const HopArgs& a)
      : ring(ring_), full(full_), w(a.w), bytes(a.w_bytes), policy(ptx::evict_first()) {
    at = static_cast<size_t>(blockIdx.x) * kSlot;
    if (a.slots == 0) return;
    for (int i = 0; i < kSlots; ++i) ask(), next();
    parity = 0;
  }
  __device__ void ask() {
    ptx::mbarrier_expect(full + 8 * slot, kSlot);
    bulk_load(ring + slot * kSlot, w + at, kSlot, full + 8 * slot, policy);
    at += static_cast<size_t>(kCtas) * kSlot;
    if (at + kSlot > bytes) at = static_cast<size_t>(blockIdx.x) * kSlot;
  }
  __device__ void next() {
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }
  __device__ void phase(int slots) {
    for (int i = 0; i < slots; ++i) wait_bounded(full + 8 * slot, parity, 2), ask(), next();
  }
  __device__ void drain(int slots) {
    for (int i = 0; i < kSlots && slots > 0; ++i) wait_bounded(full + 8 * slot, parity, 3), next();
  }
};

// X2: every block (but six) writes its columns of all tokens and polls the slice of its rank: 512 bytes a token x
// kPasses. The barrier of the cluster stands where the products' exchange stands in a layer: with it, who writes phase
// p knows that all have read phase p - 2.
template <int kPasses, bool kCanary>
__global__ void __launch_bounds__(288, 1) x2_words(const __grid_constant__ HopArgs a) {
  constexpr int kPitch = kPasses * kCluster * 512, kUnits = 18 * kPasses, kPairs = kUnits / 2;
  const uint32_t base = ptx::shared_address(smem), ring = base + 8 * kChunkBytes, bars = ring + kSlots * kSlot;
  const int warp = ptx::warp_of_block(), rank = ptx::cluster_rank<kCluster>(), tid = static_cast<int>(threadIdx.x);
  if (tid == 0) {
    for (int i = 0; i < kSlots; ++i) ptx::mbarrier_init(bars + 8 * i, 1);
    ptx::mbarrier_fence();
  }
  ptx::cluster_sync<kCluster>();
  if (warp == 8) {
    const bool streams = ptx::elect_lane();
    HopArgs mine = a;
    if (!streams) mine.slots = 0;
    Stream stream(ring, bars, mine);
    for (int p = 0; p < a.phases; ++p) {
      stream.phase(mine.slots);
      __syncwarp();
      ptx::cluster_sync<kCluster>();
    }
    stream.drain(mine.slots);
  } else {
    uint32_t wrong = 0;
    for (int p = 0; p < a.phases; ++p) {
      const uint32_t value = p & 0xffffu;
      if (warp >= 4) {
        for (int i = tid - 128; i < kTokens * kPairs; i += 128) {
          const int column = static_cast<int>(blockIdx.x) * kUnits + i % kPairs * 2;
          if (column * 2 >= kPitch) continue;
          const size_t at = static_cast<size_t>(i / kPairs) * kPitch + column * 2;
          store_relaxed(a.words[p % 3] + at, value), store_relaxed(a.words[(p + 1) % 3] + at, kUnwritten);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kPasses; ++i)
          load_words_when_written<4, kTokens, kCanary>(a.words[p % 3] + rank * kPasses * 512 + i * 512, kPitch,
                                                       base + i * 4 * kChunkBytes, warp, 4);
        ptx::named_barrier<128>(1);
        uint32_t seen;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(seen) : "r"(base + tid % kTokens * 128 + (tid * 37 % 32) * 4));
        wrong += seen != value;
      }
      ptx::cluster_sync<kCluster>();
    }
    if (wrong != 0) atomicAdd(a.flags + 32 * 16, wrong);
  }
}

// The same with nothing but the barrier of the cluster: what X2 has beside its hop.
__global__ void __launch_bounds__(288, 1) barrier_alone(int phases) {
  for (int p = 0; p < phases; ++p) ptx::cluster_sync<kCluster>();
}

// X3: every block writes 7 tokens x 72 columns and counts its cluster's flag; rank r fetches 128 columns of all tokens
// for its whole cluster when the clusters that write them have counted.
__global__ void __launch_bounds__(256, 1)
    x3_counters(const __grid_constant__ TensorMap even, const __grid_constant__ TensorMap odd,
                const __grid_constant__ HopArgs a) {
  const uint32_t base = ptx::shared_address(smem), ring = base + kWhole, bars = ring + kSlots * kSlot,
                 go = bars + 8 * kSlots, full = go + 8, free = full + 8;
  const int warp = ptx::warp_of_block(), rank = ptx::cluster_rank<kCluster>(), tid = static_cast<int>(threadIdx.x),
            cluster = static_cast<int>(blockIdx.x) / kCluster;
  if (tid == 0) {
    for (int i = 0; i < kSlots + 2; ++i) ptx::mbarrier_init(bars + 8 * i, 1);
    ptx::mbarrier_init(free, kCluster), ptx::mbarrier_fence();
  }
  ptx::cluster_sync<kCluster>();
  uint32_t wrong = 0;
  if (warp < 4) {
    for (int p = 0; p < a.phases; ++p) {
      const int token = rank * kTokensOfRank + tid / 18, column = cluster * kColumns + tid % 18 * 4;
      if (tid < 126 && token < kTokens && column < 1024) {
        const uint32_t v = p & 0xffffu;
        *reinterpret_cast<uint2*>(a.words[p & 1] + (token * 1024 + column) * 2) = make_uint2(v, v);
        global_proxy_fence();
      }
      ptx::named_barrier<128>(1);
      if (tid == 0)
        count_release(a.flags + cluster * 32), ptx::mbarrier_arrive(go), ptx::mbarrier_expect(full, kWholeBytes);
      wait_bounded(full, p & 1, 5);
      uint32_t seen;
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(seen)
                   : "r"(base + tid % 16 * kChunkBytes + tid % kTokens * 128 + tid % 32 * 4));
      wrong += seen != (p & 0xffffu);
      ptx::named_barrier<128>(1);
      if (tid < kCluster) ptx::mbarrier_arrive(free, tid);
    }
    if (wrong != 0) atomicAdd(a.flags + 32 * 16, wrong);
  } else if (warp == 4) {
    const int first = rank * 128 / kColumns, lane = tid % 32, last = min((rank * 128 + 127) / kColumns, kClusters - 1);
    for (int p = 0; p < a.phases; ++p) {
      if (p > 0) wait_bounded(free, (p - 1) & 1, 6);
      if (lane <= last - first) wait_count(a.flags + (first + lane) * 32, a.epoch + (p + 1) * kCluster, 7);
      __syncwarp();
      global_proxy_fence();
      if (ptx::elect_lane())
        for (int k = 2 * rank; k < 2 * rank + 2; ++k)
          ptx::tma_load_multicast(base + k * kChunkBytes, p & 1 ? odd : even, full, k * 64, 0, ptx::evict_normal(),
                                  0xff);
      __syncwarp();
    }
  } else if (warp == 5 && ptx::elect_lane()) {
    Stream stream(ring, bars, a);
    for (int p = 0; p < a.phases; ++p) wait_bounded(go, p & 1, 8), stream.phase(a.slots);
    stream.drain(a.slots);
  }
  __syncwarp();
  ptx::cluster_sync<kCluster>();
}

// X4: 50 x 72 sums of every block to the block that finishes their tokens. kWidth: floats a store; 0: laid out in
// shared memory and sent as one copy a block. `touch`: what a thread adds up leaves through it.
template <int kWidth>
__global__ void __launch_bounds__(128, 1) x4_exchange(int phases, float* touch) {
  constexpr int kRow = kColumns * 4, kPart = kTokensOfRank * kRow, kAll = kCluster * kPart;
  const uint32_t base = ptx::shared_address(smem), staged = base + 2 * kAll, full = staged + 2 * kAll;
  const int rank = ptx::cluster_rank<kCluster>(), tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  if (tid == 0) ptx::mbarrier_init(full, 1), ptx::mbarrier_init(full + 8, 1), ptx::mbarrier_fence();
  ptx::cluster_sync<kCluster>();
  float d[36], sum = 0;
#pragma unroll
  for (int i = 0; i < 36; ++i) d[i] = static_cast<float>(rank + i);
  for (int p = 0; p < phases; ++p) {
    const uint32_t half = (p & 1) * kAll, bar = full + 8 * (p & 1);
    if (tid == 0) ptx::mbarrier_expect(bar, kAll);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int token = tid / 32 * 16 + lane / 4 + h * 8, owner = token / kTokensOfRank;
      if (token >= 56) continue;
      const uint32_t row = base + half + rank * kPart + token % kTokensOfRank * kRow;
      if constexpr (kWidth == 2) {
        const uint32_t to = ptx::remote_shared(row, owner), there = ptx::remote_shared(bar, owner);
#pragma unroll
        for (int j = 0; j < 9; ++j)
          ptx::remote_store_async<2>(to + (j * 8 + lane % 4 * 2) * 4, {d[4 * j + 2 * h], d[4 * j + 2 * h + 1]}, there);
      } else if constexpr (kWidth == 0) {
        const uint32_t to = staged + half + owner * kPart + token % kTokensOfRank * kRow;
#pragma unroll
        for (int j = 0; j < 9; ++j)
          asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + (j * 8 + lane % 4 * 2) * 4), "f"(d[4 * j + 2 * h]),
                       "f"(d[4 * j + 2 * h + 1])
                       : "memory");
      }
    }
    if constexpr (kWidth == 4) {  // an even lane takes four columns of row g, an odd one those of row g + 8
      const int token = tid / 32 * 16 + lane / 4 + lane % 2 * 8, owner = token / kTokensOfRank;
      const uint32_t to = ptx::remote_shared(base + half + rank * kPart + token % kTokensOfRank * kRow, owner),
                     there = ptx::remote_shared(bar, owner);
#pragma unroll
      for (int j = 0; j < 9; ++j) {
        const bool odd = lane % 2 != 0;
        const float x = __shfl_xor_sync(~0u, odd ? d[4 * j] : d[4 * j + 2], 1),
                    y = __shfl_xor_sync(~0u, odd ? d[4 * j + 1] : d[4 * j + 3], 1);
        const float v[4] = {odd ? x : d[4 * j], odd ? y : d[4 * j + 1], odd ? d[4 * j + 2] : x, odd ? d[4 * j + 3] : y};
        if (token < 56) ptx::remote_store_async<4>(to + (j * 8 + lane % 4 / 2 * 4) * 4, v, there);
      }
    }
    if constexpr (kWidth == 0) {
      ptx::tensor_fence();
      ptx::named_barrier<128>(1);
      const int warp = ptx::warp_of_block();
      if (ptx::elect_lane())
#pragma unroll
        for (int i = 0; i < 2; ++i)
          ptx::remote_copy(base + half + rank * kPart, staged + half + (warp + 4 * i) * kPart, kPart, bar,
                           warp + 4 * i);
    }
    wait_bounded(bar, p >> 1 & 1, 9);
    if (tid < 126)
#pragma unroll
      for (int r = 0; r < kCluster; ++r) {
        float x, y, z, w;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
                     : "r"(base + half + r * kPart + tid * 16));
        sum += x + y + z + w;
      }
#pragma unroll
    for (int i = 0; i < 36; ++i) d[i] += sum * 1e-30f;  // the next phase needs this one's sums
    ptx::named_barrier<128>(1);
  }
  ptx::cluster_sync<kCluster>();
  touch[blockIdx.x * 128 + tid] = sum;
}

// X5: kCount straight instructions in four chains, whose code differs by kPhase.
template <int kPhase, int kCount>
__device__ __forceinline__ void straight(float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("fma.rn.f32 %0, %0, %1, %2;"
                 : "+f"(v[i % 4])
                 : "f"(1.0f + kPhase * 0.125f), "f"(0.5f + (i % 61) * 0.25f));
}
template <int kPhase, int kCount>
__global__ void __launch_bounds__(128, 1) x5_once(float* out, unsigned long long* cycles) {
  float v[4] = {out[0], out[1], out[2], out[3]};
  const long long begin = clock64();
  straight<kPhase, kCount>(v);
  if (threadIdx.x == 0) atomicAdd(cycles + blockIdx.x, clock64() - begin);
  out[4 + threadIdx.x] = v[0] + v[1] + v[2] + v[3];
}
template <int kCount>
__global__ void __launch_bounds__(128, 1) x5_loop(float* out, unsigned long long* cycles, int turns) {
  float v[4] = {out[0], out[1], out[2], out[3]};
  unsigned long long sum = 0;
  for (int i = 0; i < turns; ++i) {
    const long long begin = clock64();
    straight<0, kCount>(v), straight<1, kCount>(v), straight<2, kCount>(v), straight<3, kCount>(v),
        straight<4, kCount>(v);
    if (i > 0) sum += clock64() - begin;
  }
  if (threadIdx.x == 0) cycles[blockIdx.x] = sum / (turns - 1);
  out[4 + threadIdx.x] = v[0] + v[1] + v[2] + v[3];
}

__global__ void x10_where(uint32_t* sm) {
  if (threadIdx.x == 0) asm volatile("mov.u32 %0, %%smid;" : "=r"(sm[blockIdx.x]));
}

double mean_us(const unsigned long long* device, int n, double* most = nullptr) {
  std::vector<unsigned long long> c(static_cast<size_t>(n));
  LAB_CHECK(cudaMemcpy(c.data(), device, c.size() * 8, cudaMemcpyDeviceToHost));
  double sum = 0, top = 0;
  for (const auto v : c) sum += static_cast<double>(v), top = std::max(top, static_cast<double>(v));
  if (most) *most = top / kClockGhz / 1e3;
  return sum / n / kClockGhz / 1e3;
}

template <int kCast>
void x1_case(const char* name, int ctas, int cluster, const bf16* x, unsigned long long* cycles, const char* predicted,
             const char* go, const char* kill) {
  launch(x1_ingest<kCast>, ctas, cluster, 128, kWhole + 64, tensor_map(x, kTokens, 1024, kTokens), 300, cycles);
  LAB_CHECK(cudaDeviceSynchronize());
  double most;
  const double us = mean_us(cycles, ctas, &most);
  char text[96];
  std::snprintf(text, sizeof text, "X1 %s, %d blocks (slowest %.2f)", name, ctas, most);
  row(text, us, predicted, go, kill);
}
void x1(unsigned long long* cycles) {
  bf16* x = device_alloc<bf16>(size_t{kTokens} * 1024);
  fill_random<<<64, 256>>>(x, size_t{kTokens} * 1024, 1);
  x1_case<1>("100 KB, no multicast", 132, 1, x, cycles, "2.05", "-", "-");
  x1_case<2>("multicast 2", 132, 2, x, cycles, "1.2", "-", "-");
  x1_case<4>("multicast 4", 120, 4, x, cycles, "0.9", "-", "-");
  x1_case<8>("multicast 8", 120, 8, x, cycles, "0.8", "1.1", "1.5");
  x1_case<1>("no multicast, alone", 1, 1, x, cycles, "0.8", "-", "-");
  x1_case<1>("no multicast, in one GPC", 8, 8, x, cycles, "-", "-", "-");
  x1_case<1>("no multicast, in one GPC", 16, 16, x, cycles, "-", "-", "-");
}

HopArgs hop_args(size_t w_bytes) {
  HopArgs a = {};
  for (uint8_t*& words : a.words) words = device_alloc<uint8_t>(size_t{kTokens} * 4096 * 2);
  uint8_t* w = device_alloc<uint8_t>(w_bytes);
  LAB_CHECK(cudaMemset(w, 0, w_bytes));
  a.w = w, a.w_bytes = w_bytes, a.flags = device_alloc<uint32_t>(32 * 17);
  LAB_CHECK(cudaMemset(a.flags, 0, 32 * 17 * 4));
  return a;
}
void report_wrong(const char* name, const HopArgs& a) {
  uint32_t wrong;
  LAB_CHECK(cudaMemcpy(&wrong, a.flags + 32 * 16, 4, cudaMemcpyDeviceToHost));
  if (wrong != 0) std::printf("%s: %u words WRONG\n", name, wrong);
}
template <int kPasses, bool kCanary>
void x2_case(HopArgs a, int slots, const char* predicted, const char* go, const char* kill) {
  const double us = phase_us([&](int phases) {
    for (uint8_t* words : a.words) LAB_CHECK(cudaMemsetAsync(words, 0xff, size_t{kTokens} * 4096 * 2));
    a.phases = phases, a.slots = slots;
    launch(x2_words<kPasses, kCanary>, kCtas, kCluster, 288, 8 * kChunkBytes + kSlots * kSlot + 256, a);
  });
  char text[96];
  std::snprintf(text, sizeof text, "X2 words %d KB%s, W %.1f TB/s, and barrier", kPasses * 25,
                kCanary ? ", canary" : "", slots * kSlot * double{kCtas} / us / 1e6);
  row(text, us, predicted, go, kill);
}
void x2(HopArgs a) {
  row("X2, X3 beside: barrier of the cluster",
      phase_us([](int phases) { launch(barrier_alone, kCtas, kCluster, 288, 0, phases); }), "0.25", "-", "-");
  x2_case<1, true>(a, 0, "-", "-", "-");
  x2_case<1, true>(a, 3, "1.15 + 0.25", "1.4 + 0.25", "1.7 + 0.25");
  x2_case<1, false>(a, 3, "1.15 + 0.25", "1.4 + 0.25", "1.7 + 0.25");
  x2_case<2, true>(a, 0, "-", "-", "-");
  x2_case<2, true>(a, 5, "1.7 + 0.25", "2.1 + 0.25", "2.5 + 0.25");
  x2_case<2, false>(a, 5, "1.7 + 0.25", "2.1 + 0.25", "2.5 + 0.25");
  report_wrong("X2", a);
}
void x3(HopArgs a) {
  const TensorMap even = tensor_map(a.words[0], kTokens, 1024, kTokens),
                  odd = tensor_map(a.words[1], kTokens, 1024, kTokens);
  for (int slots : {0, 5}) {
    const double us = phase_us([&](int phases) {
      a.phases = phases, a.slots = slots;
      launch(x3_counters, kCtas, kCluster, 256, kWhole + kSlots * kSlot + 256, even, odd, a);
      a.epoch += static_cast<uint32_t>(phases) * kCluster;
    });
    char text[96];
    std::snprintf(text, sizeof text, "X3 counters and multicast of 100 KB, W %.1f TB/s",
                  slots * kSlot * double{kCtas} / us / 1e6);
    row(text, us, "1.9", "2.3", "2.8");
  }
  report_wrong("X3", a);
}
template <int kWidth>
void x4_case(const char* name, float* touch) {
  row(name, phase_us([&](int phases) {
        launch(x4_exchange<kWidth>, kCtas, kCluster, 128, 4 * kCluster * kTokensOfRank * kColumns * 4 + 64, phases,
               touch);
      }),
      "0.70", "0.85", "1.1");
}
void x4() {
  float* touch = device_alloc<float>(kCtas * 128);
  x4_case<2>("X4 exchange of 12.6 KB, st.async of 8 bytes", touch);
  x4_case<4>("X4 exchange, st.async of 16 bytes", touch);
  x4_case<0>("X4 exchange, laid out and copied in bulk", touch);
}
template <int kCount>
void x5_case(unsigned long long* cycles, float* out) {
  const auto per = [&](int counts) { return mean_us(cycles, kCtas) * kClockGhz * 1e3 / counts; };
  char text[96];
  x5_loop<kCount><<<kCtas, 128>>>(out, cycles, 200);
  LAB_CHECK(cudaDeviceSynchronize());
  std::snprintf(text, sizeof text, "X5 five phases of %d instructions in a loop, cycles each", kCount);
  row(text, per(5 * kCount), "3", "5", "7");
  LAB_CHECK(cudaMemset(cycles, 0, 132 * 8));
  for (int i = 0; i < 100; ++i) {
    x5_once<0, kCount><<<kCtas, 128>>>(out, cycles), x5_once<1, kCount><<<kCtas, 128>>>(out, cycles);
    x5_once<2, kCount><<<kCtas, 128>>>(out, cycles), x5_once<3, kCount><<<kCtas, 128>>>(out, cycles);
    x5_once<4, kCount><<<kCtas, 128>>>(out, cycles);
  }
  LAB_CHECK(cudaDeviceSynchronize());
  std::snprintf(text, sizeof text, "X5 one launch each, cycles an instruction");
  row(text, per(500 * kCount), "10", "-", "-");
}
void x5(unsigned long long* cycles) {
  float* out = device_alloc<float>(256);
  LAB_CHECK(cudaMemset(out, 0, 1024));
  x5_case<400>(cycles, out), x5_case<1000>(cycles, out), x5_case<2000>(cycles, out);
}
void x10() {
  constexpr int kBytes = 220 << 10;
  LAB_CHECK(cudaFuncSetAttribute(x10_where, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  LAB_CHECK(cudaFuncSetAttribute(x10_where, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  int counts[5], i = 0;
  for (unsigned cluster : {2u, 4u, 5u, 8u, 16u}) {
    cudaLaunchAttribute attr = {};
    attr.id = cudaLaunchAttributeClusterDimension, attr.val.clusterDim = {cluster, 1, 1};
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(cluster), c.blockDim = dim3(320), c.dynamicSmemBytes = kBytes, c.attrs = &attr, c.numAttrs = 1;
    LAB_CHECK(cudaOccupancyMaxActiveClusters(&counts[i++], x10_where, &c));
  }
  std::printf(
      "X10 clusters of 2, 4, 5, 8, 16 with 220 KB: %d %d %d %d %d | 66 30 23 15 7 | go 15 of 8 | kill < 13 of 8\n",
      counts[0], counts[1], counts[2], counts[3], counts[4]);
  uint32_t* sm = device_alloc<uint32_t>(kCtas);
  launch(x10_where, kCtas, kCluster, 320, kBytes, sm);
  uint32_t at[kCtas];
  LAB_CHECK(cudaMemcpy(at, sm, sizeof at, cudaMemcpyDeviceToHost));
  std::printf("X10 SMs of the 15 clusters, by their first and last block:");
  for (int c = 0; c < kClusters; ++c) std::printf(" %u-%u", at[c * kCluster], at[c * kCluster + 7]);
  std::printf("\n");
}
}  // namespace lab

int main(int argc, char** argv) {
  using namespace lab;
  const auto asked = [&](const char* name) { return argc < 2 || std::strcmp(argv[1], name) == 0; };
  watch_waits();
  unsigned long long* cycles = device_alloc<unsigned long long>(132);
  if (asked("x10")) x10();
  if (asked("x1")) x1(cycles);
  if (asked("x4")) x4();
  if (asked("x5")) x5(cycles);
  if (asked("x2") || asked("x3")) {
    const HopArgs a = hop_args(size_t{1} << 30);
    if (asked("x3")) x3(a);
    if (asked("x2")) x2(a);
  }
}
