// What kernels of a few rows share: a block's tile, what its rows see, and how their sums leave. Lanes hold rows lane /
// 4 and lane / 4 + 8 of a warp's 16, as mma16816 does.
#pragma once
#include "vivace/kernels/attention/epilogue.cuh"
#include "vivace/kernels/attention/runs.cuh"
#include "vivace/kernels/attention/softmax.cuh"

namespace vivace::kernels {

/// kFp8Kv: 8-bit values, whose even and odd columns are products of their own.
template <class Q, int kDv, bool kFp8Kv, class Out>
struct AttentionRows {
  const AttentionArgs& a;
  unsigned char* memory;
  int kv, rank, warp_m, warp_d, lane;  // rank: of the block in its cluster
  int row0, row_end, height;           // rows t * group + head

  int first[2], end[2];  // keys that the lane's rows see
  float q_descale[2];       // narrow: what the queries of those rows were divided by

  __device__ __forceinline__ int my_row(int i) const { return row0 + warp_m * 16 + lane / 4 + 8 * i; }
  __device__ __forceinline__ bool in_run(int row, int ta, int tb) const {
    return row < row_end && row >= ta * a.group() && row < tb * a.group();
  }
  /// What tokens [ta, tb), which share a slot, see: by each row of this lane and by any; the latter the same in every
  /// warp.
  __device__ __forceinline__ void spans(int ta, int tb, int* least, int* most) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      first[i] = end[i] = 0;
      if (!in_run(my_row(i), ta, tb)) continue;
      const AttentionSpan see(a, my_row(i) / a.group());
      first[i] = static_cast<int>(see.first), end[i] = static_cast<int>(see.end);
    }
    span_of_tokens(a, ta, tb, lane, least, most);
  }

  /// Columns [column, + 4) of a row, weighted and rounded; its log-sum-exp with column 0.
  __device__ __forceinline__ void write(const AttentionEpilogue<Q, Out>& epilogue, int row, int column, float highest,
                                        float total, const float (&y)[4]) const {
    const int group = a.group(), h = kv * group + row % group;
    const int64_t t = row / group;
    if (column == 0 && a.lse != nullptr) a.lse[t * a.lse_stride + h] = softmax_lse(highest, total);
    if (column >= kDv) return;
    const float factor = softmax_factor(a, h, highest, total);
    float z[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) z[e] = y[e] * factor;
    epilogue.template store_as<4>(static_cast<Out*>(a.out) + t * a.out_stride + int64_t{h} * kDv + column, z);
  }
  /// Of 16 columns' sums the four in a row that this lane passes on, of its row i: from fours_at() on. Neighbouring
  /// lanes swap halves; narrow: a lane has them.
  __device__ __forceinline__ void four(const float (&x)[2][4], int i, float (&y)[4]) const {
    if constexpr (kFp8Kv) {
      y[0] = x[0][2 * i], y[1] = x[1][2 * i], y[2] = x[0][2 * i + 1], y[3] = x[1][2 * i + 1];
    } else {
      const bool odd = lane % 2 != 0;
      const float got0 = __shfl_xor_sync(0xffffffffu, odd ? x[0][2 * i] : x[1][2 * i], 1);
      const float got1 = __shfl_xor_sync(0xffffffffu, odd ? x[0][2 * i + 1] : x[1][2 * i + 1], 1);
      y[0] = odd ? got0 : x[0][2 * i], y[1] = odd ? got1 : x[0][2 * i + 1];
      y[2] = odd ? x[1][2 * i] : got0, y[3] = odd ? x[1][2 * i + 1] : got1;
    }
  }
  __device__ __forceinline__ int fours_at() const { return kFp8Kv ? lane % 4 * 4 : lane % 2 * 8 + lane % 4 / 2 * 4; }
};

}  // namespace vivace::kernels
