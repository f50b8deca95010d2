// What it takes to hand a row on to all blocks by self-validating words: us a hop, of 1,000 hops in one launch.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "exchange.cuh"

namespace lab {

/// Each hop a block stores its share of `n` words in `copies` copies, one store instruction for as many as fit its
/// threads, and polls all words of its copy with all warps.
__global__ void __launch_bounds__(256, 1)
    hops(uint32_t* words, int n, int count, int copies, uint32_t turn, Stuck* stuck, float* sink) {
  __shared__ float row[2048];
  const int each = n / gridDim.x, more = n % gridDim.x, me = blockIdx.x;
  const int first = me * each + min(me, more), mine = each + (me < more);
  float v = static_cast<float>(me);
  for (int hop = 0; hop < count; ++hop, ++turn) {
    const uint32_t tag = tag_of(turn);
    for (int i = threadIdx.x; i < mine * copies; i += 256)
      store_word(words + (i / mine * 2 + (turn & 1)) * n + first + i % mine, word_of(v, tag));
    const uint32_t* from = words + (me % copies * 2 + (turn & 1)) * n;
    if (static_cast<int>(threadIdx.x) < n / 4) {
      uint4 w[2];
      const int offset[2] = {static_cast<int>(threadIdx.x) * 4, static_cast<int>(threadIdx.x) * 4 + 1024};
      wait_words<2>(w, from, offset, offset[1] < n ? 3u : 1u, tag, true, stuck, 1, hop);
      for (int j = 0; j < 2; ++j)
        if (offset[j] < n)
          *reinterpret_cast<float4*>(row + offset[j]) =
              make_float4(value_of(w[j].x), value_of(w[j].y), value_of(w[j].z), value_of(w[j].w));
    }
    __syncthreads();
    v = row[(threadIdx.x * 7 + hop) % n] * 0.5f;
    __syncthreads();
  }
  if (v == 1234.5f) *sink = v;
}

}  // namespace lab

int main() {
  using namespace lab;
  int blocks, device = 0;
  cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  const size_t bytes = size_t(blocks) * 2 * 2048 * 4;
  uint32_t* words;
  float* sink;
  Stuck* stuck;
  cudaMalloc(&words, bytes), cudaMalloc(&sink, 4);
  cudaHostAlloc(&stuck, sizeof(Stuck), cudaHostAllocMapped);
  stuck->where = 0;
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  for (int n : {512, 1024, 2048}) {
    std::printf("hop of %2d KB:", n / 256);
    for (int copies : {1, 2, 4, 16, blocks}) {
      cudaMemset(words, 0, bytes);
      uint32_t turn = 0;
      std::vector<float> times;
      int count = 1000;
      for (int i = 0; i < 7; ++i) {
        void* args[] = {&words, &n, &count, &copies, &turn, &stuck, &sink};
        cudaEventRecord(begin);
        cudaError_t e = cudaLaunchCooperativeKernel(hops, blocks, 256, args, 0, nullptr);
        cudaEventRecord(end);
        if (e == cudaSuccess) e = cudaDeviceSynchronize();
        if (e != cudaSuccess) {
          std::printf(" stopped: %s, where %u block %u\n", cudaGetErrorString(e), stuck->where, stuck->cta);
          return 1;
        }
        turn += count;
        float ms;
        cudaEventElapsedTime(&ms, begin, end);
        times.push_back(ms * 1e3f / count);
      }
      std::sort(times.begin(), times.end());
      std::printf("  %d cop. %.3f us", copies, times[3]);
    }
    std::printf("\n");
  }
  return 0;
}
