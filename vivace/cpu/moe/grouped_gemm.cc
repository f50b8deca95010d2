#include "vivace/cpu/pool.h"
#include "vivace/kernels/moe/grouped_gemm.h"

namespace vivace::cpu {

void gemm(const kernels::GemmArgs& a, Pool& pool);
size_t gemm_scratch(const kernels::GemmArgs& a);

/// Groups one after the other, each on all threads: a row's bits are gemm's, whatever else is in its group.
void grouped_gemm(const kernels::GroupedGemmArgs& a, Pool& pool) {
  kernels::GemmArgs g{};
  g.x_stride = a.x_stride, g.w_stride = a.K, g.out_stride = a.out_stride;
  g.N = a.N, g.K = a.K, g.alpha = 1, g.epilogue = kernels::Activation::none, g.act = a.act;
  g.x_dtype = a.x_dtype, g.w_dtype = a.w_dtype, g.out_dtype = a.out_dtype;
  g.T = a.A;
  pool.scratch(gemm_scratch(g));  // as if all rows were of one group: later calls find room
  for (int32_t e = 0; e < a.E; ++e) {
    int32_t first = 0, end = 0;
    a.rows_of(e, &first, &end);
    if (first == end) continue;
    g.T = end - first;
    g.x = static_cast<const char*>(a.x) + first * a.x_stride * info(a.x_dtype).bytes;
    g.w = static_cast<const char*>(a.w) + row_bytes(a.w_dtype, e * a.w_stride);
    if (a.w_row_scale != nullptr) g.w_row_scale = a.w_row_scale + e * a.scale_stride;
    g.out = static_cast<char*>(a.out) + first * a.out_stride * info(a.out_dtype).bytes;
    gemm(g, pool);
  }
}

}  // namespace vivace::cpu
