// What several clusters of attention_swap_ab have of a tile's rows, merged through memory. Each warp of a block writes
// its sums and states, then counts; the last of a warp's peers, one in each cluster, reads all and adds them up in the
// order of clusters, whoever it is. Nobody waits.
// Chosen when: AttentionGpu::far() of vivace/ops/attention_gpu.h.
#pragma once
#include "vivace/kernels/attention/softmax.cuh"

namespace vivace::kernels {

/// Of a tile in block `split` of cluster `own` of those that have keys, `used`; x: which four of a lane's sums (rows 2,
/// columns 2). highest, total: of the two rows. True: they are everyone's now. False: another warp has them. The count
/// is zero again when all have counted. Words of AttentionArgs::words_of(): [tiles][split][8] counts, behind all that
/// any call has, 16-byte aligned, [tiles][clusters][split][quads][2][32 lanes] fours.
template <AttentionSwapAB P, int kClusters>
__device__ __forceinline__ bool merge_clusters(uint32_t* words, uint32_t tile, int own, int used, int split, int x,
                                               int lane, float (&highest)[2], float (&total)[2], float (&y)[4]) {
  constexpr int kQuads = P.own() * P.rows / 8;
  static_assert(kQuads <= 8);
  uint32_t* const count = words + (tile * P.split + static_cast<uint32_t>(split)) * 8 + x;
  const uint64_t fours = (reinterpret_cast<uint64_t>(words + AttentionArgs::words_ahead()) + 15) / 16 * 16;
  const auto at = [&](int of, int which) {
    const uint32_t part =
        ((tile * kClusters + static_cast<uint32_t>(of)) * P.split + static_cast<uint32_t>(split)) * kQuads +
        static_cast<uint32_t>(x);
    return reinterpret_cast<float4*>(fours) + (part * 2 + static_cast<uint32_t>(which)) * 32 + lane;
  };
  __stcg(at(own, 0), make_float4(y[0], y[1], y[2], y[3]));
  __stcg(at(own, 1), make_float4(highest[0], total[0], highest[1], total[1]));
  __threadfence();  // what a lane wrote is there before its warp counts
  __syncwarp();
  uint32_t before = 0;
  if (lane == 0) before = atomicInc(count, static_cast<uint32_t>(used - 1));
  if (__shfl_sync(0xffffffffu, before, 0) != static_cast<uint32_t>(used - 1)) return false;
  __threadfence();
  float4 sums[kClusters], state[kClusters];
#pragma unroll
  for (int c = 0; c < kClusters; ++c) {
    sums[c] = make_float4(0, 0, 0, 0), state[c] = make_float4(kMinusInfinity, 0, kMinusInfinity, 0);
    if (c < used) sums[c] = __ldcg(at(c, 0)), state[c] = __ldcg(at(c, 1));
  }
  highest[0] = highest[1] = kMinusInfinity;
#pragma unroll
  for (int c = 0; c < kClusters; ++c)
    highest[0] = fmaxf(highest[0], state[c].x), highest[1] = fmaxf(highest[1], state[c].z);
  total[0] = total[1] = y[0] = y[1] = y[2] = y[3] = 0;
#pragma unroll
  for (int c = 0; c < kClusters; ++c) {
    const float w0 = ptx::exp2_fast(state[c].x - softmax_base(highest[0])),
                w1 = ptx::exp2_fast(state[c].z - softmax_base(highest[1]));
    total[0] += state[c].y * w0, total[1] += state[c].w * w1;
    y[0] += sums[c].x * w0, y[1] += sums[c].y * w1, y[2] += sums[c].z * w0, y[3] += sums[c].w * w1;
  }
  return true;
}

}  // namespace vivace::kernels
