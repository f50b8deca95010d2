// attention of tens of 16-bit queries of one sequence on Hopper, such as an action chunk: warpgroup products as in fed.cuh, keys
// divided among the blocks of a cluster. Formula in vivace/ops/attention.h, but no soft cap and none of Terms; cutting in
// AttentionChunk. Limit: what a cluster's part of the chip takes in, then the way of the sums through it.
//
// One warp asks for queries, keys and values; one warpgroup multiplies. Each block of threads lays its
// 64 rows of sums into shared memory and sends each other block, as one copy, the rows that the receiver adds up.
#pragma once
#include "vivace/kernels/attention/fed.cuh"
#include "vivace/kernels/ptx/remote.cuh"
#include "vivace/kernels/ptx/tma.cuh"

namespace vivace::kernels {

template <class Q, AttentionChunk P>
struct AttentionChunkKernel : AttentionFedKernel<Q, P.tile(), Standard> {
  using Base = AttentionFedKernel<Q, P.tile(), Standard>;
  using Base::kKeys, Base::kDimV, Base::kKeyTiles, Base::kOutTiles, Base::a, Base::stages, Base::out, Base::lane, Base::warp_m, Base::first, Base::end, Base::top, Base::mass, Base::row0,
      Base::row_end, Base::rank, Base::kv, Base::kPanels, Base::kPanelsV, Base::kKeysFull, Base::kValuesFull, Base::kKeysEmpty, Base::kValuesEmpty;
  static constexpr int kSplit = P.split, kStages = P.stages, kPitch = P.row_floats(), kShare = P.share();
  static_assert(P.fits());

  __device__ __forceinline__ unsigned char* memory() const { return reinterpret_cast<unsigned char*>(this->queries); }
  __device__ __forceinline__ float* staged(int row) const { return reinterpret_cast<float*>(memory()) + row * kPitch; }  // over queries and stages
  /// Row `row` of this block's share, as block `from` has it: its sums, maximum and mass.
  __device__ __forceinline__ const float* part(int from, int row) const {
    return from == rank ? staged(rank * kShare + row) : reinterpret_cast<const float*>(memory() + P.sent_at() + from * P.part_bytes()) + row * kPitch;
  }
  /// Counts down what is sent here.
  __device__ __forceinline__ uint32_t sent_barrier() const { return this->barrier(kKeysFull, 0) + 4 * kStages * 8; }
  __device__ __forceinline__ uint32_t queries_barrier() const { return sent_barrier() + 8; }
  __device__ __forceinline__ void make_barriers() const {
    ptx::mbarrier_init(sent_barrier(), 1);
    ptx::mbarrier_init(queries_barrier(), 1);
    Base::make_barriers();
  }

  /// Blocks of keys that anyone of the tile sees: [from, past).
  struct Seen {
    int lo, hi;
    __device__ __forceinline__ int from() const { return lo / kKeys; }
    __device__ __forceinline__ int past() const { return hi > lo ? (hi - 1) / kKeys + 1 : from(); }
    /// The first of block `rank`'s; from past() on it has none.
    __device__ __forceinline__ int first(int rank) const { return from() + (rank + kSplit - from() % kSplit) % kSplit; }
  };

  // --- the asking warp ---

  __device__ __forceinline__ void ask_queries(const TensorMap& map) const {
    constexpr int kPanelsQ = P.tile().pitch(P.d) / 64;
    const int box = AttentionChunkArgs::query_box(a), group = a.group();
    if (lane == 0) ptx::mbarrier_expect(queries_barrier(), kPanelsQ * P.kRows * 128);
    __syncwarp();
    for (int row = lane * box; row < P.kRows; row += 32 * box)
#pragma unroll
      for (int p = 0; p < kPanelsQ; ++p)
        ptx::tma_box(ptx::shared_address(this->queries + (p * P.kRows + row) * 64), map, queries_barrier(), p * 64, box == P.kRows ? row0 : 0, kv, box == P.kRows ? 0 : (row0 + row) / group);
  }
  __device__ __forceinline__ void ask_block(const AttentionFedArgs& f, int b, int i, int page, int place, int box) const {
    ptx::mbarrier_wait<false>(this->barrier(kKeysEmpty, i), (i / kStages & 1) ^ 1);
    this->template ask<kPanels>(this->keys(i), f.k, this->barrier(kKeysFull, i), box, page, place);
    ptx::mbarrier_wait<false>(this->barrier(kValuesEmpty, i), (i / kStages & 1) ^ 1);
    this->template ask<kPanelsV>(this->values(i), f.v, this->barrier(kValuesFull, i), box, page, place);
  }
  /// Whether the first block of keys is known before anything is read, and may be asked for: a block of a cache without pages.
  __device__ __forceinline__ bool knows_first() const { return a.page_table == nullptr && a.k_offsets == nullptr && a.window == 0 && rank * kKeys < a.L; }
  __device__ __forceinline__ void feed(const AttentionFedArgs& f, const Seen& seen, bool begun) const {
    const int box = a.page_table != nullptr && a.L < kKeys ? a.L : kKeys;  // at least 8 places, so that a warp suffices
    int i = 0;
    for (int b = seen.first(rank); b < seen.past(); b += kSplit, ++i) {
      if (i == 0 && begun) continue;
      const int j = b * kKeys + lane * box, place = static_cast<int>(a.place(0, j));
      ask_block(f, b, i, lane * box < kKeys && j < seen.hi ? static_cast<int>(a.block(0, j)) : -1, place, box);
    }
    if (begun && i == 0) this->await(kKeysFull, 0), this->await(kValuesFull, 0);  // nobody reads them, but they must have come before this block ends
  }
  /// To each other block the rows that it adds up.
  __device__ __forceinline__ void send() const {
    if (lane >= kSplit || lane == rank || row0 + lane * kShare >= row_end) return;
    const auto sent = reinterpret_cast<const unsigned char*>(staged(0));
    ptx::remote_copy(ptx::shared_address(memory() + P.sent_at() + rank * P.part_bytes()), ptx::shared_address(sent + lane * P.part_bytes()), P.part_bytes(), sent_barrier(), lane);
  }

  // --- the multiplying warps ---

  /// Zeros in places of a block that no row of the tile sees: there may be anything there, NaN too.
  __device__ __forceinline__ void patch(Q* v, int from, int to) const {
    for (int i = static_cast<int>(threadIdx.x); i < (to - from) * (kDimV / 8); i += 128) {
      const float zeros[8] = {};
      store<8>(Base::template place<kKeys, 0>(v, from + i / (kDimV / 8), i % (kDimV / 8) * 8), zeros);
    }
    ptx::tensor_fence();
    this->group_barrier();
  }
  __device__ __forceinline__ void sum_up(const Seen& seen) {
    const float factor = a.scale * kLog2e;
    float s[kKeyTiles][4], by[2];
    uint32_t p[kKeys / 16][4];
    float(&scores)[kKeyTiles * 4] = reinterpret_cast<float(&)[kKeyTiles * 4]>(s);
    float(&sums)[kOutTiles * 4] = reinterpret_cast<float(&)[kOutTiles * 4]>(out);
    int i = 0;
    for (int b = seen.first(rank); b < seen.past(); b += kSplit, ++i) {
      this->await(kKeysFull, i);
      ptx::wgmma_fence();
      this->start_scores(this->keys(i), s);
      ptx::wgmma_wait<0>(scores);
      this->release(kKeysEmpty, i);
      const bool whole = b * kKeys >= max(first[0], first[1]) && (b + 1) * kKeys <= min(end[0], end[1]);
      this->weights(b * kKeys, whole, factor, s, by);
      if (i > 0) this->shrink(by);
      Base::round(s, p);
      this->await(kValuesFull, i);
      if (b * kKeys < seen.lo) patch(this->values(i), 0, seen.lo - b * kKeys);
      if ((b + 1) * kKeys > seen.hi) patch(this->values(i), seen.hi - b * kKeys, kKeys);
      ptx::wgmma_fence();
      this->start_values(this->values(i), p);
      ptx::wgmma_wait<0>(sums);
      this->release(kValuesEmpty, i);
    }
    this->sum_mass();
  }
  /// Sums and states where send() finds them.
  __device__ __forceinline__ void stage() const {
    this->group_barrier();  // nobody reads queries or stages any more
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* const row = staged(warp_m * 16 + lane / 4 + 8 * i);
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n) store<2>(row + n * 8 + lane % 4 * 2, {out[n][2 * i], out[n][2 * i + 1]});
      if (lane % 4 == 0) store<2>(row + kDimV, {top[i] * (a.scale * kLog2e), mass[i]});
    }
    ptx::tensor_fence();
  }
  /// Adds up this block's rows, in the order of the blocks of threads. Without branches, so that loads run beside one another: what
  /// blocks without keys have not sent counts as nothing.
  __device__ __forceinline__ void collect(const Seen& seen) const {
    uint32_t has = 0;
#pragma unroll
    for (int c = 0; c < kSplit; ++c) has |= (seen.first(c) < seen.past() ? 1u : 0u) << c;
    for (int at = static_cast<int>(threadIdx.x); at < kShare * (kDimV / 4); at += 128) {
      const int r = at / (kDimV / 4), column = at % (kDimV / 4) * 4, row = row0 + rank * kShare + r;
      if (row >= row_end) break;
      float highest = kMinusInfinity, total = 0, sum[4] = {};
      Vec<float, 2> states[kSplit];
      Vec<float, 4> sums[kSplit];
#pragma unroll
      for (int c = 0; c < kSplit; ++c) {
        const float* const from = part(c, r);
        states[c] = *reinterpret_cast<const Vec<float, 2>*>(from + kDimV);
        sums[c] = *reinterpret_cast<const Vec<float, 4>*>(from + column);
      }
#pragma unroll
      for (int c = 0; c < kSplit; ++c) {
        if (!(has >> c & 1)) states[c] = {kMinusInfinity, 0}, sums[c] = {};
        highest = fmaxf(highest, states[c].v[0]);
      }
      const float base = softmax_base(highest);
#pragma unroll
      for (int c = 0; c < kSplit; ++c) {
        const float w = ptx::exp2_fast(states[c].v[0] - base);
        total += states[c].v[1] * w;
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] += sums[c].v[e] * w;
      }
      if (column >= P.dv) continue;
      const float by = this->finish(row, highest, total, column == 0);
      const int group = a.group();
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[e] *= by;
      store<4>(static_cast<Q*>(a.out) + int64_t{row / group} * a.out_stride + (kv * group + row % group) * int64_t{P.dv} + column, sum);
    }
  }
};

/// Grid: tiles * Hkv * split blocks, clusters of split.
template <class Q, AttentionChunk P>
__device__ __forceinline__ void run_attention_chunk(const AttentionChunkArgs& args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using Kernel = AttentionChunkKernel<Q, P>;
  const AttentionFedArgs& f = args.fed;
  const AttentionArgs& a = f.a();
  const int group = a.group(), warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t heads = static_cast<uint32_t>(a.Hkv), index = blockIdx.x / P.split;
  Q* const queries = reinterpret_cast<Q*>(memory);
  const bool asks = warp == 4;
  Kernel k{{f.a(), queries, queries + P.tile().query_bytes() / 2, nullptr, static_cast<int>(index % heads), ptx::cluster_rank<P.split>(), warp, 0, static_cast<int>(threadIdx.x % 32),
            static_cast<int>(index / heads) * P.kRows, 0}};
  if (threadIdx.x == 0) k.make_barriers();
  if (asks && k.lane < 3) ptx::tma_prefetch(k.lane == 0 ? args.q : k.lane == 1 ? f.k : f.v);
  __syncthreads();
  ptx::cluster_arrive<P.split>();
  ptx::dependency_wait();
  ptx::launch_dependents();
  const bool begun = k.knows_first();
  if (asks) k.ask_queries(args.q);
  if (asks && begun) k.ask_block(f, k.rank, 0, 0, k.rank * P.kKeys, P.kKeys);
  const int rows = valid_rows(a.rows, a.T) * group;
  if (k.row0 >= rows) {  // the whole cluster
    if (asks) k.feed(f, {0, 0}, begun), ptx::mbarrier_wait<false>(k.queries_barrier(), 0);
    return;
  }
  k.row_end = min(k.row0 + P.kRows, rows);
  typename Kernel::Seen seen;
  k.begin(k.row0 / group, (k.row_end - 1) / group + 1, &seen.lo, &seen.hi);
  const bool mine = seen.first(k.rank) < seen.past();
  if (asks) {
    k.feed(f, seen, begun);
    int senders = 0;
#pragma unroll
    for (int c = 0; c < P.split; ++c) senders += c != k.rank && seen.first(c) < seen.past();
    if (k.lane == 0) ptx::mbarrier_expect(k.sent_barrier(), k.row0 + k.rank * P.share() < k.row_end ? static_cast<uint32_t>(senders * P.part_bytes()) : 0);
    __syncwarp();
  } else {
    ptx::mbarrier_wait<false>(k.queries_barrier(), 0);
    k.sum_up(seen);
    if (mine) k.stage();
  }
  ptx::cluster_wait<P.split>();  // the others run, and may be sent to
  __syncthreads();
  if (asks && mine) k.send();
  ptx::mbarrier_wait<true>(k.sent_barrier(), 0);
  __syncwarp();
  ptx::cluster_arrive<P.split>();  // this block has what was sent to it
  if (!asks) k.collect(seen);
  __syncwarp();
  ptx::cluster_wait<P.split>();  // so has everyone: nothing is on its way from here
#endif
}

template <class Q, AttentionChunk P>
__global__ void __launch_bounds__(P.threads(), 1) attention_chunk(const __grid_constant__ AttentionChunkArgs args) {
  run_attention_chunk<Q, P>(args);
}

}  // namespace vivace::kernels
