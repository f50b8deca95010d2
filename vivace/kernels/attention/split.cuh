// attention of few 16-bit queries on Hopper, their keys divided among the blocks of a cluster. Formula in
// vivace/ops/attention.h, but no soft cap and none of Terms; cutting in AttentionSplit. Limit: the bytes of the visible keys and
// values.
//
// One warp asks the copy engine for blocks of keys and of values, as many at once as shared memory holds. Four warps a tile of 16
// rows each multiply the queries with a quarter of the block's keys, put their weights into shared memory (having agreed on
// maxima where those move much), and each multiply all of them with a quarter of the values' columns: so that a block of threads has one softmax
// state and one set of sums, and the blocks of a cluster meet once: each sends to each, as one copy, the columns that the
// receiver adds up, in the order of the senders.
#pragma once
#include "vivace/kernels/attention/narrow.cuh"
#include "vivace/kernels/attention/rows.cuh"
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

template <class Q, class Kv, AttentionSplit P>
struct AttentionSplitKernel : AttentionRows<Q, P.dv, sizeof(Kv) == 1> {
  static constexpr bool kNarrow = sizeof(Kv) == 1;  // widened to f16
  using Rows = AttentionRows<Q, P.dv, kNarrow>;
  using Rows::a, Rows::memory, Rows::kv, Rows::rank, Rows::warp_m, Rows::warp_d, Rows::lane, Rows::row0, Rows::row_end, Rows::height, Rows::first, Rows::end, Rows::unlift, Rows::in_run, Rows::write;
  using Element = typename OneOf<kNarrow, f16, Q>::Type;
  static_assert(P.stages % P.teams == 0);  // a stage is one team's: else one could take the other's block, not come yet, for its own
  static_assert(P.bytes == sizeof(Kv) && (!kNarrow || (P.d % 64 == 0 && P.dv % 16 == 0)));
  static constexpr int kKeys = P.keys, kDimV = P.padded(P.dv), kSteps = P.padded(P.d) / 16, kStages = P.stages, kWarps = P.kWarps;
  static constexpr int kPanels = P.panels(P.d), kPanelsV = P.panels(P.dv);
  static constexpr int kOwn = kKeys / kWarps;                          // keys of a warp
  static constexpr int kTiles = (kDimV / 16 + kWarps - 1) / kWarps;    // 16 columns of values each, of a warp
  static constexpr bool kUneven = kDimV / 16 % kWarps != 0;
  static constexpr float kSlack = 4;  // powers of two
  static constexpr float kLift = kNarrow ? kNarrowLift / 16 : 1.0f;  // times 2^kSlack still a f16
  static constexpr bool kHoldQ = kSteps <= 8;  // queries in registers; else read again for each block
  static constexpr bool kHoldV = kTiles * kKeys / 16 <= 16;  // a block's values in registers before its weights are there

  const AttentionFedArgs& f;
  int team;
  float top[2], mass[2];  // mass: of this lane's keys
  float out[kTiles][2][4];

  enum Barrier { kKeysFull, kValuesFull, kKeysEmpty, kValuesEmpty, kSent };
  enum Named { kAll = 1, kTeam, kTile = kTeam + P.teams };  // all that multiply; each team; four warps of each 16 rows of each
  __device__ __forceinline__ unsigned char* keys(int i) const { return memory + i % kStages * P.stage_bytes(); }
  __device__ __forceinline__ unsigned char* values(int i) const { return keys(i) + kKeys * kPanels * 128; }
  __device__ __forceinline__ Q* queries() const { return reinterpret_cast<Q*>(memory + P.queries_at()); }
  /// Two buffers in turns, so that one barrier a block of keys is enough.
  __device__ __forceinline__ Q* weights(int turn) const { return reinterpret_cast<Q*>(memory + P.weights_at()) + ((turn % 2 * P.teams + team) * P.warps_m + warp_m) * 16 * P.weight_pitch(); }
  /// Of each warp of a team and row: maxima, behind them masses.
  __device__ __forceinline__ float* maxima(int warp) const { return reinterpret_cast<float*>(memory + P.maxima_at()) + (team * 2 * kWarps + warp) * P.rows() + warp_m * 16; }
  __device__ __forceinline__ float* masses(int warp) const { return maxima(warp) + kWarps * P.rows(); }
  __device__ __forceinline__ float* unlifts() const { return reinterpret_cast<float*>(memory + P.unlifts_at()); }
  /// Sums and states of a team, over the stages; and what every team of the other blocks of the cluster sent here.
  __device__ __forceinline__ unsigned char* partial(int of) const { return memory + of * P.partial_bytes(height); }
  __device__ __forceinline__ unsigned char* sent(int from) const { return memory + P.sent_at() + from * P.sent_bytes(height); }
  /// What team `from` of the cluster has of this block's share: fours of columns, and the states of all rows.
  struct Part {
    const Vec<float, 4>* fours;
    const Vec<float, 2>* states;
  };
  __device__ __forceinline__ Part part(int from) const {
    const int each = P.share(height);
    const bool own = P.split == 1 || from / P.teams == rank;
    const unsigned char *const sums = own ? partial(from % P.teams) + rank * each * 16 : sent(from), *const states = own ? partial(from % P.teams) + height * kDimV * 4 : sums + each * 16;
    return {reinterpret_cast<const Vec<float, 4>*>(sums), reinterpret_cast<const Vec<float, 2>*>(states)};
  }
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
  __device__ __forceinline__ void tile_barrier() const { ptx::named_barrier<kWarps * 32>(kTile + team * P.warps_m + warp_m); }
  __device__ __forceinline__ void team_barrier() const { ptx::named_barrier<P.team()>(kTeam + team); }
  __device__ __forceinline__ static void all_barrier() { ptx::named_barrier<P.multipliers()>(kAll); }
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
    if (!has(1))
      for (int i = static_cast<int>(threadIdx.x) - 32; i < 2 * P.teams * 4 * P.weight_pitch(); i += P.multipliers())  // words of eight rows of each team's buffers
        reinterpret_cast<uint32_t*>(memory + P.weights_at())[(i / (4 * P.weight_pitch()) * 2 + 1) * 4 * P.weight_pitch() + i % (4 * P.weight_pitch())] = 0;
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
  /// Waits for the queries.
  __device__ __forceinline__ void await_queries() {
    ptx::copy_wait<0>();
    all_barrier();
    if constexpr (kNarrow) {
      narrow_rows<Q, P.padded(P.d)>(queries(), P.query_pitch(), P.rows(), static_cast<int>(threadIdx.x) / 32 - 1, P.multipliers() / 32, lane, unlifts());
      all_barrier();
    }
    if constexpr (kNarrow) unlift[0] = unlifts()[warp_m * 16 + lane / 4], unlift[1] = unlifts()[warp_m * 16 + lane / 4 + 8];
  }
  /// Step's part of the queries. Narrow: k permuted so that a lane's sixteen consecutive bytes of a key are its parts of four steps.
  __device__ __forceinline__ void query_fragment(int step, uint32_t (&q)[4]) const {
    if constexpr (kNarrow) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 four = *reinterpret_cast<const uint2*>(queries() + (warp_m * 16 + lane / 4 + 8 * i) * P.query_pitch() + step / 4 * 64 + lane % 4 * 16 + step % 4 * 4);
        q[i] = four.x, q[2 + i] = four.y;
      }
    } else {
      ptx::load_matrix4(ptx::shared_address(queries() + (warp_m * 16 + lane % 16) * P.query_pitch() + step * 16 + lane / 16 * 8), q);
    }
  }
  using Queries = uint32_t[kHoldQ ? kSteps : 1][4];

  /// Products with this warp's keys of a block: keys 8 n + 2 (lane % 4) + {0, 1} of those in [n]. Even and odd steps are sums of
  /// their own, so that fewer multiplications wait for one another; score() adds them, so that nothing waits for them here.
  struct Products {
    float even[kOwn / 8][4], odd[kOwn / 8][4];
  };
  __device__ __forceinline__ void products(const unsigned char* k, const Queries& q, Products& s) const {
#pragma unroll
    for (int n = 0; n < kOwn / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s.even[n][e] = s.odd[n][e] = 0;
    const auto fragment = [&](int step, uint32_t(&own)[4]) {
      if constexpr (kHoldQ) {
#pragma unroll
        for (int w = 0; w < 4; ++w) own[w] = q[step][w];
      } else {
        query_fragment(step, own);
      }
    };
    if constexpr (kNarrow) {
      const unsigned char* const rows = k + (warp_d * kOwn + lane / 4) * 128;
#pragma unroll
      for (int four = 0; four < kSteps / 4; ++four) {
        uint4 b[kOwn / 8];
#pragma unroll
        for (int n = 0; n < kOwn / 8; ++n) b[n] = *reinterpret_cast<const uint4*>(rows + (four / 2 * kKeys + n * 8) * 128 + ((four % 2 * 4 + lane % 4) ^ lane / 4) * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t own[4];
          fragment(four * 4 + i, own);
          float(&to)[kOwn / 8][4] = i % 2 ? s.odd : s.even;
#pragma unroll
          for (int n = 0; n < kOwn / 8; ++n) {
            const uint32_t words[4] = {b[n].x, b[n].y, b[n].z, b[n].w};
            uint32_t low, high;
            ptx::widen_e4m3(words[i], low, high);
            ptx::mma16816<f16>(to[n], own[0], own[1], own[2], own[3], low, high);
          }
        }
      }
    } else {
      const uint32_t rows = ptx::shared_address(k) + static_cast<uint32_t>(warp_d * kOwn + lane % 8 + lane / 16 * 8) * 128;
      constexpr int kBatch = 128 / kOwn < kSteps ? 128 / kOwn : kSteps;  // steps whose keys are on their way together: 32 registers
#pragma unroll
      for (int step0 = 0; step0 < kSteps; step0 += kBatch) {
        uint32_t b[kBatch][kOwn / 16][4];
#pragma unroll
        for (int i = 0; i < kBatch && step0 + i < kSteps; ++i) {
          const int step = step0 + i;
          const uint32_t chunk = static_cast<uint32_t>((step % 4 * 2 + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
          for (int n = 0; n < kOwn / 16; ++n) ptx::load_matrix4(rows + chunk + static_cast<uint32_t>((step / 4 * kKeys + n * 16) * 128), b[i][n]);
        }
#pragma unroll
        for (int i = 0; i < kBatch && step0 + i < kSteps; ++i) {
          uint32_t own[4];
          fragment(step0 + i, own);
          float(&to)[kOwn / 8][4] = (step0 + i) % 2 ? s.odd : s.even;
#pragma unroll
          for (int n = 0; n < kOwn / 16; ++n) {
            ptx::mma16816<Q>(to[2 * n], own[0], own[1], own[2], own[3], b[i][n][0], b[i][n][1]);
            ptx::mma16816<Q>(to[2 * n + 1], own[0], own[1], own[2], own[3], b[i][n][2], b[i][n][3]);
          }
        }
      }
    }
  }

  /// Whether the tile has rows lane / 4 + 8: decode steps seldom do.
  __device__ __forceinline__ bool has(int i) const { return P.warps_m > 1 || i == 0 || height > 8; }
  /// Products into scores in powers of two.
  __device__ __forceinline__ void score(int key0, float factor, const Products& x, float (&s)[kOwn / 8][4]) const {
    const int mine = key0 + warp_d * kOwn + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!has(i)) break;
      const float by = kNarrow ? factor * unlift[i] : factor;
#pragma unroll
      for (int n = 0; n < kOwn / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) s[n][2 * i + e] = (x.even[n][2 * i + e] + x.odd[n][2 * i + e]) * by;
      if (key0 < first[i] || key0 + kKeys > end[i]) {  // part of the block is not seen
        const int from = first[i] - mine, to = end[i] - mine;
#pragma unroll
        for (int n = 0; n < kOwn / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if ((n * 8 + e < from) | (n * 8 + e >= to)) s[n][2 * i + e] = kMinusInfinity;
      }
    }
  }
  /// This lane's largest score of row i.
  __device__ __forceinline__ float largest(const float (&s)[kOwn / 8][4], int i) const {
    float m = kMinusInfinity;
#pragma unroll
    for (int n = 0; n < kOwn / 8; ++n) m = fmaxf(m, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
    return m;
  }
  /// Weights 2^(score - top) into shared memory for the tile's other warps; their sums, of this lane's. Weights of rows that the tile
  /// lacks stay the zeros they were at first.
  __device__ __forceinline__ void put_weights(int turn, const float (&s)[kOwn / 8][4], float (&sum)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] = 0;
      if (!has(i)) break;
      const float base = softmax_base(top[i]);
#pragma unroll
      for (int n = 0; n < kOwn / 8; ++n) {
        const float x = ptx::exp2_fast(s[n][2 * i] - base), y = ptx::exp2_fast(s[n][2 * i + 1] - base);
        sum[i] += x + y;
        *reinterpret_cast<uint32_t*>(weights(turn) + (lane / 4 + 8 * i) * P.weight_pitch() + warp_d * kOwn + n * 8 + lane % 4 * 2) = ptx::pack<Element>(x * kLift, y * kLift);
      }
    }
  }
  /// Scores into weights; turn 0: the first of a run. A row's `top` is a score that was its largest; it moves, and the sums so far
  /// shrink, only where a score is kSlack above it, so that warps need not agree on it for each block.
  __device__ __forceinline__ void weigh(int turn, const float (&s)[kOwn / 8][4]) {
    float sum[2], m[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) m[i] = has(i) ? largest(s, i) : kMinusInfinity;
    bool moves = turn == 0;
    if (turn > 0) {
      put_weights(turn, s, sum);
      moves = ptx::named_barrier_any<kWarps * 32>(kTile + team * P.warps_m + warp_m, (m[0] > top[0] + kSlack) | (m[1] > top[1] + kSlack));
    }
    if (moves) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        m[i] = fmaxf(m[i], __shfl_xor_sync(0xffffffffu, m[i], 1));
        m[i] = fmaxf(m[i], __shfl_xor_sync(0xffffffffu, m[i], 2));
        if (has(i) && lane % 4 == 0) maxima(warp_d)[lane / 4 + 8 * i] = m[i];
      }
      tile_barrier();
      float by[2] = {1, 1};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!has(i)) break;
        float all = maxima(0)[lane / 4 + 8 * i];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) all = fmaxf(all, maxima(w)[lane / 4 + 8 * i]);
        if (!(all > top[i] + kSlack)) continue;
        by[i] = ptx::exp2_fast(top[i] - softmax_base(all));
        top[i] = all;
        mass[i] *= by[i];
      }
      put_weights(turn, s, sum);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int e = 0; e < 4; ++e) out[t][h][e] *= by[e / 2];
      tile_barrier();
    }
    mass[0] += sum[0], mass[1] += sum[1];
  }

  /// Zeros in places of a block that no row of the run sees: there may be anything there, NaN too.
  __device__ __forceinline__ void patch(unsigned char* v, int from, int to) const {
    const float zeros[4] = {};
    for (int i = static_cast<int>(threadIdx.x) - 32 - team * P.team(); i < (to - from) * kPanelsV * 8; i += P.team())
      store<4>(reinterpret_cast<float*>(v + (i / 8 % kPanelsV * kKeys + from + i / 8 / kPanelsV) * 128 + i % 8 * 16), zeros);
    ptx::tensor_fence();
    team_barrier();
  }
  /// Values of a block in tile t of this warp's columns; narrow: as they lie, pairs of columns.
  static constexpr int kLoads = kKeys / (kNarrow ? 32 : 16);
  using Values = uint32_t[kLoads][4];
  __device__ __forceinline__ void load_values(const unsigned char* v, int t, Values& b) const {
    const int tile = warp_d * kTiles + t, row = kNarrow ? lane : lane % 16, chunk = kNarrow ? tile : tile * 2 + lane / 16;
    const uint32_t column = ptx::shared_address(v) + static_cast<uint32_t>((chunk / 8 * kKeys + row) * 128 + (chunk % 8 ^ lane % 8) * 16);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) ptx::load_matrix4_transposed(column + k * (kNarrow ? 4096 : 2048), b[k]);
  }
  struct Early {
    Values tile[kHoldV ? kTiles : 1];
  };
  /// Sums of this warp's columns: those of tile t in out[t], as mma16816 has its halves (narrow: even and odd columns). Values that
  /// registers hold are in `early`.
  __device__ __forceinline__ void add_values(int turn, const unsigned char* v, const Early& early) {
    uint32_t p[kKeys / 16][4];
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) ptx::load_matrix4(ptx::shared_address(weights(turn) + lane % 16 * P.weight_pitch() + k * 16 + lane / 16 * 8), p[k]);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (kUneven && warp_d * kTiles + t >= kDimV / 16) break;
      Values b;
      if constexpr (kHoldV) {
#pragma unroll
        for (int k = 0; k < kLoads; ++k)
#pragma unroll
          for (int w = 0; w < 4; ++w) b[k][w] = early.tile[t][k][w];
      } else {
        load_values(v, t, b);
      }
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        uint32_t half[2][2];
        if constexpr (kNarrow) {
#pragma unroll
          for (int i = 0; i < 2; ++i) ptx::widen_e4m3(__byte_perm(b[k / 2][k % 2 * 2 + i], 0, 0x3120), half[0][i], half[1][i]);
        } else {
          half[0][0] = b[k][0], half[0][1] = b[k][1], half[1][0] = b[k][2], half[1][1] = b[k][3];
        }
        ptx::mma16816<Element>(out[t][0], p[k][0], p[k][1], p[k][2], p[k][3], half[0][0], half[0][1]);
        ptx::mma16816<Element>(out[t][1], p[k][0], p[k][1], p[k][2], p[k][3], half[1][0], half[1][1]);
      }
    }
  }

  /// Sums of this team's keys; i counts stages. Queries are in registers or shared memory.
  __device__ __forceinline__ void sum_up(const Queries& q, int lo, int hi, int& i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = kMinusInfinity, mass[r] = 0;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) out[t][h][0] = out[t][h][1] = out[t][h][2] = out[t][h][3] = 0;
    const int past = hi > lo ? (hi - 1) / kKeys + 1 : 0, from = first_block(lo);
    const float factor = a.scale * kLog2e;
    constexpr int kStride = P.split * P.teams;
    int b = from / P.split % P.teams, at = i + (team >= b ? team - b : team - b + P.teams);  // this team's first block and its stage
    b = from + (at - i) * P.split;
    i += past > from ? (past - 1 - from) / P.split + 1 : 0;
    Products x;
    float s[kOwn / 8][4];
    const auto begin = [&](Products& to) {
      await(kKeysFull, at);
      products(keys(at), q, to);
      release(kKeysEmpty, at);
    };
    if (b < past) begin(x);
    int turn = 0;
#pragma unroll 1
    for (; b < past; b += kStride, ++turn) {
      score(b * kKeys, factor, x, s);
      const int here = at;
      at += P.teams;
      if (b + kStride < past) begin(x);  // the tensor cores have something to do while warps meet
      await(kValuesFull, here);
      if (b * kKeys < lo) patch(values(here), 0, lo - b * kKeys);
      if ((b + 1) * kKeys > hi) patch(values(here), hi - b * kKeys, kKeys);
      Early early;
      if constexpr (kHoldV) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          if (!kUneven || warp_d * kTiles + t < kDimV / 16) load_values(values(here), t, early.tile[t]);
        release(kValuesEmpty, here);
      }
      weigh(turn, s);
      add_values(turn, values(here), early);
      if constexpr (!kHoldV) release(kValuesEmpty, here);
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

  __device__ __forceinline__ int column(int t) const { return (warp_d * kTiles + t) * 16 + this->fours_at(); }

  /// to(i, row of the tile, column, four sums) for every four that this lane has; i: which of its rows.
  template <class To>
  __device__ __forceinline__ void each_four(To&& to) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (kUneven && warp_d * kTiles + t >= kDimV / 16) break;
        float y[4];
        this->four(out[t], i, y);
        if constexpr (kNarrow) y[0] /= kLift, y[1] /= kLift, y[2] /= kLift, y[3] /= kLift;
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
  /// Every team's sums to those that add them up; this block's own share stays.
  __device__ __forceinline__ void send() const {
    float* const sums = reinterpret_cast<float*>(partial(team));
    all_barrier();  // the stages are free, and everyone's masses there
    each_four([&](int, int r, int column, const float(&y)[4]) {
      if (r < height) store<4>(sums + r * kDimV + column, y);
    });
    if (warp_d == 0 && lane % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = lane / 4 + 8 * i;
        if (warp_m * 16 + r < height) store<2>(sums + height * kDimV + (warp_m * 16 + r) * 2, {top[i], whole_mass(r)});
      }
    }
    if constexpr (P.split > 1) ptx::tensor_fence();
    all_barrier();
    if constexpr (P.split > 1) {
      const int of = (static_cast<int>(threadIdx.x) - 32) / P.split, to = (static_cast<int>(threadIdx.x) - 32) % P.split, each = P.share(height), from = to * each, count = min(height * (kDimV / 4) - from, each);
      if (of >= P.teams || to == rank || count <= 0) return;
      const uint32_t here = ptx::shared_address(partial(of)), there = ptx::shared_address(sent(rank * P.teams + of));
      ptx::remote_copy(there, here + from * 16, count * 16, barrier(kSent), to);
      ptx::remote_copy(there + each * 16, here + height * kDimV * 4, P.state_bytes(height), barrier(kSent), to);
    }
  }
  /// Adds up this block's share.
  __device__ __forceinline__ void collect(int ta, int tb) const {
    constexpr int kParts = P.split * P.teams;
    const int each = P.share(height), fours = height * (kDimV / 4);
    for (int at = static_cast<int>(threadIdx.x) - 32; at < each && rank * each + at < fours; at += P.multipliers()) {
      const int r = (rank * each + at) / (kDimV / 4), column = (rank * each + at) % (kDimV / 4) * 4;
      if (!in_run(row0 + r, ta, tb)) continue;
      float highest = kMinusInfinity, total = 0, sum[4] = {};
      Vec<float, 2> states[kParts];
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        states[c] = part(c).states[r];
        highest = fmaxf(highest, states[c].v[0]);
      }
      const float base = softmax_base(highest);
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        const float w = ptx::exp2_fast(states[c].v[0] - base);
        const Vec<float, 4> y = part(c).fours[at];
        total += states[c].v[1] * w;
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] += y.v[e] * w;
      }
      write(row0 + r, column, highest, total, sum);
    }
  }

  /// All runs of the tile. Queries are on their way.
  __device__ __forceinline__ void run(bool asks) {
    Queries q;
    int i = 0, round = 0;
    const int past = (row_end - 1) / a.group() + 1;
    for (int ta = row0 / a.group(), tb; ta < past; ta = tb, ++round) {
      tb = run_end(a, ta, past, lane);
      int lo, hi;
      this->spans(ta, tb, &lo, &hi);
      if (asks) {
        feed(AttentionSpan(a, ta).slot, lo, hi, i);
      } else {
        if (round == 0) {
          await_queries();
          if constexpr (kHoldQ) {
#pragma unroll
            for (int step = 0; step < kSteps; ++step) query_fragment(step, q[step]);
          }
        }
        sum_up(q, lo, hi, i);
      }
      if constexpr (P.split == 1 && P.teams == 1) {
        if (asks) continue;
        write_direct(ta, tb);
        tile_barrier();  // masses may be written again
      } else if constexpr (P.split == 1) {
        if (!asks) send(), collect(ta, tb);
        __syncthreads();  // the stages may be written again
      } else {
        if (asks) {
          const int mine = min(P.share(height), height * (kDimV / 4) - rank * P.share(height));
          if (lane == 0) ptx::mbarrier_expect(barrier(kSent), mine > 0 ? static_cast<uint32_t>((P.split - 1) * P.teams * (mine * 16 + P.state_bytes(height))) : 0);
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
template <class Q, class Kv, AttentionSplit P>
__device__ __forceinline__ void run_attention_split(const AttentionFedArgs& f) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const AttentionArgs& a = f.a();
  const int group = a.group(), height = P.height(a), warp = static_cast<int>(threadIdx.x) / 32 - 1;
  const uint32_t heads = static_cast<uint32_t>(a.Hkv), index = blockIdx.x / P.split;
  const int row0 = static_cast<int>(index / heads) * height;
  const bool asks = warp < 0;
  AttentionSplitKernel<Q, Kv, P> k{{a, memory, static_cast<int>(index % heads), ptx::cluster_rank<P.split>(), asks ? 0 : warp / P.kWarps % P.warps_m, asks ? 0 : warp % P.kWarps,
                                    static_cast<int>(threadIdx.x % 32), row0, 0, height},
                                   f, asks ? 0 : warp / P.kWarps / P.warps_m};
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

template <class Q, class Kv, AttentionSplit P>
__global__ void __launch_bounds__(P.threads(), P.resident()) attention_split(const __grid_constant__ AttentionFedArgs f) {
  run_attention_split<Q, Kv, P>(f);
}

}  // namespace vivace::kernels
