// X6 of README.md: the action expert's four products a layer at 50 rows as one persistent kernel, 15 clusters of 8
// blocks, one a multiprocessor. Activations are wgmma's 64 rows, weights its columns.
//   o        x1 = attended Wo' + r1      72 columns a cluster, K cut in 8 by rank
//   gate/up  h = gelu(x1 Wg') x1 Wu'     72 rows of W a block (36 units), whole K, x1 by multicast
//   down     x2 = h Wd' + r2             as o
//   qkv      attended, kv = x2 Wqkv'     24 columns a block; its first 2048 columns are the next layer's attended
// What a phase writes is counted; who reads it waits for the counts and fetches it by TMA. Warps: 0-3 multiply and
// finish, 4 asks for weights in program order and never stops, 5 asks for activations, 6 ends the program where the
// others wait in vain.
#pragma once
#include "lab/persistent_policy/parts.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/remote.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"

namespace lab {
constexpr int kHidden = 1024, kAttended = 2048, kInner = 4096, kQkv = 2560, kKv = kQkv - kAttended;
constexpr int kUpBlocks = (2 * kInner + kColumns - 1) / kColumns, kQkvColumns = 24,
              kQkvBlocks = (kQkv + kQkvColumns - 1) / kQkvColumns, kTailColumns = kHidden % kColumns;
constexpr int kWarps = 6, kChainThreads = 32 * (kWarps + 1), kSlotsOfLayer = 34, kRing = 10,
              kSlotBytes = kColumns * 128, kXBytes = 16 * kChunkBytes, kRowBytes = kColumns * 4,
              kPartBytes = kTokensOfRank * kRowBytes, kAllBytes = kCluster * kPartBytes;
constexpr int kRingAt = kXBytes, kPartsAt = kRingAt + kRing * kSlotBytes, kBarriersAt = kPartsAt + kAllBytes,
              kPlacesAt = kBarriersAt + 8 * (2 * kRing + 13), kUnitsAt = kPlacesAt + 4 * kWarpsNoted,
              kChainSmem = kUnitsAt + kTokens * kColumns, kStagedAt = 8 * kChunkBytes;
constexpr int kStampSites = 32, kMostLayers = 36;
constexpr uint32_t kDone = 0x10000;
constexpr long long kMostCycles = 1'000'000'000;  // of a launch, random delays included

// Forms of the kernel: random delays; stamps of the clock; weights packed in the order that a block reads them, and
// then asked for into L2 ahead of the ring; products of two slots on their way in place of one; parts
// of a block's own tokens laid where the others' come, and no rows of tokens that do not exist; no weights
// at all, for the time of what is left.
enum Form : int { kPlain = 0, kStress = 1, kStamps = 2, kPacked = 4, kDeep = 8, kFewer = 16, kDry = 32 };

struct ChainArgs {
  TensorMap o, o_tail, up, down, down_tail, qkv;  // weights of all layers, one under another
  TensorMap attended_map[3], x1_map[3], h_map[3], x2_map[3];
  uint8_t *attended[3], *h[3], *x1[3], *x2[3], *kv[3];  // 16-bit rows, sets by layer
  const uint8_t* packed;                                // [block][layer][kSlotsOfLayer] slots as they lie in the ring
  int ahead;                                            // slots of those that L2 is asked for in front of the ring
  const bf16 *r1, *r2;
  uint32_t* counts;   // 128 bytes apart, zero at the start: of 15 clusters, 8 pieces of attended, 16 of h
  long long* stamps;  // [block][layer][kStampSites]
  int layers;
  uint32_t seed;
};

constexpr int kCounts = 40, kAttendedCounts = 16, kInnerCounts = 24, kPiece = 256;
/// Blocks of `width` columns each that write columns of a piece of kPiece.
__device__ __forceinline__ uint32_t writers(int piece, int width) {
  return static_cast<uint32_t>((piece * kPiece + kPiece - 1) / width - piece * kPiece / width + 1);
}

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
      ptx::mbarrier_init(words, 1), ptx::mbarrier_init(words + 8, 1), ptx::mbarrier_init(parts_full, 1);
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
      if (lane == 0 && warp % 5 == 0) set_stamp(layer, site, clock64());
  }
  __device__ __forceinline__ void set_stamp(int layer, int site, long long value) const {
    a.stamps[(cta * a.layers + layer) * kStampSites + site] = value;
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
      const uint8_t* from = a.packed + static_cast<size_t>(cta) * kMostLayers * kSlotsOfLayer * kSlotBytes;
      const uint8_t* end = from + static_cast<size_t>(a.layers) * kSlotsOfLayer * kSlotBytes;
      const int ahead = a.ahead * kSlotBytes;
      for (int l = 0; l < a.layers; ++l)
        for (int i = 0; i < kSlotsOfLayer; ++i, from += kSlotBytes) {
          const bool up = i >= 4 && i < 20, cuts = i < 4 || (i >= 20 && i < 28);
          if ((up && !ups) || (!up && !cuts && !qkvs)) continue;
          const int bytes = cuts && tail ? kTailColumns * 128 : kSlotBytes;
          if constexpr ((kForm & kDry) != 0) {
            wait(empty + 8 * slot, parity);
            ptx::mbarrier_arrive(full + 8 * slot);
            advance();
            continue;
          }
          next(bytes);
          bulk_load(ring + slot * kSlotBytes, from, bytes, full + 8 * slot, policy);
          if (ahead > 0 && from + ahead < end)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + ahead), "r"(kSlotBytes) : "memory");
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

  // Activations, by one warp. x1 (m even) and x2 into the whole cluster, 128 columns a rank:
  __device__ __forceinline__ void ask_whole(int m, const TensorMap& map) const {
    const int first = rank * 128 / kColumns, last = min((rank * 128 + 127) / kColumns, kClusters - 1);
    at_place(m / 2 * 32 + m % 2 * 2 + 1);
    wait(x_free, m & 1);
    at_place(m / 2 * 32 + m % 2 * 2 + 2);
    if (lane < 8) ptx::mbarrier_expect(x_full + 8 * lane, 2 * 128 * kTokens);
    delay(m / 2, 2 + m % 2);
    if (lane <= last - first) wait_count(a.counts + (first + lane) * 32, static_cast<uint32_t>(m + 1) * kCluster, 3);
    __syncwarp();
    stamp(m / 2, 16 + m % 2);
    global_proxy_fence();
    if (ptx::elect_lane())
      for (int k = 2 * rank; k < 2 * rank + 2; ++k)
        ptx::tma_load_multicast(x + k * kChunkBytes, map, x_full + 8 * rank, k * 64, 0, ptx::evict_normal(), 0xff);
    __syncwarp();
  }
  // Columns of this block's rank, `pieces` of 256, when `times` times as many blocks have counted as write one:
  __device__ __forceinline__ void ask_cut(const TensorMap& map, int pieces, const uint32_t* counts, int width,
                                          uint32_t times, int l) const {
    for (int i = 0; i < pieces; ++i) {
      const int piece = rank * pieces + i;
      if (lane == 0) {
        ptx::mbarrier_expect(words + 8 * i, 4 * 128 * kTokens);
        wait_count(counts + piece * 32, times * writers(piece, width), 4);
      }
      __syncwarp();
      stamp(l, 17 + pieces + i);
      global_proxy_fence();
      if (ptx::elect_lane())
#pragma unroll
        for (int k = 0; k < 4; ++k)
          ptx::tma_load(x + (i * 4 + k) * kChunkBytes, map, words + 8 * i, piece * kPiece + k * 64, 0);
      __syncwarp();
    }
  }
  __device__ __forceinline__ void ask_activations() const {
    for (int l = 0; l < a.layers; ++l) {
      const auto times = static_cast<uint32_t>(l);
      at_place(l * 32 + 5);
      if (l > 0) wait(words_free, 1);
      delay(l, 4);
      ask_cut(a.attended_map[l % 3], 1, a.counts + kAttendedCounts * 32, kQkvColumns, times, l);
      ask_whole(2 * l, a.x1_map[l % 3]);
      at_place(l * 32 + 6);
      wait(words_free, 0);
      delay(l, 5);
      ask_cut(a.h_map[l % 3], 2, a.counts + kInnerCounts * 32, kColumns / 2, times + 1, l);
      ask_whole(2 * l + 1, a.x2_map[l % 3]);
    }
  }

  struct Ring {
    int slot = 0, parity = 0;
  };
  /// d = x times the weights of the next `slots` slots, of kChunks chunks of 64 of K each; chunks from `count` on are
  /// zeros and left out. ready(k) waits for chunk k of x.
  /// Stamps `site` and the next: cycles that waited for weights, for x.
  template <int N, int kChunks, class Ready>
  __device__ __forceinline__ void multiply(Ring& at, float (&d)[N / 2], int slots, int count, const Ready& ready, int l,
                                           int site) const {
    constexpr int kHeld = (kForm & kDeep) != 0 ? 2 : 1;  // slots that may be read still when the next is waited for
    const auto release = [&](int before) {
      if (lane == 0) ptx::mbarrier_arrive(empty + 8 * (at.slot - before + (at.slot < before ? kRing : 0)));
    };
    long long waited[2] = {};
    const auto timed = [&](int what, const auto& wait_for) {
      [[maybe_unused]] const long long begin = (kForm & kStamps) != 0 ? clock64() : 0;
      wait_for();
      if constexpr ((kForm & kStamps) != 0) waited[what] += clock64() - begin;
    };
    const uint32_t x_at = ptx::wgmma_address(x), w_at = ptx::wgmma_address(ring);
#pragma unroll 1
    for (int s = 0; s < slots; ++s) {
      timed(0, [&] { wait(full + 8 * at.slot, at.parity); });
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int k = s * kChunks + c;
        if (kChunks > 1 && k >= count) break;
        timed(1, [&] { ready(k); });
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i)
          RowsTimesColumns<N>::run(d, ptx::wgmma_tile(x_at + k * (kChunkBytes / 16), i * 32),
                                   ptx::wgmma_tile(w_at + at.slot * (kSlotBytes / 16) + c * (N * 8), i * 32),
                                   k + i > 0);
        ptx::wgmma_commit();
      }
      if (kHeld == 1 || kChunks == 1) {
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kHeld) : "memory");
        if (s >= kHeld) release(kHeld);
      } else if (s + 1 < slots) {
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kChunks) : "memory");
        if (s > 0) release(1);
      }
      if (++at.slot == kRing) at.slot = 0, at.parity ^= 1;
    }
    ptx::wgmma_wait<0>(d);
#pragma unroll
    for (int i = kHeld; i > 0; --i) release(i);
    if constexpr ((kForm & kStamps) != 0)
      if (tid == 0) set_stamp(l, site, waited[0]), set_stamp(l, site + 1, waited[1]);
  }

  /// The sums of 50 x 72 to the blocks that finish their tokens; then this block's 7 tokens, with r, to `out`.
  __device__ __forceinline__ void finish_cut(float (&d)[36], int m, uint8_t* out, const float (&r)[4]) const {
    const int l = m / 2, site = m % 2 * 8;
    constexpr bool kFew = (kForm & kFewer) != 0;
    const auto bytes_of = [](int of) {
      return kFew ? min(kTokensOfRank, kTokens - of * kTokensOfRank) * kRowBytes : kPartBytes;
    };
    if (tid == 0) ptx::mbarrier_expect(parts_full, (kFew ? kCluster - 1 : kCluster) * bytes_of(rank));
    delay(l, 6 + m % 2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int token = warp * 16 + lane / 4 + h * 8;
      const uint32_t to =
          (kFew && token / kTokensOfRank == rank ? parts + rank * kPartBytes + token % kTokensOfRank * kRowBytes
                                                 : x + kStagedAt + token * kRowBytes) +
          lane % 4 * 8;
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
      for (int i = 0; i < 2; ++i) {
        const int to = warp + 4 * i;
        if (!kFew || to != rank)
          ptx::remote_copy(parts + rank * kPartBytes, x + kStagedAt + to * kPartBytes, bytes_of(to), parts_full, to);
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
    if (tid == 0) count_release(a.counts + cluster * 32);
    stamp(l, site + 5);
  }

  /// This block's columns from `first` on are written, for TMA to read: says so to the pieces that have some of them.
  __device__ __forceinline__ void count_pieces(uint32_t* counts, int first, int last) const {
    global_proxy_fence();
    ptx::named_barrier<128>(1);
    if (tid <= last / kPiece - first / kPiece) count_release(counts + (first / kPiece + tid) * 32);
  }
  __device__ __forceinline__ void finish_up(const float (&d)[36], int l) const {
    const bool odd = lane % 2 != 0;
    const int token = warp * 16 + lane / 4 + (odd ? 8 : 0), unit = cta * kColumns / 2;
    const uint32_t to = x + kUnitsAt + token * kColumns + lane % 4 / 2 * 4;
#pragma unroll
    for (int j = 0; j < 9; ++j) {
      const float low = gelu(d[4 * j]) * d[4 * j + 1], high = gelu(d[4 * j + 2]) * d[4 * j + 3],
                  other = __shfl_xor_sync(~0u, odd ? low : high, 1);
      const uint32_t word = ptx::pack<bf16>(odd ? other : low, odd ? high : other);
      if (token < kTokens) asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + j * 8), "r"(word) : "memory");
    }
    ptx::named_barrier<128>(1);
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // 9 pieces of four units a row
      const int i = tid + k * 128, row = i / 9, four = i % 9;
      if (i >= kTokens * 9 || unit + four * 4 >= kInner) continue;
      uint2 v;
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(x + kUnitsAt + i * 8));
      *reinterpret_cast<uint2*>(a.h[l % 3] + (row * kInner + unit + four * 4) * 2) = v;
    }
    count_pieces(a.counts + kInnerCounts * 32, unit, min(unit + kColumns / 2, kInner) - 1);
  }
  __device__ __forceinline__ void finish_qkv(const float (&d)[12], int l) const {
    const int first = cta * kQkvColumns, column = first + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 6; ++i) {
      const int token = warp * 16 + lane / 4 + i % 2 * 8, n = column + i / 2 * 8;
      const uint32_t word = ptx::pack<bf16>(d[2 * i], d[2 * i + 1]);
      if (token >= kTokens || n >= kQkv) continue;
      *reinterpret_cast<uint32_t*>(n < kAttended ? a.attended[(l + 1) % 3] + (token * kAttended + n) * 2
                                                 : a.kv[l % 3] + (token * kKv + n - kAttended) * 2) = word;
    }
    if (first < kAttended)
      count_pieces(a.counts + kAttendedCounts * 32, first, min(first + kQkvColumns, kAttended) - 1);
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
      multiply<72, 1>(
          at, d, 4, 4, [](int) {}, l, 24);
      stamp(l, 2);
      finish_cut(d, 2 * l, a.x1[l % 3], r1);
      delay(l, 10);
      at_place(l * 32 + 6);
      if (ups) {
        wait(x_full, 0);
        stamp(l, 6);
        at_place(l * 32 + 6 + 1);
        multiply<72, 1>(at, d, 16, 16, x_ready(0), l, 26);
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
      multiply<72, 1>(
          at, d, 8, 8,
          [&](int k) {
            if (k == 4) wait(words + 8, l & 1);
          },
          l, 28);
      stamp(l, 10);
      finish_cut(d, 2 * l + 1, a.x2[l % 3], r2);
      delay(l, 12);
      at_place(l * 32 + 14);
      if (qkvs) {
        wait(x_full, 1);
        stamp(l, 14);
        at_place(l * 32 + 14 + 1);
        multiply<24, 3>(at, e, 6, 16, x_ready(1), l, 30);
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
__global__ void __launch_bounds__(kChainThreads, 1) expert_chain(const __grid_constant__ ChainArgs args) {
  const Block<kForm> block(args);
  ptx::cluster_sync<kCluster>();
  if (block.warp < 4) {
    block.multiply_all();
  } else if (block.warp == 4) {
    if (ptx::elect_lane()) block.ask_weights();
  } else if (block.warp == 5) {
    block.ask_activations();
  } else {
    block.watch();
  }
  __syncwarp();
  if (block.warp < kWarps) block.at_place(kDone);
  ptx::cluster_sync<kCluster>();
}

}  // namespace lab
