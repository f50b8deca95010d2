// Arguments and policies of `gemm`, shared by the CPU and CUDA kernels. POD; see vivace/ops/gemm.h for the formula.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/gate/activation.h"
#include "vivace/kernels/tile/tensor_map.h"

namespace vivace::kernels {

/// How activations enter a product with block-quantised weights.
enum class GemmAct : int32_t { f32, q8 };

struct GemmArgs {
  const void* x;         // [T, K] x_dtype
  const void* w;         // [N, K] w_dtype, plain or block
  const void* bias;      // [N] bias_dtype, or null
  const void* residual;  // [T, N] out_dtype, may be out itself; or null
  void* out;             // [T, N] out_dtype
  const int32_t* rows;   // [1] device-side T, or null
  const float *x_scale, *w_scale;          // [1] each, or null
  const float *x_row_scale, *w_row_scale;  // [T] and [N], or null
  const float* out_scale;                  // [1] static quantisation scale of out, or null
  int64_t x_stride, w_stride, residual_stride, out_stride;  // elements a row
  int32_t T, N, K;
  float alpha;
  Activation epilogue;
  GemmAct act;
  DType x_dtype, w_dtype, bias_dtype, out_dtype;
};

/// Few tokens: W is read once, straight into the matrix units' layout; K is cut over warps and a cluster.
/// Products of one weight shape agree in warps_k and cluster, so that a token's bits do not depend on T.
struct GemmStream {
  int32_t warps_n, warps_k;  // warps of a block along N and along K
  int32_t row_tiles;         // 16-row tiles of W a warp holds
  int32_t token_tiles;       // 8-token tiles: serves up to 8 * token_tiles tokens
  int32_t stages;            // steps of K in flight
  int32_t cluster;           // blocks that share a tile, cut along K; 1 before Hopper
  bool shared_x;             // the warps along N load x together; else each for itself, without barriers
  bool aligned;              // 16-byte copies; else element by element
  constexpr bool operator==(const GemmStream&) const = default;

  VV_HD constexpr int threads() const { return 32 * warps_n * warps_k; }
  VV_HD constexpr int rows() const { return 16 * row_tiles * warps_n; }  // of W a cluster finishes
  VV_HD constexpr int slice() const { return rows() / cluster; }         // of these a block finishes
  VV_HD constexpr int tokens() const { return 8 * token_tiles; }
  VV_HD constexpr int parts() const { return warps_k * cluster; }        // partial sums of an output
  VV_HD constexpr int w_words() const { return stages * warps_n * warps_k * 4 * row_tiles * 32; }  // of 16 bytes
  VV_HD constexpr int x_words() const { return stages * (shared_x ? 1 : warps_n) * warps_k * 2 * token_tiles * 32; }
  VV_HD constexpr int sum_stride() const { return slice() + 4; }         // floats a token: keeps banks apart
  VV_HD constexpr int smem_bytes() const { return 16 * (w_words() + x_words()) + 4 * parts() * tokens() * sum_stride(); }
};

/// Many tokens on every chip: tiles of tokens x weight rows through shared memory, K in steps of 128 bytes.
struct GemmTile {
  int32_t tokens, rows;      // of a block's tile
  int32_t warps_t, warps_n;  // warps along tokens and along rows
  int32_t stages;
  bool aligned;
  constexpr bool operator==(const GemmTile&) const = default;
  VV_HD constexpr int threads() const { return 32 * warps_t * warps_n; }
  VV_HD constexpr int smem_bytes() const { return stages * (tokens + rows) * 128; }
};

/// Many tokens on Hopper: the copy engine fills a ring of shared memory, two warpgroups multiply 64 tokens
/// each. Blocks stay for several tiles; the two blocks of a cluster have neighbouring tokens and share W.
struct GemmWgmma {
  int32_t rows;     // of W a tile; tokens are 128
  int32_t stages;
  int32_t cluster;  // 1 or 2
  constexpr bool operator==(const GemmWgmma&) const = default;
  VV_HD constexpr int tokens() const { return 128; }
  VV_HD constexpr int threads() const { return 384; }
  VV_HD constexpr int stage_bytes() const { return (tokens() + rows) * 128; }
  VV_HD constexpr int turn_stride() const { return 36; }  // floats a row of a warp's 16 x 32 outputs on their way out
  VV_HD constexpr int smem_bytes() const { return stages * (stage_bytes() + 16) + 8 * 16 * turn_stride() * 4; }
};

struct GemmWgmmaArgs {
  TensorMap x_map;  // [T, K], boxes of 128 tokens x 128 bytes
  TensorMap w_map;  // [N, K], boxes of rows / cluster x 128 bytes
  GemmArgs g;
};

}  // namespace vivace::kernels
