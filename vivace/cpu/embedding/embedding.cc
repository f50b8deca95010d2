#include "vivace/kernels/embedding/embedding.h"

#include <limits>

#include "vivace/cpu/quant/dequantize.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void embedding(const kernels::EmbeddingArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.H, [&](int64_t t) {
    const int64_t id = a.ids[t];
    const bool valid = id >= 0 && id < a.V;
    const char* row = static_cast<const char*>(a.table) + (valid ? row_bytes(a.table_dtype, id * a.table_stride) : 0);
    // kChunk is a multiple of every block size, so that each stretch starts on a block.
    for_chunks(a.H, [&](int64_t first, int64_t n) {
      float h[kChunk];
      if (!valid) std::fill_n(h, n, std::numeric_limits<float>::quiet_NaN());
      else if (is_block(a.table_dtype)) dequantize_row(a.table_dtype, row, first, n, h);
      else load_f32(row, a.table_dtype, first, n, h);
      for (int64_t i = 0; i < n; ++i) h[i] *= a.scale;
      store_f32(a.out, a.out_dtype, t * a.out_stride + first, n, h);
    });
  });
}

}  // namespace vivace::cpu
