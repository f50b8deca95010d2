// Prefill of heads of 64 by four warpgroups: tiles of 256 rows, one a thread block, of 512 threads and 128 registers
// each. With the bits of attention_prefill_tma, whose parts it is made of; scores, softmax and values take turns in a
// warpgroup and run beside those of the three others. No producer warp: warp 0 asks for keys and values.
// Not in the product: prefill.cu times it.
#pragma once
#include "lab/attention/prefill_spans.cuh"
#include "vivace/kernels/attention/prefill_tma.cuh"

namespace vivace::kernels {

template <class Q, AttentionTile P, class V, class Out>
struct AttentionPrefillTallKernel : AttentionPrefillTmaKernel<Q, P, V, Out> {
  using Base = AttentionPrefillTmaKernel<Q, P, V, Out>;
  using Base::kKeys, Base::kDimV, Base::kKeyTiles, Base::kOutTiles, Base::kStages, Base::kPanels, Base::kPanelsV,
      Base::kKeyElements, Base::kValueElements, Base::a, Base::stages, Base::out, Base::lane, Base::warp_m,
      Base::row_max, Base::row_sum;
  static_assert(P.warps_m == 16 && kStages >= 3 && !Hooks<V>::kEdits);

  /// As the kernel's, whose first warpgroup multiplies nothing. No address is kept through the loop over keys.
  __device__ __forceinline__ void patch(Q* v, int from, int to) const {
    int i = static_cast<int>(threadIdx.x);
    asm volatile("" : "+r"(i));
    for (; i < (to - from) * (kDimV / 8); i += P.warps_m * 32) {
      const float zeros[8] = {};
      store<8>(Base::template smem_at<kKeys, 0>(v, from + i / (kDimV / 8), i % (kDimV / 8) * 8), zeros);
    }
    ptx::tensor_fence();
    ptx::named_barrier<P.warps_m * 32>(Base::kPatchDone);
  }
  /// Where a run's keys lie: kept behind the barriers by warp 0's first lane, for registers are short.
  __device__ __forceinline__ volatile int* kept() const {
    static_assert(4 * 8 * kStages + 8 <= P.kBarrierBytes);
    return reinterpret_cast<volatile int*>(stages + kStages * P.stage_bytes() / 2) + 4 * 2 * kStages;
  }
  /// Block b of a run, as the i-th of both rings; by warp 0.
  __device__ __forceinline__ void ask(const AttentionTmaArgs& f, int i, int b) const {
    this->keys_ring().producer_acquire(i);
    this->values_ring().producer_acquire(i);
    if (lane != 0) return;
    const int stage = i % kStages, position = kept()[0] + b * kKeys, page = kept()[1];
    this->keys_ring().producer_expect(stage, kKeyElements * 2);
    for (int at = 0; at < kPanels; ++at)
      ptx::tma_box(ptx::shared_address(this->keys(i)) + at * kKeys * 128, f.k, this->keys_ring().full(stage), at * 64,
                   position, this->kv, page);
    this->values_ring().producer_expect(stage, kValueElements * 2);
    for (int at = 0; at < kPanelsV; ++at)
      ptx::tma_box(ptx::shared_address(this->values(i)) + at * kKeys * 128, f.v, this->values_ring().full(stage),
                   at * 64, position, this->kv, page);
  }
  /// online_softmax(), shrink() and round(), with their bits; the assembler mixes none of maxima, weights and sums with
  /// the next, for which it would want registers.
  __device__ __forceinline__ void softmax_tall(float factor, float (&s)[kKeyTiles][4], uint32_t (&p)[kKeys / 16][4]) {
    float m[4] = {row_max[0], row_max[0], row_max[1], row_max[1]}, base[2], by[2], sum[4] = {};
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) m[e] = fmaxf(m[e], s[n][e]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = fmaxf(m[2 * i], m[2 * i + 1]);
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      base[i] = softmax_base(largest) * factor;
      by[i] = ptx::exp2_fast(row_max[i] * factor - base[i]);
      row_max[i] = largest;
    }
    probabilities_first(by);
    this->shrink(by);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] = ptx::exp2_fast(__fmaf_rn(s[n][e], factor, 0 - base[e / 2]));
        sum[e] += s[n][e];
      }
      if (n % 2 == 1) {
        p[n / 2][0] = ptx::pack<Q>(s[n - 1][0], s[n - 1][1]), p[n / 2][1] = ptx::pack<Q>(s[n - 1][2], s[n - 1][3]);
        p[n / 2][2] = ptx::pack<Q>(s[n][0], s[n][1]), p[n / 2][3] = ptx::pack<Q>(s[n][2], s[n][3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) row_sum[i] = row_sum[i] * by[i] + (sum[2 * i] + sum[2 * i + 1]);
  }
  /// A run's first two blocks.
  __device__ __forceinline__ void ask_first(const AttentionTmaArgs& f, const AttentionSpan& see, int i) const {
    if (warp_m != 0 || see.end <= 0) return;
    const int most = (static_cast<int>(see.end) - 1) / kKeys;
    if (lane == 0)
      kept()[0] = static_cast<int>(a.row_in_block(see.slot, 0)), kept()[1] = static_cast<int>(a.block(see.slot, 0));
    ask(f, i, most);
    if (most > 0) ask(f, i + 1, most - 1);
    __syncwarp();
  }
  /// All keys of a run, behind ask_first(): two blocks are on their way while one is in use. With a full mask, without
  /// pages, window and variants: all rows see [0, hi).
  __device__ __forceinline__ void attend_tall(const AttentionTmaArgs& f, int hi, int& i) {
    const int most = (hi - 1) / kKeys;
    const float factor = a.scale * kLog2e;
    float s[kKeyTiles][4];
    uint32_t p[kKeys / 16][4];
    float(&scores)[kKeyTiles * 4] = reinterpret_cast<float(&)[kKeyTiles * 4]>(s);
    float(&sums)[kOutTiles * 4] = reinterpret_cast<float(&)[kOutTiles * 4]>(out);
#pragma unroll 1
    for (int b = most; b >= 0; --b, ++i) {
      this->keys_ring().consumer_wait(i);
      ptx::wgmma_fence();
      this->start_scores(this->keys(i), s);
      ptx::wgmma_wait<0>(scores);
      this->release(this->keys_ring(), i);
      if (const int seen = hi - b * kKeys; seen < kKeys) {
        const int from[2] = {0, 0}, to[2] = {seen, seen};
        mask_scores(0, lane, from, to, s);
      }
      softmax_tall(factor, s, p);
      this->values_ring().consumer_wait(i);
      if (hi - b * kKeys < kKeys) patch(this->values(i), hi - b * kKeys, kKeys);
      ptx::wgmma_fence();
      this->start_values(this->values(i), p);
      if (warp_m == 0 && b >= 2) ask(f, i + 2, b - 2);
      __syncwarp();
      ptx::wgmma_wait<0>(sums);
      this->release(this->values_ring(), i);
    }
    this->reduce_row_sum();
    row_max[0] *= factor, row_max[1] *= factor;
  }
  __device__ __forceinline__ void consume_tall(const AttentionTmaArgs& f) {
    int turn = 0, i = 0;
    const AttentionTileCoord at(a, P.rows(), turn);
    if (!at.exists) return;
    this->move_to(at);
    int ta = this->row0 / a.group(), past_t = (this->row_end - 1) / a.group() + 1;
    ask_first(f, AttentionSpan(a, ta), i);
    this->load_group(at);
    this->wait_queries();
#pragma unroll 1
    while (true) {
      const AttentionSpan see(a, ta);
      row_max[0] = row_max[1] = kMinusInfinity, row_sum[0] = row_sum[1] = 0;
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
      if (see.end > 0) attend_tall(f, static_cast<int>(see.end), i);  // the same in every warp
      asm volatile("" : "+r"(turn));  // found again: through the loop over keys registers are short
      this->move_to(AttentionTileCoord(a, P.rows(), turn));
      past_t = (this->row_end - 1) / a.group() + 1;
      const int tb = run_end_at_once<P.rows()>(a, ta, past_t, lane);
      if (tb < past_t) ask_first(f, AttentionSpan(a, tb), i);
      this->write(ta, tb);
      if (tb >= past_t) break;
      ta = tb;
    }
  }
};

/// Grid: the tiles times Hkv, each a thread block of 512 threads: four warpgroups of 64 rows. See attend_tall().
template <class Q, AttentionTile P, class V = Standard, class Out = Q>
__device__ __forceinline__ void run_attention_prefill_tall(const AttentionTmaArgs& f) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  Q* const queries = reinterpret_cast<Q*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x % 32);
  AttentionPrefillTallKernel<Q, P, V, Out> k{
      f.a(), queries, queries + P.query_bytes() / 2, nullptr, 0, 0, warp, 0, lane, 0, 0};
  if (threadIdx.x == 0) k.init_barriers();
  __syncthreads();
  ptx::dependency_wait();
  ptx::launch_dependents();
  k.consume_tall(f);
#endif
}

template <class Q, AttentionTile P, class V = Standard, class Out = Q>
__global__ void __launch_bounds__(512, 1) attention_prefill_tall(const __grid_constant__ AttentionTmaArgs f) {
  run_attention_prefill_tall<Q, P, V, Out>(f);
}

}  // namespace vivace::kernels
