// Arguments of `decode_layers`, shared by the CPU and CUDA kernels. POD; see vivace/ops/decode_layers.h.
#pragma once
#include "vivace/base/arch.h"
#include "vivace/base/dtype.h"
#include "vivace/kernels/tile/tensor_map.h"

namespace vivace::kernels {

/// One weight of every layer: that of layer n begins n * stride elements behind `data`. Null: the model has none.
struct LayerStack {
  const void* data;
  int64_t stride;
};

/// A matrix of every layer, bf16 or e4m3; of e4m3 a row's scale is a factor of its sums.
struct LayerMatrix {
  LayerStack w, scale;  // [N, rows, columns]; [N, rows] f32, or null
};

struct DecodeLayersArgs {
  const void* x;                     // [H] bf16
  void* out;                         // [H] bf16, may be x
  LayerStack attn_norm, mlp_norm;    // [N, H] bf16
  LayerMatrix qkv, o;                // [N, (Hq + 2 Hkv) D, H]; [N, H, Hq D]
  LayerMatrix gate_up, down;         // [N, 2 M, H], rows of gate and up in turn; [N, H, M]
  LayerStack qkv_bias;               // [N, (Hq + 2 Hkv) D] bf16 or f32
  LayerStack q_norm, k_norm;         // [N, D] bf16
  const float* inv_freq;             // [D / 2]
  void *k_cache, *v_cache;           // [N, B, L, Hkv, D] bf16
  const int32_t *pos, *slot, *rows;  // [1]; slot and rows may be null
  const int32_t* page_table;         // [S, P] or null: block = slot
  uint32_t* words;                   // [kDecodeWordsAhead + 2 DecodeWords::all]
  int64_t k_stride, v_stride;        // elements a layer
  int64_t table_stride;
  int32_t N, H, Hq, Hkv, D, M, B, L, S, P;
  float eps, attn_factor;
  DType bias_dtype, weight_dtype;

  /// Where position `at` of a slot lies in every layer's cache: block and place in it. A block below 0: nowhere.
  struct Place {
    int32_t block, at;
  };
  VV_HD Place place(int32_t s, int32_t at) const {
    if (page_table == nullptr) return {s >= 0 && s < B && at >= 0 && at < L ? s : -1, at};
    if (s < 0 || s >= S || at < 0 || at / L >= P) return {-1, 0};
    const int32_t block = page_table[s * table_stride + at / L];
    return {block >= 0 && block < B ? block : -1, at % L};
  }
  /// Element of a head in a layer's cache.
  VV_HD int64_t element(Place p, int32_t head) const { return ((int64_t{p.block} * L + p.at) * Hkv + head) * D; }
};

/// What the CUDA kernel takes: caches as matrices of words, a position a row, whose boxes are the keys of a stage and
/// the columns of a head.
struct DecodeLayersTmaArgs {
  TensorMap k, v;
  int32_t k_rows, v_rows;  // of the matrices, a layer
  DecodeLayersArgs a;
};

/// Words in front of those that blocks exchange: the first counts layers.
inline constexpr int32_t kDecodeWordsAhead = 32;
/// Blocks that share the keys of a kv head, at most.
inline constexpr int32_t kDecodeSplits = 16;

/// Where the words of one turn lie, from the begin of its half.
struct DecodeWords {
  int32_t x, mid, hidden, attended, qkv, parts, all;
  VV_HD static constexpr int32_t lines(int32_t n) { return (n + 31) / 32 * 32; }
  /// `heads`, `kv`: columns of q, and of k.
  VV_HD static constexpr DecodeWords of(int32_t H, int32_t heads, int32_t kv, int32_t M) {
    DecodeWords w{};
    w.x = 0, w.mid = lines(H), w.hidden = w.mid + lines(H), w.attended = w.hidden + lines(M);
    w.qkv = w.attended + lines(heads), w.parts = w.qkv + lines(heads + 2 * kv);
    w.all = w.parts + heads * kDecodeSplits * 2;
    return w;
  }
};

/// The model's shape, which the compiler shall know: between a word's arrival and the next word's way out one warp's
/// instructions follow each other at four cycles or more, so that what could be known before costs there.
struct DecodeLayersPolicy {
  int32_t H, Hq, Hkv, D, M;
  int32_t blocks;
  int32_t bytes;  // of a weight: 2 of bf16, 1 of e4m3
  bool norms;   // of heads of q and k
  bool biased;  // q, k and v
  constexpr bool operator==(const DecodeLayersPolicy&) const = default;

  static constexpr int32_t kWarps = 8, kThreads = kWarps * 32 + 32;  // that consume; and one that produces
  static constexpr int32_t kKeys = 64;                               // of a stage: 8 a warp
  static constexpr int32_t kMostSlots = 32, kLeastSlots = 6, kSmem = kHopper.smem_bytes();

  VV_HD constexpr int32_t q_width() const { return Hq * D; }
  VV_HD constexpr int32_t kv_width() const { return Hkv * D; }
  VV_HD constexpr int32_t group() const { return Hq / Hkv; }
  /// Blocks that share the keys of a kv head: a power of two; 0: a block would have several heads.
  VV_HD constexpr int32_t splits() const {
    int32_t n = kDecodeSplits;
    while (n * Hkv > blocks) n /= 2;
    return n;
  }
  /// Most rows of a product with `n` in all that a block has.
  VV_HD constexpr int32_t share(int32_t n) const { return (n + blocks - 1) / blocks; }
  /// The same over all products, in whole tiles.
  VV_HD constexpr int32_t rows() const {
    return (larger(larger(share(H), 2 * share(M)), share(q_width() + 2 * kv_width())) + 7) / 8 * 8;
  }
  /// Columns of a stage of 8 rows of a matrix with K of them.
  VV_HD static constexpr int32_t cut(int32_t K) { return K <= 1024 ? K : K % 1024 == 0 ? 1024 : 512; }
  VV_HD constexpr int32_t widest_cut() const { return larger(cut(H), larger(cut(q_width()), cut(M))); }
  /// Bytes from row to row of a stage: two that follow each other must not meet in the same banks.
  VV_HD constexpr int32_t stage_row() const { return widest_cut() * bytes / 128 * 128 + 64; }
  VV_HD constexpr int32_t slot_bytes() const { return larger(8 * stage_row(), kKeys * D * 2); }

  // Bytes of shared memory, from its begin.
  static constexpr int32_t kNowAt = 0, kX = 64;  // what the step is of; the row of a product, bf16
  VV_HD constexpr int32_t sums_at() const { return kX + larger(H, larger(q_width(), M)) * 2; }  // [2, 8 warps, rows]
  VV_HD constexpr int32_t squares_at() const { return sums_at() + 2 * kWarps * rows() * 4; }    // [2, 8 warps]
  VV_HD constexpr int32_t query_at() const { return squares_at() + 2 * kWarps * 4; }  // [8 warps, group, D] bf16
  VV_HD constexpr int32_t new_key_at() const { return query_at() + kWarps * group() * D * 2; }
  VV_HD constexpr int32_t new_value_at() const { return new_key_at() + D * 2; }
  /// Heads of a group as lines of weights hold them.
  VV_HD constexpr int32_t lanes() const { return group() <= 4 ? 4 : 8; }
  VV_HD constexpr int32_t weights_at() const { return new_value_at() + D * 2; }  // [8 warps, 8 keys and 1, lanes]
  VV_HD constexpr int32_t parts_at() const { return weights_at() + kWarps * 9 * lanes() * 4; }  // [8 warps, group, D]
  VV_HD constexpr int32_t maxima_at() const { return parts_at() + kWarps * group() * D * 4; }   // [8 warps, 8]
  VV_HD constexpr int32_t masses_at() const { return maxima_at() + kWarps * 8 * 4; }
  VV_HD constexpr int32_t held_at() const { return masses_at() + kWarps * 8 * 4; }  // [slots] keys of a stage
  VV_HD constexpr int32_t full_at() const { return held_at() + kMostSlots * 4; }    // [slots] barriers, 8 bytes each
  VV_HD constexpr int32_t empty_at() const { return full_at() + kMostSlots * 8; }
  VV_HD constexpr int32_t ring_at() const { return (empty_at() + kMostSlots * 8 + 127) / 128 * 128; }
  VV_HD constexpr int32_t slots() const {
    const int32_t n = (kSmem - ring_at()) / slot_bytes();
    return n < kMostSlots ? n : kMostSlots;
  }
  VV_HD constexpr int32_t smem() const { return ring_at() + slots() * slot_bytes(); }

  /// Most blocks that have a row of every product: who has none would not wait for the others.
  VV_HD static constexpr int32_t most_blocks(int32_t H, int32_t q_width, int32_t M) {
    return smaller(H, smaller(q_width, M));
  }
  /// Whether the kernel is made for this: units of 64 columns that warps divide among them, heads that fill whole
  /// rows of a tile, a thread for each row that leaves a product.
  VV_HD constexpr bool fits() const {
    return H > 0 && M > 0 && H % 64 == 0 && M % 64 == 0 && (D == 64 || D == 128) && Hkv > 0 && Hq > 0 &&
           Hq % Hkv == 0 && group() <= 8 && blocks > 0 && blocks <= most_blocks(H, q_width(), M) && splits() > 0 &&
           rows() <= 2 * kWarps * 32 && share(H) <= kWarps * 32 && share(q_width() + 2 * kv_width()) <= kWarps * 32 &&
           slots() >= kLeastSlots;
  }

 private:
  VV_HD static constexpr int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
  VV_HD static constexpr int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }
};

}  // namespace vivace::kernels
