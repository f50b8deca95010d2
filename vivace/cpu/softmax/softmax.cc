#include "vivace/kernels/softmax/softmax.h"

#include <limits>

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void softmax(const kernels::SoftmaxArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.H * int64_t{4}, [&](int64_t t) {  // exp costs about four loads
    constexpr float kInf = std::numeric_limits<float>::infinity();
    float z[kChunk], max = -kInf, sum = 0;
    bool nan = false;
    const auto load = [&](int64_t first, int64_t n) {
      load_f32(a.x, a.x_dtype, t * a.x_stride + first, n, z);
      for (int64_t i = 0; i < n; ++i) z[i] *= a.scale;
    };
    for_chunks(a.H, [&](int64_t first, int64_t n) {
      load(first, n);
      for (int64_t i = 0; i < n; ++i) {
        max = std::max(max, z[i]);
        nan |= std::isnan(z[i]);
      }
    });
    const bool empty = max == -kInf && !nan;
    // Chunks are summed on their own first: the error grows with kChunk + H / kChunk, not with H.
    for_chunks(empty ? 0 : a.H, [&](int64_t first, int64_t n) {
      load(first, n);
      float part = 0;
      for (int64_t i = 0; i < n; ++i) part += std::exp(z[i] - max);
      sum += part;
    });
    for_chunks(a.H, [&](int64_t first, int64_t n) {
      load(first, n);
      for (int64_t i = 0; i < n; ++i) z[i] = empty ? 0.0f : std::exp(z[i] - max) / sum;
      store_f32(a.out, a.out_dtype, t * a.out_stride + first, n, z);
    });
  });
}

}  // namespace vivace::cpu
