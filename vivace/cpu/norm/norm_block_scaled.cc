#include "vivace/kernels/norm/norm_block_scaled.h"

#include <vector>

#include "vivace/cpu/norm/norm.h"
#include "vivace/cpu/quantize/block_scaled.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void norm_block_scaled(const kernels::NormBlockScaledArgs& a, Pool& pool) {
  quantize_block_scaled_rows(
      a.block_scaled, valid_rows(a.norm.rows, a.norm.T), [&](int64_t n, auto&& f) { for_rows(pool, n, a.norm.H, f); },
      [&](int64_t t) {
        thread_local std::vector<float> y;  // grows to the longest row that its thread has seen
        y.resize(static_cast<size_t>(a.norm.H));
        kernels::NormArgs row = a.norm;
        row.out = y.data(), row.out_dtype = DType::f32, row.out_stride = 0;  // every row of this thread goes here
        norm_row(row, t);
        return y.data();
      });
}

}  // namespace vivace::cpu
