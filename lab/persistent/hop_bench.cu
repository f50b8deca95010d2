// What it takes to hand a row on to all blocks by self-validating words: us a hop, of 1,000 hops in one launch.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "ring.cuh"

namespace lab {

/// Each hop a block stores its share of `n` words and polls all of them. kOneWarp: one warp polls, the others wait for
/// it.
template <bool kOneWarp>
__global__ void __launch_bounds__(256, 1)
    hops(uint32_t* words, int n, int count, int copies, uint32_t turn, Stuck* stuck, float* sink) {
  __shared__ float row[4096];
  const int each = n / gridDim.x, more = n % gridDim.x, me = blockIdx.x;
  const int first = me * each + min(me, more), mine = each + (me < more);
  float v = static_cast<float>(me);
  for (int hop = 0; hop < count; ++hop, ++turn) {
    const uint32_t tag = tag_of(turn);
    for (int c = 0; c < copies; ++c)
      for (int i = threadIdx.x; i < mine; i += 256)
        store_word(words + (c * 2 + (turn & 1)) * n + first + i, word_of(v, tag));
    const uint32_t* from = words + (me % copies * 2 + (turn & 1)) * n;
    if (!kOneWarp || threadIdx.x < 32)
      for (int quad = threadIdx.x; quad < n / 4; quad += kOneWarp ? 32 * 4 : 256 * 4) {
        uint4 w[4];
        int offset[4];
        uint32_t wanted = 0;
        for (int j = 0; j < 4; ++j) {
          const int q = quad + j * (kOneWarp ? 32 : 256);
          offset[j] = q * 4, wanted |= q < n / 4 ? 1u << j : 0;
        }
        wait_words(w, from, offset, wanted, tag, true, stuck, 1, hop);
        for (int j = 0; j < 4; ++j)
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
  uint32_t* words;
  float* sink;
  Stuck* stuck;
  cudaMalloc(&words, 1 << 20), cudaMemset(words, 0, 1 << 20), cudaMalloc(&sink, 4);
  cudaHostAlloc(&stuck, sizeof(Stuck), cudaHostAllocMapped);
  stuck->where = 0;
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  uint32_t turn = 0;
  for (int n : {512, 2048})
    for (int warps : {1, 8}) {
      std::printf("hop of %2d KB, %d polling warps:", n / 256, warps);
      for (int copies : {1, 2, 4, 8}) {
        cudaMemset(words, 0, 1 << 20);
        turn = 0;
        std::vector<float> times;
        int count = 1000;
        for (int i = 0; i < 7; ++i) {
          void* args[] = {&words, &n, &count, &copies, &turn, &stuck, &sink};
          cudaEventRecord(begin);
          cudaError_t e =
              cudaLaunchCooperativeKernel(warps == 1 ? hops<true> : hops<false>, blocks, 256, args, 0, nullptr);
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
