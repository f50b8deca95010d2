#include "vivace/kernels/norm/norm_micro.h"

#include <vector>

#include "vivace/cpu/norm/norm.h"
#include "vivace/cpu/quantize/micro.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void norm_micro(const kernels::NormMicroArgs& a, Pool& pool) {
  quantize_micro_rows(a.micro, valid_rows(a.norm.rows, a.norm.T), [&](int64_t n, auto&& f) { for_rows(pool, n, a.norm.H, f); }, [&](int64_t t) {
    thread_local std::vector<float> y;  // grows to the longest row that its thread has seen
    y.resize(static_cast<size_t>(a.norm.H));
    kernels::NormArgs row = a.norm;
    row.out = y.data(), row.out_dtype = DType::f32, row.out_stride = 0;  // every row of this thread goes here
    norm_row(row, t);
    return y.data();
  });
}

}  // namespace vivace::cpu
