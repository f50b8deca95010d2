// Arguments of `embedding`, shared by the CPU and CUDA kernels. POD; see vivace/ops/embedding.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct EmbeddingArgs {
  const void* table;    // [V, H] table_dtype, plain or block format
  const int32_t* ids;   // [T]
  void* out;            // [T, H] out_dtype
  const int32_t* rows;  // [1] device-side T, or null
  int64_t table_stride, out_stride;  // elements a row
  int32_t T, H, V;
  float scale;
  DType table_dtype, out_dtype;
};

/// A block copies one stretch of a row.
struct EmbeddingPolicy {
  int32_t threads;
  int32_t vec;        // elements a load; 8 for block formats
  int32_t store_vec;  // elements a store: vec or 1
  int32_t items;
  constexpr bool operator==(const EmbeddingPolicy&) const = default;
  constexpr int64_t stretch() const { return int64_t{threads} * vec * items; }
};

}  // namespace vivace::kernels
