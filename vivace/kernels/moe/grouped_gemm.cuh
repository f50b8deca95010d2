// grouped_gemm on CUDA: formula in vivace/ops/grouped_gemm.h. Limit: memory bandwidth, the weights of the
// groups that have rows. A block finds its group in the offsets on the device; its product is gemm_weight_only' one,
// with plain weights too where grouped_wgmma does not serve them.
// Chosen when: quantized weights, chips without wgmma, and what else grouped_wgmma does not take.
#pragma once
#include "vivace/kernels/gemm/weight_only.cuh"
#include "vivace/kernels/moe/group_tile.cuh"
#include "vivace/kernels/moe/grouped_wgmma.cuh"

namespace vivace::kernels {

/// Grid: ceil(N / P.rows()) * (tiles that any offsets could give) * P.cluster blocks.
template <class X, DType W, class Out, GemmAct kAct, GemmWeightOnly P>
__global__ void __launch_bounds__(P.threads(), P.blocks(kTypeOf<X>, W, kAct))
    grouped_gemm(const __grid_constant__ GroupedWeightOnlyArgs args) {
  extern __shared__ __align__(128) uint8_t weight_only_smem[];
  const GroupedGemmArgs& a = args.g;
  if constexpr (P.tma_steps > 0) ptx::tma_prefetch(args.w_map);
  ptx::cluster_arrive<P.cluster>();
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int tiles_n = (a.N + P.rows() - 1) / P.rows(), block = static_cast<int>(blockIdx.x) / P.cluster;
  const GroupTile group = GroupCursor<P.tokens()>(a).seek(block / tiles_n);
  if (group.group < 0) {  // in every block of the cluster
    ptx::cluster_wait<P.cluster>();
    return;
  }
  GemmArgs g = {};
  g.w = static_cast<const uint8_t*>(a.w) + row_bytes(W, group.group * a.w_stride);
  g.x = a.x, g.out = a.out;
  g.x_stride = a.x_stride, g.w_stride = a.K, g.out_stride = a.out_stride;
  g.T = a.A, g.N = a.N, g.K = a.K, g.alpha = 1.0f;
  if (a.w_row_scale != nullptr) g.w_row_scale = a.w_row_scale + group.group * a.scale_stride;
  WeightOnlyTile<X, W, kAct, P> tile(g, args.w_map, group.group * a.N, nullptr, weight_only_smem, block % tiles_n,
                                     tiles_n, tiles_n);
  tile.begin(block % tiles_n);
  tile.prefetch();
  float acc[P.row_tiles][P.token_tiles][4] = {};
  tile.run(group.first, group.count, acc);
  ptx::cluster_wait<P.cluster>();
  tile.template merge<Out>(acc, group.first, group.count);
}

}  // namespace vivace::kernels
