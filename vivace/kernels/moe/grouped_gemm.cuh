// grouped_gemm on CUDA: formula in vivace/ops/grouped_gemm.h. Limit: memory bandwidth, the weights of the
// groups that have rows. A block finds its group in the offsets on the device; its product is gemm_codes' one,
// with plain weights too.
#pragma once
#include "vivace/kernels/gemm/codes.cuh"
#include "vivace/kernels/moe/grouped_gemm.h"

namespace vivace::kernels {

/// The tile of up to kTokens rows that has number `slot` among the tiles of all groups, in the groups' order.
struct GroupTile {
  int group = -1;  // none: fewer tiles than that
  int first, count;

  template <int kTokens>
  __device__ __forceinline__ static GroupTile find(const int32_t* offsets, int E, int A, int slot) {
    GroupTile found;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int e0 = 0, before = 0; e0 < E; e0 += 32) {
      const int e = e0 + lane;
      const int begin = e < E ? min(max(offsets[e], 0), A) : 0, end = e < E ? min(max(offsets[e + 1], begin), A) : 0;
      const int tiles = (end - begin + kTokens - 1) / kTokens;
      int sum = tiles;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
      }
      const int at = slot - before - (sum - tiles);  // place among this group's tiles
      const uint32_t owner = __ballot_sync(0xffffffffu, at >= 0 && at < tiles);
      if (owner != 0) {
        const int source = __ffs(static_cast<int>(owner)) - 1;
        found.group = e0 + source;
        found.first = __shfl_sync(0xffffffffu, begin + at * kTokens, source);
        found.count = min(__shfl_sync(0xffffffffu, end, source) - found.first, kTokens);
        return found;
      }
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    return found;
  }
};

/// Grid: ceil(N / P.rows()) * (tiles that any offsets could give) * P.cluster blocks.
template <class X, DType W, class Out, GemmAct kAct, GemmCodes P>
__global__ void __launch_bounds__(P.threads(), P.blocks(kTypeOf<X>, W, kAct)) grouped_gemm(const __grid_constant__ GroupedGemmArgs a) {
  extern __shared__ __align__(16) uint8_t codes_smem[];
  ptx::cluster_arrive<P.cluster>();
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int tiles_n = (a.N + P.rows() - 1) / P.rows(), block = static_cast<int>(blockIdx.x) / P.cluster;
  const GroupTile group = GroupTile::find<P.tokens()>(a.offsets, a.E, a.A, block / tiles_n);
  if (group.group < 0) {  // in every block of the cluster
    ptx::cluster_wait<P.cluster>();
    return;
  }
  GemmArgs g = {};
  g.w = static_cast<const uint8_t*>(a.w) + row_bytes(W, group.group * a.w_stride);
  g.x = a.x, g.out = a.out;
  g.x_stride = a.x_stride, g.w_stride = a.K, g.out_stride = a.out_stride;
  g.T = a.A, g.N = a.N, g.K = a.K, g.alpha = 1.0f;
  const CodesTile<X, W, kAct, P> tile(g, codes_smem, block % tiles_n);
  tile.prefetch();
  float acc[P.row_tiles][P.token_tiles][4] = {};
  tile.run(group.first, group.count, acc);
  ptx::cluster_wait<P.cluster>();
  tile.template merge<Out>(acc, group.first, group.count);
}

}  // namespace vivace::kernels
