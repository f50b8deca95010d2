// gemm of few tokens: W streams from memory through a lane's own ring of shared memory into the tensor cores,
// 64 or 128 bytes of each row at a time. Limit: memory bandwidth, N * K * sizeof(W) bytes.
//
// W is the 16-row operand, x the 8-column one. A lane's 16-byte pieces of W go to a place that it alone
// reads back, so W needs no barrier; x does the same, or is shared by the warps along N where many tokens
// would make its copies the larger traffic. Partial sums meet in the shared memory of one block of the
// cluster, and are added in the order of K.
// Chosen when: chips without wgmma, up to 64 tokens of equal operands.
#pragma once
#include "vivace/kernels/gemm/epilogue.cuh"
#include "vivace/kernels/gemm/fragment.cuh"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/pdl.cuh"

namespace vivace::kernels {

template <class T, GemmStream P>
struct StreamTile {
  static constexpr int kWarps = P.warps_n * P.warps_k;
  static constexpr int kElems = Fragment<T>::kElems;
  static constexpr int kStep = 2 * 4 * kElems;         // elements of K a step: two pieces of four lanes
  static constexpr int kWGroups = 4 * P.row_tiles;     // pieces of W a lane and step: (tile, half, piece)
  static constexpr int kXGroups = 2 * P.token_tiles;   // of x: (tile, piece)

  const GemmArgs& a;
  uint4 *w_ring, *x_ring;  // [P.stages][warp][kWGroups][32 lanes], [P.stages][warp, or share of K][kXGroups][32]
  int lane, wn, wk, tile, rank;
  int M = 0;
  const T *w_row[2 * P.row_tiles], *x_row;

  __device__ __forceinline__ StreamTile(const GemmArgs& args, uint4* smem)
      : a(args), w_ring(smem), x_ring(smem + P.w_words()), lane(threadIdx.x % 32), wn(threadIdx.x / 32 % P.warps_n),
        wk(threadIdx.x / 32 / P.warps_n), tile(blockIdx.x / P.cluster), rank(ptx::cluster_rank<P.cluster>()) {
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < 2 * P.row_tiles; ++i) {
      const int n = min(tile * P.rows() + (wn * P.row_tiles + i / 2) * 16 + i % 2 * 8 + g, a.N - 1);
      w_row[i] = static_cast<const T*>(a.w) + n * a.w_stride + c * kElems;
    }
    x_row = static_cast<const T*>(a.x) + g * a.x_stride + c * kElems;
  }
  __device__ __forceinline__ uint4* w_slot(int slot) const {
    return w_ring + ((slot * kWarps + wk * P.warps_n + wn) * kWGroups) * 32 + lane;
  }
  __device__ __forceinline__ uint4* x_slot(int slot) const {
    const int owner = P.shared_x ? wk : wk * P.warps_n + wn;
    return x_ring + ((slot * (P.shared_x ? P.warps_k : kWarps) + owner) * kXGroups) * 32 + lane;
  }
  __device__ __forceinline__ void load_w(int64_t step, int slot) const {
    uint4* to = w_slot(slot);
    const int64_t K = a.K - lane % 4 * kElems;
#pragma unroll
    for (int i = 0; i < 2 * P.row_tiles; ++i)
#pragma unroll
      for (int piece = 0; piece < 2; ++piece)
        fetch16<T, P.aligned>(to + (2 * i + piece) * 32, w_row[i], step * kStep + piece * 4 * kElems, K, true);
  }
  __device__ __forceinline__ void load_x(int64_t step, int slot) const {
    uint4* to = x_slot(slot);
    const int64_t K = a.K - lane % 4 * kElems;
#pragma unroll
    for (int i = 0; i < kXGroups; ++i) {
      if (P.shared_x && i % P.warps_n != wn) continue;
      const int first = i / 2 * 8;
      fetch16<T, P.aligned>(to + i * 32, x_row + first * a.x_stride, step * kStep + i % 2 * 4 * kElems, K,
                            first + lane / 4 < M);
    }
  }
  __device__ __forceinline__ void multiply_step(int slot, float (&acc)[P.row_tiles][P.token_tiles][4]) const {
    const uint4 *w = w_slot(slot), *x = x_slot(slot);
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
      uint4 raw[P.token_tiles];
#pragma unroll
      for (int m = 0; m < P.token_tiles; ++m) raw[m] = x[(2 * m + piece) * 32];
#pragma unroll
      for (int r = 0; r < P.row_tiles; ++r) {
        const Fragment<T> top(w[(4 * r + piece) * 32]), bottom(w[(4 * r + 2 + piece) * 32]);
#pragma unroll
        for (int m = 0; m < P.token_tiles; ++m) multiply(acc[r][m], top, bottom, Fragment<T>(raw[m]));
      }
    }
  }
  /// Sums to the block of the cluster that finishes their rows: [part][token][row of the slice].
  __device__ __forceinline__ void send(float* sums, const float (&acc)[P.row_tiles][P.token_tiles][4]) const {
    float* part = sums + (rank * P.warps_k + wk) * P.tokens() * P.sum_stride();
#pragma unroll
    for (int r = 0; r < P.row_tiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = (wn * P.row_tiles + r) * 16 + h * 8 + lane / 4;
        const uint32_t to = ptx::remote_address<P.cluster>(part + row % P.slice(), row / P.slice());
#pragma unroll
        for (int m = 0; m < P.token_tiles; ++m)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int t = m * 8 + lane % 4 * 2 + e;
            if (t < M) ptx::remote_store<P.cluster>(to + 4 * t * P.sum_stride(), acc[r][m][2 * h + e]);
          }
      }
  }
  template <class Out>
  __device__ __forceinline__ void finish(const float* sums) const {
    constexpr int V = 4, kGroups = P.slice() / V;
    const GemmEpilogue<Out> epilogue(a);
    const bool vector = epilogue.template wide<V>();
    for (int i = static_cast<int>(threadIdx.x); i < M * kGroups; i += P.threads()) {
      const int t = i / kGroups, row = i % kGroups * V, n = tile * P.rows() + rank * P.slice() + row;
      if (n >= a.N) continue;
      float y[V];
      load<V>(sums + t * P.sum_stride() + row, y);
#pragma unroll
      for (int p = 1; p < P.parts(); ++p) {
        float more[V];
        load<V>(sums + (p * P.tokens() + t) * P.sum_stride() + row, more);
#pragma unroll
        for (int j = 0; j < V; ++j) y[j] += more[j];
      }
      epilogue.finish(t, n, y, vector);
    }
  }
};

/// Grid: ceil(N / P.rows()) * P.cluster blocks.
template <class T, class Out, GemmStream P>
__global__ void __launch_bounds__(P.threads()) gemm_stream(const __grid_constant__ GemmArgs a) {
  extern __shared__ uint4 gemm_smem[];
  StreamTile<T, P> s(a, gemm_smem);
  float* sums = reinterpret_cast<float*>(gemm_smem + P.w_words() + P.x_words());
  const int64_t steps = (int64_t{a.K} + s.kStep - 1) / s.kStep;
  const int part = s.rank * P.warps_k + s.wk;
  const int64_t first = steps * part / P.parts();
  const int count = static_cast<int>(steps * (part + 1) / P.parts() - first);

  // W is immutable: it is on its way while the predecessor still runs.
#pragma unroll
  for (int i = 0; i < P.stages - 1; ++i)
    if (i < count) s.load_w(first + i, i);
  ptx::cluster_arrive<P.cluster>();
  ptx::dependency_wait();
  ptx::launch_dependents();
  s.M = valid_rows(a.rows, a.T);
#pragma unroll
  for (int i = 0; i < P.stages - 1; ++i) {
    if (i < count) s.load_x(first + i, i);
    ptx::copy_commit();
  }

  float acc[P.row_tiles][P.token_tiles][4] = {};
  // Warps of one wk have the same count, so they meet at its barrier equally often.
  for (int i = 0, slot = 0, free = P.stages - 1; i < count; ++i) {
    ptx::copy_wait<P.stages - 2>();
    if constexpr (P.shared_x) ptx::named_barrier<32 * P.warps_n>(s.wk + 1);
    if (i + P.stages - 1 < count) {
      s.load_w(first + i + P.stages - 1, free);
      s.load_x(first + i + P.stages - 1, free);
    }
    ptx::copy_commit();
    s.multiply_step(slot, acc);
    slot = slot + 1 == P.stages ? 0 : slot + 1;
    free = free + 1 == P.stages ? 0 : free + 1;
  }

  ptx::cluster_wait<P.cluster>();
  s.send(sums, acc);
  ptx::cluster_sync<P.cluster>();
  s.template finish<Out>(sums);
}

}  // namespace vivace::kernels
