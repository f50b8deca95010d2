// qkv_rope among many tokens of a 16-bit type: a block takes one head a thread of a few tokens, which are all on their
// way to shared memory at once, so that few registers wait and the norm's weights serve them all.
#pragma once
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/rope/qkv_rope.h"
#include "vivace/kernels/rope/rotate.cuh"

namespace vivace::kernels {

/// Blocks an SM that registers are left for. With more, words are spilled.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
inline constexpr int kQkvAheadBlocks = 7;
#else
inline constexpr int kQkvAheadBlocks = 6;
#endif

/// The head of this thread's lanes: which it is, its norm and where it goes.
template <class X, class Kv, RopePolicy P>
struct QkvHead {
  const QkvRopeArgs& a;
  HeadPart<P> part;
  int kind;            // 0: q, 1: k, 2: v; -1: beyond the last head, along for the shuffles
  int of_kind;         // its number there
  float weight[P.chunks][2 * P.vec];
  X* out;              // of token 0; null: the cache takes it

  __device__ __forceinline__ QkvHead(const QkvRopeArgs& args, int head, int lane, int R)
      : a(args),
        part(lane, args.D, R, args.style),
        kind(head < a.Hq               ? 0
             : head < a.Hq + a.Hkv     ? 1
             : head < a.Hq + 2 * a.Hkv ? 2
                                       : -1),
        of_kind(head - (kind == 0   ? 0
                        : kind == 1 ? a.Hq
                                    : a.Hq + a.Hkv)),
        out(static_cast<X*>(kind == 0   ? a.q
                            : kind == 1 ? a.k_out
                                        : a.v_out)) {
    if (out != nullptr) out += int64_t{of_kind} * a.D;
  }

  __device__ __forceinline__ const void* norm() const { return kind == 0 ? a.q_norm : kind == 1 ? a.k_norm : nullptr; }
  __device__ __forceinline__ void ask_weight() {
    if (norm() != nullptr)
      part.load_weights(norm(), kind == 0 ? a.q_norm_dtype : a.k_norm_dtype, a.norm_plus_one ? 1.0f : 0.0f, weight);
  }

  /// Token t, of which this thread has `raw`. All lanes of a warp take part.
  __device__ __forceinline__ void go(const typename HeadPart<P>::template Raw<X>& raw, const RopeAngles<P>& angles,
                                     int lane, int t) {
    float h[P.chunks][2 * P.vec];
    part.upcast(raw, h);
    if (a.q_norm != nullptr || a.k_norm != nullptr) {
      const float inverse = part.inverse_rms(h, a.D, a.eps);
      if (norm() != nullptr) part.scale(h, inverse, weight);
    }
    if (kind < 0) return;
    if (kind != 2 && part.rotates[0]) {  // chunks of a head that do not turn have no sines
      part.take_angles(angles, lane);
      part.rotate(h);
    }
    if (out != nullptr) {
      part.store_head(out + t * (kind == 0 ? a.q_stride : kind == 1 ? a.k_stride : a.v_stride), h);
      return;
    }
    const KvCache::Place place = a.cache.place(a.cache.slot ? a.cache.slot[t] : 0, a.pos[t]);
    if (place.block < 0) return;
    Kv* cache = static_cast<Kv*>(kind == 1 ? a.cache.k : a.cache.v);
    part.store_head(cache + a.cache.element(place, kind == 1 ? a.cache.k_stride : a.cache.v_stride) +
                        of_kind * a.cache.head_pitch(),
                    h);
  }
};

/// Grid: ceil(T / P.tokens) * P.blocks(Hq + 2 Hkv) blocks. Shared memory: the block's share of P.tokens tokens and
/// their sines.
template <class X, class Kv, RopePolicy P>
__device__ __forceinline__ void qkv_rope_ahead(const QkvRopeArgs& a) {
  static_assert(sizeof(X) == 2 && P.vec == 8 && P.access == 8 && P.chunks == 1 && P.heads == 1);
  __shared__ Vec<X, P.vec> stage[P.tokens][2][P.threads];
  __shared__ RopeAngles<P> angles[P.tokens];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % P.lanes, R = a.inv_freq ? a.R : 0,
            blocks = P.blocks(a.Hq + 2 * a.Hkv);
  const int number = static_cast<int>(blockIdx.x % blocks) * P.slots() + tid / P.lanes;
  QkvHead<X, Kv, P> head(a, number, lane, R);
  const int first = static_cast<int>(blockIdx.x / blocks) * P.tokens;
  // Teams of threads make the sines, one of each pair; a team has every so many tokens.
  constexpr int kTeams = P.threads / P.pairs(), kOwn = (P.tokens + kTeams - 1) / kTeams;
  static_assert(kTeams >= 1);
  const int pair = tid % P.pairs(), team = tid / P.pairs();
  ptx::dependency_wait();
  ptx::launch_dependents();
  // All that waits for memory is asked for before any of it is used; tokens that the device says are not there, too.
  int pos[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k)
    pos[k] = a.pos != nullptr && team + k * kTeams < P.tokens ? a.pos[min(first + team + k * kTeams, a.T - 1)] : 0;
  const float frequency = pair < R ? a.inv_freq[pair] : 0.0f;
  const X* from = static_cast<const X*>(a.qkv) + int64_t{first} * a.qkv_stride + int64_t{number} * a.D;
#pragma unroll
  for (int n = 0; n < P.tokens; ++n) {
    const bool there = head.kind >= 0 && first + n < a.T;
    if (there && head.part.a[0] >= 0) ptx::copy16(&stage[n][0][tid], from + n * a.qkv_stride + head.part.a[0], true);
    if (there && head.part.b[0] >= 0) ptx::copy16(&stage[n][1][tid], from + n * a.qkv_stride + head.part.b[0], true);
    ptx::copy_commit();
  }
  const int valid = valid_rows(a.rows, a.T);
  if (pair < R)
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      if (team + k * kTeams < P.tokens)
        angles[team + k * kTeams].put(pair, __fmul_rn(static_cast<float>(pos[k]), frequency), a.attn_factor);
  head.ask_weight();
  __syncthreads();
#pragma unroll 1
  for (int n = 0; n < P.tokens && first + n < valid; ++n) {
    ptx::copy_wait<P.tokens - 1>();
    typename HeadPart<P>::template Raw<X> raw{};
    if (head.part.a[0] >= 0) raw.lo[0] = stage[n][0][tid];  // what this thread has copied: no barrier
    if (head.part.b[0] >= 0) raw.hi[0] = stage[n][1][tid];
    head.go(raw, angles[n], lane, first + n);
    ptx::copy_commit();  // an empty group: the next wait is for the next token
  }
}

}  // namespace vivace::kernels
