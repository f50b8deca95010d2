// attention of 16-bit queries by warpgroup MMA (Hopper): prefill. As in tile.cuh, but that the tensor core
// reads tiles from shared memory, and works on the next block's scores and this block's values while
// the warps turn scores into probabilities.
// Chosen when: Hopper, prefill of heads of 64, 128 or 256 that prefill_tma does not take: terms, a soft cap, e4m3
// keys, KV blocks that TMA does not map.
#pragma once
#include "vivace/kernels/attention/tile.cuh"
#include "vivace/kernels/ptx/mbarrier.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"
#include "vivace/kernels/ptx/wgmma_rows.cuh"

namespace vivace::kernels {

template <class Q, class Kv, AttentionTile P, class V, class Out>
struct AttentionGroupKernel : AttentionTileKernel<Q, Kv, P, V, Out> {
  using Base = AttentionTileKernel<Q, Kv, P, V, Out>;
  using Base::kKeys, Base::kKeyTiles, Base::kOutTiles, Base::stages, Base::queries, Base::out, Base::lane, Base::warp_m;
  static_assert(P.d % 64 == 0 && P.dv % 64 == 0 && P.warps_m % 4 == 0 && P.warps_n == 1 && P.split == 1);
  // Two buffers of keys [D / 64][kKeys][64], then two of values [Dv / 64][kKeys][64]: block b's are buffers b % 2.
  static constexpr int kKeyElements = kKeys * P.d, kValueElements = kKeys * P.dv;

  __device__ __forceinline__ Q* keys(int b) const { return stages + b % 2 * kKeyElements; }
  __device__ __forceinline__ Q* values(int b) const { return stages + 2 * kKeyElements + b % 2 * kValueElements; }

  /// Starts s = q k^T of a block.
  __device__ __forceinline__ void start_scores(const Q* k, float (&s)[kKeyTiles][4]) const {
    uint32_t q0 = ptx::shared_address(queries) + static_cast<uint32_t>(warp_m / 4) * 64 * 128;
    const uint32_t k0 = ptx::shared_address(k);
    asm volatile("" : "+r"(q0));  // so that no step's address is kept across blocks: registers are short
    float(&flat)[kKeyTiles * 4] = reinterpret_cast<float(&)[kKeyTiles * 4]>(s);
#pragma unroll
    for (int step = 0; step < P.d / 16; ++step) {
      const uint32_t at = step % 4 * 32;
      ptx::Wgmma<Q, kKeys>::run(flat, ptx::wgmma_tile(q0 + step / 4 * P.rows() * 128 + at),
                                ptx::wgmma_tile(k0 + step / 4 * kKeys * 128 + at), step > 0);
    }
    ptx::wgmma_commit();
  }
  /// Starts out += p v of a block.
  __device__ __forceinline__ void start_values(const Q* v, const uint32_t (&p)[kKeys / 16][4]) {
    const uint32_t v0 = ptx::shared_address(v);
    float(&flat)[kOutTiles * 4] = reinterpret_cast<float(&)[kOutTiles * 4]>(out);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      ptx::WgmmaRows<Q, P.dv>::run(flat, p[step], ptx::wgmma_rows(v0 + step * 2048, kKeys * 128));
    ptx::wgmma_commit();
  }
  /// What this thread has copied is there, for the tensor core of every warp.
  __device__ __forceinline__ static void arrived() {
    ptx::copy_wait<0>();
    ptx::tensor_fence();
    __syncthreads();
  }

  __device__ __forceinline__ void attend(int ta, int tb) {
    int lo, hi;
    this->begin(ta, tb, &lo, &hi);
    const int64_t slot = AttentionSpan(this->a, ta).slot;
    const int first = lo / kKeys, past = hi > lo ? (hi + kKeys - 1) / kKeys : 0;
    if (first >= past) return;  // the same in every warp
    this->load_keys(keys(first), slot, first, lo, hi);
    ptx::copy_commit();
    arrived();
    if (first + 1 < past) this->load_keys(keys(first + 1), slot, first + 1, lo, hi);
    this->load_values(values(first), slot, first, lo, hi);
    ptx::copy_commit();

    float s[kKeyTiles][4], by[2];
    uint32_t p[kKeys / 16][4];
    float(&scores)[kKeyTiles * 4] = reinterpret_cast<float(&)[kKeyTiles * 4]>(s);
    float(&sums)[kOutTiles * 4] = reinterpret_cast<float(&)[kOutTiles * 4]>(out);
    ptx::wgmma_fence();
    start_scores(keys(first), s);
    ptx::wgmma_wait<0>(scores);
    this->scale(s);
    this->softmax_block(first * kKeys, s, by);
    Base::round(s, p);
    for (int b = first; b + 1 < past; ++b) {
      arrived();  // keys of b + 1, values of b; and every warp is done with those of b and b - 1
      if (b + 2 < past) this->load_keys(keys(b + 2), slot, b + 2, lo, hi);
      this->load_values(values(b + 1), slot, b + 1, lo, hi);
      ptx::copy_commit();
      ptx::wgmma_fence();
      start_scores(keys(b + 1), s);
      start_values(values(b), p);
      ptx::wgmma_wait<1>(scores);
      this->scale(s);
      this->softmax_block((b + 1) * kKeys, s, by);
      ptx::wgmma_wait<0>(sums);
      this->shrink(by);
      Base::round(s, p);
    }
    arrived();
    ptx::wgmma_fence();
    start_values(values(past - 1), p);
    ptx::wgmma_wait<0>(sums);
    __syncthreads();  // the buffers are free for the next run
    this->reduce_row_sum();
  }
};

template <class Q, class Kv, AttentionTile P, class V = Standard, class Out = Q>
__global__ void __launch_bounds__(P.threads(), 1) attention_prefill_wgmma(const __grid_constant__ AttentionArgs a) {
  run_attention<AttentionGroupKernel<Q, Kv, P, V, Out>, Q, P>(a);
}

}  // namespace vivace::kernels
