// gemm on CUDA: formula in vivace/ops/gemm.h, where the tactics are chosen too.
#pragma once
#include "vivace/kernels/gemm/weight_only.cuh"
#include "vivace/kernels/gemm/simple.cuh"
#include "vivace/kernels/gemm/stream.cuh"
#include "vivace/kernels/gemm/tile.cuh"
#include "vivace/kernels/gemm/wgmma.cuh"
#include "vivace/kernels/gemm/mixed_input.cuh"
#include "vivace/kernels/gemm/mixed_held.cuh"
