// The kernels of `attention`: tensor cores for 16-bit queries, CUDA cores for everything else.
#pragma once
#include "vivace/kernels/attention/expression.cuh"
#include "vivace/kernels/attention/fed.cuh"
#include "vivace/kernels/attention/plain.cuh"
#include "vivace/kernels/attention/split.cuh"
#include "vivace/kernels/attention/stream.cuh"
#include "vivace/kernels/attention/tile.cuh"
#include "vivace/kernels/attention/turned.cuh"
#include "vivace/kernels/attention/warpgroup.cuh"
