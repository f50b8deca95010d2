#include "vivace/models/decoder/gguf_layout.h"

#include <cmath>
#include <vector>

#include "vivace/base/check.h"

namespace vivace::models::decoder {

Status undo_gguf_layout(const engine::WeightSource& source, const DecoderConfig& c, LayerWeights* w) {
  if (source.synthetic()) return {};
  w->delta_rate = source.converted(w->delta_rate, DType::f32);
  auto* const rates = static_cast<float*>(w->delta_rate.data);
  for (int64_t i = 0; i < c.linear.v_heads; ++i) {
    if (!(rates[i] < 0 && std::isfinite(rates[i])))
      return Status(Code::kCorruptData,
                    strf("tensor blk.*.ssm_a: wanted negative finite rates, got %g", static_cast<double>(rates[i])));
    rates[i] = static_cast<float>(std::log(-static_cast<double>(rates[i])));
  }
  const RecurrentConfig& r = c.linear;
  const int64_t each = r.v_heads / r.k_heads;
  if (c.has(kKeyGroups)) return {};  // whose value heads lie by key head
  if (each == 1 || r.k_heads == 1) return {};
  std::vector<int64_t> order;
  for (int64_t head = 0; head < r.v_heads; ++head) order.push_back(head % each * r.k_heads + head / each);
  for (Tensor* t : {&w->conv_in, &w->conv}) *t = source.reordered(*t, 2 * r.k_width(), r.v_dim, order);
  w->delta_gate = source.reordered(w->delta_gate, 0, r.v_dim, order);
  for (Tensor* t : {&w->delta_b, &w->delta_a, &w->delta_rate, &w->delta_bias}) *t = source.reordered(*t, 0, 1, order);
  w->o = source.reordered_columns(w->o, order);
  return {};
}

}  // namespace vivace::models::decoder
