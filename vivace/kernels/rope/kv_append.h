// Arguments of `kv_append`, shared by the CPU and CUDA kernels. POD; see vivace/ops/kv_append.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

/// A KV cache as an op writes it: a slot is one block of L places, or, with a page table, P blocks (pages)
/// of L places that lie anywhere.
struct KvCache {
  void* k;              // [B, L, Hkv, D] dtype, heads_first [B, Hkv, L, D]
  void* v;              // as k
  const int32_t* slot;  // [T] or null: slot 0
  const int32_t* page_table;   // [S, P] block of each page of a slot, or null: block = slot
  int64_t k_stride, v_stride;  // elements a block
  int64_t table_stride;        // elements a slot of page_table
  int32_t B, L, S, P, Hkv, D;
  DType dtype;
  bool heads_first;     // a block's heads one after the other, not its places

  /// Where the token at `pos` of a slot lies. `block` < 0: the cache has no such place, and the token is not written.
  struct Place {
    int64_t block;
    int32_t at;
  };
  VV_HD Place place(int32_t s, int32_t pos) const {
    if (page_table == nullptr) return {s >= 0 && s < B && pos >= 0 && pos < L ? s : -1, pos};
    if (s < 0 || s >= S || pos < 0 || L == 0 || pos / L >= P) return {-1, 0};
    const int32_t block = page_table[s * table_stride + pos / L];
    return {block < B ? block : -1, pos % L};
  }
  /// Element where the first head of a place begins, in a cache of this block stride.
  VV_HD int64_t element(Place p, int64_t block_stride) const {
    return p.block * block_stride + int64_t{p.at} * D * (heads_first ? 1 : Hkv);
  }
  /// Elements from one head of a place to its next.
  VV_HD int64_t head_pitch() const { return heads_first ? int64_t{L} * D : D; }
};

struct KvAppendArgs {
  const void* k;        // [T, Hkv, D] dtype
  const void* v;        // [T, Hkv, D] dtype
  const int32_t* pos;   // [T]
  KvCache cache;
  const int32_t* rows;  // [1] device-side T, or null
  int64_t k_stride, v_stride;  // elements a token
  int32_t T, Hkv, D;
  DType dtype;
};

/// One thread block a token.
struct KvAppendPolicy {
  int32_t threads;
  int32_t vec;  // elements an access; 1 serves any alignment
  constexpr bool operator==(const KvAppendPolicy&) const = default;
};

}  // namespace vivace::kernels
