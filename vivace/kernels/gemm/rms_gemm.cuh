// Products of few tokens on Hopper around an RMS norm: one leaves its rows' sums of squares beside them, the next one
// scales its sums by what they say. gemm_wgmma with another way in or out. Limit: memory bandwidth, N * K * sizeof(W)
// bytes.
// Chosen when: Hopper, few tokens of plain 16-bit products: where fused() of vivace/ops/rms_gemm.h, rms_gemm_rope.h and
// gemm_rms_rows.h has a tile.
#pragma once
#include "vivace/kernels/gemm/rms_gemm.h"
#include "vivace/kernels/gemm/wgmma.cuh"

namespace vivace::kernels {

/// Grid: as gemm_wgmma's, with more threads a block. P.epilogue has kEpilogueTokenNorms; one tile of tokens.
template <class T, class Out, GemmWgmma P>
__global__ void __launch_bounds__(P.threads() + kTokenNormThreads, 1)
    rms_gemm(const __grid_constant__ RmsGemmArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wgmma_block<T, Out, P, 0>(args, [](const WgmmaTileCoord<T, P>&, uint32_t) {});
#endif
}

/// The same where P.epilogue has kEpilogueRope, too: outputs are rotated and leave for attention's queries and the
/// caches.
template <class T, class Out, GemmWgmma P>
__global__ void __launch_bounds__(P.threads() + kTokenNormThreads, 1)
    rms_gemm_rope(const __grid_constant__ RmsGemmRopeArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wgmma_block<T, Out, P, 0>(args, [](const WgmmaTileCoord<T, P>&, uint32_t) {});
#endif
}

/// Grid: as gemm_wgmma's. P.epilogue has kEpilogueNext.
template <class T, class Out, GemmWgmma P>
__global__ void __launch_bounds__(P.threads(), 1) gemm_rms_rows(const __grid_constant__ GemmRmsRowsArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wgmma_block<T, Out, P, 0>(args, [](const WgmmaTileCoord<T, P>&, uint32_t) {});
#endif
}

}  // namespace vivace::kernels
