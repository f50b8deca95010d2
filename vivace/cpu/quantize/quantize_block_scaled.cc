#include "vivace/kernels/quantize/quantize_block_scaled.h"

#include <vector>

#include "vivace/cpu/quantize/block_scaled.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void quantize_block_scaled(const kernels::BlockScaledArgs& a, Pool& pool) {
  quantize_block_scaled_rows(
      a, valid_rows(a.rows, a.T), [&](int64_t n, auto&& f) { for_rows(pool, n, a.H, f); },
      [&](int64_t t) {
        thread_local std::vector<float> y;  // grows to the longest row that its thread has seen
        y.resize(static_cast<size_t>(a.H));
        load_f32(a.values, a.dtype, t * a.values_stride, a.H, y.data());
        return y.data();
      });
}

}  // namespace vivace::cpu
