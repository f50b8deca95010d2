// What the warps of attention_split_kv (split_kv.cuh) do with a block of keys and values: where it lies, how it comes,
// its scores, probabilities and sums.
#pragma once
#include "vivace/kernels/attention/fp8_kv.cuh"
#include "vivace/kernels/attention/kv_loader.cuh"
#include "vivace/kernels/attention/rows.cuh"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/ldmatrix.cuh"
#include "vivace/kernels/ptx/mbarrier.cuh"
#include "vivace/kernels/ptx/mma.cuh"
#include "vivace/kernels/ptx/pack.cuh"

namespace vivace::kernels {

template <class Q, class Kv, AttentionSplitKV P, class Out>
struct AttentionSplitKVBlocks : AttentionRows<Q, P.dv, sizeof(Kv) == 1, Out> {
  static constexpr bool kFp8Kv = sizeof(Kv) == 1;  // dequantized to f16
  using Rows = AttentionRows<Q, P.dv, kFp8Kv, Out>;
  using Rows::a, Rows::memory, Rows::kv, Rows::rank, Rows::warp_m, Rows::warp_d, Rows::lane, Rows::row0, Rows::row_end,
      Rows::height, Rows::first, Rows::end, Rows::q_descale, Rows::in_run;
  using Element = typename OneOf<kFp8Kv, f16, Q>::Type;
  static_assert(P.stages % P.teams ==
                0);  // a stage is one team's: else one could take the other's block, not come yet, for its own
  static_assert(P.bytes == sizeof(Kv) && (!kFp8Kv || (P.d % 64 == 0 && P.dv % 16 == 0)));
  static constexpr int kKeys = P.keys, kDimV = P.padded(P.dv), kSteps = P.padded(P.d) / 16, kStages = P.stages,
                       kWarps = P.kWarps;
  static constexpr int kPanels = P.panels(P.d), kPanelsV = P.panels(P.dv);
  static constexpr int kOwn = kKeys / kWarps;                          // keys of a warp
  static constexpr int kTiles = (kDimV / 16 + kWarps - 1) / kWarps;    // 16 columns of values each, of a warp
  static constexpr bool kUneven = kDimV / 16 % kWarps != 0;
  static constexpr float kSlack = 4;  // powers of two
  static constexpr float kProbScale = kFp8Kv ? kFp8ProbScale / 16 : 1.0f;  // times 2^kSlack still a f16
  static constexpr bool kHoldQ = kSteps <= 8;  // queries in registers; else read again for each block
  static constexpr bool kHoldV =
      kTiles * kKeys / 16 <= 16;  // a block's values in registers before its probabilities are there

  const AttentionTmaArgs& f;
  int team;
  float row_max[2], row_sum[2];  // row_sum: of this lane's keys
  float out[kTiles][2][4];       // a warp's [16 rows][16 kTiles columns], halves as mma16816 holds them

  enum Barrier { kKeysFull, kValuesFull, kKeysEmpty, kValuesEmpty, kReceived };
  enum Named {
    kAll = 1,
    kTeam,
    kTile = kTeam + P.teams
  };  // all that multiply; each team; four warps of each 16 rows of each
  // Shared memory. A stage: keys [kPanels][kKeys][128 bytes], values [kPanelsV][kKeys][128 bytes], swizzled; queries
  // [P.rows()][query_pitch]; probabilities [2][teams][P.rows()][probability_pitch].
  __device__ __forceinline__ unsigned char* keys(int i) const { return memory + i % kStages * P.stage_bytes(); }
  __device__ __forceinline__ unsigned char* values(int i) const { return keys(i) + kKeys * kPanels * 128; }
  __device__ __forceinline__ Q* queries() const { return reinterpret_cast<Q*>(memory + P.queries_at()); }
  /// Two buffers in turns, so that one barrier a block of keys is enough.
  __device__ __forceinline__ Q* probabilities(int turn) const {
    return reinterpret_cast<Q*>(memory + P.probabilities_at()) +
           ((turn % 2 * P.teams + team) * P.warps_m + warp_m) * 16 * P.probability_pitch();
  }
  /// Of each warp of a team and row: maxima, behind them row_sums.
  __device__ __forceinline__ float* maxima(int warp) const {
    return reinterpret_cast<float*>(memory + P.maxima_at()) + (team * 2 * kWarps + warp) * P.rows() + warp_m * 16;
  }
  __device__ __forceinline__ float* row_sums(int warp) const { return maxima(warp) + kWarps * P.rows(); }
  __device__ __forceinline__ float* q_descales() const { return reinterpret_cast<float*>(memory + P.q_descales_at()); }
  /// Sums and states of a team, over the stages; and what every team of the other blocks of the cluster sent here.
  __device__ __forceinline__ unsigned char* partial(int of) const { return memory + of * P.partial_bytes(height); }
  __device__ __forceinline__ unsigned char* received(int from) const {
    return memory + P.received_at() + from * P.received_bytes(height);
  }
  /// What team `from` of the cluster has of this block's share: fours of columns, and the states of all rows.
  struct Part {
    const Vec<float, 4>* fours;
    const Vec<float, 2>* states;
  };
  __device__ __forceinline__ Part part(int from) const {
    const int each = P.share(height);
    const bool own = P.split == 1 || from / P.teams == rank;
    const unsigned char *const sums = own ? partial(from % P.teams) + rank * each * 16 : received(from),
                               *const states = own ? partial(from % P.teams) + height * kDimV * 4 : sums + each * 16;
    return {reinterpret_cast<const Vec<float, 4>*>(sums), reinterpret_cast<const Vec<float, 2>*>(states)};
  }
  __device__ __forceinline__ uint32_t barrier(Barrier which, int i = 0) const {
    return ptx::shared_address(memory) +
           static_cast<uint32_t>(P.barriers_at(height) + (which * kStages + i % kStages) * 8);
  }
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(barrier(kKeysFull, i), 1);
      ptx::mbarrier_init(barrier(kValuesFull, i), 1);
      ptx::mbarrier_init(barrier(kKeysEmpty, i), kWarps * P.warps_m);
      ptx::mbarrier_init(barrier(kValuesEmpty, i), kWarps * P.warps_m);
    }
    ptx::mbarrier_init(barrier(kReceived), 1);
    ptx::mbarrier_fence();
  }
  /// Block i (counted over all runs) has arrived.
  __device__ __forceinline__ void consumer_wait(Barrier full, int i) const {
    ptx::mbarrier_wait<false>(barrier(full, i), i / kStages & 1);
  }
  __device__ __forceinline__ void consumer_release(Barrier empty, int i) const {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barrier(empty, i));
  }
  __device__ __forceinline__ void tile_barrier() const {
    ptx::named_barrier<kWarps * 32>(kTile + team * P.warps_m + warp_m);
  }
  __device__ __forceinline__ void team_barrier() const { ptx::named_barrier<P.team()>(kTeam + team); }
  __device__ __forceinline__ static void all_barrier() { ptx::named_barrier<P.consumers()>(kAll); }
  // --- the producer warp ---

  /// This block's part of positions [lo, hi) of a slot; i counts stages.
  __device__ __forceinline__ void produce(int64_t slot, int lo, int hi, int& i) const {
    const int box = kv_box<kKeys>(a), past = hi > lo ? (hi - 1) / kKeys + 1 : 0;
    const auto page_of = [&](int b) {
      const int j = b * kKeys + lane * box;
      return b < past ? kv_page<kKeys>(a, slot, j, hi, lane, box) : -1;
    };
    int b = first_block(lo), page = page_of(b);
    for (; b < past; b += P.split, ++i) {
      const int position = static_cast<int>(a.row_in_block(slot, b * kKeys + lane * box)),
                next = page_of(b + P.split);  // read while stages are in use
      ptx::mbarrier_wait<false>(barrier(kKeysEmpty, i), (i / kStages & 1) ^ 1);
      tma_load_kv<kPanels>(*this, keys(i), f.k, barrier(kKeysFull, i), box, page, position);
      ptx::mbarrier_wait<false>(barrier(kValuesEmpty, i), (i / kStages & 1) ^ 1);
      tma_load_kv<kPanelsV>(*this, values(i), f.v, barrier(kValuesFull, i), box, page, position);
      page = next;
    }
  }
  __device__ __forceinline__ int first_block(int lo) const {
    const int b = lo / kKeys / P.split * P.split + rank;
    return b < lo / kKeys ? b + P.split : b;
  }

  // --- the consumer warps ---

  __device__ __forceinline__ void load_queries() const {
    if (!has(1))
      for (int i = static_cast<int>(threadIdx.x) - 32; i < 2 * P.teams * 4 * P.probability_pitch();
           i += P.consumers())  // words of eight rows of each team's buffers
        reinterpret_cast<uint32_t*>(
            memory + P.probabilities_at())[(i / (4 * P.probability_pitch()) * 2 + 1) * 4 * P.probability_pitch() +
                                           i % (4 * P.probability_pitch())] = 0;
    constexpr int kEights = P.padded(P.d) / 8;
    const int group = a.group();
    for (int i = static_cast<int>(threadIdx.x) - 32; i < P.rows() * kEights; i += P.consumers()) {
      const int row = row0 + i / kEights, t = row / group, at = i % kEights * 8;
      const bool take = row < row_end && at < P.d;
      const Q* from = static_cast<const Q*>(a.q) +
                      (take ? int64_t{t} * a.q_stride + (kv * group + row % group) * int64_t{P.d} + at : 0);
      ptx::copy16(queries() + i / kEights * P.query_pitch() + at, from, take);
    }
    ptx::copy_commit();
  }
  /// Waits for the queries.
  __device__ __forceinline__ void wait_queries() {
    ptx::copy_wait<0>();
    all_barrier();
    if constexpr (kFp8Kv) {
      scale_query_rows<Q, P.padded(P.d)>(queries(), P.query_pitch(), P.rows(), static_cast<int>(threadIdx.x) / 32 - 1,
                                         P.consumers() / 32, lane, q_descales());
      all_barrier();
    }
    if constexpr (kFp8Kv)
      q_descale[0] = q_descales()[warp_m * 16 + lane / 4], q_descale[1] = q_descales()[warp_m * 16 + lane / 4 + 8];
  }
  /// Step's part of the queries. Narrow: k permuted so that a lane's sixteen consecutive bytes of a key are its parts
  /// of four steps.
  __device__ __forceinline__ void query_fragment(int step, uint32_t (&q)[4]) const {
    if constexpr (kFp8Kv) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 four =
            *reinterpret_cast<const uint2*>(queries() + (warp_m * 16 + lane / 4 + 8 * i) * P.query_pitch() +
                                            step / 4 * 64 + lane % 4 * 16 + step % 4 * 4);
        q[i] = four.x, q[2 + i] = four.y;
      }
    } else {
      ptx::load_matrix4(
          ptx::shared_address(queries() + (warp_m * 16 + lane % 16) * P.query_pitch() + step * 16 + lane / 16 * 8), q);
    }
  }
  using Queries = uint32_t[kHoldQ ? kSteps : 1][4];

  /// Products with this warp's keys of a block: keys 8 n + 2 (lane % 4) + {0, 1} of those in [n]. Even and odd steps
  /// are sums of their own, so that fewer multiplications wait for one another; score() adds them, so that nothing
  /// waits for them here.
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
    if constexpr (kFp8Kv) {
      const unsigned char* const rows = k + (warp_d * kOwn + lane / 4) * 128;
#pragma unroll
      for (int four = 0; four < kSteps / 4; ++four) {
        uint4 b[kOwn / 8];
#pragma unroll
        for (int n = 0; n < kOwn / 8; ++n)
          b[n] = *reinterpret_cast<const uint4*>(rows + (four / 2 * kKeys + n * 8) * 128 +
                                                 ((four % 2 * 4 + lane % 4) ^ lane / 4) * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t own[4];
          fragment(four * 4 + i, own);
          float(&to)[kOwn / 8][4] = i % 2 ? s.odd : s.even;
#pragma unroll
          for (int n = 0; n < kOwn / 8; ++n) {
            const uint32_t words[4] = {b[n].x, b[n].y, b[n].z, b[n].w};
            uint32_t low, high;
            ptx::upcast_e4m3(words[i], low, high);
            ptx::mma16816<f16>(to[n], own[0], own[1], own[2], own[3], low, high);
          }
        }
      }
    } else {
      const uint32_t rows =
          ptx::shared_address(k) + static_cast<uint32_t>(warp_d * kOwn + lane % 8 + lane / 16 * 8) * 128;
      constexpr int kBatch =
          128 / kOwn < kSteps ? 128 / kOwn : kSteps;  // steps whose keys are on their way together: 32 registers
#pragma unroll
      for (int step0 = 0; step0 < kSteps; step0 += kBatch) {
        uint32_t b[kBatch][kOwn / 16][4];
#pragma unroll
        for (int i = 0; i < kBatch && step0 + i < kSteps; ++i) {
          const int step = step0 + i;
          const uint32_t chunk = static_cast<uint32_t>((step % 4 * 2 + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
          for (int n = 0; n < kOwn / 16; ++n)
            ptx::load_matrix4(rows + chunk + static_cast<uint32_t>((step / 4 * kKeys + n * 16) * 128), b[i][n]);
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
      const float by = kFp8Kv ? factor * q_descale[i] : factor;
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
  /// Probabilities 2^(score - row_max) into shared memory for the tile's other warps; their sums, of this lane's.
  /// Probabilities of rows that the tile lacks stay the zeros they were at first.
  __device__ __forceinline__ void store_probabilities(int turn, const float (&s)[kOwn / 8][4], float (&sum)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] = 0;
      if (!has(i)) break;
      const float base = softmax_base(row_max[i]);
#pragma unroll
      for (int n = 0; n < kOwn / 8; ++n) {
        const float x = ptx::exp2_fast(s[n][2 * i] - base), y = ptx::exp2_fast(s[n][2 * i + 1] - base);
        sum[i] += x + y;
        *reinterpret_cast<uint32_t*>(probabilities(turn) + (lane / 4 + 8 * i) * P.probability_pitch() + warp_d * kOwn +
                                     n * 8 + lane % 4 * 2) = ptx::pack<Element>(x * kProbScale, y * kProbScale);
      }
    }
  }
  /// Scores into probabilities; turn 0: the first of a run. A row's `row_max` is a score that was its largest; it
  /// moves, and the sums so far shrink, only where a score is kSlack above it, so that warps need not agree on it for
  /// each block.
  __device__ __forceinline__ void softmax_block(int turn, const float (&s)[kOwn / 8][4]) {
    float sum[2], m[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) m[i] = has(i) ? largest(s, i) : kMinusInfinity;
    bool moves = turn == 0;
    if (turn > 0) {
      store_probabilities(turn, s, sum);
      moves = ptx::named_barrier_any<kWarps * 32>(kTile + team * P.warps_m + warp_m,
                                                  (m[0] > row_max[0] + kSlack) | (m[1] > row_max[1] + kSlack));
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
        if (!(all > row_max[i] + kSlack)) continue;
        by[i] = ptx::exp2_fast(row_max[i] - softmax_base(all));
        row_max[i] = all;
        row_sum[i] *= by[i];
      }
      store_probabilities(turn, s, sum);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int e = 0; e < 4; ++e) out[t][h][e] *= by[e / 2];
      tile_barrier();
    }
    row_sum[0] += sum[0], row_sum[1] += sum[1];
  }

  /// Zeros in places of a block that no row of the run sees: there may be anything there, NaN too.
  __device__ __forceinline__ void patch(unsigned char* v, int from, int to) const {
    const float zeros[4] = {};
    for (int i = static_cast<int>(threadIdx.x) - 32 - team * P.team(); i < (to - from) * kPanelsV * 8; i += P.team())
      store<4>(reinterpret_cast<float*>(v + (i / 8 % kPanelsV * kKeys + from + i / 8 / kPanelsV) * 128 + i % 8 * 16),
               zeros);
    ptx::tensor_fence();
    team_barrier();
  }
  /// Values of a block in tile t of this warp's columns; narrow: as they lie, pairs of columns.
  static constexpr int kLoads = kKeys / (kFp8Kv ? 32 : 16);
  using Values = uint32_t[kLoads][4];
  __device__ __forceinline__ void load_values(const unsigned char* v, int t, Values& b) const {
    const int tile = warp_d * kTiles + t, row = kFp8Kv ? lane : lane % 16, chunk = kFp8Kv ? tile : tile * 2 + lane / 16;
    const uint32_t column =
        ptx::shared_address(v) + static_cast<uint32_t>((chunk / 8 * kKeys + row) * 128 + (chunk % 8 ^ lane % 8) * 16);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) ptx::load_matrix4_transposed(column + k * (kFp8Kv ? 4096 : 2048), b[k]);
  }
  struct Early {
    Values tile[kHoldV ? kTiles : 1];
  };
  /// Sums of this warp's columns: those of tile t in out[t], as mma16816 has its halves (narrow: even and odd columns).
  /// Values that registers hold are in `early`.
  __device__ __forceinline__ void add_values(int turn, const unsigned char* v, const Early& early) {
    uint32_t p[kKeys / 16][4];
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
      ptx::load_matrix4(
          ptx::shared_address(probabilities(turn) + lane % 16 * P.probability_pitch() + k * 16 + lane / 16 * 8), p[k]);
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
        if constexpr (kFp8Kv) {
#pragma unroll
          for (int i = 0; i < 2; ++i)
            ptx::upcast_e4m3(__byte_perm(b[k / 2][k % 2 * 2 + i], 0, 0x3120), half[0][i], half[1][i]);
        } else {
          half[0][0] = b[k][0], half[0][1] = b[k][1], half[1][0] = b[k][2], half[1][1] = b[k][3];
        }
        ptx::mma16816<Element>(out[t][0], p[k][0], p[k][1], p[k][2], p[k][3], half[0][0], half[0][1]);
        ptx::mma16816<Element>(out[t][1], p[k][0], p[k][1], p[k][2], p[k][3], half[1][0], half[1][1]);
      }
    }
  }
};

}  // namespace vivace::kernels
