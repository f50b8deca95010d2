// rope_attention on CUDA: attention_swap_ab whose blocks make their queries of qkv, and the keys and values that the
// call appends. Formula in vivace/ops/rope_attention.h. Limit: as attention; what is made is made while the first keys
// are on their way.
//
// A tile is one token and one kv head. Each block of its cluster makes the tile's queries, where the tensor core reads
// them. A key that the call appends lies in one block of keys, of which one block of the cluster, the owner, has the
// sums: it alone writes the cache. It asks for that block of keys as for any other, at once, and lays what it has made
// over the row that has come, which may be anything; so nothing waits for a write to be seen by TMA. Rows of the call
// that share a slot see each other's keys: the owner of such a key in another tile makes it too, and writes the same
// bits to the same position.
// Chosen when: swap_ab's calls of few tokens, where fused() of vivace/ops/rope_attention.h finds it faster than its
// parts.
#pragma once
#include "vivace/kernels/attention/rope_attention.h"
#include "vivace/kernels/attention/swap_ab.cuh"
#include "vivace/kernels/rope/rotate.cuh"

namespace vivace::kernels {

template <class Q, RopeAttentionPolicy P>
struct RopePrologue {
  using Args = RopeAttentionArgs;
  static constexpr bool kActive = true;
  VV_HD static constexpr bool stable() { return P.stable; }
  static constexpr RopePolicy R = P.rope();
  static constexpr int kThreads = R.threads, kKeys = AttentionSwapAB::kKeys, kD = P.swap_ab.d, kChunks = kD / 8;
  static_assert(kD == P.swap_ab.dv && kD % 16 == 0 && R.holds(kD, P.R) && P.swap_ab.rows == P.kMostHeads);
  static_assert(kThreads / R.lanes >= P.kMostHeads + 2 && kChunks <= 32 && R.pairs() <= 128 &&
                sizeof(RopeAngles<R>) <= P.swap_ab.received_at() - P.swap_ab.probabilities_at());
  using Head = HeadPart<R>;
  using Raw = typename Head::template Raw<Q>;

  const RopeAttentionArgs& r;
  int kind;  // of the head that this thread's lanes hold: 0 one of the tile's queries, 1 its key, 2 its value; -1: none
  const Q* from;          // it, of token 0
  Raw raw, weight;        // weight: of HeadNorms::alike
  float frequency;
  int pos, slot, rows;    // of row `lane` of the call; of all
  int fresh;  // position of that row, where this part has it among its keys and the tile's row sees it; else -1

  __device__ __forceinline__ static int team() { return static_cast<int>(threadIdx.x) / R.lanes; }
  __device__ __forceinline__ static Head head() {
    return Head(static_cast<int>(threadIdx.x) % R.lanes, kD, P.R,
                P.interleaved ? RopeStyle::interleaved : RopeStyle::half);
  }
  __device__ __forceinline__ const void* norm() const { return kind == 0 ? r.q_norm : kind == 1 ? r.k_norm : nullptr; }
  /// Pair whose angle this thread makes: warps do that have no head. Below 0: none.
  __device__ __forceinline__ static int pair() { return static_cast<int>(threadIdx.x) - (kThreads - P.R); }
  /// Where the key (0) or the value (1) lies that the tile's row appends, for the block of keys that it belongs to.
  __device__ __forceinline__ static int appended_at(int which) { return P.appended_at() + which * kD * 2; }

  __device__ __forceinline__ RopePrologue(const RopeAttentionArgs& args, int kv)
      : r(args), raw{}, weight{}, frequency(0), pos(-1), slot(0), rows(0), fresh(-1) {
    const AttentionArgs& a = r.tma.a();
    const int group = a.group();
    kind = team() < group ? 0 : team() == group ? 1 : team() == group + 1 ? 2 : -1;
    from = static_cast<const Q*>(r.qkv) + (kind == 0   ? kv * group + team()
                                           : kind == 1 ? a.Hq + kv
                                                       : a.Hq + a.Hkv + kv) *
                                              int64_t{kD};
  }

  /// Norms and frequencies are weights, read before the dependency wait.
  __device__ __forceinline__ void prefetch_weights() {
    if (P.norms == HeadNorms::alike && (kind == 0 || kind == 1))
      head().load_head(static_cast<const Q*>(norm()), weight);
    if (pair() >= 0 && pair() < P.R) frequency = r.inv_freq[pair()];
  }
  /// All that waits for memory, before any of it is used. Stable places come before the wait, their head behind it.
  template <class Kernel>
  __device__ __forceinline__ void prefetch_rows(const Kernel& k) {
    if (k.lane < k.a.T) pos = k.a.pos[k.lane], slot = k.a.slot != nullptr ? k.a.slot[k.lane] : 0;
    if constexpr (!stable()) prefetch_head(k.row0 / k.a.group());
    rows = valid_rows(k.a.rows, k.a.T);
  }
  __device__ __forceinline__ void prefetch_head(int64_t t) {
    if (kind >= 0) head().load_head(from + t * r.qkv_stride, raw);
  }
  /// The head in f32, with its norm. All lanes of a warp take part.
  __device__ __forceinline__ void normalise(const Head& head, float (&h)[1][16]) const {
    head.upcast(raw, h);
    if (P.norms == HeadNorms::none) return;
    const float inverse = head.inverse_rms(h, kD, r.eps), plus = r.norm_plus_one ? 1.0f : 0.0f;
    if (norm() == nullptr) return;
    float w[1][16];
    if constexpr (P.norms == HeadNorms::alike) {
      head.upcast(weight, w);
#pragma unroll
      for (int i = 0; i < 16; ++i) w[0][i] = __fadd_rn(w[0][i], plus);
    } else {
      head.load_weights(norm(), kind == 0 ? r.q_norm_dtype : r.k_norm_dtype, plus, w);
    }
    head.scale(h, inverse, w);
  }

  /// Where the tile's head of a key (0) or a value (1) at `pos` of a slot lies.
  template <class Kernel>
  __device__ __forceinline__ static Q* cached(const Kernel& k, int which, int64_t block, int slot, int pos) {
    const AttentionArgs& a = k.a;
    return static_cast<Q*>(const_cast<void*>(which == 0 ? a.k : a.v)) + block * (which == 0 ? a.k_stride : a.v_stride) +
           (a.row_in_block(slot, pos) * a.position_rows() + int64_t{k.kv} * a.head_rows()) * kD;
  }

  /// Queries of the tile, and what this part appends. By the consumer warps, once what the tile's row sees is known; a
  /// barrier must follow.
  template <class Kernel>
  __device__ __forceinline__ void make(const Kernel& k) {
    const int group = k.a.group(), token = k.row0 / group, own_slot = __shfl_sync(0xffffffffu, slot, token);
    const int first = __shfl_sync(0xffffffffu, k.first, 0), end = __shfl_sync(0xffffffffu, k.end, 0);
    int64_t at = -1;
    if (k.lane < rows && slot == own_slot && pos >= first && pos < end &&
        pos / kKeys % P.swap_ab.split == k.split_index)
      at = k.a.block(slot, pos);
    fresh = at >= 0 ? pos : -1;
    const int block = static_cast<int>(at);
    const uint32_t appends = __ballot_sync(0xffffffffu, fresh >= 0);
    RopeAngles<R>& angles = *reinterpret_cast<RopeAngles<R>*>(k.probabilities());
    const auto query_at = [&](int row, int at) {
      return P.swap_ab.queries_at() + (at / 64 * k.kRows + row) * 128 + (at % 64 / 8 ^ row) * 16;
    };
    for (int i = static_cast<int>(threadIdx.x); i < (k.kRows - group) * kChunks;
         i += kThreads)  // rows that the tile lacks
      *reinterpret_cast<Vec<uint32_t, 4>*>(k.memory + query_at(group + i / kChunks, i % kChunks * 8)) = {};
    int has_heads = k.warp * 32 / R.lanes < group + 2;  // some lane of the warp
    int t = token;
    // The tile's row first; then, seldom, others of its slot.
#pragma unroll 1
    for (uint32_t left = appends & ~(1u << token);; left &= left - 1) {
      const int of_block = __shfl_sync(0xffffffffu, block, t), of_pos = __shfl_sync(0xffffffffu, pos, t);
      const float angle = __fmul_rn(static_cast<float>(of_pos), frequency);
      if (pair() >= 0 && pair() < P.R) angles.put(pair(), angle, r.attn_factor);
      Head part = head();
      float h[1][16];
      if (has_heads) normalise(part, h);
      asm volatile(
          ""
          : "+r"(has_heads));  // warps of both kinds meet in one position of the program, as synccheck wants it
      k.group_barrier();
      if (has_heads) {
        if (kind == 0 || kind == 1) {
          part.take_angles(angles, static_cast<int>(threadIdx.x) % R.lanes);
          part.rotate(h);
        }
        const int a = part.a[0], b = part.b[0];
        if (kind > 0 && (appends >> t & 1) != 0) part.store_head(cached(k, kind - 1, of_block, own_slot, of_pos), h);
        if (kind >= 0 && t == token) {
          float(&lo)[8] = reinterpret_cast<float(&)[8]>(h[0][0]), (&hi)[8] = reinterpret_cast<float(&)[8]>(h[0][8]);
          if (a >= 0)
            store<8>(reinterpret_cast<Q*>(k.memory + (kind == 0 ? query_at(team(), a) : appended_at(kind - 1) + a * 2)),
                     lo);
          if (b >= 0)
            store<8>(reinterpret_cast<Q*>(k.memory + (kind == 0 ? query_at(team(), b) : appended_at(kind - 1) + b * 2)),
                     hi);
        }
      }
      if (left == 0) break;
      t = __ffs(static_cast<int>(left)) - 1;
      prefetch_head(t);
      k.group_barrier();  // all have taken their angles
    }
  }

  /// What the call appends of block b of keys, over what has come into its stage. Whether there was anything; then a
  /// fence and a barrier must follow.
  template <class Kernel>
  __device__ __forceinline__ bool patch_appended(const Kernel& k, int b, int u, int which) const {
    uint32_t here = __ballot_sync(0xffffffffu, fresh >> 7 == b);
    if (here == 0) return false;
    if (k.warp == 4 * which) {
#pragma unroll
      for (int p = 0; p < k.kPanels; ++p) k.consumer_wait(u, p);
      for (; here != 0; here &= here - 1) {
        const int t = __ffs(static_cast<int>(here)) - 1, at = __shfl_sync(0xffffffffu, fresh, t),
                  of = __shfl_sync(0xffffffffu, slot, t);
        const void* row = k.memory + appended_at(which);
        if (t != k.row0 / k.a.group())
          row = cached(k, which, k.a.block(of, at), of, at);  // written by this block before
        if (k.lane < kChunks)
          *reinterpret_cast<Vec<uint32_t, 4>*>(k.stage(u) + (k.lane / 8 * kKeys + at % kKeys) * 128 +
                                               (k.lane % 8 ^ at % 8) * 16) =
              reinterpret_cast<const Vec<uint32_t, 4>*>(row)[k.lane];
      }
    }
    return true;
  }
};

/// Grid: tokens * Hkv * split, clusters of split.
template <class Q, RopeAttentionPolicy P, class Out = Q>
__global__ void __launch_bounds__(P.swap_ab.threads(), P.swap_ab.occupancy())
    rope_attention(const __grid_constant__ RopeAttentionArgs args) {
  run_attention_swap_ab<Q, P.swap_ab, Out, RopePrologue<Q, P>>(
      args, RopePrologue<Q, P>(
                args, static_cast<int>(blockIdx.x / P.swap_ab.split % static_cast<uint32_t>(args.tma.a().Hkv))));
}

}  // namespace vivace::kernels
