// Arguments and policies of `gemm`, shared by the CPU and CUDA kernels. POD; see vivace/ops/gemm.h for the formula.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/gate/activation.h"
#include "vivace/kernels/tile/tensor_map.h"

namespace vivace::kernels {

/// How activations enter a product with block-quantized weights.
enum class GemmAct : int32_t { f32, q8 };

struct GemmArgs {
  const void* x;         // [T, K] x_dtype
  const void* w;         // [N, K] w_dtype, plain or block; where w_by_column [K, N]
  const void* bias;      // [N] bias_dtype, or null
  const void*
      gate;  // [gate_rows, N] out_dtype: factor of the activated product of token min(t, gate_rows - 1); or null
  const void* residual;  // [T, N] out_dtype, may be out itself; or null
  void* out;             // [T, N] out_dtype; N / 2 columns where gated, of gate and residual too
  const int32_t* rows;   // [1] device-side T, or null
  const float *x_scale, *w_scale;          // [1] each, or null
  const float *x_row_scale, *w_row_scale;  // [T] and [N], or null
  const float* out_scale;                  // [1] static quantization scale of out, or null
  // Scales of pieces of rows: entry k / block_group of row n / block_rows is that of w[n][k]. Null without.
  const void* w_block_scale;     // [ceil(N / block_rows), ceil(K / block_group)] scale_dtype
  const int8_t* w_block_zero;    // the same shape: the code that stands for zero
  const float* x_block_scale;    // [T, ceil(K / 128)]
  int64_t x_stride, w_stride, gate_stride, residual_stride, out_stride;  // elements a row
  int64_t block_stride, zero_stride, x_block_stride;
  int32_t T, N, K, gate_rows, block_rows, block_group;
  float alpha;
  Activation epilogue;
  GemmAct act;
  DType x_dtype, w_dtype, bias_dtype, out_dtype, scale_dtype;
  bool fast_accum;  // e4m3 sums stay in the tensor core
  bool tf32;        // f32 factors are cut to 10 bits of mantissa
  bool w_by_column;  // w_stride is between columns of w, rows of [K, N]
  bool gated;       // columns 2 i and 2 i + 1 become one: epilogue(first) * second
};

/// Few tokens: W is read once, straight into the tensor cores' layout; K is split over warps and a cluster.
/// Products of one weight shape agree in warps_k and cluster, so that a token's bits do not depend on T.
struct GemmStream {
  int32_t warps_n, warps_k;  // warps of a block along N and along K
  int32_t row_tiles;         // 16-row tiles of W a warp holds
  int32_t token_tiles;       // 8-token tiles: serves up to 8 * token_tiles tokens
  int32_t stages;            // steps of K in flight
  int32_t cluster;           // blocks that share a tile, split along K; 1 before Hopper
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
  VV_HD constexpr int smem_bytes() const {
    return 16 * (w_words() + x_words()) + 4 * parts() * tokens() * sum_stride();
  }
};

/// Many tokens on every chip: tiles of tokens x weight rows through shared memory, K in steps of 128 bytes.
struct GemmTile {
  int32_t tokens, rows;      // of a block's tile
  int32_t warps_t, warps_n;  // warps along tokens and along rows
  int32_t stages;
  bool aligned;
  bool by_column = false;  // w is [K, N], of 16 bits
  constexpr bool operator==(const GemmTile&) const = default;
  VV_HD constexpr int threads() const { return 32 * warps_t * warps_n; }
  VV_HD constexpr int smem_bytes() const { return stages * (tokens + rows) * 128; }
};

/// What follows the sums of gemm_wgmma where it is known when the kernel is made: an activation and these bits.
/// kEpilogueAny: all of it is decided at run time, for any layout of out.
inline constexpr int32_t kEpilogueAny = 0, kEpilogueFast = 1, kEpilogueBias = 2, kEpilogueGate = 4,
                         kEpilogueResidual = 8, kEpilogueGated = 16, kEpilogueRowScales = 32, kEpilogueTokenScales = 64,
                         kEpilogueActivation = 256,    // the last times the Activation, of eight
    kEpilogueTokenNorms = 2048, kEpilogueNext = 4096;  // see rms_gemm, gemm_rms_rows
/// Beside kEpilogueNext; see rms_gemm_rope. No variables, whose addresses every kernel's constants would have.
enum : int32_t { kEpilogueNextFp8 = 8192, kEpilogueRope = 128 };

/// Hopper: TMA fills a pipeline of `stages` in shared memory, and consumer warpgroups multiply 64 rows of W each by the
/// tile's tokens. Split-K: partial sums of `split` parts of K are added in pairs, the pairs in the order of K. A block
/// adds `splits_per_block` of them itself, one after the other, and a cluster the blocks' sums in distributed shared
/// memory. Blocks of a cluster also share operands by TMA multicast:
///   multicast_x  have neighbouring rows of W; each loads a part of x for all of them
///   multicast_w  have neighbouring tokens; each loads a part of W for all of them
/// Calls of one weight shape agree in `split` within an invariance class, and in nothing else.
struct GemmWgmma {
  int32_t rows;    // of W a tile: 64, 128 or 192
  int32_t tokens;  // of a tile: widths of ptx::Wgmma
  int32_t stages;
  int32_t split, multicast_x, multicast_w;
  bool promote;    // sums leave the tensor core every 128 bytes of K and are added in f32
  bool aligned;    // TMA loads; else a warp, element by element, and nothing is shared
  int32_t splits_per_block;  // 1, or 2 where K is split
  int32_t epilogue;
  // Steps of K of x that lie before the ring, made by other warps of the block, and rows of each: those behind a step's
  // own are the next one's, which stand for tokens that are not there. 0: x comes through the ring.
  int32_t panel = 0, panel_rows = 0;
  // Tokens of a tile whose outputs have shared memory of their own, from where a warp that does nothing else has TMA
  // take them, while the others multiply the next tile: all, or second(), and then those of the first half have a slot
  // of the ring. 0: the consumer warps store.
  int32_t staged = 0;
  bool by_column = false;  // w is [K, N], of 16 bits, and loaded by TMA
  bool held = false;       // W comes another way and is in registers when it is multiplied: stages are of x alone
  constexpr bool operator==(const GemmWgmma&) const = default;

  VV_HD constexpr int groups() const { return rows / 64; }
  // A warp that loads, or two where W is held, and one that stores; a group of warps where the consumers need most of
  // the registers.
  VV_HD constexpr bool wide() const { return rows >= 128 && tokens > 64; }
  VV_HD constexpr int threads() const {
    return 2 * rows + (wide() ? 128 : 32 + (held ? 32 : 0) + (staged > 0 ? 32 : 0));
  }
  VV_HD constexpr int parts() const { return split / splits_per_block; }  // blocks along K
  VV_HD constexpr int cluster() const { return parts() * multicast_x * multicast_w; }
  VV_HD constexpr int stage_bytes() const { return ((panel > 0 ? 0 : tokens) + (held ? 0 : rows)) * 128; }
  VV_HD constexpr int panel_bytes() const {
    return panel == 0 ? 0 : (panel * panel_rows + tokens - panel_rows + 7) / 8 * 1024;
  }
  VV_HD constexpr int slice() const { return rows / parts(); }   // rows that a block finishes where a cluster splits K
  VV_HD constexpr bool has(int32_t part) const { return (epilogue & part) != 0; }
  VV_HD constexpr Activation activation() const { return static_cast<Activation>(epilogue / kEpilogueActivation % 8); }
  // Whether outputs go from registers to memory, without a turn in shared memory, where `epilogue` is known.
  VV_HD constexpr bool direct() const { return tokens <= 64 || parts() > 1; }
  // Outputs as they leave, [token][row]: floats a token, and tokens that a warpgroup turns at a time.
  VV_HD constexpr int transpose_stride() const { return (parts() > 1 ? slice() : 64) + 4; }
  VV_HD constexpr int transpose_tokens() const { return tokens < 32 ? tokens : 32; }
  VV_HD constexpr int transpose_bytes() const {
    return transpose_tokens() * (epilogue != kEpilogueAny ? 128 : transpose_stride() * 4);
  }
  // Outputs that a warp of their own stores leave in two halves, each in boxes of out_box() tokens.
  VV_HD constexpr int second() const { return (tokens + 31) / 32 * 16; }
  VV_HD constexpr int out_box() const {
    int a = second(), b = tokens - a;
    while (b > 0) {
      const int left = a % b;
      a = b, b = left;
    }
    return a;
  }
  VV_HD constexpr int staged_bytes() const { return groups() * staged * 128; }
  VV_HD constexpr int barrier_bytes() const { return 16 * stages + 16 + (staged > 0 ? 32 : 0); }
  // Whether parts of sums leave from a place of their own, not from the ring: a warp then sends its own as soon as it
  // has them.
  VV_HD constexpr bool apart() const { return parts() > 1 && tokens >= 32 && rows * tokens <= 64 * 64; }
  VV_HD constexpr int sum_bytes() const {
    return staged > 0                             ? 0
           : parts() > 1                          ? rows * tokens * (apart() ? 8 : 4)
           : epilogue != kEpilogueAny && direct() ? 0
                                                  : groups() * 2 * transpose_bytes();
  }
  VV_HD constexpr int smem_bytes() const {
    return panel_bytes() + stages * stage_bytes() + staged_bytes() + barrier_bytes() + sum_bytes();
  }
};

/// Where kEpilogueTokenNorms: threads of a block that make its tokens' factors, behind those of P.threads().
inline constexpr int kTokenNormThreads = 128;

/// Where kEpilogueNext: what rms_rows makes of out's rows; kEpilogueNextFp8: `scaled` is e4m3.
struct GemmNext {
  const void* weight;  // [N] out_dtype or, where it says so, f32; or null
  const void* scale;   // [N] out_dtype, or null; not both
  void* scaled;        // [T, N] out_dtype, or e4m3
  float* squares;      // [T, N / 8]
  int64_t scaled_stride, squares_stride;
  bool weight_f32;
  const float* scaled_scale;  // [1] of an e4m3 `scaled`, else null
};

struct GemmWgmmaArgs {
  TensorMap x_map;  // [T, K], boxes of tokens / multicast_x x 128 bytes
  TensorMap w_map;  // [N, K], boxes of rows / multicast_w x 128 bytes; where kEpilogueGated, or out is e4m3 and
                    // `epilogue` is known, each 16 rows with the even ones before the odd ones: [N / 16, 2, 8, K];
                    // by_column [K, N], boxes of 64 / multicast_w x 128 bytes
  TensorMap
      residual_map;  // [T, N], boxes of tokens, or out_box(), x 128 bytes; where kEpilogueResidual and not direct()
  TensorMap out_map;       // [T, columns of out], boxes of out_box() x what a warpgroup has of a token; where staged
  GemmArgs g;
};

}  // namespace vivace::kernels
