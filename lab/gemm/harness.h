// Device memory, random data, a float64 reference, graphs over rotating weights. For the benches of lab/gemm.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "vivace/kernels/gemm/gemm.h"
#include "vivace/kernels/tile/elem.cuh"

namespace lab {
using vivace::DType;
using vivace::kernels::GemmArgs;

#define LAB_CHECK(call)                                                                                 \
  do {                                                                                                  \
    const cudaError_t lab_error = (call);                                                               \
    if (lab_error != cudaSuccess) {                                                                     \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(lab_error));         \
      std::exit(2);                                                                                     \
    }                                                                                                   \
  } while (0)

template <class T>
T* device_alloc(size_t count) {
  T* p = nullptr;
  LAB_CHECK(cudaMalloc(&p, count * sizeof(T)));
  return p;
}

__device__ inline uint32_t mix(uint64_t i) {
  uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>(z >> 32);
}
/// Sums of four uniforms: nearly normal, every value different.
template <class T>
__global__ void fill_random(T* p, size_t n, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += size_t{gridDim.x} * blockDim.x) {
    float s = 0;
    for (int j = 0; j < 4; ++j) s += static_cast<float>(mix(seed + i * 4 + j)) * 0x1p-32f - 0.5f;
    p[i] = vivace::kernels::from_float<T>(s);
  }
}

/// ref[i] = sum of x[t] w[n] in f64 and size[i] of the magnitudes, for the outputs (t, n) of `pick`; a warp each.
template <class T>
__global__ void reference(const T* x, const T* w, int64_t K, const int2* pick, int count, double* ref, double* size) {
  const int i = static_cast<int>((blockIdx.x * size_t{blockDim.x} + threadIdx.x) / 32), lane = threadIdx.x % 32;
  if (i >= count) return;
  double s = 0, m = 0;
  for (int64_t k = lane; k < K; k += 32) {
    const double v = static_cast<double>(vivace::kernels::to_float(x[pick[i].x * K + k])) * static_cast<double>(vivace::kernels::to_float(w[pick[i].y * K + k]));
    s += v;
    m += fabs(v);
  }
  for (int d = 16; d > 0; d /= 2) {
    s += __shfl_xor_sync(~0u, s, d);
    m += __shfl_xor_sync(~0u, m, d);
  }
  if (lane == 0) ref[i] = s, size[i] = m;
}

/// us a launch: a graph of launch(0) .. launch(count - 1) on one stream, median of its replays.
inline double time_graph(int count, const std::function<bool(int, cudaStream_t)>& launch, int replays = 5) {
  cudaStream_t stream;
  LAB_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  LAB_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  bool ok = true;
  for (int i = 0; i < count && ok; ++i) ok = launch(i, stream);
  cudaGraph_t graph;
  LAB_CHECK(cudaStreamEndCapture(stream, &graph));
  double best = NAN;
  if (ok) {
    cudaGraphExec_t exec;
    LAB_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t a, b;
    LAB_CHECK(cudaEventCreate(&a));
    LAB_CHECK(cudaEventCreate(&b));
    std::vector<float> ms;
    for (int i = 0; i < replays + 2; ++i) {
      LAB_CHECK(cudaEventRecord(a, stream));
      LAB_CHECK(cudaGraphLaunch(exec, stream));
      LAB_CHECK(cudaEventRecord(b, stream));
      LAB_CHECK(cudaStreamSynchronize(stream));
      float t;
      LAB_CHECK(cudaEventElapsedTime(&t, a, b));
      if (i >= 2) ms.push_back(t);
    }
    std::sort(ms.begin(), ms.end());
    best = ms[ms.size() / 2] * 1000.0 / count;
    LAB_CHECK(cudaEventDestroy(a));
    LAB_CHECK(cudaEventDestroy(b));
    LAB_CHECK(cudaGraphExecDestroy(exec));
  }
  LAB_CHECK(cudaGraphDestroy(graph));
  LAB_CHECK(cudaStreamDestroy(stream));
  return best;
}

}  // namespace lab
