// attention of few 16-bit queries on Hopper: keys and values stream past them once. Formula in
// vivace/ops/attention.h, but no soft cap and none of Terms; tile config in AttentionStream. Limit: the bytes of the
// visible keys and values.
//
// Two warps copy blocks of 64 keys and values, as many at once as shared memory holds; the others multiply, each with
// part of the block's keys, then, with everyone's scores, part of the values' columns. A row's sum is a tree: four
// blocks one after the other are a group, four groups a super, supers one after the other the row. Blocks of threads in
// a cluster take blocks, groups or supers in turn, as few keys or many are visible, and meet in distributed shared
// memory; the tree is the same however it is cut, and so are a row's bits.
// Chosen when: Hopper, decode and short queries over KV blocks that TMA does not map: fewer than 8 positions, or none
// that divide a block of keys.
#pragma once
#include "vivace/kernels/attention/stream_blocks.cuh"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/remote.cuh"

namespace vivace::kernels {

template <class Q, class Kv, AttentionStream P, class Out>
struct AttentionStreamKernel : AttentionStreamBlocks<Q, Kv, P, Out> {
  using Blocks = AttentionStreamBlocks<Q, Kv, P, Out>;
  using Blocks::a, Blocks::rank, Blocks::warp_d, Blocks::lane, Blocks::row0, Blocks::height, Blocks::in_run,
      Blocks::my_row;
  using Blocks::kFp8Kv, Blocks::kKeys, Blocks::kGroup, Blocks::kSuper, Blocks::kDimV, Blocks::kSteps, Blocks::kPitch,
      Blocks::kTiles, Blocks::kHoldQ;
  using Blocks::stage, Blocks::received_sums, Blocks::received_states, Blocks::ring, Blocks::query_fragment,
      Blocks::copy, Blocks::products, Blocks::exchange, Blocks::softmax_block, Blocks::column, Blocks::clear,
      Blocks::add_values, Blocks::join;
  using typename Blocks::Queries, typename Blocks::Sums;
  static constexpr int kOwn = Blocks::kOwn;

  /// Blocks [b, past) of one unit; i counts stages.
  __device__ __forceinline__ void unit(int b, int past, int& i, AttentionState (&state)[2], Sums& sums) const {
    clear(sums);
    state[0] = state[1] = {};
    Queries q;
    if constexpr (kHoldQ) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) query_fragment(step, q[step]);
    }
#pragma unroll 1
    while (b < past) {
      const int group_past = min((b / kGroup + 1) * kGroup, past);
      AttentionState group[2];
      Sums group_sums;
      clear(group_sums);
#pragma unroll 1
      for (; b < group_past; ++b, ++i) {
        float s[kKeys / 8][4];
        AttentionState block[2];
        ring().consumer_wait(i);
        float own[kOwn / 8][4];
        products(stage(i), q, own);
        exchange(i, own, s);
        softmax_block(b * kKeys, s, block);
        add_values(stage(i) + kKeys * kPitch, s, block, group, group_sums);
        __syncwarp();
        if (lane == 0) ring().consumer_release(i % P.stages);
      }
      join(state, sums, group, group_sums);
    }
  }
  /// A unit's sums to the blocks that own them: four columns of a row are the share of one.
  __device__ __forceinline__ void send(int n, const AttentionState (&state)[2], const Sums& sums) const {
    const int each = P.share(height);
    const uint32_t inverse = 0xffffffffu / static_cast<uint32_t>(each) + 1;  // fours are below 2^16
    const auto owner = [&](int four) {
      return each == 1 ? four : static_cast<int>(__umulhi(static_cast<uint32_t>(four), inverse));
    };
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = my_row(i) - row0;
      if (r >= height) continue;
      if (warp_d == 0) {
        const int last = owner((r + 1) * (kDimV / 4) - 1);
        for (int to = owner(r * (kDimV / 4)) + lane % 4; to <= last; to += 4)
          ptx::remote_store2<P.split>(received_states(n) + r, to, state[i].row_max, state[i].row_sum);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (kDimV / 16 % P.warps_d != 0 && warp_d * kTiles + t >= kDimV / 16) break;
        if constexpr (kFp8Kv) {
          const int four = r * (kDimV / 4) + column(t, 0) / 4, to = owner(four);
          ptx::remote_store4<P.split>(
              received_sums(n) + (four - to * each) * 4, to,
              {sums[t][0][2 * i], sums[t][1][2 * i], sums[t][0][2 * i + 1], sums[t][1][2 * i + 1]});
        } else {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int four = r * (kDimV / 4) + column(t, h) / 4, to = owner(four);
            ptx::remote_store2<P.split>(received_sums(n) + (four - to * each) * 4 + column(t, h) % 4, to,
                                        sums[t][h][2 * i], sums[t][h][2 * i + 1]);
          }
        }
      }
    }
  }

  // --- the end ---

  static constexpr int kShare = (P.share(P.rows()) + P.threads() - 1) / P.threads();  // fours of a thread
  struct Total {
    AttentionState state;
    float y[4];
  };
  /// The e-th four that is this thread's; its row is height or more where there is none.
  __device__ __forceinline__ int mine(int e) const {
    const int at = e * P.threads() + static_cast<int>(threadIdx.x), each = P.share(height);
    return at < each ? rank * each + at : height * (kDimV / 4);
  }
  /// This thread's part of a round's units, in their order, joins its totals.
  __device__ __forceinline__ void collect(int u0, int units, int span, Total (&total)[kShare]) const {
#pragma unroll
    for (int e = 0; e < kShare; ++e) {
      const int four = mine(e), r = four / (kDimV / 4);
      if (r >= height) break;
      Total group{{}, {}}, super{{}, {}};
#pragma unroll 1
      for (int n = 0; n < units; ++n) {
        float y[4];
        load<4>(received_sums(n) + (four - rank * P.share(height)) * 4, y);
        join_one(group, received_states(n)[r], y);
        const int past = (u0 + n + 1) * span;  // blocks
        const bool last = n == units - 1;
        if (!last && past % kGroup != 0) continue;
        join_one(super, group.state, group.y);
        group = {{}, {}};
        if (!last && past % kSuper != 0) continue;
        join_one(total[e], super.state, super.y);
        super = {{}, {}};
      }
    }
  }
  __device__ __forceinline__ static void join_one(Total& to, const AttentionState& state, const float (&y)[4]) {
    float mine, theirs;
    to.state.join(state, mine, theirs);
#pragma unroll
    for (int e = 0; e < 4; ++e) to.y[e] = joined(to.y[e], mine, y[e], theirs);
  }

  /// Tokens [ta, tb), which share a slot; i counts stages.
  __device__ __forceinline__ void attend(int ta, int tb, bool copies, int& i, bool& again) {
    int lo, hi;
    this->spans(ta, tb, &lo, &hi);
    const int64_t slot = AttentionSpan(a, ta).slot;
    const int least = hi > lo ? lo / kKeys : 0, past = hi > lo ? (hi - 1) / kKeys + 1 : 0;
    // The smallest units that the blocks' slots hold at once; else supers, of which any number may come.
    const auto count_of = [&](int span) { return past > least ? (past - 1) / span - least / span + 1 : 0; };
    constexpr int kMany = P.split * P.slots;
    const int span = P.split == 1 || count_of(kGroup) > kMany ? kSuper : count_of(1) > kMany ? kGroup : 1;
    const int u0 = least / span, units = count_of(span);
    const auto begin_of = [&](int u) { return max(u * span, least); };
    const auto end_of = [&](int u) { return min((u + 1) * span, past); };
    if constexpr (P.split == 1) {
      if (copies) {
        for (int b = least; b < past; ++b, ++i) copy(i, slot, b, lo, hi);
        return;
      }
      AttentionState all[2], group[2];
      Sums total, sums;
      clear(total);
#pragma unroll 1
      for (int u = u0; u < u0 + units; ++u) {
        unit(begin_of(u), end_of(u), i, group, sums);
        join(all, total, group, sums);
      }
      write_direct(ta, tb, all, total);
    } else {
      Total total[kShare];
#pragma unroll
      for (int e = 0; e < kShare; ++e) total[e] = {{}, {}};
#pragma unroll 1
      for (int u = 0; u < units;
           u += P.split * P.slots) {  // a round; a unit's slot and thread block follow from its number
        const int count = min(units - u, P.split * P.slots);
        if (again) ptx::cluster_sync<P.split>();  // nobody reads any more what the last round sent
        again = true;
#pragma unroll 1
        for (int n = rank; n < count; n += P.split) {
          const int b = begin_of(u0 + u + n), e = end_of(u0 + u + n);
          if (copies) {
#pragma unroll 1
            for (int at = b; at < e; ++at, ++i) copy(i, slot, at, lo, hi);
          } else {
            AttentionState state[2];
            Sums sums;
            unit(b, e, i, state, sums);
            send(n, state, sums);
          }
        }
        ptx::cluster_sync<P.split>();
        collect(u0 + u, count, span, total);
      }
      const AttentionEpilogue<Q, Out> epilogue(this->a);
#pragma unroll
      for (int e = 0; e < kShare; ++e) {
        const int four = mine(e), r = four / (kDimV / 4);
        if (r < height && in_run(row0 + r, ta, tb))
          this->write(epilogue, row0 + r, four % (kDimV / 4) * 4, total[e].state.row_max, total[e].state.row_sum,
                      total[e].y);
      }
    }
  }
  __device__ __forceinline__ void write_direct(int ta, int tb, const AttentionState (&state)[2],
                                               const Sums& sums) const {
    const AttentionEpilogue<Q, Out> epilogue(this->a);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool mine = in_run(my_row(i), ta, tb);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int tile = warp_d * kTiles + t;
        if (kDimV / 16 % P.warps_d != 0 && tile >= kDimV / 16) break;
        float y[4];
        this->four(sums[t], i, y);
        if (mine) this->write(epilogue, my_row(i), tile * 16 + this->fours_at(), state[i].row_max, state[i].row_sum, y);
      }
    }
  }
};

/// Grid: tiles * Hkv * split blocks, clusters of split.
template <class Q, class Kv, AttentionStream P, class Out = Q>
__device__ __forceinline__ void run_attention_stream(const AttentionArgs& a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = a.group(), height = P.height(a), warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t heads = static_cast<uint32_t>(a.Hkv), index = blockIdx.x / P.split;
  const int tile = static_cast<int>(index / heads), row0 = tile * height;
  const bool copies = static_cast<int>(threadIdx.x) >= P.consumers();
  AttentionStreamKernel<Q, Kv, P, Out> k{
      {{a, memory, static_cast<int>(index % heads), ptx::cluster_rank<P.split>(), warp / P.warps_d, warp % P.warps_d,
        static_cast<int>(threadIdx.x % 32), row0, 0, height}}};
  if (threadIdx.x == 0) {
    for (int i = 0; i < P.stages; ++i)
      k.ring().init_full(i, P.kProducers), k.ring().init_empty(i, P.warps_m * P.warps_d);
    ptx::mbarrier_fence();
  }
  if constexpr (P.d % 16 != 0)  // columns of keys that pad the last step, never written again
    for (int i = static_cast<int>(threadIdx.x); i < P.stages * P.kKeys; i += P.threads())
      for (int at = P.d; at < k.kDim; ++at)
        reinterpret_cast<Kv*>(k.stage(i / P.kKeys) + i % P.kKeys * k.kPitch)[at] = from_float<Kv>(0.0f);
  __syncthreads();
  ptx::cluster_arrive<P.split>();
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int rows = valid_rows(a.rows, a.T) * group;
  if (row0 >= rows) return;  // the whole cluster
  k.row_end = min(row0 + height, rows);
  k.q_descale[0] = k.q_descale[1] = 1;
  if (copies) {
    k.warp_m = 0, k.warp_d = 0;
  } else {
    k.load_queries();
    if constexpr (k.kFp8Kv)
      k.q_descale[0] = k.q_descales()[k.held(k.warp_m * 16 + k.lane / 4)],
      k.q_descale[1] = k.q_descales()[k.held(k.warp_m * 16 + k.lane / 4 + 8)];
  }
  ptx::cluster_wait<P.split>();  // the others run, and may be sent to
  int i = 0;
  bool again = false;
  const int past = (k.row_end - 1) / group + 1;
  for (int ta = row0 / group, tb; ta < past; ta = tb) {
    tb = run_end(a, ta, past, k.lane);
    k.attend(ta, tb, copies, i, again);
  }
}

template <class Q, class Kv, AttentionStream P, class Out = Q>
__global__ void __launch_bounds__(P.threads(), P.occupancy())
    attention_stream(const __grid_constant__ AttentionArgs a) {
  run_attention_stream<Q, Kv, P, Out>(a);
}

}  // namespace vivace::kernels
