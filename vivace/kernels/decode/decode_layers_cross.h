// Arguments of `decode_layers_cross`, shared by the CPU and CUDA kernels. POD; see vivace/ops/decode_layers_cross.h.
#pragma once
#include "vivace/kernels/decode/decode_layers.h"

namespace vivace::kernels {

struct DecodeLayersCrossArgs {
  /// A matrix and what is added to its product, of every layer.
  struct Matrix {
    LayerStack w, bias;  // [N, rows, columns], [N, rows]; bf16
  };
  struct Norm {
    LayerStack weight, bias;  // [N, H] f32
  };
  const void *x, *add;  // [H] bf16; add may be null
  void* out;            // [H] bf16, may be x
  Norm attn_norm, cross_norm, mlp_norm;
  Matrix qkv, o, cross_q, cross_o, up, down;
  void *k_cache, *v_cache;                    // [N, B, L, heads, D] bf16
  const void *cross_k, *cross_v;              // [N, C, F, heads, D] bf16
  void* queries;                              // [N, H] bf16: of cross-attention; or null
  const int32_t *pos, *slot, *window, *rows;  // [1]; all but pos may be null
  const int32_t* page_table;                  // [S, P] or null: block = slot
  uint32_t* words;                            // [kDecodeWordsAhead + 2 DecodeCrossWords::all]
  int64_t k_stride, v_stride, cross_k_stride, cross_v_stride, queries_stride;  // elements a layer
  int64_t table_stride;
  int32_t N, H, heads, M, B, L, S, P, C, F;
  float eps;

  static constexpr int32_t D = 64;

  /// Row of a layer's cache, of `heads` heads, where position `at` of a slot lies; below 0: nowhere.
  VV_HD int32_t row_of(int32_t s, int32_t at) const {
    if (page_table == nullptr) return s >= 0 && s < B && at >= 0 && at < L ? s * L + at : -1;
    if (s < 0 || s >= S || at < 0 || at / L >= P) return -1;
    const int32_t block = page_table[s * table_stride + at / L];
    return block >= 0 && block < B ? block * L + at % L : -1;
  }
};

/// What the CUDA kernel takes: what cross-attention sees as matrices of words, a position a row.
struct DecodeLayersCrossTmaArgs {
  TensorMap k, v;
  int32_t k_rows, v_rows;  // of the matrices, a layer
  DecodeLayersCrossArgs a;
};

/// Where the words of one turn lie, from the begin of its half.
struct DecodeCrossWords {
  int32_t x, mid, late, hidden, attended, heard, qkv, query, parts, heard_parts, all;
  VV_HD static constexpr DecodeCrossWords of(int32_t H, int32_t M) {
    const int32_t row = DecodeWords::lines(H), parts = H * kDecodeSplits * 2;
    DecodeCrossWords w{};
    w.x = 0, w.mid = row, w.late = w.mid + row, w.hidden = w.late + row;
    w.attended = w.hidden + DecodeWords::lines(M), w.heard = w.attended + row;
    w.qkv = w.heard + row, w.query = w.qkv + DecodeWords::lines(3 * H);
    w.parts = w.query + row, w.heard_parts = w.parts + parts, w.all = w.heard_parts + parts;
    return w;
  }
};

/// The model's shape, which the compiler shall know, as in DecodeLayersPolicy.
struct DecodeCrossPolicy {
  int32_t H, heads, M;
  int32_t blocks;
  constexpr bool operator==(const DecodeCrossPolicy&) const = default;

  static constexpr int32_t D = DecodeLayersCrossArgs::D;
  static constexpr int32_t bytes = 2;  // of a weight
  static constexpr int32_t kWarps = DecodeLayersPolicy::kWarps, kThreads = DecodeLayersPolicy::kThreads;
  static constexpr int32_t kKeys = 64;  // of a stage, with their values: 8 a warp
  static constexpr int32_t kMostSlots = 32, kLeastSlots = 6, kSmem = kHopper.smem_bytes();

  VV_HD static constexpr int32_t group() { return 1; }
  VV_HD static constexpr int32_t lanes() { return 4; }
  /// Blocks that share the keys of a head; 0: a block would have several heads.
  VV_HD constexpr int32_t splits() const { return smaller(blocks / heads, kDecodeSplits); }
  /// Most rows of a product with `n` in all that a block has.
  VV_HD constexpr int32_t share(int32_t n) const { return (n + blocks - 1) / blocks; }
  /// The same over all products, in whole tiles.
  VV_HD constexpr int32_t rows() const { return (larger(share(M), share(3 * H)) + 7) / 8 * 8; }
  /// Columns of a stage of 8 rows of a matrix with K of them: most matrices have H, whose rows go in one.
  VV_HD static constexpr int32_t cut(int32_t K) { return K <= 1280 ? K : K % 1024 == 0 ? 1024 : 512; }
  /// Bytes from row to row of a stage: rows are multiples of 128 bytes, and two must not meet in the same banks.
  VV_HD constexpr int32_t stage_row() const { return larger(cut(H), cut(M)) * 2 + 64; }
  VV_HD constexpr int32_t slot_bytes() const { return larger(8 * stage_row(), 2 * kKeys * D * 2); }

  // Bytes of shared memory, from its begin.
  static constexpr int32_t kNowAt = 0, kX = 64;  // what the step is of; the row of a product, bf16
  VV_HD constexpr int32_t sums_at() const { return kX + larger(H, M) * 2; }                   // [2, 8 warps, rows]
  VV_HD constexpr int32_t moments_at() const { return sums_at() + 2 * kWarps * rows() * 4; }  // [8 warps, 2]
  VV_HD constexpr int32_t query_at() const { return moments_at() + kWarps * 8; }              // [8 warps, D] bf16
  VV_HD constexpr int32_t new_key_at() const { return query_at() + kWarps * D * 2; }
  VV_HD constexpr int32_t new_value_at() const { return new_key_at() + D * 2; }
  VV_HD constexpr int32_t weights_at() const { return new_value_at() + D * 2; }  // [8 warps, 8 keys and 1, lanes]
  VV_HD constexpr int32_t parts_at() const { return weights_at() + kWarps * 9 * lanes() * 4; }  // [8 warps, D]
  VV_HD constexpr int32_t maxima_at() const { return parts_at() + kWarps * D * 4; }             // [8 warps, 8]
  VV_HD constexpr int32_t masses_at() const { return maxima_at() + kWarps * 8 * 4; }
  VV_HD constexpr int32_t full_at() const { return masses_at() + kWarps * 8 * 4; }  // [slots] barriers, 8 bytes each
  VV_HD constexpr int32_t empty_at() const { return full_at() + kMostSlots * 8; }
  VV_HD constexpr int32_t ring_at() const { return (empty_at() + kMostSlots * 8 + 127) / 128 * 128; }
  VV_HD constexpr int32_t slots() const { return smaller((kSmem - ring_at()) / slot_bytes(), kMostSlots); }
  VV_HD constexpr int32_t smem() const { return ring_at() + slots() * slot_bytes(); }

  /// Most blocks that have a row of every product: who has none would not wait for the others.
  VV_HD static constexpr int32_t most_blocks(int32_t H, int32_t M) { return smaller(H, M); }
  /// Whether the kernel is made for this: units of 64 columns that warps divide among them, a thread for each row that
  /// leaves a product.
  VV_HD constexpr bool fits() const {
    return H > 0 && M > 0 && H % 64 == 0 && M % 64 == 0 && heads > 0 && heads * D == H && blocks > 0 &&
           blocks <= most_blocks(H, M) && splits() > 0 && share(M) <= kWarps * 32 && share(3 * H) <= kWarps * 32 &&
           slots() >= kLeastSlots;
  }

 private:
  VV_HD static constexpr int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
  VV_HD static constexpr int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }
};

}  // namespace vivace::kernels
