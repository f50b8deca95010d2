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
    const double v = static_cast<double>(vivace::kernels::to_float(x[pick[i].x * K + k])) *
                     static_cast<double>(vivace::kernels::to_float(w[pick[i].y * K + k]));
    s += v;
    m += fabs(v);
  }
  for (int d = 16; d > 0; d /= 2) {
    s += __shfl_xor_sync(~0u, s, d);
    m += __shfl_xor_sync(~0u, m, d);
  }
  if (lane == 0) ref[i] = s, size[i] = m;
}

/// A graph of launch(0) .. launch(count - 1) on one stream.
class Graph {
 public:
  Graph(int count, const std::function<bool(int, cudaStream_t)>& launch) : count_(count) {
    LAB_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    LAB_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    bool ok = true;
    for (int i = 0; i < count && ok; ++i) ok = launch(i, stream_);
    cudaGraph_t graph;
    LAB_CHECK(cudaStreamEndCapture(stream_, &graph));
    if (ok) LAB_CHECK(cudaGraphInstantiate(&exec_, graph, 0));
    LAB_CHECK(cudaGraphDestroy(graph));
    LAB_CHECK(cudaEventCreate(&begin_));
    LAB_CHECK(cudaEventCreate(&end_));
  }
  Graph(const Graph&) = delete;
  ~Graph() {
    if (exec_) LAB_CHECK(cudaGraphExecDestroy(exec_));
    LAB_CHECK(cudaEventDestroy(begin_));
    LAB_CHECK(cudaEventDestroy(end_));
    LAB_CHECK(cudaStreamDestroy(stream_));
  }
  /// us a launch of one replay; NaN where a launch was refused.
  double replay() const {
    if (!exec_) return NAN;
    LAB_CHECK(cudaEventRecord(begin_, stream_));
    LAB_CHECK(cudaGraphLaunch(exec_, stream_));
    LAB_CHECK(cudaEventRecord(end_, stream_));
    LAB_CHECK(cudaStreamSynchronize(stream_));
    float ms;
    LAB_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return ms * 1000.0 / count_;
  }

 private:
  int count_;
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
  cudaEvent_t begin_, end_;
};

/// Medians of the graphs' replays, in turn: what heat and clocks do to one they do to all. Two rounds warm up.
inline std::vector<double> in_turn(const std::vector<const Graph*>& graphs, int replays) {
  std::vector<std::vector<double>> us(graphs.size());
  for (int i = 0; i < replays + 2; ++i)
    for (size_t g = 0; g < graphs.size(); ++g) {
      const double t = graphs[g]->replay();
      if (i >= 2) us[g].push_back(t);
    }
  std::vector<double> medians;
  for (auto& all : us) std::sort(all.begin(), all.end()), medians.push_back(all[all.size() / 2]);
  return medians;
}

/// Bytes read and written a second by copies of `bytes` bytes within `memory`, which has twice as many.
inline double copy_rate(void* memory, size_t bytes) {
  char* p = static_cast<char*>(memory);
  const Graph graph(4, [&](int, cudaStream_t stream) {
    return cudaMemcpyAsync(p + bytes, p, bytes, cudaMemcpyDeviceToDevice, stream) == cudaSuccess;
  });
  return 2.0 * static_cast<double>(bytes) / in_turn({&graph}, 9)[0] * 1e6;
}

inline double time_graph(int count, const std::function<bool(int, cudaStream_t)>& launch, int replays = 5) {
  const Graph graph(count, launch);
  return in_turn({&graph}, replays)[0];
}

}  // namespace lab
