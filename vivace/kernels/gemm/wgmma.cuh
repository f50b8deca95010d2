// gemm of many tokens on Hopper: copy engine, warpgroup products, blocks that stay. Limit: 2 T N K flop.
//
// Three warpgroups: one thread of the first asks the copy engine for tiles, the other two multiply. A stage
// holds 128 tokens and P.rows rows of W, 128 bytes of K each. e4m3 products keep fewer bits of a sum inside
// the tensor unit than f32 has, so every stage's sum leaves it and is added in f32.
#pragma once
#include "vivace/kernels/gemm/epilogue.cuh"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/mbarrier.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/tma.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"

namespace vivace::kernels {

/// Order of the tiles: bands of 16 token tiles, in a band along tokens first, so that blocks that run
/// together share x and W in L2. In units of a cluster's tiles.
struct GemmBand {
  int tiles_t, tiles_n;
  __device__ __forceinline__ void place(int i, int band, int* t, int* n) const {
    const int whole = band * tiles_n, b = i / whole, first = b * band, width = min(band, tiles_t - first);
    *t = first + (i - b * whole) % width;
    *n = (i - b * whole) / width;
  }
};

template <class T, GemmWgmma P>
struct WgmmaTile {
  static constexpr int kAtom = P.rows > 128 ? P.rows / 2 : P.rows;  // rows of one instruction
  static constexpr int kAtoms = P.rows / kAtom;
  static constexpr int kStep = 128 / sizeof(T);
  static constexpr bool kPromote = sizeof(T) == 1;

  /// One stage: four products of 32 bytes of K for each atom.
  __device__ __forceinline__ static void multiply(uint32_t x, uint32_t w, float (&acc)[kAtoms][kAtom / 2], bool add) {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < kAtoms; ++i)
        ptx::Wgmma<T, kAtom>::run(acc[i], ptx::wgmma_tile(x + k * 32), ptx::wgmma_tile(w + i * kAtom * 128 + k * 32), add || k > 0);
    ptx::wgmma_commit();
  }
};

/// Grid: a multiple of P.cluster, at most the tiles and best the multiprocessors.
template <class T, class Out, GemmWgmma P>
__global__ void __launch_bounds__(P.threads(), 1) gemm_wgmma(const __grid_constant__ GemmWgmmaArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Tile = WgmmaTile<T, P>;
  constexpr int kXBytes = P.tokens() * 128, C = P.cluster;
  extern __shared__ __align__(1024) unsigned char gemm_wgmma_smem[];
  const GemmArgs& a = args.g;
  const int tid = static_cast<int>(threadIdx.x), group = tid / 128;
  const int rank = ptx::cluster_rank<C>(), clusters = static_cast<int>(gridDim.x) / C, cluster_id = static_cast<int>(blockIdx.x) / C;
  const uint32_t base = ptx::shared_address(gemm_wgmma_smem), full = base + P.stages * P.stage_bytes(), empty = full + 8 * P.stages;
  if (tid == 0) {
    for (int s = 0; s < P.stages; ++s) {
      ptx::mbarrier_init(full + 8 * s, 1);
      ptx::mbarrier_init(empty + 8 * s, 8 * C);  // the multiplying warps of every block that is sent to
    }
    ptx::mbarrier_fence();
  }
  ptx::cluster_sync<C>();
  ptx::dependency_wait();
  ptx::launch_dependents();

  const int M = valid_rows(a.rows, a.T);
  const int rows_t = P.tokens() * C;
  const GemmBand band{(M + rows_t - 1) / rows_t, (a.N + P.rows - 1) / P.rows};
  const int tiles = band.tiles_t * band.tiles_n, steps = (a.K + Tile::kStep - 1) / Tile::kStep;

  if (group == 0) {
    ptx::registers_down<40>();
    if (tid == 0) {
      int slot = 0, parity = 1;  // the first turn finds every slot free
      for (int i = cluster_id; i < tiles; i += clusters) {
        int t, n;
        band.place(i, 16 / C, &t, &n);
        const int t0 = (t * C + rank) * P.tokens(), n0 = n * P.rows + rank * (P.rows / C);
        for (int k = 0; k < steps; ++k) {
          ptx::mbarrier_wait<(C > 1)>(empty + 8 * slot, parity);
          const uint32_t stage = base + slot * P.stage_bytes(), ready = full + 8 * slot;
          ptx::mbarrier_expect(ready, P.stage_bytes());
          ptx::tma_load(stage, args.x_map, ready, k * Tile::kStep, t0);
          if constexpr (C > 1)
            ptx::tma_load_multicast(stage + kXBytes + rank * (P.rows / C) * 128, args.w_map, ready, k * Tile::kStep, n0, (1 << C) - 1);
          else
            ptx::tma_load(stage + kXBytes, args.w_map, ready, k * Tile::kStep, n0);
          if (++slot == P.stages) slot = 0, parity ^= 1;
        }
      }
    }
  } else {
    ptx::registers_up<232>();
    const GemmEpilogue<Out> epilogue(a);
    const bool vector = epilogue.template wide<8>();
    const int lane = tid % 32, warp = tid / 32 % 4;
    float* const turn = reinterpret_cast<float*>(gemm_wgmma_smem + P.stages * (P.stage_bytes() + 16)) + (tid / 32 - 4) * 16 * P.turn_stride();
    const auto release = [&](int slot) {  // one lane of each warp for each block of the cluster
      if (lane < C) ptx::mbarrier_arrive(empty + 8 * slot, lane);
    };
    int slot = 0, parity = 0;
    for (int i = cluster_id; i < tiles; i += clusters) {
      float acc[Tile::kAtoms][Tile::kAtom / 2];
      if constexpr (Tile::kPromote) {
#pragma unroll
        for (int j = 0; j < Tile::kAtom / 2; ++j) acc[0][j] = 0.0f;
        static_assert(Tile::kAtoms == 1, "the stage's sums need registers of their own");
      }
      int last = -1;
      for (int k = 0; k < steps; ++k) {
        ptx::mbarrier_wait<(C > 1)>(full + 8 * slot, parity);
        const uint32_t stage = base + slot * P.stage_bytes(), x = stage + (group - 1) * 64 * 128;
        if constexpr (Tile::kPromote) {
          float part[1][Tile::kAtom / 2];
          Tile::multiply(x, stage + kXBytes, part, false);
          ptx::wgmma_wait<0>(part[0]);
          release(slot);
#pragma unroll
          for (int j = 0; j < Tile::kAtom / 2; ++j) acc[0][j] += part[0][j];
        } else {
          Tile::multiply(x, stage + kXBytes, acc, k > 0);
          asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");  // the stage before this one has been read
          if (last >= 0) release(last);
          last = slot;
        }
        if (++slot == P.stages) slot = 0, parity ^= 1;
      }
      if constexpr (!Tile::kPromote) {
#pragma unroll
        for (int j = 0; j < Tile::kAtoms; ++j) ptx::wgmma_wait<0>(acc[j]);
        release(last);
      }
      int t, n;
      band.place(i, 16 / C, &t, &n);
      const int t0 = (t * C + rank) * P.tokens() + (group - 1) * 64 + warp * 16;
      // 32 columns at a time through the warp's own shared memory, so that a row leaves in 64-byte runs.
#pragma unroll 1
      for (int run = 0; run < P.rows / 32; ++run) {
#pragma unroll
        for (int m = 0; m < P.rows / 8; ++m) {
          if (m / 4 != run) continue;  // registers have no run-time index
          const float* d = acc[m * 8 / Tile::kAtom] + m * 8 % Tile::kAtom / 2;
          float* to = turn + lane / 4 * P.turn_stride() + m % 4 * 8 + lane % 4 * 2;
          to[0] = d[0], to[1] = d[1];
          to[8 * P.turn_stride()] = d[2], to[8 * P.turn_stride() + 1] = d[3];
        }
        __syncwarp();
#pragma unroll 1
        for (int r = lane / 4; r < 16; r += 8) {
          float y[8];
          load<8>(turn + r * P.turn_stride() + lane % 4 * 8, y);
          const int row = t0 + r, col = n * P.rows + run * 32 + lane % 4 * 8;
          if (row < M && col < a.N) epilogue.finish(row, col, y, vector);
        }
        __syncwarp();
      }
    }
  }
  ptx::cluster_sync<C>();  // a block stays until nobody arrives at its barriers any more
#endif
}

}  // namespace vivace::kernels
