// gemm on Hopper: TMA, wgmma, warp-specialized, persistent. Limit: memory bandwidth for few tokens
// (N * K * sizeof(W) bytes), 2 T N K flop for many.
//
// Swap-AB: W is the 64-row operand and tokens are the columns, so one kernel serves tiles of 8 to 256 tokens and
// a token's sum is the same in all of them. One producer warp loads tiles by TMA, consumer warpgroups multiply. A
// pipeline stage holds 128 bytes of K of the tile's rows and tokens. e4m3 MMA keeps fewer bits of a sum inside
// the tensor core than f32 has, so with P.promote every stage's sum leaves it and is added in f32.
// Chosen when: Hopper, equal 16-bit or e4m3 operands, or f32 as tf32; any number of tokens.
#pragma once
#include "vivace/kernels/gemm/wgmma_epilogue.cuh"
#include "vivace/kernels/gemm/wgmma_heads.cuh"
#include "vivace/kernels/gemm/wgmma_load.cuh"
#include "vivace/kernels/gemm/wgmma_merge.cuh"
#include "vivace/kernels/gemm/wgmma_store.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"

namespace vivace::kernels {

extern __shared__ __align__(1024) unsigned char gemm_wgmma_smem[];

/// The barrier at which the warps that make x's panel arrive: behind those of the ring and of the merged sums.
template <GemmWgmma P>
__device__ __forceinline__ uint32_t wgmma_panel_full(const WgmmaRing<P>& ring) {
  return ring.barriers + 16 * P.stages + 8;
}

/// A consumer warpgroup's part of one tile: acc (as Wgmma says) = its 64 rows x the tokens.
template <class T, GemmWgmma P>
struct WgmmaPipeline {
  static constexpr int kPeers =
      P.multicast_x + P.multicast_w - 1;  // blocks that this one's stages come from, itself among them
  uint32_t base;                          // of the stages: [P.rows of W, then P.tokens of x][128 bytes of K], swizzled
  WgmmaRing<P> ring;
  uint32_t w_address, x_address;  // of the first stage, as the tensor core counts
  int lane, group, to;  // `to`: the block at whose barrier this lane arrives, of the first kPeers lanes
  ConsumerState<P.stages> at;
  int step = 0;   // of the tile's K, where x has a panel
  int last = -1;  // the stage whose products may still be on their way

  __device__ __forceinline__ WgmmaPipeline(const WgmmaTileCoord<T, P>& coord, uint32_t base_, const WgmmaRing<P>& ring_)
      : base(base_), ring(ring_), lane(threadIdx.x % 32), group(P.groups() == 1 ? 0 : ptx::warp_of_block() / 4) {
    w_address = ptx::wgmma_address(base + group * 64 * 128),
    x_address = ptx::wgmma_address(P.panel > 0 ? base - P.panel_bytes() : base + P.rows * 128);
    to = coord.peer(lane);
  }
  __device__ __forceinline__ void release(int stage) const {
    if (lane < kPeers) {
      if constexpr (kPeers > 1) ring.consumer_release(stage, to);
      else ring.consumer_release(stage);
    }
  }
  __device__ __forceinline__ void advance() {
    at.advance();
    if constexpr (P.panel > 0) ++step;
  }
  __device__ __forceinline__ void multiply_stage(float (&d)[P.tokens / 2], bool add) const {
    const uint32_t w = w_address + at.stage * (P.stage_bytes() / 16),
                   x = x_address + (P.panel > 0 ? step * (P.panel_rows * 8) : at.stage * (P.stage_bytes() / 16));
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      ptx::Wgmma<T, P.tokens, P.by_column>::run(d, ptx::wgmma_tile(w, k * (P.by_column ? 16 * 128 : 32)),
                                                ptx::wgmma_tile(x, k * 32), add || k > 0);
    ptx::wgmma_commit();
  }
  /// Until the stage has come; where it lies.
  __device__ __forceinline__ uint32_t wait() const {
    ring.consumer_wait(at);
    return base + at.stage * P.stage_bytes();
  }
  /// All of a tile's K that this block has.
  __device__ __forceinline__ void multiply_tile(const WgmmaTileCoord<T, P>& coord, float (&acc)[P.tokens / 2]) {
    static_assert(P.splits_per_block == 1 || (P.splits_per_block == 2 && P.split % 2 == 0));
    if constexpr (P.panel > 0) step = 0, ptx::mbarrier_wait<false>(wgmma_panel_full<P>(ring), 0);
    clear(acc);
    if constexpr (P.splits_per_block == 1) {
      multiply(coord.steps, acc);
      return finish(acc);
    }
    const int first = coord.cut(coord.part * P.splits_per_block + 1) - coord.first_step;
    float more[P.tokens / 2];
    constexpr bool kBehind =
        !P.promote && P.tokens <= 64;  // the second part's products follow the first's, which may still be on their way
    if constexpr (kBehind) clear(more);
    multiply(first, acc);
    if constexpr (!kBehind) finish(acc), clear(more);
    multiply(coord.steps - first, more);
    finish(more);
    if constexpr (kBehind) finish(acc);
#pragma unroll
    for (int j = 0; j < P.tokens / 2; ++j) acc[j] += more[j];
  }
  __device__ __forceinline__ static void clear(float (&acc)[P.tokens / 2]) {
#pragma unroll
    for (int j = 0; j < P.tokens / 2; ++j) {
      acc[j] = 0.0f;
      if constexpr (P.splits_per_block > 1 && !P.promote && P.tokens <= 64)
        asm volatile("" : "+f"(acc[j]));  // while no product is on its way
    }
  }
  /// Waits for what multiply() has left on its way.
  __device__ __forceinline__ void finish(float (&acc)[P.tokens / 2]) {
    if constexpr (P.promote) return;
    ptx::wgmma_wait<0>(acc);
    if (last >= 0) release(last);
    last = -1;
  }
  /// Adds products of the next `steps` stages; the last one's may be on their way still, where sums stay in the tensor
  /// core.
  __device__ __forceinline__ void multiply(int steps, float (&acc)[P.tokens / 2]) {
    constexpr bool kRoom = P.tokens <= (P.split == 1 && (P.rows == 128 || (P.rows == 64 && P.epilogue != kEpilogueAny))
                                            ? 128
                                            : 64);  // registers for a third set of sums
    if constexpr (P.promote && kRoom) {  // two stages' sums take turns: one is added while the next is on its way
      float even[P.tokens / 2], odd[P.tokens / 2];
      int even_stage = at.stage, odd_stage = at.stage;
      const auto begin = [&](float(&part)[P.tokens / 2], int& stage) {
        ring.consumer_wait(at);
        multiply_stage(part, false);
        stage = at.stage;
        advance();
      };
      const auto add = [&](const float(&part)[P.tokens / 2], int stage) {
        release(stage);
#pragma unroll
        for (int j = 0; j < P.tokens / 2; ++j) acc[j] += part[j];
      };
      if (steps == 0) return;
      begin(even, even_stage);
      int k = 0;
      for (; k + 2 < steps; k += 2) {
        begin(odd, odd_stage);
        ptx::wgmma_wait<1>(even);
        add(even, even_stage);
        begin(even, even_stage);
        ptx::wgmma_wait<1>(odd);
        add(odd, odd_stage);
      }
      if (k + 1 < steps) {
        begin(odd, odd_stage);
        ptx::wgmma_wait<1>(even);
        add(even, even_stage);
        ptx::wgmma_wait<0>(odd);
        add(odd, odd_stage);
      } else {
        ptx::wgmma_wait<0>(even);
        add(even, even_stage);
      }
    } else if constexpr (P.promote) {
      for (int k = 0; k < steps; ++k, advance()) {
        ring.consumer_wait(at);
        float part[P.tokens / 2];
        multiply_stage(part, false);
        ptx::wgmma_wait<0>(part);
        release(at.stage);
#pragma unroll
        for (int j = 0; j < P.tokens / 2; ++j) acc[j] += part[j];
      }
    } else {
      for (int k = 0; k < steps; ++k, advance()) {
        ring.consumer_wait(at);
        multiply_stage(acc, true);
        ptx::wgmma_wait<1>();  // the stage before this one has been read
        if (last >= 0) release(last);
        last = at.stage;
      }
    }
  }
};

/// What a consumer warpgroup does with whole sums, and where it does it: by any way that serves P.epilogue.
/// args: what has the parts of the epilogue that P asks for beside `a`.
/// Products: WgmmaPipeline, or what has the same for W in registers. sums: what lies behind the ring and its barriers.
template <class T, class Out, GemmWgmma P, class Args, class Products>
__device__ __forceinline__ void wgmma_consume(const GemmArgs& a, const Args& args, WgmmaTileCoord<T, P> coord,
                                              Products& pipeline, unsigned char* sums, uint32_t merged) {
  constexpr bool kParts = P.parts() > 1, kShared = P.multicast_x * P.multicast_w > 1,
                 kFast = P.epilogue != kEpilogueAny, kDirect = kFast && P.direct(),
                 kGated = kDirect && P.has(kEpilogueGated), kNext = P.has(kEpilogueNext),
                 kRope = P.has(kEpilogueRope), kPlain = kDirect && !kGated && !kRope;
  using Merge = WgmmaMerge<P>;
  constexpr int kPieces = kParts ? (Merge::kItems + 2 * P.rows - 1) / (2 * P.rows) : 2,
                kPairs = kParts    ? Merge::kVec / 2
                         : kDirect ? P.tokens / 8
                                   : 1;                                // of a lane
  constexpr int kStaged = P.tokens >= 32 ? P.rows * P.tokens * 4 : 0;  // bytes of the ring that TMA sends parts from
  static_assert(!kParts || kStaged + (kDirect ? 0 : P.tokens * P.transpose_stride() * 4) <= P.stages * P.stage_bytes(),
                "the ring holds the merged sums");
  static_assert(!kDirect || sizeof(Out) == 2 || kGated);
  static_assert(!kNext || (kDirect && sizeof(Out) == 2 && !kGated && kRmsColumns == 8), "a piece has eight columns");
  static_assert(!kRope || (kDirect && kParts && P.has(kEpilogueTokenNorms) && !kGated && !kNext &&
                           P.activation() == Activation::none && !P.has(kEpilogueGate) && !P.has(kEpilogueResidual)),
                "a block has one tile");
  static_assert(!kGated || (!P.has(kEpilogueGate) && !P.has(kEpilogueResidual) && (!kParts || Merge::kUnits % 2 == 0)));
  const int tid = static_cast<int>(threadIdx.x), stride = static_cast<int>(gridDim.x) / P.cluster();
  int i = static_cast<int>(blockIdx.x) / P.cluster(), t0, n0;
  coord.tile(i, &t0, &n0);
  asm volatile("" : "+r"(t0), "+r"(n0));  // divisions are done before the wait
  const auto rows_of_warp = [&] { return n0 + pipeline.group * 64 + tid / 32 % 4 * 16; };
  const auto item = [&](int p, int* t, int* n) {  // a piece's first token and row
    if constexpr (kParts) {
      const int at = (tid + p * 2 * P.rows) / 32;
      *t = t0 + at % Merge::kPieces * kPairs * 8, *n = n0 + coord.part * P.slice() + at / Merge::kPieces * 8;
      return Merge::kItems % (2 * P.rows) == 0 || at < Merge::kItems / 32;
    } else {
      *t = t0, *n = rows_of_warp() + 8 * p;
      return true;
    }
  };
  WgmmaPiece<Out, P, kPairs> piece[kPieces];
  constexpr int kWarps = P.rows / 16, kBoth = kGated && kParts ? (Merge::kItems / 64 + kWarps - 1) / kWarps
                                                               : 1;  // gates and their ups, of a lane
  const auto both_at = [&](int g, int* t, int* n,
                           int* unit) {  // its first token and row of W; its piece of its unit of gates
    const int at = tid / 32 + g * kWarps;
    *t = t0 + at % Merge::kPieces * kPairs * 8, *n = n0 + coord.part * P.slice() + at / Merge::kPieces * 16,
    *unit = at / Merge::kPieces * 2 * Merge::kPieces + at % Merge::kPieces;
    return Merge::kItems / 64 % kWarps == 0 || at < Merge::kItems / 64;
  };
  WgmmaGatedPiece<Out, P, kPairs> both[kBoth];
  WgmmaNextPiece<Out, kPairs, P.has(kEpilogueNextFp8)> then[kPieces];
  [[maybe_unused]] auto turned = [] {
    if constexpr (kRope) return WgmmaHeads<Out, P>();
    else return 0;
  }();
  if constexpr (kRope) turned.aim(a, args.heads, t0, n0, coord.part);
  const auto aim = [&] {
    if constexpr (kPlain) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        int t, n;
        item(p, &t, &n);
        piece[p].aim(a, t, n);
        if constexpr (kNext) then[p].aim(args.next, t, n, a.N);
      }
    }
  };
  aim();
  if constexpr (kParts && !kShared) ptx::cluster_wait<P.cluster()>();  // the others run, and their barriers are made
  ptx::touch_parameters(a);
  ptx::dependency_wait();
  // What follows the wait delays the product: rows are narrowed only where somebody counts them.
  const bool counted = a.rows != nullptr;
  const int M = counted ? valid_rows(a.rows, a.T) : a.T;
  const GemmEpilogue<Out> epilogue(a);  // of what decides at run time
  const bool vector = epilogue.template wide<4>();
  WgmmaEpilogue<Out, P> out(a);
  float next_scale = 1.0f;
  if constexpr (P.has(kEpilogueNextFp8)) next_scale = *args.next.scaled_scale;
  int before = 1;  // parity of the tile before
  bool normed = !P.has(kEpilogueTokenNorms);
  bool next = counted && !coord.narrow(M, stride, &i);
  if (next) {
    if constexpr (P.held) pipeline.skip();
    for (int k = coord.ahead(); k > 0; --k, pipeline.advance()) pipeline.wait(), pipeline.release(pipeline.at.stage);
    if constexpr (kParts && kStaged > 0) __syncwarp(), ptx::cluster_arrive<P.cluster()>();
  }
  for (; i < coord.tiles(); i += stride, next = true) {
    if (next) coord.tile(i, &t0, &n0), aim();
    const int rows0 = n0 + pipeline.group * 64;  // of this warpgroup
    if constexpr (kFast && !kDirect) out.load_rows(rows0);
    if constexpr (kGated) {
#pragma unroll
      for (int g = 0; g < kBoth; ++g) {
        int t, n = rows_of_warp(), unit;
        if constexpr (kParts) both_at(g, &t, &n, &unit);
        both[g].prefetch(a, n);
      }
    } else if constexpr (kRope) {
      turned.prefetch(a, args.heads);
    } else if constexpr (kDirect) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        int t, n;
        if (item(p, &t, &n)) piece[p].prefetch(a, t, n, M);
        if constexpr (kNext) item(p, &t, &n), then[p].prefetch(args.next, n, a.N);
      }
    }
    float acc[P.tokens / 2];
    if constexpr (P.held) pipeline.aim(rows0);
    pipeline.multiply_tile(coord, acc);
    if constexpr (kFast) out.ready();
    if constexpr (P.has(kEpilogueTokenNorms)) {
      if (!normed) await_token_norms<P>();
      normed = true;
    }
    if constexpr (kParts) {
      if constexpr (kStaged > 0) {
        if constexpr (!P.apart()) ptx::named_barrier<2 * P.rows>(1);  // nobody of this block reads the ring any more
        float* const places = reinterpret_cast<float*>(sums);
        Merge::send_staged(places, merged,
                           P.apart() ? places + P.rows * P.tokens : reinterpret_cast<float*>(gemm_wgmma_smem), coord,
                           acc);
      } else {
        Merge::send(ptx::shared_address(sums), merged, coord, acc);
      }
      // While the parts are on their way.
      if constexpr (kPlain) {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          int t, n;
          if (item(p, &t, &n)) piece[p].prepare();
        }
      }
      const float* const parts = reinterpret_cast<const float*>(sums);
      if constexpr (kDirect) {
        ptx::mbarrier_wait<kStaged == 0>(merged, 0);  // what TMA brings is seen without emptying L1
        if constexpr (kStaged > 0)
          __syncwarp(), ptx::cluster_arrive<P.cluster()>();  // what this block has been sent, is here
      }
      if constexpr (kGated) {
#pragma unroll
        for (int g = 0; g < kBoth; ++g) {
          int t, n, unit;
          if (!both_at(g, &t, &n, &unit)) continue;
          float y[2][Merge::kVec];
#pragma unroll
          for (int h = 0; h < 2; ++h) Merge::sum(parts, (unit + h * Merge::kPieces) * 32 + tid % 32, y[h]);
          both[g].finish(out, t, n, M, [&](int h, int i, int e) { return y[h][2 * i + e]; });
        }
      } else if constexpr (kRope) {
        turned.finish(a, args.heads, out.scale, M, parts);
      } else if constexpr (kDirect) {
        // All pieces side by side: one after the other each would wait for its own results.
        float y[kPieces][Merge::kVec];
        uint32_t word[kPieces][kPairs] = {};
        int t, n;
#pragma unroll
        for (int p = 0; p < kPieces; ++p)
          if (item(p, &t, &n)) Merge::sum(parts, tid + p * 2 * P.rows, y[p]);
#pragma unroll
        for (int p = 0; p < kPieces; ++p)
          if (item(p, &t, &n)) piece[p].words(a, out.scale, t, M, y[p], word[p]);
#pragma unroll
        for (int p = 0; p < kPieces; ++p)
          if (item(p, &t, &n)) piece[p].turn(word[p]);
#pragma unroll
        for (int p = 0; p < kPieces; ++p)
          if (item(p, &t, &n)) piece[p].store(a, t, n, M, word[p]);
        if constexpr (kNext) {
          int count[kPieces];
#pragma unroll
          for (int p = 0; p < kPieces; ++p) count[p] = item(p, &t, &n) && n < a.N ? M - t : 0;
          then[0].leave(args.next, next_scale, then, count, word);
        }
      } else {
        ptx::named_barrier<2 * P.rows>(1);
        ptx::mbarrier_wait<true>(merged, 0);
        if constexpr (kStaged > 0) __syncwarp(), ptx::cluster_arrive<P.cluster()>();
        float* const turn = reinterpret_cast<float*>(gemm_wgmma_smem + kStaged);
        Merge::add(parts, turn);
        ptx::named_barrier<2 * P.rows>(1);
        epilogue_transposed<Out, P.tokens, P.slice(), 2 * P.rows, (P.tokens > 128 ? 2 : 4)>(
            epilogue, turn, P.transpose_stride(), tid, t0, n0 + coord.part * P.slice(), M, vector);
      }
    } else if constexpr (!kFast) {
      wgmma_epilogue<Out, P>(epilogue, reinterpret_cast<float*>(sums + pipeline.group * 2 * P.transpose_bytes()), acc,
                             t0, rows0, M, vector);
    } else if constexpr (kGated) {
      both[0].finish(out, t0, rows_of_warp(), M, [&](int h, int i, int e) { return acc[4 * i + 2 * h + e]; });
    } else if constexpr (kDirect) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        float y[P.tokens / 4];
#pragma unroll
        for (int j = 0; j < P.tokens / 4; ++j) y[j] = acc[j / 2 * 4 + 2 * p + j % 2];
        int t, n;
        item(p, &t, &n);
        piece[p].prepare();
        uint32_t word[1][kPairs];
        piece[p].words(a, out.scale, t, M, y, word[0]);
        piece[p].turn(word[0]);
        piece[p].store(a, t, n, M, word[0]);
        if constexpr (kNext) then[0].leave(args.next, next_scale, then + p, {n < a.N ? M - t : 0}, word);
      }
    } else if constexpr (P.staged > 0) {
      WgmmaTmaStore<T, Out, P>(sums - P.stages * (P.stage_bytes() + 16) - 16, merged)
          .leave(out, pipeline, acc, t0, rows0, M, before);
      before ^= 1;
    } else {
      uint32_t residual = 0;
      if constexpr (P.has(kEpilogueResidual)) {
        for (int g = 0; g < pipeline.group; ++g, pipeline.advance())
          pipeline.wait(), pipeline.release(pipeline.at.stage);
        residual = pipeline.wait();
      }
      out.run(sums + pipeline.group * 2 * P.transpose_bytes(), residual, acc, out.first(t0, rows0), t0, rows0, M);
      if constexpr (P.has(kEpilogueResidual)) {
        __syncwarp();
        pipeline.release(pipeline.at.stage), pipeline.advance();
        for (int g = pipeline.group + 1; g < P.groups(); ++g, pipeline.advance())
          pipeline.wait(), pipeline.release(pipeline.at.stage);
      }
    }
  }
}

template <class T, class Out, GemmWgmma P, class Products>
__device__ __forceinline__ void wgmma_consume(const GemmArgs& a, const WgmmaTileCoord<T, P>& coord,
                                              Products& pipeline, unsigned char* sums, uint32_t merged) {
  wgmma_consume<T, Out, P>(a, a, coord, pipeline, sums, merged);
}

/// A block's work. kPanelWarps: warps behind the loading one that call make(coord, ring) and arrive at
/// wgmma_panel_full() once each.
template <class T, class Out, GemmWgmma P, int kPanelWarps, class Args, class Make>
__device__ __forceinline__ void wgmma_block(const Args& args, Make&& make) {
  constexpr int C = P.cluster();
  constexpr bool kShared = P.multicast_x * P.multicast_w > 1, kStaged = P.parts() > 1 && P.tokens >= 32;
  static_assert((kPanelWarps > 0) == (P.panel > 0) && (kPanelWarps == 0 || (!kShared && P.aligned && !P.wide())));
  const GemmArgs& a = args.g;
  const int tid = static_cast<int>(threadIdx.x), warp = ptx::warp_of_block();
  const uint32_t base = ptx::shared_address(gemm_wgmma_smem) + P.panel_bytes(),
                 barriers = base + P.stages * P.stage_bytes() + P.staged_bytes(), merged = barriers + 16 * P.stages;
  const WgmmaRing<P> ring{barriers};
  unsigned char* const sums = gemm_wgmma_smem + P.panel_bytes() + P.stages * (P.stage_bytes() + 16) + 16;
  if (tid == 2 * P.rows) {
    if constexpr (P.aligned) {
      ptx::tma_prefetch(args.w_map);
      if constexpr (P.panel == 0) ptx::tma_prefetch(args.x_map);
    }
    ring.init(1, P.rows / 16 * WgmmaPipeline<T, P>::kPeers);  // the consumer warps of every block that is sent to
    if constexpr (P.parts() > 1) ptx::mbarrier_init(merged, 1);
    if constexpr (kPanelWarps > 0) ptx::mbarrier_init(wgmma_panel_full<P>(ring), kPanelWarps);
    if constexpr (P.staged > 0) {
      ptx::tma_prefetch(args.out_map);
      WgmmaTmaStore<T, Out, P>(gemm_wgmma_smem, merged).init();
    }
    ptx::mbarrier_fence();
    if constexpr (P.parts() > 1) ptx::mbarrier_expect(merged, WgmmaMerge<P>::kComing);
  }
  __syncthreads();
  if constexpr (C > 1) ptx::cluster_arrive<C>();
  if constexpr (kShared) ptx::cluster_wait<C>();  // before blocks write to each other
  ptx::launch_dependents();

  const WgmmaTileCoord<T, P> coord(a);
  if (warp >= P.rows / 16) {
    if constexpr (P.wide()) ptx::registers_down<P.groups() == 3 ? 56 : 40>();
    if (warp == P.rows / 16) {
      if constexpr (P.aligned) {
        if (ptx::elect_lane()) wgmma_load<T, Out, P>(args, coord, base, ring);
        __syncwarp();
      } else {
        wgmma_fill<T, P>(a, coord, reinterpret_cast<uint4*>(gemm_wgmma_smem), ring);
      }
    } else if constexpr (P.has(kEpilogueTokenNorms)) {
      ptx::touch_parameters(args.squares);
      ptx::dependency_wait();
      make_token_norms<P>(args.squares, a, tid - P.threads());
      token_norms_made<P>();
    } else if constexpr (kPanelWarps > 0) {
      make(coord, ring);
    } else if constexpr (P.staged > 0) {
      if (warp == P.rows / 16 + 1) WgmmaTmaStore<T, Out, P>(gemm_wgmma_smem, merged).run(args, coord, ring);
    }
    if constexpr (P.parts() > 1 && !kShared) ptx::cluster_wait<C>();
    if constexpr (kStaged) ptx::cluster_arrive<C>();
  } else {
    if constexpr (P.wide()) ptx::registers_up<P.groups() == 3 ? 152 : 232>();
    WgmmaPipeline<T, P> pipeline(coord, base, ring);
    wgmma_consume<T, Out, P>(a, args, coord, pipeline, sums, merged);
  }
  // A block stays until nobody reads its memory, here, or arrives at its barriers any more, which its producer thread
  // waits for.
  if constexpr (kStaged) ptx::cluster_wait<C>();
}

/// Grid: a multiple of P.cluster(), at most the tiles' blocks; exactly these where a cluster splits K.
template <class T, class Out, GemmWgmma P>
__global__ void __launch_bounds__(P.threads(), 1) gemm_wgmma(const __grid_constant__ GemmWgmmaArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wgmma_block<T, Out, P, 0>(args, [](const WgmmaTileCoord<T, P>&, const WgmmaRing<P>&) {});
#endif
}

}  // namespace vivace::kernels
