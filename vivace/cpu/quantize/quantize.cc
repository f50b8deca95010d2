#include "vivace/kernels/quantize/quantize.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {
namespace {

using kernels::kQuantBlock;
using kernels::QuantizeArgs;

float scale_of(float amax, DType out) { return amax > 0 ? amax / (out == DType::i8 ? 127.0f : 448.0f) : 1.0f; }

/// y / scale as n codes at element `first` of out; y is clobbered.
void store_codes(const QuantizeArgs& a, int64_t first, int64_t n, float* y, float scale) {
  if (a.out_dtype != DType::i8) return store_scaled(a.out, a.out_dtype, first, n, y, scale);
  auto* out = static_cast<int8_t*>(a.out) + first;
  for (int64_t i = 0; i < n; ++i) {
    const float q = y[i] / scale;
    out[i] = std::isnan(q) ? int8_t{0} : static_cast<int8_t>(std::nearbyint(std::clamp(q, -127.0f, 127.0f)));
  }
}

void quantize_row(const QuantizeArgs& a, int64_t t, float given) {
  float y[kChunk];
  const auto amax = [&](int64_t first, int64_t n) {
    load_f32(a.x, a.x_dtype, t * a.x_stride + first, n, y);
    float m = 0;
    for (int64_t i = 0; i < n; ++i) m = std::max(m, std::fabs(y[i]));
    return m;
  };
  float scale = given;
  if (a.row_scale != nullptr) {
    float largest = 0;
    for_chunks(a.H, [&](int64_t first, int64_t n) { largest = std::max(largest, amax(first, n)); });
    scale = a.row_scale[t] = scale_of(largest, a.out_dtype);
  }
  for (int64_t first = 0; first < a.H; first += kQuantBlock) {
    const int64_t n = std::min<int64_t>(kQuantBlock, a.H - first);
    const float largest = amax(first, n);
    if (a.block_scale != nullptr)
      scale = a.block_scale[t * a.block_stride + first / kQuantBlock] = scale_of(largest, a.out_dtype);
    store_codes(a, t * a.out_stride + first, n, y, scale);
  }
}

}  // namespace

void quantize(const QuantizeArgs& a, Pool& pool) {
  const float given = a.amax ? scale_of(*a.amax, a.out_dtype) : a.out_scale ? *a.out_scale : 1.0f;
  if (a.tensor_scale != nullptr && a.T > 0) *a.tensor_scale = given;
  for_rows(pool, valid_rows(a.rows, a.T), a.H, [&](int64_t t) { quantize_row(a, t, given); });
}

}  // namespace vivace::cpu
