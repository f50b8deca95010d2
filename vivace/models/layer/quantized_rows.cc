#include "vivace/models/layer/quantized_rows.h"

#include "vivace/base/check.h"

namespace vivace::models {

CodeBuffers top(const CodeBuffers& b, int64_t rows) {
  const auto part = [rows](const Tensor& t) { return t.present() ? top(t, rows) : Tensor{}; };
  return {part(b.normed), part(b.quantized), part(b.normed_scale), part(b.quantized_scale)};
}

Tensor QuantizedRows::scale_of(int64_t place) const {
  return act_scales_.present() && place != none ? slice(act_scales_, place, 1) : Tensor{};
}

Rows QuantizedRows::normed(const CodeBuffers& b, int64_t place) const {
  return {b.normed, b.normed_scale, scale_of(place)};
}

Rows QuantizedRows::activated(const CodeBuffers& b, const Tensor& wide, int64_t place) const {
  return b.eight() && act_scales_.present() ? Rows{columns(b.quantized, 0, wide.shape[1]), {}, scale_of(place)}
                                            : Rows{wide};
}

Status QuantizedRows::norm(const CodeBuffers& b, const Tensor& x, const NormBy& by, int64_t place, Rows* out,
                           const Tensor& residual) const {
  *out = normed(b, place);
  out->norm = by;
  VV_TRY(op_.norm(x, by, *out, residual));
  return entered(place, out->x);
}

Status QuantizedRows::enter(const CodeBuffers& b, const Tensor& x, int64_t place, Rows* out) const {
  *out = {x};
  VV_TRY(entered(place, x));
  if (!b.eight()) return {};
  const bool same = x.shape[0] == b.quantized.shape[0];  // else rows of several lie side by side
  *out = {same ? columns(b.quantized, 0, x.shape[1]) : as(b.quantized, Shape(x.shape[0], x.shape[1])),
          act_scales_.present() ? Tensor{} : top(b.quantized_scale, x.shape[0]), scale_of(place)};
  return op_.quantize(x, *out);
}

Status QuantizedRows::enter(const CodeBuffers& b, const Rows& x, int64_t place, Rows* out) const {
  if (!x.scale.present()) return enter(b, x.x, place, out);
  *out = x;
  return {};
}

Status QuantizedRows::enter(const CodeBuffers& b, const Tensor& x, int64_t place, const Matrix& m, Rows* out) const {
  if (m.w.dtype == DType::e4m3) return enter(b, x, place, out);
  *out = {x};
  return entered(place, x);
}

Status QuantizedRows::entered(int64_t place, const Tensor& x) const {
  return enters_ && place != none ? enters_(place, x, op_.rows) : Status();
}

}  // namespace vivace::models
