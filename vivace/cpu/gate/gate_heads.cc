#include "vivace/kernels/gate/gate_heads.h"

#include <cmath>

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void gate_heads(const kernels::GateHeadsArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T) * a.N, a.D, [&](int64_t head) {
    const int64_t t = head / a.N, n = head % a.N;
    const int64_t x = t * a.x_stride + n * a.D, gate = t * a.gate_stride + n * a.G, out = t * a.out_stride + n * a.D;
    float v[kChunk], g[kChunk], w[kChunk], factor = 1.0f;
    if (a.weight != nullptr) {
      float square = 0;
      for_chunks(a.D, [&](int64_t first, int64_t count) {
        load_f32(a.x, a.dtype, x + first, count, v);
        for (int64_t i = 0; i < count; ++i) square += v[i] * v[i];
      });
      factor = 1.0f / std::sqrt(square / static_cast<float>(a.D) + a.eps);
    }
    for_chunks(a.D, [&](int64_t first, int64_t count) {
      load_f32(a.x, a.dtype, x + first, count, v);
      if (a.G != 1) {
        load_f32(a.gate, a.dtype, gate + first, count, g);
      } else {
        load_f32(a.gate, a.dtype, gate, 1, g);
        std::fill_n(g + 1, count - 1, g[0]);
      }
      if (a.weight != nullptr) load_f32(a.weight, a.weight_dtype, first, count, w);
      for (int64_t i = 0; i < count; ++i) {
        const float open = 1.0f / (1.0f + std::exp(-g[i]));
        if (a.weight != nullptr) v[i] *= factor * w[i];
        v[i] *= a.silu ? g[i] * open : open;
      }
      store_f32(a.out, a.dtype, out + first, count, v);
    });
  });
}

}  // namespace vivace::cpu
