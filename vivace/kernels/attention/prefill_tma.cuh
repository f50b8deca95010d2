// attention of many 16-bit queries on Hopper: warp-specialized prefill by TMA and wgmma, persistent. Formula in
// vivace/ops/attention.h, tile config in AttentionTile. Limit: 2 T Hq L (D + Dv) flop, and as many powers of two as MMA
// results at a 128th of the tensor core's rate.
//
// One producer warp loads blocks of keys and values; one or two consumer warpgroups have 64 rows each. A consumer
// starts its next block's scores before this block's values; nothing orders the warpgroups, one's MMA runs beside the
// other's softmax. Persistent thread blocks take tiles, longest first, back and forth.
// Chosen when: Hopper, more than 64 queries of a sequence, 16-bit keys and values of its widths that TMA maps, no
// terms and no soft cap; also variants of users that edit neither query nor key.
#pragma once
#include "vivace/kernels/attention/tile.cuh"
#include "vivace/kernels/attention/kv_loader.cuh"
#include "vivace/kernels/attention/online_softmax.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"
#include "vivace/kernels/ptx/wgmma_rows.cuh"
#include "vivace/kernels/tile/pipeline.cuh"

namespace vivace::kernels {

/// A tile's position in the grid: `index` counts turns of the grid over all tiles.
struct AttentionTileCoord {
  int row0, row_end, kv;
  bool exists;

  __device__ __forceinline__ AttentionTileCoord(const AttentionArgs& a, int height, int turn) {
    const int rows = valid_rows(a.rows, a.T) * a.group(), tiles = (rows + height - 1) / height;
    const uint32_t grid = gridDim.x,
                   index = static_cast<uint32_t>(turn) * grid + (turn % 2 ? grid - 1 - blockIdx.x : blockIdx.x),
                   heads = static_cast<uint32_t>(a.Hkv);
    exists = index < static_cast<uint32_t>(tiles) * heads;  // at most T * Hq, below 2^30, as pick checks
    const int tile =
        exists ? tiles - 1 - static_cast<int>(index / heads) : 0;  // the last tokens first: they see most keys
    kv = static_cast<int>(index % heads);
    row0 = tile * height;
    row_end = min(row0 + height, rows);
  }
};

template <class Q, AttentionTile P, class V, class Out>
struct AttentionPrefillTmaKernel : AttentionTileKernel<Q, Q, P, V, Out> {
  using Base = AttentionTileKernel<Q, Q, P, V, Out>;
  using Base::kKeys, Base::kDim, Base::kDimV, Base::kSteps, Base::kKeyTiles, Base::kOutTiles, Base::a, Base::queries,
      Base::stages, Base::out, Base::lane, Base::warp_m, Base::first, Base::end, Base::row_max, Base::row_sum;
  static_assert(P.warps_m % 4 == 0 && P.warps_n == 1 && P.split == 1 && !Hooks<V>::kQuery && !Hooks<V>::kKey);
  static constexpr int kStages = P.stages;
  static constexpr int kPanels = P.pitch(P.d) / 64, kPanelsV = P.pitch(P.dv) / 64;
  static constexpr int kKeyElements = kKeys * P.pitch(P.d), kValueElements = kKeys * P.pitch(P.dv);
  using Ring = Pipeline<kStages, 1, 2 * kStages>;
  enum Named { kPatchDone = 1, kQueries = 2 };  // the last: one for each group
  static_assert(4 * 8 * kStages <= P.kBarrierBytes);

  /// Shared memory, swizzled: queries [kPanels][P.rows()][64], keys [kStages][kPanels][kKeys][64], values
  /// [kStages][kPanelsV][kKeys][64], then full barriers of
  /// keys and of values, empty ones of both.
  __device__ __forceinline__ Q* keys(int i) const { return stages + i % kStages * kKeyElements; }
  __device__ __forceinline__ Q* values(int i) const {
    return stages + kStages * kKeyElements + i % kStages * kValueElements;
  }
  /// Block i of a ring is counted over all tiles.
  __device__ __forceinline__ Ring keys_ring() const {
    return {ptx::shared_address(stages) + static_cast<uint32_t>(kStages * P.stage_bytes())};
  }
  __device__ __forceinline__ Ring values_ring() const { return {keys_ring().barriers + kStages * 8}; }
  __device__ __forceinline__ void release(Ring ring, int i) const {
    if (lane == 0) ring.consumer_release(i % kStages);
  }
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < kStages; ++i) {
      keys_ring().init_full(i, 1), values_ring().init_full(i, 1);
      keys_ring().init_empty(i, P.warps_m), values_ring().init_empty(i, P.warps_m);
    }
    ptx::mbarrier_fence();
  }
  __device__ __forceinline__ void move_to(const AttentionTileCoord& to) {
    this->row0 = to.row0, this->row_end = to.row_end, this->kv = to.kv;
  }

  /// End of the run of tokens from ta on that share a slot, of a tile that ends before `past`.
  __device__ __forceinline__ int end_of_run(int ta, int past) const {
    if constexpr (P.one_span) return slot_end<P.rows()>(a, ta, past, lane);
    else return run_end(a, ta, past, lane);
  }

  /// By the producer warp: keys and values of places [lo, hi) of a slot, the last block first.
  __device__ __forceinline__ void fetch_run(const AttentionTmaArgs& f, int box, int64_t slot, int lo, int hi, int& i) {
    for (int b = (hi - 1) / kKeys; b >= lo / kKeys; --b, ++i) {
      const int j = b * kKeys + lane * box, position = static_cast<int>(a.row_in_block(slot, j));
      const int page = kv_page<kKeys>(a, slot, j, hi, lane, box);  // read while the stage is still in use
      keys_ring().producer_acquire(i);
      tma_load_kv<kPanels>(*this, keys(i), f.k, keys_ring().full(i % kStages), box, page, position);
      values_ring().producer_acquire(i);
      tma_load_kv<kPanelsV>(*this, values(i), f.v, values_ring().full(i % kStages), box, page, position);
    }
  }
  /// The producer warp: every block of every tile, in the order in which they are read.
  __device__ __forceinline__ void produce(const AttentionTmaArgs& f) {
    const int box = kv_box<kKeys>(a);
    int i = 0;
    for (int turn = 0;; ++turn) {
      const AttentionTileCoord at(a, P.rows(), turn);
      if (!at.exists) break;
      move_to(at);
      const int past_t = (this->row_end - 1) / a.group() + 1;
      for (int ta = this->row0 / a.group(), tb; ta < past_t; ta = tb) {
        if constexpr (P.one_span) {  // a token's span is its run's: it is asked for before the run's end is known
          const AttentionSpan see(a, ta);
          if (see.end > 0) fetch_run(f, box, see.slot, 0, static_cast<int>(see.end), i);
          tb = end_of_run(ta, past_t);
        } else {
          tb = end_of_run(ta, past_t);
          int lo, hi;
          span_of_tokens(a, ta, tb, lane, &lo, &hi);
          if (hi > lo) fetch_run(f, box, AttentionSpan(a, ta).slot, lo, hi, i);
        }
      }
    }
  }

  /// This group's 64 queries of a tile; then wait_queries(). A thread goes from piece to piece of eight elements by
  /// adding alone.
  __device__ __forceinline__ void load_group(const AttentionTileCoord& at) const {
    constexpr int kPieces = kDim / 8, kDown = 128 / kPieces, kAcross = 128 % kPieces;
    const int group = a.group(), down_t = kDown / group, down_h = kDown % group;
    int r = static_cast<int>(threadIdx.x) % 128 / kPieces, piece = static_cast<int>(threadIdx.x) % 128 % kPieces;
    int row = at.row0 + warp_m / 4 * 64 + r, t = row / group, h = row % group;
    const auto down = [&](int rows, int tokens, int heads) {
      r += rows, row += rows, t += tokens, h += heads;
      if (h >= group) h -= group, ++t;
    };
#pragma unroll 2
    while (r < 64) {
      const bool take = row < at.row_end;
      const Q* head =
          static_cast<const Q*>(a.q) + (take ? int64_t{t} * a.q_stride + (at.kv * group + h) * int64_t{P.d} : 0);
      copy_eight<Q, Q, true>(Base::template smem_at<P.rows(), 0>(queries, warp_m / 4 * 64 + r, piece * 8), head,
                             piece * 8, P.d, take);
      down(kDown, down_t, down_h);
      if (kAcross > 0) {
        piece += kAcross;
        if (piece >= kPieces) piece -= kPieces, down(1, 0, 1);
      }
    }
    ptx::copy_commit();
  }
  __device__ __forceinline__ void group_barrier() const { ptx::named_barrier<128>(kQueries + warp_m / 4); }
  __device__ __forceinline__ void wait_queries() const {
    ptx::copy_wait<0>();
    ptx::tensor_fence();
    group_barrier();
  }

  __device__ __forceinline__ void start_scores(const Q* k, float (&s)[kKeyTiles][4]) const {
    uint32_t q0 = ptx::shared_address(queries) + static_cast<uint32_t>(warp_m / 4) * 64 * 128;
    asm volatile("" : "+r"(q0));  // so that no step's address is kept across blocks: registers are short
    const uint64_t from = ptx::wgmma_tile(q0), to = ptx::wgmma_tile(ptx::shared_address(k));
    float(&flat)[kKeyTiles * 4] = reinterpret_cast<float(&)[kKeyTiles * 4]>(s);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      ptx::Wgmma<Q, kKeys>::run(flat, ptx::wgmma_further(from, step / 4 * P.rows() * 128 + step % 4 * 32),
                                ptx::wgmma_further(to, step / 4 * kKeys * 128 + step % 4 * 32), step > 0);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void start_values(const Q* v, const uint32_t (&p)[kKeys / 16][4]) {
    const uint64_t from = ptx::wgmma_rows(ptx::shared_address(v), kKeys * 128);
    float(&flat)[kOutTiles * 4] = reinterpret_cast<float(&)[kOutTiles * 4]>(out);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      ptx::WgmmaRows<Q, kDimV>::run(flat, p[step], ptx::wgmma_further(from, step * 2048));
    ptx::wgmma_commit();
  }

  /// Zeros in places of a block that no row of the run sees: there may be anything there, NaN too.
  __device__ __forceinline__ void patch(Q* v, int from, int to) const {
    int i = static_cast<int>(threadIdx.x) - P.producer_threads();
    if constexpr (P.tall()) asm volatile("" : "+r"(i));  // so that no address is kept across blocks
    for (; i < (to - from) * (kDimV / 8); i += P.warps_m * 32) {
      const float zeros[8] = {};
      store<8>(Base::template smem_at<kKeys, 0>(v, from + i / (kDimV / 8), i % (kDimV / 8) * 8), zeros);
    }
    ptx::tensor_fence();
    ptx::named_barrier<P.warps_m * 32>(kPatchDone);
  }

  /// Products into probabilities. A soft cap or another scale is a matter for Terms.
  __device__ __forceinline__ void update_softmax(int key0, bool all, float factor, float (&s)[kKeyTiles][4],
                                                 float (&by)[2]) {
    if constexpr (Hooks<V>::kEdits) {
      this->softmax_block(key0, s, by);
    } else {
      if (!all) mask_scores(key0, lane, first, end, s);
      online_softmax<0>({factor, factor}, s, row_max, row_sum, by);
    }
  }

  /// Tokens [ta, tb), which share a slot; i counts blocks. The queries may be overwritten once scores_done() is called.
  template <class Done>
  __device__ __forceinline__ void attend(int ta, int tb, int& i, Done&& scores_done) {
    int lo, hi;
    this->begin(ta, tb, &lo, &hi);
    if (hi <= lo) return scores_done();  // the same in every warp
    const int least = lo / kKeys, most = (hi - 1) / kKeys;
    SeenByAll seen;
    if constexpr (P.one_span) {
      seen.row(lo, hi);
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (this->in_run(this->my_row(r), ta, tb)) seen.row(first[r], end[r]);
      seen.agree();
    }
    const auto whole = [&](int b) { return seen(b * kKeys, (b + 1) * kKeys); };
    const float factor = Hooks<V>::kEdits ? 1.0f : a.scale * kLog2e;

    float s[kKeyTiles][4], by[2];
    uint32_t p[kKeys / 16][4];
    float(&scores)[kKeyTiles * 4] = reinterpret_cast<float(&)[kKeyTiles * 4]>(s);
    float(&sums)[kOutTiles * 4] = reinterpret_cast<float(&)[kOutTiles * 4]>(out);
    keys_ring().consumer_wait(i);
    ptx::wgmma_fence();
    start_scores(keys(i), s);
    ptx::wgmma_wait<0>(scores);
    release(keys_ring(), i);
    update_softmax(most * kKeys, whole(most), factor, s, by);
    Base::round(s, p);
    values_ring().consumer_wait(i);
    if (hi % kKeys != 0) patch(values(i), hi % kKeys, kKeys);
    for (int b = most - 1; b >= least; --b, ++i) {
      keys_ring().consumer_wait(i + 1);
      ptx::wgmma_fence();
      start_scores(keys(i + 1), s);
      values_ring().consumer_wait(i);
      ptx::wgmma_fence();
      start_values(values(i), p);
      ptx::wgmma_wait<1>(scores);
      release(keys_ring(), i + 1);
      update_softmax(b * kKeys, whole(b), factor, s, by);
      probabilities_first(row_sum);
      ptx::wgmma_wait<0>(sums);
      this->shrink(by);
      release(values_ring(), i);
      Base::round(s, p);
    }
    scores_done();
    values_ring().consumer_wait(i);
    if (lo % kKeys != 0) patch(values(i), 0, lo % kKeys);
    ptx::wgmma_fence();
    start_values(values(i), p);
    ptx::wgmma_wait<0>(sums);
    release(values_ring(), i);
    ++i;
    this->reduce_row_sum();
    row_max[0] *= factor, row_max[1] *= factor;
  }

  __device__ __forceinline__ void write(int ta, int tb) const {
    const int group = a.group();
    const AttentionEpilogue<Q, Out> epilogue(a);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = this->my_row(i), t = row / group;
      const bool mine = this->in_run(row, ta, tb);
      const float factor = mine ? this->finish(row, row_max[i], row_sum[i], lane % 4 == 0) : 0.0f;
      write_pairs<P.dv>(
          epilogue,
          static_cast<Out*>(a.out) + int64_t{t} * a.out_stride + (this->kv * group + row - t * group) * int64_t{P.dv},
          mine, lane, i, factor, out);
    }
  }

  /// The consumer warpgroups: every tile; a tile's queries are on their way while the one before it ends.
  __device__ __forceinline__ void consume() {
    AttentionTileCoord at(a, P.rows(), 0);
    if (at.exists) load_group(at);
    int i = 0;
    for (int turn = 0; at.exists; ++turn) {
      const AttentionTileCoord next(a, P.rows(), turn + 1);
      move_to(at);
      wait_queries();
      const int past_t = (this->row_end - 1) / a.group() + 1;
      for (int ta = this->row0 / a.group(), tb; ta < past_t; ta = tb) {
        tb = end_of_run(ta, past_t);
        attend(ta, tb, i, [&] {
          if (tb < past_t || !next.exists) return;
          group_barrier();  // every warp's scores are done
          load_group(next);
        });
        if constexpr (Hooks<V>::kOutput) this->write_direct(ta, tb);
        else write(ta, tb);
      }
      at = next;
    }
  }
};

/// Grid: at most the tiles times Hkv, best the SMs.
template <class Q, AttentionTile P, class V, class Out = Q>
__device__ __forceinline__ void run_attention_prefill_tma(const AttentionTmaArgs& f) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  Q* const queries = reinterpret_cast<Q*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  AttentionPrefillTmaKernel<Q, P, V, Out> k{f.a(),    queries, queries + P.query_bytes() / 2,      nullptr, 0, 0,
                                            warp - 4, 0,       static_cast<int>(threadIdx.x % 32), 0,       0};
  if (threadIdx.x == 0) k.init_barriers();
  __syncthreads();
  ptx::dependency_wait();
  ptx::launch_dependents();
  constexpr bool kMove = P.warps_m > 4;  // with one group there are registers for everyone
  constexpr int kDown = P.dv > 128 ? 24 : 40, kUp = P.dv > 128 ? 240 : 232;
  static_assert(!kMove || (128 * kDown + 32 * P.warps_m * kUp) <=
                              65536 / P.threads() / 8 * 8 *
                                  P.threads());  // what the block began with: else a group waits for ever
  if (warp < 4) {
    if constexpr (kMove) ptx::registers_down<kDown>();
    if (warp == 0) k.produce(f);
  } else {
    if constexpr (kMove) ptx::registers_up<kUp>();
    k.consume();
  }
#endif
}

template <class Q, AttentionTile P, class V = Standard, class Out = Q>
__global__ void __launch_bounds__(P.threads(), 1) attention_prefill_tma(const __grid_constant__ AttentionTmaArgs f) {
  run_attention_prefill_tma<Q, P, V, Out>(f);
}

}  // namespace vivace::kernels
