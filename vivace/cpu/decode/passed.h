// What decode_layers and decode_layers_cross share on the CPU: the roundings between products, and a product of a row.
#pragma once
#include <bit>
#include <vector>

#include "vivace/cpu/rows.h"
#include "vivace/kernels/decode/decode_layers.h"

namespace vivace::cpu {

inline float rounded(float v) {
  store_f32(&v, DType::bf16, 0, 1, &v);
  float r;
  load_f32(&v, DType::bf16, 0, 1, &r);
  return r;
}
/// As it passes from op to op: 15 bits of fraction. No number stays none, as in word_of() of the kernels.
inline float passed(float v) {
  return v == v ? std::bit_cast<float>((std::bit_cast<uint32_t>(v) + 0x80u) & 0xffffff00u) : v;
}

/// f(row, matrix row . y), rows of [n, K] of layer `layer`.
template <class F>
void layer_product(const kernels::LayerStack& w, DType dtype, int layer, int64_t n, const std::vector<float>& y,
                   Pool& pool, F&& f) {
  const auto K = static_cast<int64_t>(y.size());
  for_rows(pool, n, K, [&](int64_t row) {
    float part[16] = {}, sum = 0, chunk[kChunk];
    for_chunks(K, [&](int64_t first, int64_t count) {
      load_f32(w.data, dtype, layer * w.stride + row * K + first, count, chunk);
      for (int64_t i = 0; i < count; ++i) part[i % 16] += chunk[i] * y[static_cast<size_t>(first + i)];
    });
    for (const float p : part) sum += p;
    f(row, sum);
  });
}

}  // namespace vivace::cpu
