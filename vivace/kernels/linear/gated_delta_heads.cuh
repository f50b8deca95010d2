// gated_delta_heads on CUDA: formula in vivace/ops/gated_delta_heads.h. The blocks that share a head's columns are a
// cluster: each sends the others the sums of squares of its columns.
// Chosen when: Hopper on, few tokens of 16 bits, D above 64 and up to 128, Dv 128, a norm's weight, a gate an element.
#pragma once
#include "vivace/kernels/gate/gate_heads.cuh"
#include "vivace/kernels/linear/gated_delta.cuh"
#include "vivace/kernels/linear/gated_delta_heads.h"
#include "vivace/kernels/ptx/cluster.cuh"

namespace vivace::kernels {

/// What becomes of a block's tokens: they wait in shared memory, rounded, until the head's norm is known.
template <class In, GatedDeltaPolicy P>
struct GatedDeltaHeads {
  static constexpr int kBlocks = GatedDeltaHeadsArgs::kBlocks, kTokens = P.tokens(), kThreads = P.threads();
  static constexpr int kPieces = P.columns / 8;                // of eight columns: gate_heads adds their squares in a lane
  static constexpr int kRounds = kTokens * P.columns / kThreads;  // elements of a thread
  static_assert(sizeof(In) == 2 && kThreads % P.columns == 0);
  struct Shared {
    float row[kTokens][P.columns];
    float squares[2][kTokens][kBlocks * kPieces];  // of all columns; two, since others may be ahead by one exchange
  };

  const GateHeadsArgs& a;
  Shared& m;
  int hv, slice, thread;
  float weight, gate[kRounds];
  int turn = 0;

  __device__ __forceinline__ GatedDeltaHeads(const GateHeadsArgs& args, Shared& memory, int head, int block)
      : a(args), m(memory), hv(head), slice(block), thread(static_cast<int>(threadIdx.x)) {
    weight = load_as_float(a.weight, a.weight_dtype, slice * P.columns + thread % P.columns);
    ptx::cluster_arrive<kBlocks>();
  }
  __device__ __forceinline__ int64_t column() const {
    return int64_t{hv} * a.D + slice * P.columns + thread % P.columns;
  }
  /// Gates of tokens from t0 on are on their way.
  __device__ __forceinline__ void begin(int t0, int count) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i)
      if (const int u = thread / P.columns + i * (kThreads / P.columns); u < count)
        gate[i] = to_float(static_cast<const In*>(a.gate)[(t0 + u) * a.gate_stride + column()]);
  }
  __device__ __forceinline__ void put(int u, int64_t, int at, float out) {
    m.row[u][at] = to_float(from_float<In>(out));
  }
  __device__ __forceinline__ void end(int t0, int count) {
    __syncthreads();
    if (turn == 0) ptx::cluster_wait<kBlocks>();  // all blocks of the head run
    float(&squares)[kTokens][kBlocks * kPieces] = m.squares[turn++ % 2];
    if (const int u = thread / kPieces, piece = thread % kPieces; u < count) {
      float square = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) square += m.row[u][piece * 8 + i] * m.row[u][piece * 8 + i];
#pragma unroll
      for (int r = 0; r < kBlocks; ++r)
        ptx::remote_store<kBlocks>(ptx::remote_address<kBlocks>(&squares[u][slice * kPieces + piece], r), square);
    }
    ptx::cluster_sync<kBlocks>();
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int u = thread / P.columns + i * (kThreads / P.columns);
      if (u >= count) break;
      float part[kBlocks * kPieces];
#pragma unroll
      for (int j = 0; j < kBlocks * kPieces; ++j) part[j] = squares[u][j];
      const float factor = rsqrtf(reduce_parts(part, Sum{}) / static_cast<float>(a.D) + a.eps);
      const float y = gate[i], open = sigmoid(y);
      float value = m.row[u][thread % P.columns];
      value *= factor * weight;
      static_cast<In*>(a.out)[(t0 + u) * a.out_stride + column()] = from_float<In>(value * (a.silu ? y * open : open));
    }
  }
};

/// Grid: as gated_delta's, in clusters of a head's blocks.
template <class In, GatedDeltaPolicy P>
__global__ void __launch_bounds__(P.threads()) gated_delta_heads(const __grid_constant__ GatedDeltaHeadsArgs args) {
  __shared__ typename GatedDeltaHeads<In, P>::Shared memory;
  ptx::touch_parameters(args);
  gated_delta_block<In, P>(args.delta, [&](int hv, int slice) {
    return GatedDeltaHeads<In, P>(args.heads, memory, hv, slice);
  });
}

}  // namespace vivace::kernels
