// grouped_gemm on Hopper: TMA and warpgroup MMA, as gemm_wgmma has them. Limit: memory bandwidth,
// the weights of the groups that have rows, up to some hundred rows a group; 2 A N K flop beyond.
//
// Blocks stay and walk the tiles of all groups. The offsets are the predecessor's, so nothing is on its way
// before the dependency wait. A token's sum is wgmma over K in order: the same in every tile and width. Weights in e4m3
// and q4_0 come as they are: the warps that multiply dequantize them into registers, which is where wgmma takes them
// from. q4_0's values are rounded to bf16 there.
// Chosen when: Hopper, equal 16-bit operands or bf16 with e4m3 or q4_0 weights, rows and experts without gaps.
#pragma once
#include "vivace/kernels/gemm/held_weights.cuh"
#include "vivace/kernels/moe/group_tile.cuh"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/tma.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"
#include "vivace/kernels/ptx/wgmma_held.cuh"
#include "vivace/kernels/tile/pipeline.cuh"

namespace vivace::kernels {

/// What a stage belongs to: rows of x from `first` on, `count` of them, and of W from n0 on. No rows: the end.
struct alignas(16) GroupStage {
  int32_t first, count, n0, group;
};

/// The producer warp. Tiles of a group's rows lie next to each other, so that blocks that share W run together.
/// Boxes reach over the ends of groups and experts: what they bring of others is not used.
template <class T, GroupedWgmma P>
__device__ __forceinline__ void grouped_load(const GroupedWgmmaArgs& args, uint32_t base,
                                             const Pipeline<P.stages>& ring, GroupStage* stages) {
  constexpr int kRun = 128 / sizeof(T), kStep = P.x_runs() * kRun;
  const int half = args.g.N / 2, steps = (args.g.K + kStep - 1) / kStep,
            tiles_n = ((P.gated ? half : args.g.N) + P.columns() - 1) / P.columns();
  const uint64_t policy_x = ptx::evict_last();
  GroupCursor<P.tokens> cursor(args.g);
  ProducerState<P.stages> at;
  for (int i = static_cast<int>(blockIdx.x);; i += static_cast<int>(gridDim.x)) {
    const GroupTile tile = cursor.seek(i / tiles_n);
    if (threadIdx.x % 32 == 0) {
      const bool one = args.g.x_stride == 0;
      const int n0 = i % tiles_n * P.columns(), boxes = one ? 1 : (tile.count + P.box() - 1) / P.box();
      const uint64_t policy_w = tile.count < P.tokens ? ptx::evict_first() : ptx::evict_normal();
      for (int k = 0; k < (tile.group < 0 ? 1 : steps); ++k) {
        ring.producer_acquire(at);
        stages[at.stage] = {tile.first, tile.count, n0, tile.group};
        if (tile.group < 0) {
          ring.producer_commit(at.stage);
          break;
        }
        ring.producer_expect(at.stage, P.rows * P.row_bytes() + P.x_runs() * boxes * P.box() * 128);
        const uint32_t to = base + at.stage * P.stage_bytes(), full = ring.full(at.stage);
        for (int b = 0; b < P.rows / P.box_w(); ++b)  // gated: gates, ups, gates, ups
          ptx::tma_load(to + b * P.box_w() * P.row_bytes(), args.w_map, full,
                        k * (P.four ? P.row_bytes() / 4 : kStep),
                        tile.group * args.g.N + n0 + (P.gated ? b % 2 * half + b / 2 * P.box_w() : 0), policy_w);
        for (int b = 0; b < boxes; ++b)
          for (int r = 0; r < P.x_runs(); ++r)
            ptx::tma_load(to + P.w_bytes() + b * P.box() * 128 + r * P.x_run_bytes(), args.x_map, full,
                          k * kStep + r * kRun, one ? 0 : tile.first + b * P.box(), policy_x);
        at.advance();
      }
    }
    __syncwarp();
    if (tile.group < 0) break;
  }
}

/// A consumer warpgroup: 64 rows of W of each tile.
template <class T, class Out, GroupedWgmma P>
struct GroupedProducts {
  const GroupedGemmArgs& a;
  uint32_t base;  // of the stages: [P.rows of W, then P.tokens of x][128 bytes of K], swizzled but for q4_0
  Pipeline<P.stages> ring;
  const GroupStage* stages;
  float* turns;
  ConsumerState<P.stages> at;

  __device__ __forceinline__ GroupedProducts(const GroupedGemmArgs& args, uint32_t base_,
                                             const Pipeline<P.stages>& ring_, const GroupStage* stages_, float* turns_)
      : a(args), base(base_), ring(ring_), stages(stages_), turns(turns_) {}

  /// All tiles of the block.
  __device__ __forceinline__ void run() {
    for (;;) {
      ring.consumer_wait(at);
      const GroupStage tile = stages[at.stage];
      if (tile.count == 0) break;
      if (a.x_stride == 0) multiply<P.box()>(tile);
      else within<P.box()>(tile);
    }
  }

 private:
  template <int kWidth>
  __device__ __forceinline__ void within(const GroupStage& tile) {
    if constexpr (kWidth < P.tokens) {
      if (tile.count > kWidth) return within<2 * kWidth>(tile);
    }
    multiply<kWidth>(tile);
  }

  template <int kWidth>
  __device__ __forceinline__ void multiply(const GroupStage& tile) {
    if constexpr (P.held()) return multiply_held<kWidth>(tile);
    constexpr int kStep = 128 / sizeof(T);
    const int steps = (a.K + kStep - 1) / kStep;
    float acc[kWidth / 2];
#pragma unroll
    for (int j = 0; j < kWidth / 2; ++j) acc[j] = 0.0f;
    int last = -1;
    for (int k = 0; k < steps; ++k) {
      ring.consumer_wait(at);
      const uint32_t stage = base + at.stage * P.stage_bytes(), w = stage + threadIdx.x / 128 * (64 * 128),
                     x = stage + P.rows * 128;
      ptx::wgmma_fence();
#pragma unroll
      for (int q = 0; q < 4; ++q)
        ptx::Wgmma<T, kWidth>::run(acc, ptx::wgmma_tile(w + q * 32), ptx::wgmma_tile(x + q * 32), true);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // the stage before this one has been read
      if (last >= 0 && threadIdx.x % 32 == 0) ring.consumer_release(last);
      last = at.stage;
      at.advance();
    }
    ptx::wgmma_wait<0>(acc);
    if (threadIdx.x % 32 == 0) ring.consumer_release(last);
    finish<kWidth>(acc, tile, {});
  }

  /// Quantized weights: those of 64 elements are dequantized while the products of the 64 before run. A loop over pairs
  /// of such halves: four in one run of code, and the compiler has each product wait for the one before.
  template <int kWidth>
  __device__ __forceinline__ void multiply_held(const GroupStage& tile) {
    using Rows = HeldWeights<P.four ? DType::q4_0 : DType::e4m3>;
    static_assert(Rows::kRowBytes == P.row_bytes() && Rows::kElements == 64 * P.x_runs());
    const int steps = (a.K + Rows::kElements - 1) / Rows::kElements;
    const uint32_t own = Rows::place();
    const Factors factors(a, tile);  // on their way while the tile is multiplied
    float acc[kWidth / 2];
#pragma unroll
    for (int j = 0; j < kWidth / 2; ++j) acc[j] = 0.0f;
    uint32_t w[2][4][4];
    int last = -1;
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      ring.consumer_wait(at);
      const uint32_t stage = base + at.stage * P.stage_bytes();
#pragma unroll 1
      for (int pair = 0; pair < P.x_runs() / 2; ++pair) {
        const uint32_t x = stage + P.w_bytes() + pair * 2 * P.x_run_bytes();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          Rows::dequantize(stage + own, pair, half, w[half]);
          const uint64_t first = ptx::wgmma_tile(x + half * P.x_run_bytes());
          ptx::wgmma_fence();
#pragma unroll
          for (int q = 0; q < 4; ++q)
            ptx::WgmmaHeld<T, kWidth>::run(
                acc, w[half][q],
                P.four ? ptx::wgmma_further(first, q * 32) : ptx::wgmma_tile(x + half * P.x_run_bytes() + q * 32));
          ptx::wgmma_commit();
          ptx::wgmma_wait<1>();  // registers of the half before this one have been read, and with the first its stage
          if (half == 0 && pair == 0 && last >= 0) release(last);
        }
      }
      last = at.stage;
      at.advance();
    }
    ptx::wgmma_wait<0>(acc);
    release(last);
    finish<kWidth>(acc, tile, factors);
  }
  __device__ __forceinline__ void release(int stage) const {
    __syncwarp();  // every lane has read W
    if (threadIdx.x % 32 == 0) ring.consumer_release(stage);
  }

  // Of finish(): columns a lane has, those of the warps of 64 rows, and the lane's first of them.
  static constexpr int V = P.gated ? 2 : 4, kColumns = P.columns() / P.groups();
  __device__ __forceinline__ static int column() { return (threadIdx.x % 128 / 32 * 4 + threadIdx.x % 4) * V; }
  __device__ __forceinline__ static int first_column(const GroupStage& tile) {
    return tile.n0 + static_cast<int>(threadIdx.x) / 128 * kColumns + column();
  }
  __device__ __forceinline__ static int columns(const GroupedGemmArgs& a) {
    return column() >= kColumns ? 0 : P.gated ? a.N / 2 : a.N;
  }
  /// w_row_scale of the lane's columns: of gates, then of ups; ungated of all.
  struct Factors {
    float first[V], up[V];
    Factors() = default;
    __device__ __forceinline__ Factors(const GroupedGemmArgs& a, const GroupStage& tile) {
      const int n = first_column(tile), N = columns(a);
      const float* const from = a.w_row_scale + tile.group * a.scale_stride + n;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const bool there = a.w_row_scale != nullptr && n + i < N;
        first[i] = P.four ? SplitScale::lift() : there ? from[i] : 1.0f;
        up[i] = P.four ? SplitScale::lift() : P.gated && there ? from[N + i] : 1.0f;
      }
    }
  };

  /// Eight tokens at a time through the warp's own shared memory, so that a token's 16 rows leave side by side. Where x
  /// has one row, the first token's leave for all. Gated: two warps have gates and two the ups of the same columns, and
  /// each warp's lanes take a quarter of these, both rounded to Out first.
  template <int kWidth>
  __device__ __forceinline__ void finish(const float (&acc)[kWidth / 2], const GroupStage& tile,
                                         const Factors& factors) const {
    constexpr int kStride = P.transpose_stride();
    const bool one = a.x_stride == 0;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = lane / 4;
    const int n = first_column(tile), N = columns(a);
    float* const turn = turns + warp * 8 * kStride;  // the warp's
    const auto at = [&](int row) {
      return turns + (warp / 4 * 4 + row / 16) * 8 * kStride + row % 16;
    };  // row of the 64
    const float* const from = at(column());
    const auto meet = [&] {
      if constexpr (P.gated) ptx::named_barrier<128>(1 + warp / 4);
      else __syncwarp();
    };
    const bool vector = (P.gated ? a.N / 2 : a.N) % V == 0 && a.out_stride % V == 0 &&
                        reinterpret_cast<uint64_t>(a.out) % (V * sizeof(Out)) == 0;
    Out* out = static_cast<Out*>(a.out) + (int64_t{tile.first} + token) * a.out_stride + n;
    const auto leave = [&](const float (&y)[V]) {
      if (vector && n < N) {
        store<V>(out, y);
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i)
          if (n + i < N) out[i] = from_float<Out>(y[i]);
      }
    };
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j, out += 8 * a.out_stride) {
      if (j * 8 >= tile.count) break;
      float* to = turn + lane % 4 * 2 * kStride + lane / 4;
      to[0] = acc[4 * j], to[kStride] = acc[4 * j + 1];
      to[8] = acc[4 * j + 2], to[kStride + 8] = acc[4 * j + 3];
      meet();
      float y[V];
      load<V>(from + (one ? 0 : token) * kStride, y);
      if constexpr (P.held()) {
#pragma unroll
        for (int i = 0; i < V; ++i) y[i] *= factors.first[i];
      }
      if constexpr (P.gated) {
        float up[V];
        load<V>(at(kColumns + column()) + (one ? 0 : token) * kStride, up);
        if constexpr (P.held()) {
#pragma unroll
          for (int i = 0; i < V; ++i) up[i] *= factors.up[i];
        }
#pragma unroll
        for (int i = 0; i < V; ++i) y[i] = to_float(from_float<Out>(y[i])), up[i] = to_float(from_float<Out>(up[i]));
        activate_all(a.gate, y);
#pragma unroll
        for (int i = 0; i < V; ++i) y[i] *= up[i];
      }
      meet();
      if (one) {
        for (int row = token; row < tile.count; row += 8, out += 8 * a.out_stride) leave(y);
        return;
      }
      if (j * 8 + token < tile.count) leave(y);
    }
  }
};

/// Grid: any; blocks share the tiles.
template <class T, class Out, GroupedWgmma P>
__global__ void __launch_bounds__(P.threads(), 1) grouped_wgmma(const __grid_constant__ GroupedWgmmaArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char grouped_wgmma_smem[];
  const uint32_t base = ptx::shared_address(grouped_wgmma_smem);
  const Pipeline<P.stages> ring{base + P.stages * P.stage_bytes()};
  float* const turns = reinterpret_cast<float*>(grouped_wgmma_smem + P.stages * (P.stage_bytes() + 16));
  GroupStage* const stages =
      reinterpret_cast<GroupStage*>(reinterpret_cast<unsigned char*>(turns) + P.transpose_bytes());
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 32 * P.warps()) {
    ptx::tma_prefetch(args.w_map);
    ptx::tma_prefetch(args.x_map);
    ring.init(1, P.warps());  // the consumer warps
    ptx::mbarrier_fence();
  }
  __syncthreads();
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (warp >= P.warps()) {
    if constexpr (P.wide()) ptx::registers_down<56>();
    if (warp == P.warps()) grouped_load<T, P>(args, base, ring, stages);
  } else {
    if constexpr (P.wide()) ptx::registers_up<224>();
    GroupedProducts<T, Out, P>(args.g, base, ring, stages, turns).run();
  }
#endif
}

}  // namespace vivace::kernels
