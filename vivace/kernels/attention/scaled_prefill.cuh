// scaled_attention of many queries by warpgroup MMA of e4m3 (Hopper). Formula in vivace/ops/scaled_attention.h, cutting
// in ScaledAttentionPrefill. Limit: 4 T Hq L D flop at the rate of 8-bit products, and as many powers of two as
// products of a 128th of it.
//
// The tensor core reads 8-bit factors by rows of K alone. Keys lie so; values are turned over on their way, 16 columns
// of 32 keys at a time, by warps that multiply nothing. A row of the turned tile has its keys in the order in which a
// lane holds the probabilities of a step: 2c, 2c + 1, 8 + 2c, 9 + 2c of each sixteen (c = lane % 4), so that
// probabilities go from one product into the other in registers.
// Chosen when: Hopper, more than 64 queries of a sequence, heads of 128, keys and values that TMA maps.
#pragma once
#include "vivace/kernels/attention/kv_loader.cuh"
#include "vivace/kernels/attention/online_softmax.cuh"
#include "vivace/kernels/attention/runs.cuh"
#include "vivace/kernels/attention/scaled_attention.h"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/ldmatrix.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"
#include "vivace/kernels/ptx/wgmma_held.cuh"
#include "vivace/kernels/ptx/wgmma_rows.cuh"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/pipeline.cuh"

namespace vivace::kernels {

template <class Out, ScaledAttentionPrefill P>
struct ScaledAttentionPrefillKernel {
  static constexpr int kKeys = P.kKeys, kKeyTiles = kKeys / 8, kOutTiles = P.kDim / 8, kSteps = P.kDim / 32,
                       kBlock = kKeys * P.kDim;
  static constexpr int kProbExponent =
      8;  // probabilities are 2^8 times what they are, below e4m3's 448; the row_sum alike
  static constexpr uint32_t kAll = 0xffffffffu;
  static_assert(kKeys == 128 &&
                P.kDim == 128);  // a row of keys, of values and of the turned tile is one swizzled panel
  using Ring = Pipeline<P.stages>;
  static_assert(P.kBarriers == 6);
  static constexpr int kQueries = 1;  // named barriers, one for each group

  const ScaledAttentionArgs& m;
  const AttentionArgs& a;
  unsigned char* memory;
  int kv, row0, row_end;
  int warp, lane;  // warp: of those that multiply, or of those that turn

  float out[kOutTiles][4], row_max[2], row_sum[2];  // a warp's [16 rows][kDim]; row_max: in products
  int first[2], end[2];
  float factor[2];  // from products to powers of two, above 0
  bool flip;        // a factor is negative: scores of its row count the other way

  // Shared memory, swizzled: queries [kRows][kDim], stages of keys, of values as they come, of values turned over, each
  // [128][128]; barriers.
  __device__ __forceinline__ unsigned char* queries(int group) const { return memory + group * 64 * P.kDim; }
  __device__ __forceinline__ unsigned char* stage(int kind, int i) const {
    return memory + P.kRows * P.kDim + (kind * P.stages + i % P.stages) * kBlock;
  }
  __device__ __forceinline__ unsigned char* keys(int i) const { return stage(0, i); }
  __device__ __forceinline__ unsigned char* raw(int i) const { return stage(1, i); }
  __device__ __forceinline__ unsigned char* values(int i) const { return stage(2, i); }
  /// Block i of a ring is counted over all runs.
  __device__ __forceinline__ Ring ring(int kind) const {
    return {ptx::shared_address(memory) + static_cast<uint32_t>(P.barriers_at() + kind * 2 * P.stages * 8)};
  }
  __device__ __forceinline__ Ring keys_ring() const { return ring(0); }
  __device__ __forceinline__ Ring raw_ring() const { return ring(1); }
  __device__ __forceinline__ Ring values_ring() const { return ring(2); }
  __device__ __forceinline__ void release(Ring ring, int i) const {
    if (lane == 0) ring.consumer_release(i % P.stages);
  }
  __device__ __forceinline__ void init_barriers() const {
    const auto init = [](Ring ring, int producers, int consumers) {
      for (int i = 0; i < P.stages; ++i) ring.init_full(i, producers);
      for (int i = 0; i < P.stages; ++i) ring.init_empty(i, consumers);
    };
    init(keys_ring(), 1, 4 * P.kGroups);
    init(raw_ring(), 1, P.kTransposeWarps);
    init(values_ring(), P.kTransposeWarps, 4 * P.kGroups);
    ptx::mbarrier_fence();
  }

  /// run(ta, tb, lo, hi) for each run of the tile's tokens that share a slot and the positions that they see.
  template <class Run>
  __device__ __forceinline__ void each_run(Run&& run) const {
    const int past = (row_end - 1) / a.group() + 1;
    for (int ta = row0 / a.group(), tb; ta < past; ta = tb) {
      tb = run_end(a, ta, past, lane);
      int lo, hi;
      span_of_tokens(a, ta, tb, lane, &lo, &hi);
      run(ta, tb, lo, hi);
    }
  }

  // --- the producer warp ---

  __device__ __forceinline__ void produce(const ScaledAttentionPrefillArgs& f) const {
    const int box = kv_box<kKeys>(a);
    int i = 0;
    each_run([&](int ta, int, int lo, int hi) {
      if (hi <= lo) return;
      const int64_t slot = AttentionSpan(a, ta).slot;
      for (int b = (hi - 1) / kKeys; b >= lo / kKeys; --b, ++i) {
        const int j = b * kKeys + lane * box, position = static_cast<int>(a.row_in_block(slot, j));
        const int page = kv_page<kKeys>(a, slot, j, hi, lane, box);  // read while the stage is still in use
        keys_ring().producer_acquire(i);
        tma_load_kv<1>(*this, keys(i), f.k, keys_ring().full(i % P.stages), box, page, position);
        raw_ring().producer_acquire(i);
        tma_load_kv<1>(*this, raw(i), f.v, raw_ring().full(i % P.stages), box, page, position);
      }
    });
  }

  // --- the transposing warps ---

  /// Keys [32 step, + 32) of columns [16 chunk, + 16). `from`, `to`: positions of the block that some row sees; others
  /// count as zeros, there may be anything, NaN too.
  template <bool kWhole>
  __device__ __forceinline__ void transpose(const unsigned char* v, unsigned char* turned, int step, int chunk,
                                            int from, int to) const {
    uint32_t r[4];
    ptx::load_matrix4_transposed(ptx::shared_address(v + (step * 32 + lane) * P.kDim + (chunk ^ lane % 8) * 16), r);
    const int column = chunk * 16 + lane / 4 * 2, c = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t mask = ~0u;
      if constexpr (!kWhole) {
        const int key = step * 32 + half * 16 + c * 2;
        const auto byte = [&](int j, int at) { return j >= from && j < to ? 0xffu << at : 0u; };
        mask = byte(key, 0) | byte(key + 1, 8) | byte(key + 8, 16) | byte(key + 9, 24);
      }
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const uint32_t word = __byte_perm(r[2 * half], r[2 * half + 1], odd ? 0x7531 : 0x6420) & mask;
        const int d = column + odd;
        *reinterpret_cast<uint32_t*>(turned + d * kKeys + ((step * 2 + half) ^ d % 8) * 16 + c * 4) = word;
      }
    }
  }
  __device__ __forceinline__ void turn_values() const {
    int i = 0;
    each_run([&](int, int, int lo, int hi) {
      if (hi <= lo) return;
      for (int b = (hi - 1) / kKeys; b >= lo / kKeys; --b, ++i) {
        const int from = lo - b * kKeys, to = hi - b * kKeys;
        raw_ring().consumer_wait(i);
        values_ring().producer_acquire(i);
        if (from <= 0 && to >= kKeys) {
#pragma unroll 2
          for (int patch = warp; patch < kKeys / 32 * (P.kDim / 16); patch += P.kTransposeWarps)
            transpose<true>(raw(i), values(i), patch / 8, patch % 8, from, to);
        } else {
#pragma unroll 1
          for (int patch = warp; patch < kKeys / 32 * (P.kDim / 16); patch += P.kTransposeWarps)
            transpose<false>(raw(i), values(i), patch / 8, patch % 8, from, to);
        }
        ptx::tensor_fence();
        __syncwarp();
        release(raw_ring(), i);
        if (lane == 0) values_ring().producer_commit(i % P.stages);
      }
    });
  }

  // --- the consumer warps ---

  __device__ __forceinline__ int my_row(int i) const { return row0 + warp * 16 + lane / 4 + 8 * i; }
  /// This group's 64 queries.
  __device__ __forceinline__ void load_queries() const {
    const int group = a.group();
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x) % 128; i < 64 * 8; i += 128) {
      const int r = i / 8, row = row0 + warp / 4 * 64 + r, t = row / group;
      const bool take = row < row_end;
      ptx::copy16(queries(warp / 4) + r * P.kDim + (i % 8 ^ r % 8) * 16,
                  static_cast<const unsigned char*>(a.q) +
                      (take ? int64_t{t} * a.q_stride + (kv * group + row % group) * int64_t{P.kDim} + i % 8 * 16 : 0),
                  take);
    }
    ptx::copy_commit();
    ptx::copy_wait<0>();
    ptx::tensor_fence();
    ptx::named_barrier<128>(kQueries + warp / 4);
  }
  /// What tokens [ta, tb) see, and their factors.
  __device__ __forceinline__ void begin(int ta, int tb) {
    const int group = a.group();
    bool negative = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      first[i] = end[i] = 0, row_max[i] = kMinusInfinity, row_sum[i] = 0, factor[i] = 1;
      const int row = my_row(i), t = row / group, h = kv * group + row % group;
      if (row >= row_end || t < ta || t >= tb) continue;
      const AttentionSpan see(a, t);
      first[i] = static_cast<int>(see.first), end[i] = static_cast<int>(see.end);
      const float by = a.scale * kLog2e * (m.q_scale != nullptr ? m.q_scale[h] : 1.0f) *
                       (m.k_scale != nullptr ? m.k_scale[kv] : 1.0f);
      negative |= by < 0;
      factor[i] = fmaxf(fabsf(by), 1e-37f);  // 0 would make NaN of -inf
      if (by < 0) factor[i] = -factor[i];
    }
    flip = __any_sync(kAll, negative);
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
  }

  __device__ __forceinline__ void start_scores(int i, float (&s)[kKeyTiles][4]) const {
    const uint64_t q = ptx::wgmma_tile(ptx::shared_address(queries(warp / 4))),
                   k = ptx::wgmma_tile(ptx::shared_address(keys(i)));
    float(&flat)[kKeyTiles * 4] = reinterpret_cast<float(&)[kKeyTiles * 4]>(s);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      ptx::Wgmma<e4m3, kKeys>::run(flat, ptx::wgmma_further(q, step * 32), ptx::wgmma_further(k, step * 32), step > 0);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void start_values(int i, const uint32_t (&p)[kKeys / 32][4]) {
    const uint64_t v = ptx::wgmma_tile(ptx::shared_address(values(i)));
    float(&flat)[kOutTiles * 4] = reinterpret_cast<float(&)[kOutTiles * 4]>(out);
#pragma unroll
    for (int step = 0; step < kKeys / 32; ++step)
      ptx::WgmmaHeld<e4m3, P.kDim>::run(flat, p[step], ptx::wgmma_further(v, step * 32));
    ptx::wgmma_commit();
  }

  /// Products into probabilities; what the sums so far must shrink by.
  __device__ __forceinline__ void softmax_block(int key0, bool whole, float (&s)[kKeyTiles][4], float (&by)[2]) {
    if (flip) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[n][e] = factor[e / 2] < 0 ? -s[n][e] : s[n][e];
    }
    if (!whole) mask_scores(key0, lane, first, end, s);
    online_softmax<kProbExponent>({fabsf(factor[0]), fabsf(factor[1])}, s, row_max, row_sum, by);
  }
  __device__ __forceinline__ static void round(const float (&s)[kKeyTiles][4], uint32_t (&p)[kKeys / 32][4]) {
    const auto two = [](float x, float y, float z, float w) {
      return ptx::pack_e4m3(x, y) | ptx::pack_e4m3(z, w) << 16;
    };
#pragma unroll
    for (int k = 0; k < kKeys / 32; ++k)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&x)[4] = s[4 * k + 2 * half], (&y)[4] = s[4 * k + 2 * half + 1];
        p[k][2 * half] = two(x[0], x[1], y[0], y[1]), p[k][2 * half + 1] = two(x[2], x[3], y[2], y[3]);
      }
  }
  __device__ __forceinline__ void shrink(const float (&by)[2]) {
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] *= by[e / 2];
  }

  /// Tokens [ta, tb), which share a slot and see positions [lo, hi); i counts blocks.
  __device__ __forceinline__ void attend(int ta, int tb, int lo, int hi, int& i) {
    begin(ta, tb);
    if (hi <= lo) return;  // the same in every warp
    SeenByAll seen;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (const int row = my_row(r); row < row_end && row / a.group() >= ta && row / a.group() < tb)
        seen.row(first[r], end[r]);
    seen.agree();
    const auto whole = [&](int b) { return seen(b * kKeys, (b + 1) * kKeys); };

    float s[kKeyTiles][4], by[2];
    uint32_t p[kKeys / 32][4];
    float(&scores)[kKeyTiles * 4] = reinterpret_cast<float(&)[kKeyTiles * 4]>(s);
    float(&sums)[kOutTiles * 4] = reinterpret_cast<float(&)[kOutTiles * 4]>(out);
    int b = (hi - 1) / kKeys;
    keys_ring().consumer_wait(i);
    ptx::wgmma_fence();
    start_scores(i, s);
    ptx::wgmma_wait<0>(scores);
    release(keys_ring(), i);
    softmax_block(b * kKeys, whole(b), s, by);
    round(s, p);
#pragma unroll 1
    for (--b; b >= lo / kKeys; --b, ++i) {
      keys_ring().consumer_wait(i + 1);
      ptx::wgmma_fence();
      start_scores(i + 1, s);
      values_ring().consumer_wait(i);
      ptx::wgmma_fence();
      start_values(i, p);
      ptx::wgmma_wait<1>(scores);
      release(keys_ring(), i + 1);
      softmax_block(b * kKeys, whole(b), s, by);
      probabilities_first(row_sum);
      ptx::wgmma_wait<0>(sums);
      shrink(by);
      release(values_ring(), i);
      round(s, p);
    }
    values_ring().consumer_wait(i);
    ptx::wgmma_fence();
    start_values(i, p);
    ptx::wgmma_wait<0>(sums);
    release(values_ring(), i);
    ++i;
  }

  __device__ __forceinline__ void write(int ta, int tb) const {
    const int group = a.group();
    const float scale = m.v_scale != nullptr ? m.v_scale[kv] : 1.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = row_sum[i];
      total += __shfl_xor_sync(kAll, total, 1);
      total += __shfl_xor_sync(kAll, total, 2);
      const int row = my_row(i), t = row / group, h = kv * group + row - t * group;
      const bool mine = row < row_end && t >= ta && t < tb;
      write_pairs<P.kDim>(AttentionEpilogue<Out, Out>(a),
                          static_cast<Out*>(a.out) + int64_t{t} * a.out_stride + int64_t{h} * P.kDim, mine, lane, i,
                          total == 0 ? 0.0f : scale / total, out);
      if (mine && a.lse != nullptr && lane % 4 == 0)
        a.lse[int64_t{t} * a.lse_stride + h] = softmax_lse(row_max[i] * fabsf(factor[i]) - kProbExponent, total);
    }
  }
  __device__ __forceinline__ void consume() {
    load_queries();
    int i = 0;
    each_run([&](int ta, int tb, int lo, int hi) {
      attend(ta, tb, lo, hi, i);
      write(ta, tb);
    });
  }
};

/// Grid: tiles * Hkv blocks; tiles of the last tokens first, which see most keys.
template <class Out, ScaledAttentionPrefill P>
__global__ void __launch_bounds__(P.kThreads, 1)
    scaled_attention_prefill(const __grid_constant__ ScaledAttentionPrefillArgs f) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const AttentionArgs& a = f.m.a;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t heads = static_cast<uint32_t>(a.Hkv);
  const int row0 = static_cast<int>(gridDim.x / heads - 1 - blockIdx.x / heads) * P.kRows;
  ScaledAttentionPrefillKernel<Out, P> k{f.m,  a,  memory, static_cast<int>(blockIdx.x % heads),
                                         row0, 0,  warp,   static_cast<int>(threadIdx.x % 32),
                                         {},   {}, {},     {},
                                         {},   {}, false};
  if (threadIdx.x == 0) k.init_barriers();
  __syncthreads();
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int rows = valid_rows(a.rows, a.T) * a.group();
  if (row0 >= rows) return;
  k.row_end = min(row0 + P.kRows, rows);
  if (warp < 4) {
    ptx::registers_down<56>();
    if (warp == 0) {
      k.produce(f);
    } else {
      k.warp = warp - 1;
      k.turn_values();
    }
  } else {
    ptx::registers_up<224>();
    k.warp = warp - 4;
    k.consume();
  }
#endif
}

}  // namespace vivace::kernels
