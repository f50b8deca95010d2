#include "vivace/kernels/gate/act_mul_block_scaled.h"

#include <vector>

#include "vivace/cpu/gate/act_mul.h"
#include "vivace/cpu/quantize/block_scaled.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void act_mul_block_scaled(const kernels::ActMulBlockScaledArgs& a, Pool& pool) {
  quantize_block_scaled_rows(
      a.block_scaled, valid_rows(a.act.rows, a.act.T), [&](int64_t n, auto&& f) { for_rows(pool, n, a.act.H * 4, f); },
      [&](int64_t t) {
        thread_local std::vector<float> y;  // grows to the longest row that its thread has seen
        y.resize(static_cast<size_t>(a.act.H));
        kernels::ActMulArgs row = a.act;
        row.out = y.data(), row.out_dtype = DType::f32, row.out_stride = 0;  // every row of this thread goes here
        act_mul_row(row, t);
        return y.data();
      });
}

}  // namespace vivace::cpu
