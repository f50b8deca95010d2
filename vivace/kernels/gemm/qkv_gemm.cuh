// The qkv product of few tokens on Hopper with qkv_rope in its way out: gemm_wgmma whose tiles hold a head's halves side by
// side. Limit: memory bandwidth, N * K * sizeof(W) bytes.
#pragma once
#include "vivace/kernels/gemm/qkv_gemm.h"
#include "vivace/kernels/gemm/wgmma.cuh"

namespace vivace::kernels {

/// Grid: as gemm_wgmma's. P.finish has kFinishRope.
template <class T, class Out, GemmWgmma P>
__global__ void __launch_bounds__(P.threads(), 1) qkv_gemm(const __grid_constant__ QkvGemmArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wgmma_block<T, Out, P, 0>(args, [](const WgmmaPlace<T, P>&, uint32_t) {});
#endif
}

}  // namespace vivace::kernels
