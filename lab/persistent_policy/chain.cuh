// X6 of README.md: the action expert's four products a layer at 50 rows as one persistent kernel, 15 clusters of 8
// blocks, one a multiprocessor. Activations are wgmma's 64 rows, weights its columns.
//   o        x1 = attended Wo' + r1      72 columns a cluster, K cut in 8 by rank; attended comes as words
//   gate/up  h = gelu(x1 Wg') x1 Wu'     72 rows of W a block (36 units), whole K; x1 by counters and multicast
//   down     x2 = h Wd' + r2             as o; h comes as words
//   qkv      attended, kv = x2 Wqkv'     24 columns a block; its first 2048 columns are the next layer's attended
// Warps: 0-3 multiply and finish, 4-7 poll words, 8 asks for weights in program order and never stops, 9 asks for x, 10
// ends the program where the others wait in vain.
#pragma once
#include "lab/persistent_policy/parts.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/remote.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"

namespace lab {
constexpr int kHidden = 1024, kAttended = 2048, kInner = 4096, kQkv = 2560, kKv = kQkv - kAttended;
constexpr int kUpBlocks = (2 * kInner + kColumns - 1) / kColumns, kQkvColumns = 24,
              kQkvBlocks = (kQkv + kQkvColumns - 1) / kQkvColumns, kTailColumns = kHidden % kColumns;
constexpr int kSlotsOfLayer = 34, kRing = 10, kSlotBytes = kColumns * 128, kXBytes = 16 * kChunkBytes,
              kRowBytes = kColumns * 4, kPartBytes = kTokensOfRank * kRowBytes, kAllBytes = kCluster * kPartBytes;
constexpr int kRingAt = kXBytes, kPartsAt = kRingAt + kRing * kSlotBytes, kBarriersAt = kPartsAt + kAllBytes,
              kPlacesAt = kBarriersAt + 8 * (2 * kRing + 13), kChainSmem = kPlacesAt + 4 * kWarpsNoted,
              kStagedAt = 8 * kChunkBytes;
constexpr int kStampSites = 16;
constexpr uint32_t kDone = 0x10000;
constexpr long long kMostCycles = 1'000'000'000;  // of a launch, random delays included

/// Warps that poll, and all but the one that watches.
template <int kForm>
constexpr int kPollersOf = (kForm & 32) != 0 ? 8 : 4;
template <int kForm>
constexpr int kWarpsOf = kPollersOf<kForm> + 6;
template <int kForm>
constexpr int kThreadsOf = 32 * (kWarpsOf<kForm> + 1);

// Forms of the kernel: parts of sums by st.async in place of copies in bulk; words asked for all at once in place of
// after a canary; random delays; stamps of the clock; weights packed in the order that a block reads them; eight warps
// that poll in place of four.
enum Form : int { kPlain = 0, kStores = 1, kAtOnce = 2, kStress = 4, kStamps = 8, kPacked = 16, kEight = 32 };

struct ChainArgs {
  TensorMap o, o_tail, up, down, down_tail, qkv;  // weights of all layers, one under another
  TensorMap x1_map[3], x2_map[3];
  uint8_t *attended[3], *h[3], *x1[3], *x2[3], *kv[3];  // 16-bit rows, sets by layer; the first two are words
  const uint8_t* packed;                                // [layer][block][kSlotsOfLayer] slots as they lie in the ring
  const bf16 *r1, *r2;
  uint32_t* flags;    // of a cluster, 128 bytes apart; zero at the start
  long long* stamps;  // [block][layer][kStampSites]
  int layers;
  uint32_t seed;
};

template <int N>
struct RowsTimesColumns;  // d (64 x N) (+)= A B', 16 of K
template <>
struct RowsTimesColumns<24> {
  __device__ __forceinline__ static void run(float (&d)[12], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %14, 0;\n\twgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 {%0, %1, "
        "%2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, %12, %13, p, 1, 1, 0, 0;\n\t}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
        : "l"(a), "l"(b), "r"(add));
  }
};
#define LAB_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
template <>
struct RowsTimesColumns<72> {
  __device__ __forceinline__ static void run(float (&d)[36], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %38, 0;\n\twgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 {%0, %1, "
        "%2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, "
        "%25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35}, %36, %37, p, 1, 1, 0, 0;\n\t}"
        : LAB_D4(0), LAB_D4(4), LAB_D4(8), LAB_D4(12), LAB_D4(16), LAB_D4(20), LAB_D4(24), LAB_D4(28), LAB_D4(32)
        : "l"(a), "l"(b), "r"(add));
  }
};
#undef LAB_D4

/// gelu in its tanh form: x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
__device__ __forceinline__ float gelu(float x) {
  return __fdividef(x, 1.0f + __expf(-1.5957691216057308f * x * (1.0f + 0.044715f * x * x)));
}

extern __shared__ __align__(1024) uint8_t chain_smem[];

template <int kForm>
struct Block {
  static constexpr int kPollers = kPollersOf<kForm>, kWarps = kWarpsOf<kForm>;
  const ChainArgs& a;
  uint32_t x, ring, parts, full, empty, x_full, words, parts_full, x_free, words_free;
  int tid, lane, warp, cta, rank, cluster;
  bool ups, qkvs;

  __device__ __forceinline__ explicit Block(const ChainArgs& args) : a(args) {
    x = ptx::shared_address(chain_smem), ring = x + kRingAt, parts = x + kPartsAt;
    full = x + kBarriersAt, empty = full + 8 * kRing, x_full = empty + 8 * kRing;  // x_full: 8, of 128 columns each
    words = x_full + 64, parts_full = words + 16, x_free = parts_full + 8, words_free = x_free + 8;
    tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = ptx::warp_of_block();
    cta = static_cast<int>(blockIdx.x), rank = ptx::cluster_rank<kCluster>(), cluster = cta / kCluster;
    ups = cta < kUpBlocks, qkvs = cta < kQkvBlocks;
    if (tid == 0) {
      for (int i = 0; i < kRing; ++i) ptx::mbarrier_init(full + 8 * i, 1), ptx::mbarrier_init(empty + 8 * i, 4);
      for (int i = 0; i < 8; ++i) ptx::mbarrier_init(x_full + 8 * i, 1);
      ptx::mbarrier_init(words, kPollers), ptx::mbarrier_init(words + 8, kPollers), ptx::mbarrier_init(parts_full, 1);
      ptx::mbarrier_init(x_free, kCluster), ptx::mbarrier_init(words_free, 4);
      ptx::mbarrier_fence();
    }
    if (tid < kWarps) asm volatile("st.shared.u32 [%0], %1;" ::"r"(x + kPlacesAt + 4 * tid), "r"(0) : "memory");
  }

  /// Of the stress form: now and then up to 8 us, by block, warp, layer and place.
  __device__ __forceinline__ void delay(int layer, int site) const {
    if constexpr ((kForm & kStress) == 0) return;
    uint32_t z = a.seed + static_cast<uint32_t>(((cta * 16 + warp) * 64 + layer) * 32 + site) * 0x9e3779b9u;
    z = (z ^ z >> 15) * 0x85ebca6bu, z = (z ^ z >> 13) * 0xc2b2ae35u, z ^= z >> 16;
    if (z % 4 == 0) __nanosleep(z >> 8 & 8191);
  }
  /// Where this warp is, for who reads of its end; layer * 32 + place.
  __device__ __forceinline__ void at_place(int place) const {
    if (lane == 0) asm volatile("st.shared.u32 [%0], %1;" ::"r"(x + kPlacesAt + 4 * warp), "r"(place) : "memory");
  }
  __device__ __forceinline__ void watch() const {
    const long long begin = clock64();
    for (;;) {
      uint32_t place = kDone;
      if (lane < kWarps)
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(place) : "r"(x + kPlacesAt + 4 * lane) : "memory");
      if (__all_sync(~0u, place == kDone)) return;
      if (clock64() - begin > kMostCycles) {
        if (lane < kWarps) note(lane, place);
        trap_soon();
      }
      __nanosleep(1'000);
    }
  }
  __device__ __forceinline__ void stamp(int layer, int site) const {
    if constexpr ((kForm & kStamps) != 0)
      if (tid == 0) a.stamps[(cta * a.layers + layer) * kStampSites + site] = clock64();
  }

  // Weights, by one thread.
  __device__ __forceinline__ void ask_weights() const {
    int slot = 0, parity = 1;
    const uint64_t policy = ptx::evict_first();
    const bool tail = cluster == kClusters - 1;
    const auto next = [&](int bytes) {
      wait(empty + 8 * slot, parity);
      ptx::mbarrier_expect(full + 8 * slot, bytes);
    };
    const auto advance = [&] {
      if (++slot == kRing) slot = 0, parity ^= 1;
    };
    const auto cut = [&](const TensorMap& whole, const TensorMap& part, int row, int column, int count) {
      for (int i = 0; i < count; ++i, advance()) {
        next((tail ? kTailColumns : kColumns) * 128);
        ptx::tma_load(ring + slot * kSlotBytes, tail ? part : whole, full + 8 * slot, column + i * 64, row, policy);
      }
    };
    if constexpr ((kForm & kPacked) != 0) {
      for (int l = 0; l < a.layers; ++l)
        for (int i = 0; i < kSlotsOfLayer; ++i) {
          const bool up = i >= 4 && i < 20, cuts = i < 4 || (i >= 20 && i < 28);
          if ((up && !ups) || (!up && !cuts && !qkvs)) continue;
          const int bytes = cuts && tail ? kTailColumns * 128 : kSlotBytes;
          next(bytes);
          const size_t at = (static_cast<size_t>(l) * kCtas + static_cast<size_t>(cta)) * kSlotsOfLayer + i;
          bulk_load(ring + slot * kSlotBytes, a.packed + at * kSlotBytes, bytes, full + 8 * slot, policy);
          advance();
        }
    } else {
      for (int l = 0; l < a.layers; ++l) {
        delay(l, 0);
        cut(a.o, a.o_tail, l * kHidden + cluster * kColumns, rank * 256, 4);
        if (ups)
          for (int i = 0; i < 16; ++i, advance()) {
            next(kSlotBytes);
            ptx::tma_load(ring + slot * kSlotBytes, a.up, full + 8 * slot, i * 64, l * 2 * kInner + cta * kColumns,
                          policy);
          }
        delay(l, 1);
        cut(a.down, a.down_tail, l * kHidden + cluster * kColumns, rank * 512, 8);
        if (qkvs)
          for (int i = 0; i < 6; ++i, advance()) {
            next(kSlotBytes);
            asm volatile(
                "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(ring + slot * kSlotBytes),
                "l"(&a.qkv), "r"(full + 8 * slot), "r"(0), "r"(l * kQkv + cta * kQkvColumns), "r"(3 * i), "l"(policy)
                : "memory");
          }
      }
    }
  }

  // x1 and x2 into the whole cluster, by one warp a block: 128 columns a rank.
  __device__ __forceinline__ void ask_x() const {
    const int first = rank * 128 / kColumns, last = min((rank * 128 + 127) / kColumns, kClusters - 1);
    for (int m = 0; m < 2 * a.layers; ++m) {
      at_place(m / 2 * 32 + m % 2 * 2 + 1);
      wait(x_free, m & 1);
      at_place(m / 2 * 32 + m % 2 * 2 + 2);
      if (lane < 8) ptx::mbarrier_expect(x_full + 8 * lane, 2 * 128 * kTokens);
      delay(m / 2, 2 + m % 2);
      if (lane <= last - first) wait_count(a.flags + (first + lane) * 32, (m + 1) * kCluster, 3);
      __syncwarp();
      global_proxy_fence();
      const TensorMap& map = m % 2 == 0 ? a.x1_map[m / 2 % 3] : a.x2_map[m / 2 % 3];
      if (ptx::elect_lane())
        for (int k = 2 * rank; k < 2 * rank + 2; ++k)
          ptx::tma_load_multicast(x + k * kChunkBytes, map, x_full + 8 * rank, k * 64, 0, ptx::evict_normal(), 0xff);
      __syncwarp();
    }
  }

  // attended and h, by four warps: the columns of this rank.
  __device__ __forceinline__ void poll_words() const {
    for (int l = 0; l < a.layers; ++l) {
      at_place(l * 32 + 1);
      if (l > 0) wait(words_free, 1);
      delay(l, 4);
      load_words_when_written<kPollers, kTokens, (kForm & kAtOnce) == 0>(a.attended[l % 3] + rank * 512, kAttended * 2,
                                                                         x, warp - 4, 6);
      if (lane == 0) ptx::mbarrier_arrive(words);
      at_place(l * 32 + 2);
      wait(words_free, 0);
      delay(l, 5);
#pragma unroll 1
      for (int i = 0; i < 2; ++i) {
        load_words_when_written<kPollers, kTokens, (kForm & kAtOnce) == 0>(
            a.h[l % 3] + rank * 1024 + i * 512, kInner * 2, x + i * 4 * kChunkBytes, warp - 4, 7);
        if (lane == 0) ptx::mbarrier_arrive(words + 8 * i);
      }
    }
  }

  struct Ring {
    int slot = 0, parity = 0;
  };
  /// d = x times the weights of the next `slots` slots, of kChunks chunks of 64 of K each; chunks from `count` on are
  /// zeros and left out. ready(k) waits for chunk k of x.
  template <int N, int kChunks, class Ready>
  __device__ __forceinline__ void multiply(Ring& at, float (&d)[N / 2], int slots, int count,
                                           const Ready& ready) const {
    int last = -1;
    const uint32_t x_at = ptx::wgmma_address(x), w_at = ptx::wgmma_address(ring);
#pragma unroll 1
    for (int s = 0; s < slots; ++s) {
      wait(full + 8 * at.slot, at.parity);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int k = s * kChunks + c;
        if (kChunks > 1 && k >= count) break;
        ready(k);
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i)
          RowsTimesColumns<N>::run(d, ptx::wgmma_tile(x_at + k * (kChunkBytes / 16), i * 32),
                                   ptx::wgmma_tile(w_at + at.slot * (kSlotBytes / 16) + c * (N * 8), i * 32),
                                   k + i > 0);
        ptx::wgmma_commit();
      }
      asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");  // the slot before this one has been read
      if (last >= 0 && lane == 0) ptx::mbarrier_arrive(empty + 8 * last);
      last = at.slot;
      if (++at.slot == kRing) at.slot = 0, at.parity ^= 1;
    }
    ptx::wgmma_wait<0>(d);
    if (lane == 0) ptx::mbarrier_arrive(empty + 8 * last);
  }

  /// The sums of 50 x 72 to the blocks that finish their tokens; then this block's 7 tokens, with r, to `out`.
  __device__ __forceinline__ void finish_cut(float (&d)[36], int m, uint8_t* out, const float (&r)[4]) const {
    const int l = m / 2, site = m % 2 * 8;
    if (tid == 0) ptx::mbarrier_expect(parts_full, kAllBytes);
    delay(l, 6 + m % 2);
    if constexpr ((kForm & kStores) == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int token = warp * 16 + lane / 4 + h * 8;
        const uint32_t to = x + kStagedAt + token * kRowBytes + lane % 4 * 8;
        if (token < 56)
#pragma unroll
          for (int j = 0; j < 9; ++j)
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + j * 32), "f"(d[4 * j + 2 * h]),
                         "f"(d[4 * j + 2 * h + 1])
                         : "memory");
      }
      ptx::tensor_fence();
      ptx::named_barrier<128>(1);
      if (ptx::elect_lane())
#pragma unroll
        for (int i = 0; i < 2; ++i)
          ptx::remote_copy(parts + rank * kPartBytes, x + kStagedAt + (warp + 4 * i) * kPartBytes, kPartBytes,
                           parts_full, warp + 4 * i);
    } else {
      const bool odd = lane % 2 != 0;  // takes four columns of row g + 8
      const int token = warp * 16 + lane / 4 + (odd ? 8 : 0), owner = token / kTokensOfRank;
      const uint32_t to = ptx::remote_shared(parts + rank * kPartBytes + token % kTokensOfRank * kRowBytes, owner),
                     there = ptx::remote_shared(parts_full, owner);
#pragma unroll
      for (int j = 0; j < 9; ++j) {
        const float y = __shfl_xor_sync(~0u, odd ? d[4 * j] : d[4 * j + 2], 1),
                    z = __shfl_xor_sync(~0u, odd ? d[4 * j + 1] : d[4 * j + 3], 1);
        const float v[4] = {odd ? y : d[4 * j], odd ? z : d[4 * j + 1], odd ? d[4 * j + 2] : y, odd ? d[4 * j + 3] : z};
        if (token < 56) ptx::remote_store_async<4>(to + (j * 8 + lane % 4 / 2 * 4) * 4, v, there);
      }
    }
    stamp(l, site + 3);
    at_place(l * 32 + site + 3);
    wait(parts_full, m & 1);
    stamp(l, site + 4);
    if (warp == 3 && lane < kCluster) ptx::mbarrier_arrive(x_free, lane);  // all 8 have multiplied, and sent to here
    delay(l, 8 + m % 2);
    const int token = rank * kTokensOfRank + tid / 18, column = cluster * kColumns + tid % 18 * 4;
    if (tid < 126 && token < kTokens && column < kHidden) {
      float4 sum = make_float4(r[0], r[1], r[2], r[3]);
#pragma unroll
      for (int i = 0; i < kCluster; ++i) {
        float4 v;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "r"(parts + i * kPartBytes + tid * 16));
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      *reinterpret_cast<uint2*>(out + (token * kHidden + column) * 2) =
          make_uint2(ptx::pack<bf16>(sum.x, sum.y), ptx::pack<bf16>(sum.z, sum.w));
      global_proxy_fence();
    }
    ptx::named_barrier<128>(1);
    if (tid == 0) count_release(a.flags + cluster * 32);
    stamp(l, site + 5);
  }

  __device__ __forceinline__ void finish_up(const float (&d)[36], int l) const {
    const bool odd = lane % 2 != 0;
    const int token = warp * 16 + lane / 4 + (odd ? 8 : 0), unit = cta * 36 + lane % 4 / 2 * 2;
    const int at = (token * kInner + unit) * 2;
#pragma unroll
    for (int j = 0; j < 9; ++j) {
      const float low = gelu(d[4 * j]) * d[4 * j + 1], high = gelu(d[4 * j + 2]) * d[4 * j + 3],
                  other = __shfl_xor_sync(~0u, odd ? low : high, 1);
      const uint32_t word = ptx::pack<bf16>(odd ? other : low, odd ? high : other);
      if (token < kTokens && unit + 4 * j < kInner) store_relaxed(a.h[l % 3] + at + j * 8, written(word));
    }
#pragma unroll
    for (int j = 0; j < 9; ++j)
      if (token < kTokens && unit + 4 * j < kInner) store_relaxed(a.h[(l + 1) % 3] + at + j * 8, kUnwritten);
  }
  __device__ __forceinline__ void finish_qkv(const float (&d)[12], int l) const {
    const int column = cta * kQkvColumns + lane % 4 * 2;
#pragma unroll
    for (int reset = 0; reset < 2; ++reset)
#pragma unroll
      for (int i = 0; i < 6; ++i) {
        const int token = warp * 16 + lane / 4 + i % 2 * 8, n = column + i / 2 * 8;
        const uint32_t word = ptx::pack<bf16>(d[2 * i], d[2 * i + 1]);
        if (token >= kTokens || n >= kQkv) continue;
        if (n < kAttended)
          store_relaxed(a.attended[(l + 1 + reset) % 3] + (token * kAttended + n) * 2,
                        reset ? kUnwritten : written(word));
        else if (reset == 0)
          *reinterpret_cast<uint32_t*>(a.kv[l % 3] + (token * kKv + n - kAttended) * 2) = word;
      }
  }

  __device__ __forceinline__ void multiply_all() const {
    Ring at;
    float r1[4] = {}, r2[4] = {};
    const int token = rank * kTokensOfRank + tid / 18, column = cluster * kColumns + tid % 18 * 4;
    if (tid < 126 && token < kTokens && column < kHidden)
      for (int i = 0; i < 4; ++i)
        r1[i] = to_float(a.r1[token * kHidden + column + i]), r2[i] = to_float(a.r2[token * kHidden + column + i]);
    for (int l = 0; l < a.layers; ++l) {
      float d[36], e[12];
      const auto x_ready = [&](int parity) {
        return [this, parity](int k) {
          if (k % 2 == 0) wait(x_full + 4 * k, parity);
        };
      };
      const auto all_x = [&](int parity) {
        for (int i = 0; i < 8; ++i) wait(x_full + 8 * i, parity);
      };
      at_place(l * 32 + 1);
      stamp(l, 0);
      wait(words, 0);
      stamp(l, 1);
      at_place(l * 32 + 1 + 1);
      multiply<72, 1>(at, d, 4, 4, [](int) {});
      stamp(l, 2);
      finish_cut(d, 2 * l, a.x1[l % 3], r1);
      delay(l, 10);
      at_place(l * 32 + 6);
      if (ups) {
        wait(x_full, 0);
        stamp(l, 6);
        at_place(l * 32 + 6 + 1);
        multiply<72, 1>(at, d, 16, 16, x_ready(0));
      } else {
        all_x(0);
      }
      if (lane == 0) ptx::mbarrier_arrive(words_free);
      stamp(l, 7);
      delay(l, 11);
      if (ups) finish_up(d, l);
      stamp(l, 8);
      at_place(l * 32 + 9);
      wait(words, 1);
      stamp(l, 9);
      at_place(l * 32 + 9 + 1);
      multiply<72, 1>(at, d, 8, 8, [&](int k) {
        if (k == 4) wait(words + 8, l & 1);
      });
      stamp(l, 10);
      finish_cut(d, 2 * l + 1, a.x2[l % 3], r2);
      delay(l, 12);
      at_place(l * 32 + 14);
      if (qkvs) {
        wait(x_full, 1);
        stamp(l, 14);
        at_place(l * 32 + 14 + 1);
        multiply<24, 3>(at, e, 6, 16, x_ready(1));
      } else {
        all_x(1);
      }
      if (lane == 0) ptx::mbarrier_arrive(words_free);
      stamp(l, 15);
      delay(l, 13);
      if (qkvs) finish_qkv(e, l);
    }
  }
};

template <int kForm>
__global__ void __launch_bounds__(kThreadsOf<kForm>, 1) expert_chain(const __grid_constant__ ChainArgs args) {
  const Block<kForm> block(args);
  constexpr int kLast = 4 + kPollersOf<kForm>;
  ptx::cluster_sync<kCluster>();
  if (block.warp < 4) {
    block.multiply_all();
  } else if (block.warp < kLast) {
    block.poll_words();
  } else if (block.warp == kLast) {
    if (ptx::elect_lane()) block.ask_weights();
  } else if (block.warp == kLast + 1) {
    block.ask_x();
  } else {
    block.watch();
  }
  __syncwarp();
  if (block.warp < kWarpsOf<kForm>) block.at_place(kDone);
  ptx::cluster_sync<kCluster>();
}

}  // namespace lab
