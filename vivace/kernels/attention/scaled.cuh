// All kernels of scaled_attention.
#pragma once
#include "vivace/kernels/attention/scaled_attention.cuh"
#include "vivace/kernels/attention/scaled_prefill.cuh"
