// attention of few 16-bit queries on Hopper: split-KV decode by TMA and mma.sync. Formula in vivace/ops/attention.h,
// but no soft cap and none of Terms; tile config in AttentionSplitKV. Limit: the bytes of the visible keys and values.
//
// One producer warp loads blocks of keys and of values, as many stages as shared memory holds. Four consumer warps a
// tile of 16 rows: each multiplies the queries with a quarter of the block's keys, writes its probabilities to shared
// memory (the row maxima agreed on where they move much), then multiplies all of them with a quarter of the values'
// columns. So a thread block has one softmax state and one set of sums, and a cluster reduces its splits once: each
// block sends each other, as one copy, the columns that the receiver adds up, in the order of the senders.
// Chosen when: Hopper, decode and short queries over keys that TMA maps and swap_ab does not take: e4m3, or more than
// 32 heads a KV head.
#pragma once
#include "vivace/kernels/attention/split_kv_blocks.cuh"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/remote.cuh"

namespace vivace::kernels {

template <class Q, class Kv, AttentionSplitKV P, class Out>
struct AttentionSplitKVKernel : AttentionSplitKVBlocks<Q, Kv, P, Out> {
  using Blocks = AttentionSplitKVBlocks<Q, Kv, P, Out>;
  using Blocks::a, Blocks::memory, Blocks::kv, Blocks::rank, Blocks::warp_m, Blocks::warp_d, Blocks::lane, Blocks::row0,
      Blocks::row_end, Blocks::height, Blocks::in_run, Blocks::write;
  using Blocks::keys, Blocks::values, Blocks::row_sums, Blocks::partial, Blocks::received, Blocks::part,
      Blocks::first_block, Blocks::produce, Blocks::wait_queries, Blocks::query_fragment, Blocks::products,
      Blocks::score, Blocks::softmax_block, Blocks::patch, Blocks::load_values, Blocks::add_values;
  using Blocks::kKeysFull, Blocks::kValuesFull, Blocks::kKeysEmpty, Blocks::kValuesEmpty, Blocks::kReceived,
      Blocks::barrier, Blocks::consumer_wait, Blocks::consumer_release, Blocks::tile_barrier, Blocks::all_barrier;
  using Blocks::team, Blocks::row_max, Blocks::row_sum, Blocks::out, Blocks::kFp8Kv, Blocks::kKeys, Blocks::kDimV,
      Blocks::kSteps, Blocks::kStages, Blocks::kWarps, Blocks::kTiles, Blocks::kUneven, Blocks::kProbScale,
      Blocks::kHoldQ, Blocks::kHoldV;
  using typename Blocks::Early, typename Blocks::Products, typename Blocks::Queries;
  static constexpr int kOwn = Blocks::kOwn;

  /// Sums of this team's keys; i counts stages. Queries are in registers or shared memory.
  __device__ __forceinline__ void sum_up(const Queries& q, int lo, int hi, int& i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) row_max[r] = kMinusInfinity, row_sum[r] = 0;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) out[t][h][0] = out[t][h][1] = out[t][h][2] = out[t][h][3] = 0;
    const int past = hi > lo ? (hi - 1) / kKeys + 1 : 0, from = first_block(lo);
    const float factor = a.scale * kLog2e;
    constexpr int kStride = P.split * P.teams;
    int b = from / P.split % P.teams,
        at = i + (team >= b ? team - b : team - b + P.teams);  // this team's first block and its stage
    b = from + (at - i) * P.split;
    i += past > from ? (past - 1 - from) / P.split + 1 : 0;
    Products x;
    float s[kOwn / 8][4];
    const auto begin = [&](Products& to) {
      consumer_wait(kKeysFull, at);
      products(keys(at), q, to);
      consumer_release(kKeysEmpty, at);
    };
    if (b < past) begin(x);
    int turn = 0;
#pragma unroll 1
    for (; b < past; b += kStride, ++turn) {
      score(b * kKeys, factor, x, s);
      const int here = at;
      at += P.teams;
      if (b + kStride < past) begin(x);  // the tensor cores have something to do while warps meet
      consumer_wait(kValuesFull, here);
      if (b * kKeys < lo) patch(values(here), 0, lo - b * kKeys);
      if ((b + 1) * kKeys > hi) patch(values(here), hi - b * kKeys, kKeys);
      Early early;
      if constexpr (kHoldV) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          if (!kUneven || warp_d * kTiles + t < kDimV / 16) load_values(values(here), t, early.tile[t]);
        consumer_release(kValuesEmpty, here);
      }
      softmax_block(turn, s);
      add_values(turn, values(here), early);
      if constexpr (!kHoldV) consumer_release(kValuesEmpty, here);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_sum[r] += __shfl_xor_sync(0xffffffffu, row_sum[r], 1);
      row_sum[r] += __shfl_xor_sync(0xffffffffu, row_sum[r], 2);
      if (lane % 4 == 0) row_sums(warp_d)[lane / 4 + 8 * r] = row_sum[r];
    }
  }
  __device__ __forceinline__ float total_row_sum(int r) const {
    float sum = row_sums(0)[r];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += row_sums(w)[r];
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
        if constexpr (kFp8Kv) y[0] /= kProbScale, y[1] /= kProbScale, y[2] /= kProbScale, y[3] /= kProbScale;
        to(i, warp_m * 16 + lane / 4 + 8 * i, column(t), y);
      }
  }
  __device__ __forceinline__ void write_direct(int ta, int tb) const {
    tile_barrier();  // everyone's row_sums
    const float total[2] = {total_row_sum(lane / 4), total_row_sum(lane / 4 + 8)};
    const AttentionEpilogue<Q, Out> epilogue(a);
    each_four([&](int i, int r, int column, const float(&y)[4]) {
      if (in_run(row0 + r, ta, tb)) write(epilogue, row0 + r, column, row_max[i], total[i], y);
    });
  }
  /// Every team's sums to those that add them up; this block's own share stays.
  __device__ __forceinline__ void send() const {
    float* const sums = reinterpret_cast<float*>(partial(team));
    all_barrier();  // the stages are free, and everyone's row_sums there
    each_four([&](int, int r, int column, const float(&y)[4]) {
      if (r < height) store<4>(sums + r * kDimV + column, y);
    });
    if (warp_d == 0 && lane % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = lane / 4 + 8 * i;
        if (warp_m * 16 + r < height)
          store<2>(sums + height * kDimV + (warp_m * 16 + r) * 2, {row_max[i], total_row_sum(r)});
      }
    }
    if constexpr (P.split > 1) ptx::tensor_fence();
    all_barrier();
    if constexpr (P.split > 1) {
      const int of = (static_cast<int>(threadIdx.x) - 32) / P.split,
                to = (static_cast<int>(threadIdx.x) - 32) % P.split, each = P.share(height), from = to * each,
                count = min(height * (kDimV / 4) - from, each);
      if (of >= P.teams || to == rank || count <= 0) return;
      const uint32_t here = ptx::shared_address(partial(of)),
                     there = ptx::shared_address(received(rank * P.teams + of));
      ptx::remote_copy(there, here + from * 16, count * 16, barrier(kReceived), to);
      ptx::remote_copy(there + each * 16, here + height * kDimV * 4, P.state_bytes(height), barrier(kReceived), to);
    }
  }
  /// Adds up this block's share.
  __device__ __forceinline__ void collect(int ta, int tb) const {
    constexpr int kParts = P.split * P.teams;
    const int each = P.share(height), fours = height * (kDimV / 4);
    const AttentionEpilogue<Q, Out> epilogue(a);
    for (int at = static_cast<int>(threadIdx.x) - 32; at < each && rank * each + at < fours; at += P.consumers()) {
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
      write(epilogue, row0 + r, column, highest, total, sum);
    }
  }

  /// All runs of the tile. Queries are on their way.
  __device__ __forceinline__ void run(bool is_producer) {
    Queries q;
    int i = 0, round = 0;
    const int past = (row_end - 1) / a.group() + 1;
    for (int ta = row0 / a.group(), tb; ta < past; ta = tb, ++round) {
      tb = run_end(a, ta, past, lane);
      int lo, hi;
      this->spans(ta, tb, &lo, &hi);
      if (is_producer) {
        produce(AttentionSpan(a, ta).slot, lo, hi, i);
      } else {
        if (round == 0) {
          wait_queries();
          if constexpr (kHoldQ) {
#pragma unroll
            for (int step = 0; step < kSteps; ++step) query_fragment(step, q[step]);
          }
        }
        sum_up(q, lo, hi, i);
      }
      if constexpr (P.split == 1 && P.teams == 1) {
        if (is_producer) continue;
        write_direct(ta, tb);
        tile_barrier();  // row_sums may be written again
      } else if constexpr (P.split == 1) {
        if (!is_producer) send(), collect(ta, tb);
        __syncthreads();  // the stages may be written again
      } else {
        if (is_producer) {
          const int mine = min(P.share(height), height * (kDimV / 4) - rank * P.share(height));
          if (lane == 0)
            ptx::mbarrier_expect(
                barrier(kReceived),
                mine > 0 ? static_cast<uint32_t>((P.split - 1) * P.teams * (mine * 16 + P.state_bytes(height))) : 0);
        }
        __syncwarp();
        if (round == 0) ptx::cluster_wait<P.split>();  // the others run, and may be sent to
        if (!is_producer) send();
        ptx::mbarrier_wait<true>(barrier(kReceived), round & 1);
        if (!is_producer) collect(ta, tb);
        __syncwarp();
        ptx::cluster_sync<P.split>();  // everyone has what was sent: this block may leave, or use its memory again
      }
    }
  }
};

/// Grid: tiles * Hkv * split blocks, clusters of split.
template <class Q, class Kv, AttentionSplitKV P, class Out = Q>
__device__ __forceinline__ void run_attention_split_kv(const AttentionTmaArgs& f) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const AttentionArgs& a = f.a();
  const int group = a.group(), height = P.height(a), warp = static_cast<int>(threadIdx.x) / 32 - 1;
  const uint32_t heads = static_cast<uint32_t>(a.Hkv), index = blockIdx.x / P.split;
  const int row0 = static_cast<int>(index / heads) * height;
  const bool is_producer = warp < 0;
  AttentionSplitKVKernel<Q, Kv, P, Out> k{
      {{a, memory, static_cast<int>(index % heads), ptx::cluster_rank<P.split>(),
        is_producer ? 0 : warp / P.kWarps % P.warps_m, is_producer ? 0 : warp % P.kWarps,
        static_cast<int>(threadIdx.x % 32), row0, 0, height},
       f,
       is_producer ? 0 : warp / P.kWarps / P.warps_m}};
  if (threadIdx.x == 0) k.init_barriers();
  __syncthreads();
  ptx::cluster_arrive<P.split>();
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int rows = valid_rows(a.rows, a.T) * group;
  if (row0 >= rows) return;  // the whole cluster
  k.row_end = min(row0 + height, rows);
  if (!is_producer) k.load_queries();
  k.run(is_producer);
#endif
}

template <class Q, class Kv, AttentionSplitKV P, class Out = Q>
__global__ void __launch_bounds__(P.threads(), P.occupancy())
    attention_split_kv(const __grid_constant__ AttentionTmaArgs f) {
  run_attention_split_kv<Q, Kv, P, Out>(f);
}

}  // namespace vivace::kernels
