// Policy of the gemm kernels whose weights are dequantized in registers: block formats, 8-bit elements, mixed
// pairs. Shared by host and device, so that both agree on every size. POD.
#pragma once
#include "vivace/kernels/gemm/gemm.h"

namespace vivace::kernels {

/// Tokens of each tile where tiles of at most `most` share T evenly.
VV_HD constexpr int even_tokens(int T, int most) {
  const int tiles = (T + most - 1) / most;
  return tiles > 0 ? (T + tiles - 1) / tiles : 0;
}

/// W streams as it lies in memory through each warp's own ring of shared memory; a panel of x, converted once
/// a block, lies beside it. K is dealt to warps_k warps step by step and cut over a cluster. The order of a
/// sum depends on the weight's shape alone where warps_k and cluster do: not on the tiles, not on T.
struct GemmWeightOnly {
  int32_t warps_n, warps_k;  // warps of a block along N and along K
  int32_t row_tiles;         // 16-row tiles of W a warp holds
  int32_t token_tiles;       // 8-token tiles a block holds
  int32_t stages;            // steps of K in a warp's ring
  int32_t cluster;           // blocks that share a tile, split along K; 1 before Hopper
  int32_t panel;             // elements of K that x is converted for at a time
  bool aligned;              // rows and steps of W start at 16 bytes
  int32_t group = 0;         // elements of K that share an entry of w_block_scale; 0: there is none
  DType scale = DType::f32;  // its type
  bool zeros = false, x_scaled = false;  // w_block_zero, x_block_scale are there
  int32_t tma_steps = 0;          // TMA brings W, so many of the steps below at a time; 0: cp.async
  bool x_ring = false;  // and x, into a ring of places for each warp along K; `panel` elements of K are in all of these
  bool straight = false;  // each row of W has a row of w_block_scale, which starts at 16 bytes: the ring has no margin
  bool wgmma = false;  // four warps along N multiply together, x lies in the ring as wgmma reads it
  constexpr bool operator==(const GemmWeightOnly&) const = default;

  VV_HD constexpr int threads() const { return 32 * warps_n * warps_k; }
  VV_HD constexpr int rows() const { return 16 * row_tiles * warps_n; }  // of W a cluster finishes
  VV_HD constexpr int slice() const { return rows() / cluster; }         // of these a block finishes
  VV_HD constexpr int tokens() const { return 8 * token_tiles; }
  /// Blocks that an SM should hold: what the registers of dequantization allow.
  VV_HD constexpr int blocks(DType x, DType w, GemmAct act) const {
    if (tma_steps > 0) return token_tiles == 1 && ring_bytes(w) <= 88 * 1024 ? 2 : 1;
    return token_tiles > 1 || x == DType::f32 || w == DType::f32 ? 1
           : act == GemmAct::q8 && info(w).block == 256          ? 2
                                                                 : 3;
  }
  VV_HD constexpr int parts() const { return warps_k * cluster; }        // partial sums of an output
  VV_HD constexpr bool reuse() const { return token_tiles > 2; }  // sums meet where the ring was, for one more barrier
  VV_HD constexpr int sum_bytes() const { return 4 * parts() * tokens() * sum_stride(); }
  VV_HD constexpr int sum_stride() const { return slice() + 4; }         // floats a token: keeps banks apart

  // Sizes that depend on the formats too.
  VV_HD constexpr int step(DType w) const {
    return (tma_steps > 0 ? tma_steps : 1) * (info(w).block > 1 ? 256 : 256 / info(w).bytes);
  }  // elements of K a turn of the ring
  VV_HD constexpr int step_bytes(DType w) const { return static_cast<int>(row_bytes(w, step(w))); }
  /// Whether a block goes on to other tiles: its sums have a place beside the ring, which then never empties.
  VV_HD constexpr bool persistent() const { return tma_steps > 0 && cluster == 1 && !reuse(); }
  VV_HD constexpr int w_barrier_bytes() const {
    return tma_steps > 0 ? (8 * stages * warps_n * warps_k + 127) / 128 * 128 : 0;
  }
  VV_HD constexpr int barrier_bytes(DType w) const {
    return w_barrier_bytes() + (x_ring ? (16 * x_stages(w) * warps_k + 127) / 128 * 128 : 0);
  }
  /// 16-byte chunks a row and step: where rows start anywhere, up to 15 bytes before it come along; of q6_k by TMA,
  /// which begins at 16 bytes and whose steps of 420 may begin 4, 8 or 12 further on, as many.
  VV_HD constexpr int chunks(DType w) const { return (step_bytes(w) + (aligned ? 15 : 30)) / 16; }
  /// The same of a row's entries of w_block_scale and w_block_zero, which lie behind the W of all rows.
  VV_HD constexpr int scale_bytes(DType w) const {
    return group == 0 ? 0 : (step(w) + group - 1) / group * info(scale).bytes;
  }
  VV_HD constexpr int zero_bytes(DType w) const { return zeros ? (step(w) + group - 1) / group : 0; }
  VV_HD static constexpr int side_chunks(int bytes) { return bytes == 0 ? 0 : (bytes + 30) / 16; }
  VV_HD constexpr int scale_chunks(DType w) const {
    return straight ? scale_bytes(w) / 16 : side_chunks(scale_bytes(w));
  }
  /// Bytes between rows in the ring. Eight rows' accesses of 4, 8 or 16 bytes a lane meet in no bank; where wide(),
  /// four rows' of 8.
  VV_HD constexpr int pitch(DType w) const {
    if (wide(w)) return (16 * chunks(w) + 95) / 128 * 128 + 32;
    const int apart = info(w).block > 1 ? 16 : 16 * info(w).bytes, bytes = 16 * chunks(w);
    return (bytes + apart - 1) / (2 * apart) * (2 * apart) + apart;
  }
  VV_HD constexpr int side_pitch(DType w) const {
    return 16 * (scale_chunks(w) + side_chunks(zero_bytes(w)));
  }
  VV_HD constexpr int slot_bytes(DType w) const {
    return 16 * row_tiles * (pitch(w) + side_pitch(w));
  }  // of a warp's step
  VV_HD constexpr int ring_bytes(DType w) const { return stages * warps_n * warps_k * slot_bytes(w); }

  /// The element type that the tensor cores multiply: bf16, or f16 where both sides fit it exactly.
  VV_HD static constexpr DType mma(DType x, DType w) {
    return (x == DType::f16 && w != DType::bf16 && w != DType::f32) || (x == DType::e4m3 && w == DType::f16)
               ? DType::f16
               : DType::bf16;
  }
  /// Numbers of that type whose sum is exactly a value of `t`.
  VV_HD static constexpr int planes(DType t, DType unit) {
    return t == DType::f32 ? 3 : t == DType::f16 && unit == DType::bf16 ? 2 : 1;
  }

  /// NVFP4: a lane has 16 neighbours of 64 elements of K, which share a scale.
  VV_HD constexpr bool wide(DType w) const {
    return w == DType::e2m1 && group == 16 && scale == DType::e4m3 && !zeros && !x_scaled;
  }
  /// Of these code and scale have two and four significant bits, bf16 holds their product: weights are scaled where
  /// they are dequantized.
  VV_HD constexpr bool folds(DType x, DType w) const { return wide(w) && mma(x, w) == DType::bf16; }
  /// Weights come in pairs of codes four apart, and x lies in that order. In i4 a lane has eight neighbours of 32
  /// elements, so that a scale has to serve as many; of rows off 16 bytes these are four reads, whose registers three
  /// blocks an SM do not leave.
  VV_HD constexpr bool pairs(DType x, DType w) const {
    return folds(x, w) || (w == DType::i4 && group != 16 && aligned);
  }
  /// Groups of 32 elements of K that a stage of x's ring has: a step; half of it where there are many tokens; a quarter
  /// where the ring has no room for a step a warp. And stages of a warp along K.
  VV_HD constexpr int x_run(DType w) const {
    return step(w) / (token_tiles <= 2 || step(w) < 512 ? 32 : panel >= warps_k * step(w) ? 64 : 128);
  }
  VV_HD constexpr int x_stages(DType w) const { return panel / (32 * x_run(w) * warps_k); }
  /// Bytes of x's rows in a panel, or a place of the ring, one token and plane; then of what a token keeps for each 32
  /// elements.
  VV_HD constexpr int x_pitch(DType x, DType w, GemmAct act) const {
    return act == GemmAct::q8 ? panel + 16 : (x_ring ? 32 * x_run(w) : panel) * 2 + (pairs(x, w) ? 64 : 32);
  }
  VV_HD constexpr int x_stage_bytes(DType x, DType w, int T) const {
    if (wgmma) return x_run(w) / 2 * tokens() * 128;  // 64 elements of every token, row behind row
    return (T * x_pitch(x, w, GemmAct::f32) + 127) / 128 * 128;
  }
  VV_HD constexpr bool has_min(DType w) const {
    return zeros || w == DType::q4_1 || w == DType::q5_1 || w == DType::q4_k || w == DType::q5_k;
  }
  VV_HD static constexpr int starts(DType w, GemmAct act) { return act != GemmAct::q8 ? 0 : w == DType::q6_k ? 2 : 1; }
  /// Of k-quants with minima sums of x are three planes of bf16: the minima of eight groups are a product with them.
  VV_HD static constexpr bool sums_in_planes(DType w, GemmAct act) {
    return act != GemmAct::q8 && (w == DType::q4_k || w == DType::q5_k);
  }
  /// Bytes of the sum of a group of x.
  VV_HD constexpr int sum_size(DType w, GemmAct act) const {
    return !has_min(w) ? 0 : sums_in_planes(w, act) ? 6 : 4;
  }
  VV_HD constexpr int side_bytes(DType w, GemmAct act) const {
    return panel / 32 * tokens() * (4 * (starts(w, act) + (act == GemmAct::q8 || x_scaled)) + sum_size(w, act));
  }
  VV_HD constexpr int panel_bytes(DType x, DType w, GemmAct act, int T) const {
    const int held = T < tokens() ? T : tokens();
    if (x_ring) return warps_k * x_stages(w) * x_stage_bytes(x, w, held) + side_bytes(w, act);
    return (act == GemmAct::q8 ? 1 : planes(x, mma(x, w))) * held * x_pitch(x, w, act) + side_bytes(w, act);
  }
  /// Where x begins: swizzled rows of 128 bytes start at a multiple of eight.
  VV_HD constexpr int x_at(DType w) const {
    const int at = barrier_bytes(w) + ring_bytes(w);
    return wgmma ? (at + 1023) / 1024 * 1024 : at;
  }
  VV_HD constexpr int smem_bytes(DType x, DType w, GemmAct act, int T) const {
    const int operands = x_at(w) - barrier_bytes(w) + panel_bytes(x, w, act, T),
              sums = (persistent() ? 2 : 1) * sum_bytes();
    return barrier_bytes(w) + (!reuse() ? operands + sums : operands > sums ? operands : sums);
  }
};

/// Where P.tma_steps > 0: the map of W as 32-bit words, in boxes of 16 * row_tiles rows x pitch(w) bytes. Where
/// P.x_ring: the map of x as 64-bit words, in boxes of a tile's rows x x_pitch() bytes; where P.wgmma, in boxes of 128
/// bytes, swizzled.
struct GemmWeightOnlyArgs {
  TensorMap w_map, x_map;
  GemmArgs g;
};

}  // namespace vivace::kernels
