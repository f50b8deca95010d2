// attention of few 16-bit queries on Hopper, their keys divided among the blocks of a cluster. Formula in
// vivace/ops/attention.h, but no soft cap and none of Terms; cutting in AttentionSplit. Limit: the bytes of the visible keys and
// values.
//
// One warp asks the copy engine for blocks of keys and of values, as many at once as shared memory holds. Four warps a tile of 16
// rows each multiply the queries with a quarter of the block's keys, agree on the rows' maxima, put their weights into
// shared memory, and each multiply all of them with a quarter of the values' columns: so that a block of threads has one softmax
// state and one set of sums, and the blocks of a cluster meet once: each sends to each, as one copy, the columns that the
// receiver adds up, in the order of the senders.
#pragma once
#include "vivace/kernels/attention/runs.cuh"
#include "vivace/kernels/attention/softmax.cuh"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/ldmatrix.cuh"
#include "vivace/kernels/ptx/mbarrier.cuh"
#include "vivace/kernels/ptx/mma.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/remote.cuh"
#include "vivace/kernels/ptx/tma_box.cuh"
#include "vivace/kernels/ptx/wgmma_rows.cuh"

namespace vivace::kernels {

template <class Q, AttentionSplit P>
struct AttentionSplitKernel {
  static constexpr int kKeys = P.keys, kDimV = P.padded(P.dv), kSteps = P.padded(P.d) / 16, kStages = P.stages, kWarps = P.kWarps;
  static constexpr int kPanels = P.panels(P.d), kPanelsV = P.panels(P.dv);
  static constexpr int kOwn = kKeys / kWarps;                          // keys of a warp
  static constexpr int kTiles = (kDimV / 16 + kWarps - 1) / kWarps;    // 16 columns of values each, of a warp
  static constexpr bool kUneven = kDimV / 16 % kWarps != 0;
  static constexpr bool kHoldQ = kSteps <= 8;  // queries in registers; else read again for each block

  const AttentionFedArgs& f;
  const AttentionArgs& a;
  unsigned char* memory;
  int kv, rank, warp_m, warp_d, lane;
  int row0, row_end, height;  // rows t * group + head

  int first[2], end[2];  // keys that rows lane / 4 and lane / 4 + 8 of the warp's 16 see
  float top[2], mass[2];  // mass: of this lane's keys
  float out[kTiles][2][4];

  enum Barrier { kKeysFull, kValuesFull, kKeysEmpty, kValuesEmpty, kSent };
  enum Named { kTile = 1, kAll = 3 };  // a tile's four warps (two ids); all that multiply
  __device__ __forceinline__ unsigned char* keys(int i) const { return memory + i % kStages * P.stage_bytes(); }
  __device__ __forceinline__ unsigned char* values(int i) const { return keys(i) + kKeys * kPanels * 128; }
  __device__ __forceinline__ Q* queries() const { return reinterpret_cast<Q*>(memory + P.queries_at()); }
  __device__ __forceinline__ Q* weights() const { return reinterpret_cast<Q*>(memory + P.weights_at()) + warp_m * 16 * P.weight_pitch(); }
  /// Of each warp of a tile and row: maxima, behind them masses.
  __device__ __forceinline__ float* maxima(int warp) const { return reinterpret_cast<float*>(memory + P.maxima_at()) + warp * P.rows() + warp_m * 16; }
  __device__ __forceinline__ float* masses(int warp) const { return maxima(warp) + kWarps * P.rows(); }
  __device__ __forceinline__ unsigned char* sent(int from) const { return memory + P.sent_at() + from * P.sent_bytes(height); }
  __device__ __forceinline__ uint32_t barrier(Barrier which, int i = 0) const {
    return ptx::shared_address(memory) + static_cast<uint32_t>(P.barriers_at(height) + (which * kStages + i % kStages) * 8);
  }
  __device__ __forceinline__ void make_barriers() const {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(barrier(kKeysFull, i), 1);
      ptx::mbarrier_init(barrier(kValuesFull, i), 1);
      ptx::mbarrier_init(barrier(kKeysEmpty, i), kWarps * P.warps_m);
      ptx::mbarrier_init(barrier(kValuesEmpty, i), kWarps * P.warps_m);
    }
    ptx::mbarrier_init(barrier(kSent), 1);
    ptx::mbarrier_fence();
  }
  /// Block i (counted over all runs) has arrived.
  __device__ __forceinline__ void await(Barrier full, int i) const { ptx::mbarrier_wait<false>(barrier(full, i), i / kStages & 1); }
  __device__ __forceinline__ void release(Barrier empty, int i) const {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barrier(empty, i));
  }
  __device__ __forceinline__ void tile_barrier() const { ptx::named_barrier<kWarps * 32>(kTile + warp_m); }
  __device__ __forceinline__ static void all_barrier() { ptx::named_barrier<P.multipliers()>(kAll); }
  __device__ __forceinline__ int my_row(int i) const { return row0 + warp_m * 16 + lane / 4 + 8 * i; }
  __device__ __forceinline__ bool in_run(int row, int ta, int tb) const { return row < row_end && row >= ta * a.group() && row < tb * a.group(); }

  // --- the asking warp ---

  template <int kCount>
  __device__ __forceinline__ void ask(unsigned char* to, const TensorMap& map, uint32_t full, int box, int page, int place) const {
    if (lane == 0) ptx::mbarrier_expect(full, kKeys * kCount * 128);
    __syncwarp();
    if (lane * box >= kKeys) return;
#pragma unroll
    for (int p = 0; p < kCount; ++p) ptx::tma_box(ptx::shared_address(to + (p * kKeys + lane * box) * 128), map, full, p * 64, place, kv, page);
  }
  /// This block's part of places [lo, hi) of a slot; i counts stages.
  __device__ __forceinline__ void feed(int64_t slot, int lo, int hi, int& i) const {
    const int box = a.page_table != nullptr && a.L < kKeys ? a.L : kKeys, past = hi > lo ? (hi - 1) / kKeys + 1 : 0;  // box: at least 8 places, so that a warp suffices
    const auto page_of = [&](int b) {
      const int j = b * kKeys + lane * box;
      return b < past && lane * box < kKeys && j < hi ? static_cast<int>(a.block(slot, j)) : -1;
    };
    int b = first_block(lo), page = page_of(b);
    for (; b < past; b += P.split, ++i) {
      const int place = static_cast<int>(a.place(slot, b * kKeys + lane * box)), next = page_of(b + P.split);  // read while stages are in use
      ptx::mbarrier_wait<false>(barrier(kKeysEmpty, i), (i / kStages & 1) ^ 1);
      ask<kPanels>(keys(i), f.k, barrier(kKeysFull, i), box, page, place);
      ptx::mbarrier_wait<false>(barrier(kValuesEmpty, i), (i / kStages & 1) ^ 1);
      ask<kPanelsV>(values(i), f.v, barrier(kValuesFull, i), box, page, place);
      page = next;
    }
  }
  __device__ __forceinline__ int first_block(int lo) const {
    const int b = lo / kKeys / P.split * P.split + rank;
    return b < lo / kKeys ? b + P.split : b;
  }

  // --- the multiplying warps ---

  __device__ __forceinline__ void load_queries() const {
    constexpr int kEights = P.padded(P.d) / 8;
    const int group = a.group();
    for (int i = static_cast<int>(threadIdx.x) - 32; i < P.rows() * kEights; i += P.multipliers()) {
      const int row = row0 + i / kEights, t = row / group, at = i % kEights * 8;
      const bool take = row < row_end && at < P.d;
      const Q* from = static_cast<const Q*>(a.q) + (take ? int64_t{t} * a.q_stride + (kv * group + row % group) * int64_t{P.d} + at : 0);
      ptx::copy16(queries() + i / kEights * P.query_pitch() + at, from, take);
    }
    ptx::copy_commit();
  }
  __device__ __forceinline__ void query_fragment(int step, uint32_t (&q)[4]) const {
    ptx::load_matrix4(ptx::shared_address(queries() + (warp_m * 16 + lane % 16) * P.query_pitch() + step * 16 + lane / 16 * 8), q);
  }
  using Queries = uint32_t[kHoldQ ? kSteps : 1][4];

  /// Products with this warp's keys of a block: keys 8 n + 2 (lane % 4) + {0, 1} of those in s[n]. Even and odd steps are sums of
  /// their own, so that fewer multiplications wait for one another.
  __device__ __forceinline__ void products(const unsigned char* k, const Queries& q, float (&s)[kOwn / 8][4]) const {
    float odd[kOwn / 8][4];
#pragma unroll
    for (int n = 0; n < kOwn / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = odd[n][e] = 0;
    const uint32_t rows = ptx::shared_address(k) + static_cast<uint32_t>(warp_d * kOwn + lane % 8 + lane / 16 * 8) * 128;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t own[4];
      if constexpr (kHoldQ) {
#pragma unroll
        for (int i = 0; i < 4; ++i) own[i] = q[step][i];
      } else {
        query_fragment(step, own);
      }
      float(&to)[kOwn / 8][4] = step % 2 ? odd : s;
      const uint32_t chunk = static_cast<uint32_t>((step % 4 * 2 + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
      for (int n = 0; n < kOwn / 8; n += 2) {
        uint32_t b[4];
        ptx::load_matrix4(rows + chunk + static_cast<uint32_t>((step / 4 * kKeys + n * 8) * 128), b);
        ptx::mma16816<Q>(to[n], own[0], own[1], own[2], own[3], b[0], b[1]);
        ptx::mma16816<Q>(to[n + 1], own[0], own[1], own[2], own[3], b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kOwn / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] += odd[n][e];
  }

  /// Products into weights 2^(score - top), in shared memory for the tile's other warps; what the sums so far must shrink by.
  __device__ __forceinline__ void weigh(int key0, float factor, float (&s)[kOwn / 8][4], float (&by)[2]) {
    const int mine = key0 + warp_d * kOwn + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool whole = key0 >= first[i] && key0 + kKeys <= end[i];
      float m = kMinusInfinity;
#pragma unroll
      for (int n = 0; n < kOwn / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = mine + n * 8 + e;
          float& x = s[n][2 * i + e];
          x = whole || (j >= first[i] && j < end[i]) ? x * factor : kMinusInfinity;
          m = fmaxf(m, x);
        }
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
      if (lane % 4 == 0) maxima(warp_d)[lane / 4 + 8 * i] = m;
    }
    tile_barrier();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = lane / 4 + 8 * i;
      float m = top[i];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) m = fmaxf(m, maxima(w)[r]);
      const float base = softmax_base(m);
      by[i] = ptx::exp2_fast(top[i] - base);
      top[i] = m;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kOwn / 8; ++n) {
        const float x = ptx::exp2_fast(s[n][2 * i] - base), y = ptx::exp2_fast(s[n][2 * i + 1] - base);
        sum += x + y;
        *reinterpret_cast<uint32_t*>(weights() + r * P.weight_pitch() + warp_d * kOwn + n * 8 + lane % 4 * 2) = ptx::pack<Q>(x, y);
      }
      mass[i] = mass[i] * by[i] + sum;
    }
    tile_barrier();
  }

  /// Zeros in places of a block that no row of the run sees: there may be anything there, NaN too.
  __device__ __forceinline__ void patch(unsigned char* v, int from, int to) const {
    const float zeros[4] = {};
    for (int i = static_cast<int>(threadIdx.x) - 32; i < (to - from) * kPanelsV * 8; i += P.multipliers())
      store<4>(reinterpret_cast<float*>(v + (i / 8 % kPanelsV * kKeys + from + i / 8 / kPanelsV) * 128 + i % 8 * 16), zeros);
    ptx::tensor_fence();
    all_barrier();
  }
  /// Sums of this warp's columns: those of tile t, half h in out[t][h].
  __device__ __forceinline__ void add_values(const unsigned char* v) {
    uint32_t p[kKeys / 16][4];
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) ptx::load_matrix4(ptx::shared_address(weights() + lane % 16 * P.weight_pitch() + k * 16 + lane / 16 * 8), p[k]);
    const uint32_t rows = ptx::shared_address(v) + static_cast<uint32_t>(lane % 16) * 128;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int tile = warp_d * kTiles + t;
      if (kUneven && tile >= kDimV / 16) break;
      const uint32_t column = rows + static_cast<uint32_t>(tile / 4 * kKeys * 128 + ((tile % 4 * 2 + lane / 16) ^ lane % 8) * 16);
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        uint32_t b[4];
        ptx::load_matrix4_transposed(column + k * 2048, b);
        ptx::mma16816<Q>(out[t][0], p[k][0], p[k][1], p[k][2], p[k][3], b[0], b[1]);
        ptx::mma16816<Q>(out[t][1], p[k][0], p[k][1], p[k][2], p[k][3], b[2], b[3]);
      }
    }
  }

  /// Sums of this block's keys for tokens [ta, tb); i counts stages. Queries are in registers or shared memory.
  __device__ __forceinline__ void sum_up(const Queries& q, int lo, int hi, int& i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = kMinusInfinity, mass[r] = 0;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) out[t][h][0] = out[t][h][1] = out[t][h][2] = out[t][h][3] = 0;
    const int past = hi > lo ? (hi - 1) / kKeys + 1 : 0;
    const float factor = a.scale * kLog2e;
#pragma unroll 1
    for (int b = first_block(lo); b < past; b += P.split, ++i) {
      float s[kOwn / 8][4], by[2];
      await(kKeysFull, i);
      products(keys(i), q, s);
      release(kKeysEmpty, i);
      weigh(b * kKeys, factor, s, by);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int e = 0; e < 4; ++e) out[t][h][e] *= by[e / 2];
      await(kValuesFull, i);
      if (b * kKeys < lo) patch(values(i), 0, lo - b * kKeys);
      if ((b + 1) * kKeys > hi) patch(values(i), hi - b * kKeys, kKeys);
      add_values(values(i));
      release(kValuesEmpty, i);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      mass[r] += __shfl_xor_sync(0xffffffffu, mass[r], 1);
      mass[r] += __shfl_xor_sync(0xffffffffu, mass[r], 2);
      if (lane % 4 == 0) masses(warp_d)[lane / 4 + 8 * r] = mass[r];
    }
  }
  __device__ __forceinline__ float whole_mass(int r) const {
    float sum = masses(0)[r];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += masses(w)[r];
    return sum;
  }

  // --- the end ---

  /// Columns [column, + 4) of a row, weighted and rounded; its log-sum-exp with column 0.
  __device__ __forceinline__ void write(int row, int column, float highest, float total, const float (&y)[4]) const {
    const int group = a.group(), h = kv * group + row % group;
    const int64_t t = row / group;
    if (column == 0 && a.lse != nullptr) a.lse[t * a.lse_stride + h] = softmax_lse(highest, total);
    if (column >= P.dv) return;
    const float factor = softmax_factor(a, h, highest, total);
    float z[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) z[e] = y[e] * factor;
    store<4>(static_cast<Q*>(a.out) + t * a.out_stride + int64_t{h} * P.dv + column, z);
  }
  /// Four columns in a row of tile t for row lane / 4 + 8 i: from column() on. Neighbouring lanes swap halves.
  __device__ __forceinline__ void four(int t, int i, float (&y)[4]) const {
    const bool odd = lane % 2 != 0;
    const float(&x)[2][4] = out[t];
    const float got0 = __shfl_xor_sync(0xffffffffu, odd ? x[0][2 * i] : x[1][2 * i], 1);
    const float got1 = __shfl_xor_sync(0xffffffffu, odd ? x[0][2 * i + 1] : x[1][2 * i + 1], 1);
    y[0] = odd ? got0 : x[0][2 * i], y[1] = odd ? got1 : x[0][2 * i + 1];
    y[2] = odd ? x[1][2 * i] : got0, y[3] = odd ? x[1][2 * i + 1] : got1;
  }
  __device__ __forceinline__ int column(int t) const { return (warp_d * kTiles + t) * 16 + lane % 2 * 8 + lane % 4 / 2 * 4; }

  /// to(i, row of the tile, column, four sums) for every four that this lane has; i: which of its rows.
  template <class To>
  __device__ __forceinline__ void each_four(To&& to) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (kUneven && warp_d * kTiles + t >= kDimV / 16) break;
        float y[4];
        four(t, i, y);
        to(i, warp_m * 16 + lane / 4 + 8 * i, column(t), y);
      }
  }
  __device__ __forceinline__ void write_direct(int ta, int tb) const {
    tile_barrier();  // everyone's masses
    const float total[2] = {whole_mass(lane / 4), whole_mass(lane / 4 + 8)};
    each_four([&](int i, int r, int column, const float(&y)[4]) {
      if (in_run(row0 + r, ta, tb)) write(row0 + r, column, top[i], total[i], y);
    });
  }
  /// This block's sums to those that add them up, its own share among them.
  __device__ __forceinline__ void send() const {
    float* const sums = reinterpret_cast<float*>(memory);
    float* const states = sums + height * kDimV;
    all_barrier();  // the stages are free, and everyone's masses there
    each_four([&](int, int r, int column, const float(&y)[4]) {
      if (r < height) store<4>(sums + r * kDimV + column, y);
    });
    if (warp_d == 0 && lane % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = lane / 4 + 8 * i;
        if (warp_m * 16 + r < height) store<2>(states + (warp_m * 16 + r) * 2, {top[i], whole_mass(r)});
      }
    }
    ptx::tensor_fence();
    all_barrier();
    const int to = static_cast<int>(threadIdx.x) - 32, each = P.share(height), from = to * each, count = min(height * (kDimV / 4) - from, each);
    if (to >= P.split || count <= 0) return;
    ptx::remote_copy(ptx::shared_address(sent(rank)), ptx::shared_address(sums + from * 4), count * 16, barrier(kSent), to);
    ptx::remote_copy(ptx::shared_address(sent(rank) + each * 16), ptx::shared_address(states), P.state_bytes(height), barrier(kSent), to);
  }
  /// Adds up what was sent here.
  __device__ __forceinline__ void collect(int ta, int tb) const {
    const int each = P.share(height), fours = height * (kDimV / 4);
    for (int at = static_cast<int>(threadIdx.x) - 32; at < each && rank * each + at < fours; at += P.multipliers()) {
      const int r = (rank * each + at) / (kDimV / 4), column = (rank * each + at) % (kDimV / 4) * 4;
      if (!in_run(row0 + r, ta, tb)) continue;
      float highest = kMinusInfinity, total = 0, sum[4] = {};
      Vec<float, 2> states[P.split];
#pragma unroll
      for (int c = 0; c < P.split; ++c) {
        states[c] = *reinterpret_cast<const Vec<float, 2>*>(sent(c) + each * 16 + r * 8);
        highest = fmaxf(highest, states[c].v[0]);
      }
      const float base = softmax_base(highest);
#pragma unroll
      for (int c = 0; c < P.split; ++c) {
        const float w = ptx::exp2_fast(states[c].v[0] - base);
        const Vec<float, 4> y = *reinterpret_cast<const Vec<float, 4>*>(sent(c) + at * 16);
        total += states[c].v[1] * w;
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] += y.v[e] * w;
      }
      write(row0 + r, column, highest, total, sum);
    }
  }

  /// What tokens [ta, tb), which share a slot, see: by each row of this lane and by any; the latter the same in every warp.
  __device__ __forceinline__ void spans(int ta, int tb, int* least, int* most) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      first[i] = end[i] = 0;
      if (!in_run(my_row(i), ta, tb)) continue;
      const AttentionSpan see(a, my_row(i) / a.group());
      first[i] = static_cast<int>(see.first), end[i] = static_cast<int>(see.end);
    }
    span_of_tokens(a, ta, tb, lane, least, most);
  }

  /// All runs of the tile. Queries are on their way.
  __device__ __forceinline__ void run(bool asks) {
    Queries q;
    int i = 0, round = 0;
    const int past = (row_end - 1) / a.group() + 1;
    for (int ta = row0 / a.group(), tb; ta < past; ta = tb, ++round) {
      tb = run_end(a, ta, past, lane);
      int lo, hi;
      spans(ta, tb, &lo, &hi);
      if (asks) {
        feed(AttentionSpan(a, ta).slot, lo, hi, i);
      } else {
        if (round == 0) {
          ptx::copy_wait<0>();
          all_barrier();
          if constexpr (kHoldQ) {
#pragma unroll
            for (int step = 0; step < kSteps; ++step) query_fragment(step, q[step]);
          }
        }
        sum_up(q, lo, hi, i);
      }
      if constexpr (P.split == 1) {
        if (asks) continue;
        write_direct(ta, tb);
        tile_barrier();  // masses may be written again
      } else {
        if (asks) {
          const int mine = min(P.share(height), height * (kDimV / 4) - rank * P.share(height));
          if (lane == 0) ptx::mbarrier_expect(barrier(kSent), mine > 0 ? static_cast<uint32_t>(P.split * (mine * 16 + P.state_bytes(height))) : 0);
        }
        __syncwarp();
        if (round == 0) ptx::cluster_wait<P.split>();  // the others run, and may be sent to
        if (!asks) send();
        ptx::mbarrier_wait<true>(barrier(kSent), round & 1);
        if (!asks) collect(ta, tb);
        __syncwarp();
        ptx::cluster_sync<P.split>();  // everyone has what was sent: this block may leave, or use its memory again
      }
    }
  }
};

/// Grid: tiles * Hkv * split blocks, clusters of split.
template <class Q, AttentionSplit P>
__device__ __forceinline__ void run_attention_split(const AttentionFedArgs& f) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const AttentionArgs& a = f.a();
  const int group = a.group(), height = P.height(a), warp = static_cast<int>(threadIdx.x) / 32 - 1;
  const uint32_t heads = static_cast<uint32_t>(a.Hkv), index = blockIdx.x / P.split;
  const int row0 = static_cast<int>(index / heads) * height;
  const bool asks = warp < 0;
  AttentionSplitKernel<Q, P> k{f, a, memory, static_cast<int>(index % heads), ptx::cluster_rank<P.split>(), asks ? 0 : warp / P.kWarps, asks ? 0 : warp % P.kWarps,
                               static_cast<int>(threadIdx.x % 32), row0, 0, height};
  if (threadIdx.x == 0) k.make_barriers();
  __syncthreads();
  ptx::cluster_arrive<P.split>();
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int rows = valid_rows(a.rows, a.T) * group;
  if (row0 >= rows) return;  // the whole cluster
  k.row_end = min(row0 + height, rows);
  if (!asks) k.load_queries();
  k.run(asks);
#endif
}

template <class Q, AttentionSplit P>
__global__ void __launch_bounds__(P.threads(), P.resident()) attention_split(const __grid_constant__ AttentionFedArgs f) {
  run_attention_split<Q, P>(f);
}

}  // namespace vivace::kernels
