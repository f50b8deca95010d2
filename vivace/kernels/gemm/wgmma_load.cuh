// Where a block of gemm_wgmma works, and the warp that fills its ring: by TMA, or element by element.
#pragma once
#include "vivace/kernels/gemm/fragment.cuh"
#include "vivace/kernels/gemm/gemm.h"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/tma.cuh"
#include "vivace/kernels/ptx/tma_heads.cuh"
#include "vivace/kernels/tile/pipeline.cuh"

namespace vivace::kernels {

/// The ring of a block: a stage is a step of K of its rows of W and of its tokens of x.
template <GemmWgmma P>
using WgmmaRing = Pipeline<P.stages>;

/// Where a block works: its tiles, its part of K, its place in the cluster.
template <class T, GemmWgmma P>
struct WgmmaTileCoord {
  static constexpr int kStep = 128 / sizeof(T);  // elements of K a stage
  int part, of_x, of_w;                          // rank in the cluster along split, multicast_x, multicast_w
  int tiles_t, tiles_n, first_step, steps, all_steps;

  __device__ __forceinline__ explicit WgmmaTileCoord(const GemmArgs& a) {
    const int rank = ptx::cluster_rank<P.cluster()>(), all = (a.K + kStep - 1) / kStep;
    all_steps = all;
    part = rank / (P.multicast_x * P.multicast_w), of_x = rank % P.multicast_x,
    of_w = rank / P.multicast_x % P.multicast_w;
    tiles_t = (a.T + P.tokens * P.multicast_w - 1) / (P.tokens * P.multicast_w);
    tiles_n = (a.N + P.rows * P.multicast_x - 1) / (P.rows * P.multicast_x);
    first_step = cut(part * P.splits_per_block);
    steps = cut((part + 1) * P.splits_per_block) - first_step;
    if constexpr (P.held) steps = (steps + 1) / 2 * 2;  // in pairs; the last may lie behind K, where x is zero
  }
  /// The blocks that this one's stages come from and that it sends to: the i-th of multicast_x + multicast_w - 1,
  /// itself among them.
  __device__ __forceinline__ int peer(int i) const {
    const int same_part = part * P.multicast_x * P.multicast_w;
    return i < P.multicast_x ? same_part + of_w * P.multicast_x + i
                             : same_part + (i - P.multicast_x + (i - P.multicast_x >= of_w)) * P.multicast_x + of_x;
  }
  /// The first step of a part of K.
  __device__ __forceinline__ int cut(int i) const { return static_cast<int>(int64_t{all_steps} * i / P.split); }
  __device__ __forceinline__ int tiles() const { return tiles_t * tiles_n; }
  /// First token and row of tile i. Bands of 2048 tokens, in a band along tokens first, so that clusters
  /// that run together share x and W in L2.
  __device__ __forceinline__ void tile(int i, int* t0, int* n0) const {
    constexpr int kBand = 2048 / (P.tokens * P.multicast_w);
    const int whole = kBand * tiles_n, band = i / whole, left = i - band * whole,
              width = min(kBand, tiles_t - band * kBand);
    *t0 = ((band * kBand + left % width) * P.multicast_w + of_w) * P.tokens;
    *n0 = (left / width * P.multicast_x + of_x) * P.rows;
  }
  /// Steps of a block's first tile whose weights are on their way before the number of valid tokens is known.
  __device__ __forceinline__ int ahead() const { return P.aligned && !P.held ? min(P.stages, steps) : 0; }
  /// Leaves out tiles of no valid token, once M is known. A cluster keeps its first tile, *i of the first `stride`, if
  /// that has valid tokens; else (false) it only takes what is on its way, and then its turn among those that are left.
  __device__ __forceinline__ bool narrow(int M, int stride, int* i) {
    const int valid = min((M + P.tokens * P.multicast_w - 1) / (P.tokens * P.multicast_w), tiles_t);
    if (valid == tiles_t) return true;
    constexpr int kBand = 2048 / (P.tokens * P.multicast_w);
    bool in = false;
    const auto before = [&](int at) {  // valid tiles before tile `at`
      const int whole = kBand * tiles_n, band = at / whole, left = at - band * whole,
                width = max(min(kBand, tiles_t - band * kBand), 1), some = max(min(valid - band * kBand, width), 0);
      in = left % width < some;
      return min(band * kBand, valid) * tiles_n + left / width * some + min(left % width, some);
    };
    const int all = before(stride), mine = before(*i);
    *i = in ? mine : all + *i - mine;
    tiles_t = valid;
    return in;
  }
};

/// Bytes of a token's outputs that a warpgroup has.
template <class Out, GemmWgmma P>
__device__ constexpr int wgmma_row_bytes() { return (P.has(kEpilogueGated) ? 32 : 64) * sizeof(Out); }
/// Whether outputs of a tile's first half leave by a slot of the ring (GemmWgmma::staged).
template <class Out, GemmWgmma P>
__device__ constexpr bool wgmma_borrows() {
  return P.staged > 0 && P.staged * 128 < P.tokens * wgmma_row_bytes<Out, P>();
}

/// The producer thread. Args: GemmWgmmaArgs, or what has the maps that P asks for.
template <class T, class Out, GemmWgmma P, class Args>
__device__ __forceinline__ void wgmma_load(const Args& args, WgmmaTileCoord<T, P> coord, uint32_t base,
                                           const WgmmaRing<P>& ring) {
  constexpr int kWRows = P.rows / P.multicast_w, kXRows = P.tokens / P.multicast_x,
                kShared = P.multicast_x * P.multicast_w;
  const int stride = static_cast<int>(gridDim.x) / P.cluster();
  const uint64_t policy_w = ptx::evict_first(),
                 policy_x =
                     ptx::evict_last();  // x is read by all blocks: 968 tokens, 2048 x 2048 13.6 us for 15.3 without
  const int same_part = coord.part * kShared;
  constexpr bool kBlocks =
      P.epilogue != kEpilogueAny && (P.has(kEpilogueGated) || sizeof(Out) == 1);  // even rows before odd ones
  static_assert(!P.by_column || (sizeof(T) == 2 && P.aligned && !kBlocks));
  constexpr bool kHeads = P.has(kEpilogueRope);  // halves of heads side by side
  static_assert(!kHeads || (!kBlocks && !P.by_column && kShared == 1));
  [[maybe_unused]] int head = 0, block = 0;  // of the tile
  const auto at_tile = [&](int n0) {
    if constexpr (kHeads) head = n0 / args.heads.D, block = (n0 - head * args.heads.D) / 16;
  };
  const auto load_w = [&](int stage, int step, int n0) {
    const uint32_t to = base + stage * P.stage_bytes() + coord.of_w * kWRows * 128;
    const int k = (coord.first_step + step) * coord.kStep, n = n0 + coord.of_w * kWRows;
    int mask = 0;
#pragma unroll
    for (int i = 0; i < P.multicast_w; ++i) mask |= 1 << (i * P.multicast_x);
    const uint16_t blocks = static_cast<uint16_t>(mask << (same_part + coord.of_x));
    if constexpr (P.by_column) {  // of each warpgroup's 64 rows of W a part of the step's K
      constexpr int kDeep = WgmmaTileCoord<T, P>::kStep / P.multicast_w;
#pragma unroll
      for (int g = 0; g < P.groups(); ++g) {
        const uint32_t part = base + stage * P.stage_bytes() + (g * 64 + coord.of_w * kDeep) * 128;
        if constexpr (P.multicast_w > 1)
          ptx::tma_load_multicast(part, args.w_map, ring.full(stage), n0 + g * 64, k + coord.of_w * kDeep, policy_w,
                                  blocks);
        else ptx::tma_load(part, args.w_map, ring.full(stage), n0 + g * 64, k, policy_w);
      }
    } else if constexpr (P.multicast_w > 1) {
      if constexpr (kBlocks)
        ptx::tma_load_blocks_multicast(to, args.w_map, ring.full(stage), k, n / 16, policy_w, blocks);
      else ptx::tma_load_multicast(to, args.w_map, ring.full(stage), k, n, policy_w, blocks);
    } else if constexpr (kHeads) {
      ptx::tma_load_halves(to, args.w_map, ring.full(stage), k, block, head, policy_w);
    } else if constexpr (kBlocks) {
      ptx::tma_load_blocks(to, args.w_map, ring.full(stage), k, n / 16, policy_w);
    } else {
      ptx::tma_load(to, args.w_map, ring.full(stage), k, n, policy_w);
    }
  };
  const auto load_x = [&](int stage, int step, int t0) {
    if constexpr (P.panel == 0) {
      const uint32_t to = base + stage * P.stage_bytes() + ((P.held ? 0 : P.rows) + coord.of_x * kXRows) * 128;
      const int k = (coord.first_step + step) * coord.kStep, t = t0 + coord.of_x * kXRows;
      if constexpr (P.multicast_x > 1)
        ptx::tma_load_multicast(
            to, args.x_map, ring.full(stage), k, t, policy_x,
            static_cast<uint16_t>(((1 << P.multicast_x) - 1) << (same_part + coord.of_w * P.multicast_x)));
      else
        ptx::tma_load(to, args.x_map, ring.full(stage), k, t, policy_x);
    }
  };

  const auto load_residual = [&](uint32_t to, uint32_t barrier, int n, int t, int count) {
    constexpr int kBox = P.staged > 0 ? P.out_box() : P.tokens;
    if constexpr (P.has(kEpilogueResidual) && !P.direct())
      for (int i = 0; i < count; i += kBox) ptx::tma_load(to + i * 128, args.residual_map, barrier, n, t + i, policy_x);
  };

  // W is immutable: it is on its way while the predecessor still runs.
  int i = static_cast<int>(blockIdx.x) / P.cluster(), t0, n0, ahead = coord.ahead();
  coord.tile(i, &t0, &n0);
  at_tile(n0);
  for (int k = 0; k < ahead; ++k) {
    ring.producer_expect(k, P.stage_bytes());
    load_w(k, k, n0);
  }
  ptx::touch_parameters(args);
  ptx::dependency_wait();
  ProducerState<P.stages> at;
  const auto advance = [&] { at.advance(); };  // named here: ptxas gives e4m3 kernels other code without
  bool next = args.g.rows != nullptr && !coord.narrow(valid_rows(args.g.rows, args.g.T), stride, &i);
  if (next)
    for (int k = 0; ahead > 0; ++k, --ahead, advance()) load_x(at.stage, k, t0);
  for (; i < coord.tiles(); i += stride, next = true) {
    if (next) coord.tile(i, &t0, &n0), at_tile(n0);
    int k = 0;
    for (; ahead > 0; ++k, --ahead, advance()) load_x(at.stage, k, t0);
    for (; k < coord.steps; ++k, advance()) {
      ring.producer_acquire(at);
      ring.producer_expect(at.stage, P.stage_bytes());
      if constexpr (!P.held) load_w(at.stage, k, n0);
      load_x(at.stage, k, t0);
    }
    if constexpr (P.direct()) continue;
    constexpr bool kResidual = P.has(kEpilogueResidual);
    if constexpr (wgmma_borrows<Out, P>()) {  // a stage for the first half's outputs, with its residual; then one with
                                              // the second's
      for (int half = 0; half < (kResidual ? 2 : 1); ++half) {
        const int first = half * (P.tokens - P.second()), count = half == 0 ? P.tokens - P.second() : P.second();
        ring.producer_acquire(at);
        if constexpr (kResidual) {
          ring.producer_expect(at.stage, P.groups() * count * 128);
          for (int g = 0; g < P.groups(); ++g)
            load_residual(base + at.stage * P.stage_bytes() + g * count * 128, ring.full(at.stage), n0 + g * 64,
                          t0 + first, count);
        } else {
          ring.producer_commit(at.stage);
        }
        advance();
      }
    } else if constexpr (kResidual) {  // a stage a warpgroup, read when the sums are done
      for (int g = 0; g < P.groups(); ++g) {
        ring.producer_acquire(at);
        ring.producer_expect(at.stage, P.tokens * 128);
        load_residual(base + at.stage * P.stage_bytes(), ring.full(at.stage), n0 + g * 64, t0, P.tokens);
        advance();
      }
    }
  }
  // Every stage is free again: all arrivals of the cluster's other blocks are in. One on its way to a block that has
  // ended is a launch failure, and a relaxed barrier of the cluster at the end would not wait for it.
  if constexpr (kShared > 1)
    for (int i = 0; i < P.stages; ++i, advance()) ring.producer_acquire(at);
}

/// The producer warp where rows are not aligned for TMA: element by element, the same stages.
template <class T, GemmWgmma P>
__device__ __forceinline__ void wgmma_fill(const GemmArgs& a, WgmmaTileCoord<T, P> coord, uint4* stages,
                                           const WgmmaRing<P>& ring) {
  static_assert(P.aligned || P.multicast_x * P.multicast_w == 1);
  constexpr int kElems = 16 / sizeof(T);
  ptx::dependency_wait();
  const int M = valid_rows(a.rows, a.T), lane = threadIdx.x % 32;
  const int stride = static_cast<int>(gridDim.x) / P.cluster();
  ProducerState<P.stages> ring_at;
  int i = static_cast<int>(blockIdx.x) / P.cluster();
  for (coord.narrow(M, stride, &i); i < coord.tiles(); i += stride) {
    int t0, n0;
    coord.tile(i, &t0, &n0);
    for (int step = 0; step < coord.steps; ++step) {
      ring.producer_acquire(ring_at);
      for (int j = lane; j < (P.rows + P.tokens) * 8; j += 32) {
        const int row = j / 8, word = j % 8;
        const bool is_w = row < P.rows;
        const int64_t at = is_w ? n0 + row : t0 + row - P.rows,
                      k = int64_t{coord.first_step + step} * coord.kStep + word * kElems;
        const T* from =
            is_w ? static_cast<const T*>(a.w) + at * a.w_stride : static_cast<const T*>(a.x) + at * a.x_stride;
        fetch16<T, false>(stages + ring_at.stage * (P.stage_bytes() / 16) + row * 8 + (word ^ (row % 8)), from, k, a.K,
                          at < (is_w ? a.N : M));
      }
      ptx::tensor_fence();  // ordinary stores, for the tensor core
      __syncwarp();
      if (lane == 0) ring.producer_commit(ring_at.stage);
      ring_at.advance();
    }
  }
}

}  // namespace vivace::kernels
