// attention of few 16-bit queries on Hopper by swap-AB wgmma: S^T = K Q^T and O^T = V^T P^T, so that keys are the
// operand of 64 rows, a tile of 8 queries of one sequence wastes none of them, and no operand passes through registers.
// Formula in vivace/ops/attention.h, but no soft cap and none of Terms; tile config in AttentionSwapAB.
// Limit: the bytes of the visible keys and values; of tens of queries the split-KV reduction through the cluster.
//
// One producer warp loads 128 keys or values a pipeline stage by TMA. Two consumer warpgroups: each has half of a
// block's keys, then half of the values' columns. Split-KV: blocks of a cluster divide keys; each sends each other,
// from registers, the partial sums that the receiver adds up, in the order of the senders. Of long caches of one
// sequence several clusters have a share of a KV head's keys, and what they added up meets in memory.
// Chosen when: Hopper, decode and short queries, 16-bit keys and values that TMA maps, up to 32 heads a KV head; asked
// before all other kernels.
#pragma once
#include "vivace/kernels/attention/epilogue.cuh"
#include "vivace/kernels/attention/kv_loader.cuh"
#include "vivace/kernels/attention/merge_clusters.cuh"
#include "vivace/kernels/attention/runs.cuh"
#include "vivace/kernels/attention/softmax.cuh"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/ldmatrix.cuh"
#include "vivace/kernels/ptx/mbarrier.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/tma.cuh"
#include "vivace/kernels/ptx/tma_box.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"
#include "vivace/kernels/ptx/wgmma_rows.cuh"
#include "vivace/kernels/tile/pipeline.cuh"

namespace vivace::kernels {

/// attention: queries are in memory, and so is every key.
struct NoPrologue {
  using Args = AttentionSwapABArgs;
  static constexpr bool kActive = false;
  VV_HD static constexpr bool stable() { return false; }
};

/// `Prologue`: NoPrologue, or what makes queries and the rows that the call appends (rope_attention.cuh).
template <class Q, AttentionSwapAB P, class Out, class Prologue = NoPrologue, int kClusters = 1>
struct AttentionSwapABKernel {
  static constexpr int kKeys = P.kKeys, kRows = P.rows, kEights = kRows / 8, kStages = P.stages, kSplit = P.split;
  static constexpr int kPanels = P.panels(P.d), kPanelsV = P.panels(P.dv), kSteps = (P.d + 15) / 16, kOwn = P.own();
  static constexpr int kQuads = kOwn * kEights;     // fours of sums of a thread: 2 rows, 2 columns
  static constexpr int kLaneRows = 2 * kEights;         // rows of a thread: 8 j + 2 (lane % 4) + {0, 1}
  static constexpr int kWarps = 8;
  static_assert(kClusters == 1 || (kSplit == 8 && kQuads <= kSplit && !Prologue::kActive));
  using Ring = Pipeline<kStages, 4>;  // a part: a panel of 64 columns, which a consumer waits for alone

  const typename Prologue::Args& args;
  const AttentionArgs& a;
  unsigned char* memory;
  int kv, split_index, warp, lane;  // split: of the keys, the block's rank in the cluster
  int row0, row_end;
  Prologue prologue;
  // Of row `lane` of the tile: its token, and what it sees; which of the rows are of the run at hand.
  int token, first, end;
  uint32_t in_run;
  float row_max[kLaneRows], row_sum[kLaneRows];  // row_sum: of this lane's keys
  float out[kOwn][kRows / 2];  // panel warp / 4 + 2 i of the values' columns: rows of the products are columns 16 (warp
                               // % 4) + lane / 4 (+ 8)

  // Shared memory, swizzled: stages [panels][kKeys][128 bytes], queries [kPanels][kRows][128 bytes], probabilities
  // [kKeys / 64][kRows][128 bytes].
  __device__ __forceinline__ unsigned char* stage(int u) const { return memory + u % kStages * P.stage_bytes(); }
  __device__ __forceinline__ Q* queries() const { return reinterpret_cast<Q*>(memory + P.queries_at()); }
  __device__ __forceinline__ unsigned char* probabilities() const { return memory + P.probabilities_at(); }
  /// Fours of sums that a warp of split `from` has sent to this block, whose `quad` it was there.
  __device__ __forceinline__ unsigned char* received(int from, int quad) const {
    return memory + P.received_at() +
           (from * (kQuads * kWarps / kSplit) + quad * (kWarps / kSplit) + warp / kSplit) * 512 + lane * 16;
  }
  /// Maximum and row_sum of each of a split's rows.
  __device__ __forceinline__ unsigned char* states(int from) const { return memory + P.states_at() + from * kRows * 8; }
  __device__ __forceinline__ int* maxima() const { return reinterpret_cast<int*>(memory + P.maxima_at()); }
  __device__ __forceinline__ float* row_sums(int of) const {
    return reinterpret_cast<float*>(memory + P.row_sums_at()) + of * kRows;
  }
  __device__ __forceinline__ uint32_t barriers() const {
    return ptx::shared_address(memory) + static_cast<uint32_t>(P.barriers_at());
  }
  __device__ __forceinline__ Ring ring() const { return {barriers()}; }
  __device__ __forceinline__ uint32_t queries_barrier() const { return barriers() + kStages * 5 * 8; }
  __device__ __forceinline__ uint32_t received_barrier() const { return queries_barrier() + 8; }
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < kStages; ++i) ring().init_full(i, 1);
    for (int i = 0; i < kStages; ++i) ring().init_empty(i, kWarps);
    ptx::mbarrier_init(queries_barrier(), 1);
    ptx::mbarrier_init(received_barrier(), 1);
    ptx::mbarrier_fence();
  }
  __device__ __forceinline__ void consumer_wait(int u, int panel) const { ring().consumer_wait(u, panel); }
  __device__ __forceinline__ static void group_barrier() { ptx::named_barrier<kWarps * 32>(1); }
  /// Floats as ints of the same order.
  __device__ __forceinline__ static int ordered(float x) {
    const int bits = __float_as_int(x);
    return bits ^ (bits >> 31 & 0x7fffffff);
  }
  __device__ __forceinline__ static float unordered(int x) { return __int_as_float(x ^ (x >> 31 & 0x7fffffff)); }
  __device__ __forceinline__ void forget() const {
    if (threadIdx.x < kRows) maxima()[threadIdx.x] = ordered(kMinusInfinity);
  }

  // --- the producer warp ---

  __device__ __forceinline__ void tma_load_queries(const AttentionSwapABArgs::Queries& q) const {
    if (lane == 0) ptx::mbarrier_expect(queries_barrier(), kPanels * kRows * 128);
    __syncwarp();
    const int boxes = kRows / q.box, group = a.group();
    for (int i = lane * kSplit + split_index; i < boxes * kPanels;
         i += 32 * kSplit) {  // each split brings some for all
      const int row = i / kPanels * q.box, p = i % kPanels;
      const uint32_t to = ptx::shared_address(queries() + (p * kRows + row) * 64);
      const int y = q.joined ? row0 : 0, w = q.joined ? 0 : (row0 + row) / group;
      if constexpr (kSplit > 1)
        ptx::tma_box_multicast(to, args.q, queries_barrier(), p * 64, y, kv, w,
                               static_cast<uint16_t>((1u << kSplit) - 1));
      else ptx::tma_box(to, args.q, queries_barrier(), p * 64, y, kv, w);
    }
  }
  template <int kCount>
  __device__ __forceinline__ void tma_load(int u, const TensorMap& map, int box, int page, int position) const {
    ring().producer_acquire(u);
    if (lane == 0)
#pragma unroll
      for (int p = 0; p < (kPanels > kPanelsV ? kPanels : kPanelsV); ++p)
        ring().producer_expect(u % kStages, p < kCount ? kKeys * 128 : 0, p);  // every stage's barriers advance alike
    __syncwarp();
    if (lane * box >= kKeys) return;
#pragma unroll
    for (int p = 0; p < kCount; ++p)
      ptx::tma_box(ptx::shared_address(stage(u) + (p * kKeys + lane * box) * 128), map, ring().full(u % kStages, p),
                   p * 64, position, kv, page);
  }
  /// Keys, then values, of block b of a slot, of which positions below hi are seen; u counts stages.
  __device__ __forceinline__ void tma_load_block(int64_t slot, int b, int hi, int u) const {
    const int box = kv_box<P.kBox>(a), j = b * kKeys + lane * box, position = static_cast<int>(a.row_in_block(slot, j));
    const int page = kv_page<kKeys>(a, slot, j, hi, lane, box);  // read while stages are in use
    tma_load<kPanels>(u, args.tma.k, box, page, position);
    tma_load<kPanelsV>(u + 1, args.tma.v, box, page, position);
  }
  __device__ __forceinline__ static constexpr AttentionClusters clusters() { return {kSplit, kClusters}; }
  /// Which of the tile's clusters this is.
  __device__ __forceinline__ static int cluster() {
    return kClusters == 1 ? 0 : static_cast<int>(blockIdx.x / kSplit % kClusters);
  }
  /// Whether this split's first block is known before anything is read: it lies in a cache of one sequence without
  /// pages. Of further clusters it may lie beyond the position.
  __device__ __forceinline__ bool knows_first() const {
    if (cluster() > 0) return false;
    return a.page_table == nullptr && a.k_offsets == nullptr && a.window == 0 && (a.slot == nullptr || a.S == 1) &&
           split_index * kKeys < a.L;
  }
  __device__ __forceinline__ void drain() const {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) consumer_wait(0, p);
#pragma unroll
    for (int p = 0; p < kPanelsV; ++p) consumer_wait(1, p);
  }
  __device__ __forceinline__ static int first_block(int lo, int of) {
    if constexpr (kClusters > 1) return clusters().first_block(cluster(), of);
    const int b = lo / kKeys / kSplit * kSplit + of;
    return b < lo / kKeys ? b + kSplit : b;
  }
  __device__ __forceinline__ static int next_block(int b) {
    return kClusters > 1 ? clusters().next_block(b) : b + kSplit;
  }

  // --- the consumer warps ---

  /// Queries that TMA cannot bring: boxes of less than 8 rows.
  __device__ __forceinline__ void load_queries() const {
    constexpr int kChunks = kSteps * 2;
    const int group = a.group();
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kWarps * 32) {
      const int r = i / kChunks, at = i % kChunks * 8, row = row0 + r, t = row / group;
      const bool take = row < row_end && at < P.d;
      const Q* from = static_cast<const Q*>(a.q) +
                      (take ? int64_t{t} * a.q_stride + (kv * group + row % group) * int64_t{P.d} + at : 0);
      ptx::copy16(queries() + (at / 64 * kRows + r) * 64 + (at % 64 / 8 ^ r % 8) * 8, from, take);
    }
    ptx::copy_commit();
  }
  __device__ __forceinline__ void wait_queries(bool boxed) const {
    if (boxed) return ptx::mbarrier_wait<false>(queries_barrier(), 0);
    ptx::copy_wait<0>();
    ptx::tensor_fence();
    group_barrier();
  }
  /// This warpgroup's half of a block's keys times the queries: keys 16 warp + lane / 4 (+ 8).
  __device__ __forceinline__ void products(int u, float (&s)[kRows / 2]) const {
    const uint32_t k0 = ptx::shared_address(stage(u)) + static_cast<uint32_t>(warp / 4) * 64 * 128,
                   q0 = ptx::shared_address(queries());
    const uint64_t k = ptx::wgmma_tile(k0), q = ptx::wgmma_tile(q0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step % 4 == 0) consumer_wait(u, step / 4), ptx::wgmma_fence();
      ptx::Wgmma<Q, kRows>::run(s, ptx::wgmma_further(k, step / 4 * kKeys * 128 + step % 4 * 32),
                                ptx::wgmma_further(q, step / 4 * kRows * 128 + step % 4 * 32), step > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(s);
  }
  /// Of values of this lane's rows those of all lanes with the same lane % 4, of row row_of_lane().
  template <class Op>
  __device__ __forceinline__ float across(const float (&v)[kLaneRows], Op&& op) const {
    float x[kLaneRows];
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) x[i] = v[i];
    int left = kLaneRows;
#pragma unroll
    for (int bit = 16; bit >= 4; bit /= 2) {
      if (left == 1) {
        x[0] = op(x[0], __shfl_xor_sync(0xffffffffu, x[0], bit));
        continue;
      }
      left /= 2;
#pragma unroll
      for (int i = 0; i < left; ++i) {
        const bool upper = (lane & bit) != 0;
        x[i] = op(upper ? x[left + i] : x[i], __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[left + i], bit));
      }
    }
    return x[0];
  }
  __device__ __forceinline__ int row_of_lane() const {
    const int k = lane / (32 / kLaneRows);
    return k / 2 * 8 + lane % 4 * 2 + k % 2;
  }
  __device__ __forceinline__ bool leads() const { return lane / 4 % (8 / kLaneRows) == 0; }  // one lane of each row

  /// Products into probabilities, as they go to the tensor cores; what earlier sums and row_sums shrink by.
  __device__ __forceinline__ void softmax_block(int key0, bool whole, float factor, float (&s)[kRows / 2],
                                                float (&by)[kLaneRows]) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) s[i] *= factor;
    if (!whole) {
      const int mine = key0 + warp * 16 + lane / 4;
#pragma unroll
      for (int k = 0; k < kLaneRows; ++k) {
        const int row = k / 2 * 8 + lane % 4 * 2 + k % 2, from = __shfl_sync(0xffffffffu, first, row),
                  to = __shfl_sync(0xffffffffu, end, row);
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if ((mine + 8 * h < from) | (mine + 8 * h >= to)) s[k / 2 * 4 + h * 2 + k % 2] = kMinusInfinity;
      }
    }
    float m[kLaneRows];
#pragma unroll
    for (int k = 0; k < kLaneRows; ++k) m[k] = fmaxf(s[k / 2 * 4 + k % 2], s[k / 2 * 4 + 2 + k % 2]);
    const float largest = across(m, [](float x, float y) { return fmaxf(x, y); });
    if (leads()) atomicMax(maxima() + row_of_lane(), ordered(largest));
    group_barrier();
#pragma unroll
    for (int k = 0; k < kLaneRows; k += 2) {
      const int2 two = *reinterpret_cast<const int2*>(maxima() + k / 2 * 8 + lane % 4 * 2);
      const float all[2] = {unordered(two.x), unordered(two.y)};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float base = softmax_base(all[r]);
        by[k + r] = ptx::exp2_fast(row_max[k + r] - base);
        row_max[k + r] = all[r];
        float& x = s[k * 2 + r];
        float& y = s[k * 2 + 2 + r];
        x = ptx::exp2_fast(x - base), y = ptx::exp2_fast(y - base);
        row_sum[k + r] = row_sum[k + r] * by[k + r] + (x + y);
      }
    }
    const uint32_t to = ptx::shared_address(probabilities()) + static_cast<uint32_t>(warp / 4) * kRows * 128;
    const auto at = [&](int row) {
      return to + static_cast<uint32_t>(row * 128 + ((warp % 4 * 2 + lane / 8 % 2) ^ row % 8) * 16);
    };
    if constexpr (kEights == 1) {
      ptx::store_matrix2_transposed(at(lane % 8), {ptx::pack<Q>(s[0], s[1]), ptx::pack<Q>(s[2], s[3])});
    } else {
#pragma unroll
      for (int j = 0; j < kEights; j += 2)
        ptx::store_matrix4_transposed(
            at((j + lane / 16) * 8 + lane % 8),
            {ptx::pack<Q>(s[4 * j], s[4 * j + 1]), ptx::pack<Q>(s[4 * j + 2], s[4 * j + 3]),
             ptx::pack<Q>(s[4 * j + 4], s[4 * j + 5]), ptx::pack<Q>(s[4 * j + 6], s[4 * j + 7])});
    }
  }
  /// Zeros in places of a block that no row of the run sees: there may be anything there, NaN too.
  __device__ __forceinline__ void patch(int u, int from, int to) const {
#pragma unroll
    for (int p = 0; p < kPanelsV; ++p) consumer_wait(u, p);
    const float zeros[4] = {};
    for (int i = static_cast<int>(threadIdx.x); i < (to - from) * kPanelsV * 8; i += kWarps * 32)
      store<4>(
          reinterpret_cast<float*>(stage(u) + (i / 8 % kPanelsV * kKeys + from + i / 8 / kPanelsV) * 128 + i % 8 * 16),
          zeros);
  }
  __device__ __forceinline__ void add_values(int u, bool fresh) {
    const uint32_t v0 = ptx::shared_address(stage(u)), p0 = ptx::shared_address(probabilities());
    float(&sums)[kOwn * kRows / 2] = reinterpret_cast<float(&)[kOwn * kRows / 2]>(out);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int panel = kPanelsV % 2 == 0 ? warp / 4 + 2 * i
                                          : min(warp / 4 + 2 * i,
                                                kPanelsV - 1);  // the last one twice: nobody takes columns beyond dv
      const uint64_t v = ptx::wgmma_rows(v0 + static_cast<uint32_t>(panel) * kKeys * 128, kKeys * 128),
                     w = ptx::wgmma_tile(p0);
      consumer_wait(u, panel);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k)
        ptx::Wgmma<Q, kRows, true>::run(out[i], ptx::wgmma_further(v, k * 2048),
                                        ptx::wgmma_further(w, k / 4 * kRows * 128 + k % 4 * 32), k > 0 || !fresh);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(sums);
  }
  __device__ __forceinline__ void consumer_release(int u) const {
    __syncwarp();
    if (lane == 0) ring().consumer_release(u % kStages);
  }
  /// Sums of this split's keys of positions [lo, hi), of which all rows see [whole_from, whole_to); u counts stages.
  __device__ __forceinline__ void sum_up(int lo, int hi, int whole_from, int whole_to, int past, int u) {
    const float factor = a.scale * kLog2e;
    float s[kRows / 2], by[kLaneRows];
#pragma unroll
    for (int k = 0; k < kLaneRows; ++k) row_max[k] = kMinusInfinity, row_sum[k] = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
#pragma unroll
      for (int e = 0; e < kRows / 2; ++e) out[i][e] = 0;
    bool fresh = true;
#pragma unroll 1
    for (int b = first_block(lo, split_index); b < past; b = next_block(b), u += 2, fresh = false) {
      if constexpr (Prologue::kActive) {
        if (prologue.patch_appended(*this, b, u, 0)) ptx::tensor_fence(), group_barrier();
      }
      products(u, s);
      consumer_release(u);
      softmax_block(b * kKeys, b * kKeys >= whole_from && (b + 1) * kKeys <= whole_to, factor, s, by);
      if (b * kKeys < lo) patch(u + 1, 0, lo - b * kKeys);
      if ((b + 1) * kKeys > hi) patch(u + 1, hi - b * kKeys, kKeys);
      if constexpr (Prologue::kActive) prologue.patch_appended(*this, b, u + 1, 1);
      ptx::tensor_fence();
      group_barrier();
      if (!fresh)
#pragma unroll
        for (int i = 0; i < kOwn; ++i)
#pragma unroll
          for (int e = 0; e < kRows / 2; ++e) out[i][e] *= by[e / 4 * 2 + e % 2];
      add_values(u + 1, fresh);
      consumer_release(u + 1);
    }
  }

  // --- the end ---

  /// Sums to those that add them up; this block's own share stays in registers.
  __device__ __forceinline__ void send_sums() const {
#pragma unroll
    for (int x = 0; x < kQuads; ++x) {
      const int to = (x + warp) % kSplit;
      if (to == split_index) continue;
      const float(&from)[kRows / 2] = out[x / kEights];
      const int e = x % kEights * 4;
      const uint32_t here = ptx::shared_address(memory), there = ptx::remote_shared(here, to);
      ptx::remote_store_async<4>(there + (ptx::shared_address(received(split_index, x)) - here),
                                 {from[e], from[e + 1], from[e + 2], from[e + 3]}, there + (received_barrier() - here));
    }
  }
  /// Maximum and row_sum of each row to everyone, this block too.
  __device__ __forceinline__ void send_states() const {
    const float own = across(row_sum, [](float x, float y) { return x + y; });
    if (leads()) row_sums(warp)[row_of_lane()] = own;
    group_barrier();
    const int i = static_cast<int>(threadIdx.x), pair = i % (kRows / 2), to = i / (kRows / 2);
    if (to < kSplit) {
      float state[4] = {unordered(maxima()[pair * 2]), 0, unordered(maxima()[pair * 2 + 1]), 0};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) state[1] += row_sums(w)[pair * 2], state[3] += row_sums(w)[pair * 2 + 1];
      unsigned char* const at = states(split_index) + pair * 16;
      if constexpr (kSplit > 1)
        ptx::remote_store_async<4>(ptx::remote_shared(ptx::shared_address(at), to), state,
                                   ptx::remote_shared(received_barrier(), to));
      else store<4>(reinterpret_cast<float*>(at), state);
    }
    if constexpr (kSplit == 1) group_barrier();
  }
  /// Adds up this block's rows, in the order of the splits, those of bits `has`; others have not sent anything. `used`:
  /// clusters that have keys.
  __device__ __forceinline__ void collect(uint32_t has, int used, const AttentionEpilogue<Q, Out>& epilogue) const {
    constexpr int kEach = kQuads > kSplit ? kQuads / kSplit : 1;
    const int group = a.group();
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int x = ((split_index - warp) & (kSplit - 1)) + n * kSplit;  // the same in every lane
      if (x >= kQuads) break;
      float own[4] = {};
#pragma unroll
      for (int y = 0; y < kQuads; ++y)
        if (kSplit == 1 ? y == n : x == y)
#pragma unroll
          for (int e = 0; e < 4; ++e) own[e] = out[y / kEights][y % kEights * 4 + e];
      const int r = x % kEights * 8 + lane % 4 * 2;
      Vec<float, 4> sums[kSplit], state[kSplit];
#pragma unroll
      for (int c = 0; c < kSplit; ++c) {
        state[c] = *reinterpret_cast<const Vec<float, 4>*>(states(c) + r * 8);
        if constexpr (kSplit > 1) sums[c] = *reinterpret_cast<const Vec<float, 4>*>(received(c, x));
      }
      float highest[2] = {kMinusInfinity, kMinusInfinity}, total[2] = {}, y[4] = {};
#pragma unroll
      for (int c = 0; c < kSplit; ++c) {
        const bool here = (has >> c & 1) != 0;
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sums[c].v[e] = !here              ? 0.0f
                         : c == split_index ? own[e]
                                            : sums[c].v[e],
          state[c].v[e] = here         ? state[c].v[e]
                          : e % 2 == 0 ? kMinusInfinity
                                       : 0.0f;
        highest[0] = fmaxf(highest[0], state[c].v[0]), highest[1] = fmaxf(highest[1], state[c].v[2]);
      }
#pragma unroll
      for (int c = 0; c < kSplit; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float w = ptx::exp2_fast(state[c].v[2 * i] - softmax_base(highest[i]));
          total[i] += state[c].v[2 * i + 1] * w;
          y[i] += sums[c].v[i] * w, y[2 + i] += sums[c].v[2 + i] * w;
        }
      if constexpr (kClusters > 1) {
        const uint32_t tile = blockIdx.x / (kSplit * kClusters);
        if (used > 1 && !merge_clusters<P, kClusters>(a.words(), tile, cluster(), used, split_index, x, lane, highest,
                                                      total, y))
          return;
      }
      // Neighbours swap, so that each has two columns of one row.
      const bool odd = lane / 4 % 2 != 0;
      const int column = (warp / 4 + x / kEights * 2) * 64 + warp % 4 * 16 + lane / 4 - odd,
                t = __shfl_sync(0xffffffffu, token, r + odd), h = (kv - t) * group + row0 + r + odd;
      const bool mine = (in_run >> (r + odd) & 1) != 0;
      const float row_max_of = odd ? highest[1] : highest[0], row_sum_of = odd ? total[1] : total[0],
                  factor = mine ? softmax_factor(a, h, row_max_of, row_sum_of) : 0.0f;
      if (mine && column == 0 && a.lse != nullptr)
        a.lse[int64_t{t} * a.lse_stride + h] = softmax_lse(row_max_of, row_sum_of);
      Out* const to = static_cast<Out*>(a.out) + int64_t{t} * a.out_stride + int64_t{h} * P.dv + column;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float got = __shfl_xor_sync(0xffffffffu, odd ? y[2 * i] : y[2 * i + 1], 4),
                    kept = odd ? y[2 * i + 1] : y[2 * i];
        float two[2] = {(odd ? got : kept) * factor, (odd ? kept : got) * factor};
        if (mine && column + 8 * i < P.dv) epilogue.template store_as<2>(to + 8 * i, two);
      }
    }
  }

  /// All runs of the tile's tokens. `prefetched`: the first block is on its way. Queries are on their way.
  __device__ __forceinline__ void run(bool is_producer, bool prefetched, bool boxed) {
    const uint32_t group = static_cast<uint32_t>(a.group());
    const bool exists = lane < kRows && row0 + lane < row_end;
    token = static_cast<int>(static_cast<uint32_t>(row0 + lane) / group);
    const int past = __shfl_sync(0xffffffffu, token, row_end - 1 - row0) + 1;
    int u = 0;
    for (int ta = __shfl_sync(0xffffffffu, token, 0), round = 0; ta < past; ++round) {
      const int tb =
          !Prologue::kActive && (a.S > 1 || a.window > 0) && !a.by_token() ? run_end(a, ta, past, lane) : past;
      const bool in = exists && token >= ta && token < tb;
      in_run = __ballot_sync(0xffffffffu, in);
      int slot = 0;
      first = end = 0;
      if (in) {
        const AttentionSpan see(a, token);
        first = static_cast<int>(see.first), end = static_cast<int>(see.end), slot = static_cast<int>(see.slot);
      }
      if constexpr (Prologue::kActive && !Prologue::stable()) {
        if (!is_producer) prologue.make(*this);
      }
      const int lo = __reduce_min_sync(0xffffffffu, end > first ? first : 0x7fffffff),
                hi = __reduce_max_sync(0xffffffffu, end);
      const int blocks = (hi + kKeys - 1) / kKeys, from = first_block(lo, split_index),
                mine = kClusters > 1   ? clusters().block_count(cluster(), split_index, blocks)
                       : blocks > from ? (blocks - 1 - from) / kSplit + 1
                                       : 0,
                used = kClusters > 1 ? clusters().used(blocks) : 1;
      uint32_t has = 0;
#pragma unroll
      for (int c = 0; c < kSplit; ++c) has |= (first_block(lo, c) < blocks ? 1u : 0u) << c;
      if constexpr (Prologue::stable()) {
        if (!is_producer) {
          ptx::dependency_wait();
          ptx::launch_dependents();
          prologue.prefetch_head(row0 / a.group());
          prologue.make(*this);
        }
      }
      if (is_producer) {
        if constexpr (kSplit > 1) {
          const int others = __popc(has & ~(1u << split_index));
          if (lane == 0)
            ptx::mbarrier_expect(received_barrier(),
                                 static_cast<uint32_t>(others * P.share_bytes() + __popc(has) * kRows * 8));
        }
        slot = a.S > 1 ? __shfl_sync(0xffffffffu, slot, __ffs(static_cast<int>(in_run)) - 1) : 0;
        if constexpr (kClusters > 1) {
          for (int i = 0, b = from; i < mine; ++i, b = next_block(b))
            if (i > 0 || !prefetched) tma_load_block(slot, b, hi, u + 2 * i);
        } else {
          for (int i = prefetched && round == 0 ? 1 : 0; i < mine; ++i)
            tma_load_block(slot, from + i * kSplit, hi, u + 2 * i);
        }
        if (prefetched && round == 0 && mine == 0)
          drain();  // nobody reads it, but it must have come before this block ends
        if constexpr (Prologue::stable()) {
          ptx::dependency_wait();  // no block ends before what it did not wait for
          ptx::launch_dependents();
        }
      } else {
        if (round == 0) wait_queries(boxed);
        if (mine > 0) {
          sum_up(lo, hi, __reduce_max_sync(0xffffffffu, first), __reduce_min_sync(0xffffffffu, in ? end : 0x7fffffff),
                 blocks, u);
          if constexpr (kSplit > 1) send_sums();
          send_states();
        }
        const AttentionEpilogue<Q, Out> epilogue(a);  // its scale comes while others' sums do
        if constexpr (kSplit > 1) ptx::mbarrier_wait<true>(received_barrier(), round & 1);
        if (cluster() < used) collect(has, used, epilogue);
      }
      u += 2 * mine;
      ta = tb;
      if (Prologue::kActive || ta >= past) break;  // made: of one token
      __syncwarp();
      ptx::cluster_sync<kSplit>();  // everyone has what was sent, and is done with what it has
      if (!is_producer) forget(), group_barrier();
    }
  }
};

/// Grid: tiles * Hkv * clusters * split, clusters of split.
template <class Q, AttentionSwapAB P, class Out = Q, class Prologue = NoPrologue, int kClusters = 1>
__device__ __forceinline__ void run_attention_swap_ab(const typename Prologue::Args& args,
                                                      const Prologue& prologue = {}) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const AttentionArgs& a = args.tma.a();
  const int group = a.group(), warp = static_cast<int>(threadIdx.x) / 32, height = P.height(a);
  const uint32_t heads = static_cast<uint32_t>(a.Hkv), index = blockIdx.x / (P.split * kClusters);
  const int row0 = static_cast<int>(index / heads) * height;
  AttentionSwapABKernel<Q, P, Out, Prologue, kClusters> k{args,
                                                          a,
                                                          memory,
                                                          static_cast<int>(index % heads),
                                                          ptx::cluster_rank<P.split>(),
                                                          warp,
                                                          static_cast<int>(threadIdx.x % 32),
                                                          row0,
                                                          0,
                                                          prologue};
  const bool is_producer = warp == k.kWarps;
  if (threadIdx.x == 0) k.init_barriers();
  k.forget();
  if (is_producer && k.lane < 2) ptx::tma_prefetch(k.lane == 0 ? args.tma.k : args.tma.v);
  if constexpr (!Prologue::kActive) {
    if (is_producer && k.lane == 2) ptx::tma_prefetch(args.q);
  }
  __syncthreads();
  if constexpr (Prologue::stable()) {
    if (is_producer && k.knows_first()) k.tma_load_block(0, k.split_index, 0x7fffffff, 0);
  }
  ptx::cluster_arrive<P.split>();
  ptx::touch_parameters(args);
  if constexpr (Prologue::kActive) k.prologue.prefetch_weights();
  ptx::cluster_wait<P.split>();  // the others run, and may be sent to
  if constexpr (!Prologue::stable()) {
    ptx::dependency_wait();
    ptx::launch_dependents();
  }
  AttentionSwapABArgs::Queries queries{};
  if constexpr (Prologue::kActive) k.prologue.prefetch_rows(k);
  else queries = args.queries(a, P.rows);
  const bool prefetched = k.knows_first(), boxed = queries.box > 0;
  if constexpr (!Prologue::kActive) {
    if (is_producer && boxed) k.tma_load_queries(queries);
  }
  if constexpr (!Prologue::stable()) {
    if (is_producer && prefetched) k.tma_load_block(0, k.split_index, 0x7fffffff, 0);
  }
  const int rows = valid_rows(a.rows, a.T) * group;
  if (row0 >= rows) {  // the whole cluster
    if constexpr (Prologue::stable()) ptx::dependency_wait();
    if (is_producer && prefetched) k.drain();
    if (is_producer && boxed) ptx::mbarrier_wait<false>(k.queries_barrier(), 0);
    return;
  }
  k.row_end = min(row0 + height, rows);
  if (!Prologue::kActive && !is_producer && !boxed) k.load_queries();
  k.run(is_producer, prefetched, boxed);
#endif
}

template <class Q, AttentionSwapAB P, class Out = Q, int kClusters = 1>
__global__ void __launch_bounds__(P.threads(), P.occupancy())
    attention_swap_ab(const __grid_constant__ AttentionSwapABArgs args) {
  run_attention_swap_ab<Q, P, Out, NoPrologue, kClusters>(args);
}

}  // namespace vivace::kernels
