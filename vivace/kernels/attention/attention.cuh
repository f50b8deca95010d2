// The kernels of `attention`: tensor cores for 16-bit queries, CUDA cores for everything else.
#pragma once
#include "vivace/kernels/attention/expression.cuh"
#include "vivace/kernels/attention/prefill_tall.cuh"
#include "vivace/kernels/attention/prefill_tma.cuh"
#include "vivace/kernels/attention/plain.cuh"
#include "vivace/kernels/attention/split_kv.cuh"
#include "vivace/kernels/attention/stream.cuh"
#include "vivace/kernels/attention/tile.cuh"
#include "vivace/kernels/attention/swap_ab.cuh"
#include "vivace/kernels/attention/prefill_wgmma.cuh"
