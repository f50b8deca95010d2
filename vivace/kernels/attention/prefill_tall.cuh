// attention of many 16-bit queries on Hopper: heads of 64 in tiles of 256 rows, made of prefill_tma's parts, with its
// bits. Formula in vivace/ops/attention.h, tile config in AttentionTile.
//
// Four warpgroups have 64 rows each, 512 threads of 128 registers. In a warpgroup scores, softmax and values take
// turns; they run beside those of the other three. There is no producer warp: warp 0 asks for keys and values, two
// blocks ahead. Registers are short: sums shrink before probabilities are made, those are packed as they come, where
// keys lie is kept in shared memory, and a tile's place is found again at its end. A thread block has one tile.
// Chosen when: prefill_tma serves the call, its heads are of 64, the mask is full, without window and pages, slots are
// long, and the tiles take clearly fewer turns on the chip than those of 128 rows.
#pragma once
#include "vivace/kernels/attention/prefill_tma.cuh"

namespace vivace::kernels {

template <class Q, AttentionTile P, class Out>
struct AttentionPrefillTallKernel : AttentionPrefillTmaKernel<Q, P, Standard, Out> {
  using Base = AttentionPrefillTmaKernel<Q, P, Standard, Out>;
  using Base::kKeys, Base::kKeyTiles, Base::kOutTiles, Base::kStages, Base::kPanels, Base::kPanelsV, Base::a,
      Base::stages, Base::out, Base::lane, Base::warp_m, Base::row_max, Base::row_sum, Base::keys_ring,
      Base::values_ring;
  static_assert(P.tall() && P.one_span && kStages >= 3);

  /// Where a run's keys lie, row and block: written by warp 0's first lane, behind the barriers.
  __device__ __forceinline__ volatile int* kept() const {
    static_assert(4 * 8 * kStages + 8 <= P.kBarrierBytes);
    return reinterpret_cast<volatile int*>(stages + kStages * P.stage_bytes() / 2) + 4 * 2 * kStages;
  }
  /// By warp 0: block b of a run, as block i of both rings.
  __device__ __forceinline__ void fetch_block(const AttentionTmaArgs& f, int i, int b) const {
    keys_ring().producer_acquire(i);
    values_ring().producer_acquire(i);
    const int position = kept()[0] + b * kKeys, page = kept()[1];
    tma_load_kv<kPanels>(*this, this->keys(i), f.k, keys_ring().full(i % kStages), kKeys, page, position);
    tma_load_kv<kPanelsV>(*this, this->values(i), f.v, values_ring().full(i % kStages), kKeys, page, position);
  }
  /// A run's first two blocks, the last of its places.
  __device__ __forceinline__ void fetch_first(const AttentionTmaArgs& f, const AttentionSpan& see, int i) const {
    if (warp_m != 0 || see.end <= 0) return;
    const int most = (static_cast<int>(see.end) - 1) / kKeys;
    if (lane == 0)
      kept()[0] = static_cast<int>(a.row_in_block(see.slot, 0)), kept()[1] = static_cast<int>(a.block(see.slot, 0));
    __syncwarp();
    fetch_block(f, i, most);
    if (most > 0) fetch_block(f, i + 1, most - 1);
    __syncwarp();
  }

  /// online_softmax(), shrink() and round(), with their bits; ptxas mixes none of maxima, probabilities and sums with
  /// what follows, for which it would want registers.
  __device__ __forceinline__ void softmax(float factor, float (&s)[kKeyTiles][4], uint32_t (&p)[kKeys / 16][4]) {
    float base[2], by[2], sum[4] = {};
    softmax_bases({factor, factor}, s, row_max, base, by);
    probabilities_first(by);
    this->shrink(by);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] = ptx::exp2_fast(__fmaf_rn(s[n][e], factor, 0 - base[e / 2]));
        sum[e] += s[n][e];
      }
      if (n % 2 == 0) continue;
      p[n / 2][0] = ptx::pack<Q>(s[n - 1][0], s[n - 1][1]), p[n / 2][1] = ptx::pack<Q>(s[n - 1][2], s[n - 1][3]);
      p[n / 2][2] = ptx::pack<Q>(s[n][0], s[n][1]), p[n / 2][3] = ptx::pack<Q>(s[n][2], s[n][3]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) row_sum[i] = row_sum[i] * by[i] + (sum[2 * i] + sum[2 * i + 1]);
  }

  /// Places [0, hi), behind fetch_first(); i counts blocks.
  __device__ __forceinline__ void attend(const AttentionTmaArgs& f, int hi, int& i) {
    const float factor = a.scale * kLog2e;
    float s[kKeyTiles][4];
    uint32_t p[kKeys / 16][4];
    float(&scores)[kKeyTiles * 4] = reinterpret_cast<float(&)[kKeyTiles * 4]>(s);
    float(&sums)[kOutTiles * 4] = reinterpret_cast<float(&)[kOutTiles * 4]>(out);
#pragma unroll 1
    for (int b = (hi - 1) / kKeys; b >= 0; --b, ++i) {
      keys_ring().consumer_wait(i);
      ptx::wgmma_fence();
      this->start_scores(this->keys(i), s);
      ptx::wgmma_wait<0>(scores);
      this->release(keys_ring(), i);
      if (const int seen = hi - b * kKeys; seen < kKeys) {
        const int from[2] = {0, 0}, to[2] = {seen, seen};
        mask_scores(0, lane, from, to, s);
      }
      softmax(factor, s, p);
      values_ring().consumer_wait(i);
      if (hi - b * kKeys < kKeys) this->patch(this->values(i), hi - b * kKeys, kKeys);
      ptx::wgmma_fence();
      this->start_values(this->values(i), p);
      if (warp_m == 0 && b >= 2) fetch_block(f, i + 2, b - 2);  // behind the slowest warpgroup's values of b + 1
      __syncwarp();
      ptx::wgmma_wait<0>(sums);
      this->release(values_ring(), i);
    }
    this->reduce_row_sum();
    row_max[0] *= factor, row_max[1] *= factor;
  }

  __device__ __forceinline__ void run(const AttentionTmaArgs& f) {
    int turn = 0, i = 0;
    const AttentionTileCoord at(a, P.rows(), turn);
    if (!at.exists) return;
    this->move_to(at);
    int ta = this->row0 / a.group(), past_t = (this->row_end - 1) / a.group() + 1;
    fetch_first(f, AttentionSpan(a, ta), i);
    this->load_group(at);
    this->wait_queries();
#pragma unroll 1
    while (true) {
      const AttentionSpan see(a, ta);
      this->clear();
      if (see.end > 0) attend(f, static_cast<int>(see.end), i);  // the same in every warp
      asm volatile("" : "+r"(turn));  // so that the tile's place is found again
      this->move_to(AttentionTileCoord(a, P.rows(), turn));
      past_t = (this->row_end - 1) / a.group() + 1;
      const int tb = this->end_of_run(ta, past_t);
      if (tb < past_t) fetch_first(f, AttentionSpan(a, tb), i);
      this->write(ta, tb);
      if (tb >= past_t) break;
      ta = tb;
    }
  }
};

/// Grid: the tiles times Hkv.
template <class Q, AttentionTile P, class Out = Q>
__device__ __forceinline__ void run_attention_prefill_tall(const AttentionTmaArgs& f) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  Q* const queries = reinterpret_cast<Q*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x % 32);
  AttentionPrefillTallKernel<Q, P, Out> k{
      f.a(), queries, queries + P.query_bytes() / 2, nullptr, 0, 0, warp, 0, lane, 0, 0};
  if (threadIdx.x == 0) k.init_barriers();
  __syncthreads();
  ptx::dependency_wait();
  ptx::launch_dependents();
  k.run(f);
#endif
}

template <class Q, AttentionTile P, class Out = Q>
__global__ void __launch_bounds__(P.threads(), 1) attention_prefill_tall(const __grid_constant__ AttentionTmaArgs f) {
  run_attention_prefill_tall<Q, P, Out>(f);
}

}  // namespace vivace::kernels
