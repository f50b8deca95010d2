// QuantizedRows: rows on their way into products: as they are, or as e4m3 with a scale a token or a calibrated one.
#pragma once
#include <functional>

#include "vivace/models/layer/layer_ops.h"
#include "vivace/models/layer/views.h"

namespace vivace::models {

/// Sees what enters products; `rows`: the count of valid rows, or absent.
using Enters = std::function<Status(int64_t place, const Tensor& x, const Tensor& rows)>;

/// Where rows of one stack become codes. All but `normed` are absent where no product reads 8 bits.
struct CodeBuffers {
  Tensor normed;                         // [T, H]; e4m3 where rows enter products so
  Tensor quantized;                      // [T, widest] e4m3
  Tensor normed_scale, quantized_scale;  // [T] f32; absent where scales are fixed

  bool eight() const { return quantized.present(); }
};

/// Those of the first rows.
inline CodeBuffers top(const CodeBuffers& b, int64_t rows) {
  const auto part = [rows](const Tensor& t) { return t.present() ? top(t, rows) : Tensor{}; };
  return {part(b.normed), part(b.quantized), part(b.normed_scale), part(b.quantized_scale)};
}

class QuantizedRows {
 public:
  static constexpr int64_t none = -1;  // a place that is not calibrated

  /// `act_scales`: [places] f32 of a plan with fixed scales, or absent.
  QuantizedRows(LayerOps& op, const Tensor& act_scales, const Enters& enters)
      : op_(op), act_scales_(act_scales), enters_(enters) {}

  bool seen() const { return enters_ != nullptr; }
  Tensor scale_of(int64_t place) const {
    return act_scales_.present() && place != none ? slice(act_scales_, place, 1) : Tensor{};
  }
  /// Where a norm's rows go that enter a product at `place`.
  Rows normed(const CodeBuffers& b, int64_t place) const { return {b.normed, b.normed_scale, scale_of(place)}; }
  /// Where an activation's rows go that enter a product at `place`: codes at once where their scale is known.
  Rows activated(const CodeBuffers& b, const Tensor& wide, int64_t place) const {
    return b.eight() && act_scales_.present() ? Rows{columns(b.quantized, 0, wide.shape[1]), {}, scale_of(place)}
                                              : Rows{wide};
  }
  /// norm(x), or of residual += x, as it enters the products behind it.
  Status norm(const CodeBuffers& b, const Tensor& x, const NormBy& by, int64_t place, Rows* out,
              const Tensor& residual = {}) const {
    *out = normed(b, place);
    out->norm = by;
    VV_TRY(op_.norm(x, by, *out, residual));
    return entered(place, out->x);
  }
  /// x as it enters a product: itself, or quantized into codes.
  Status enter(const CodeBuffers& b, const Tensor& x, int64_t place, Rows* out) const {
    *out = {x};
    VV_TRY(entered(place, x));
    if (!b.eight()) return {};
    const bool same = x.shape[0] == b.quantized.shape[0];  // else rows of several lie side by side
    *out = {same ? columns(b.quantized, 0, x.shape[1]) : as(b.quantized, Shape(x.shape[0], x.shape[1])),
            act_scales_.present() ? Tensor{} : top(b.quantized_scale, x.shape[0]), scale_of(place)};
    return op_.quantize(x, *out);
  }
  /// What activated() gave, once it is written.
  Status enter(const CodeBuffers& b, const Rows& x, int64_t place, Rows* out) const {
    if (!x.scale.present()) return enter(b, x.x, place, out);
    *out = x;
    return {};
  }
  /// ... what the product of `m` reads.
  Status enter(const CodeBuffers& b, const Tensor& x, int64_t place, const Matrix& m, Rows* out) const {
    if (m.w.dtype == DType::e4m3) return enter(b, x, place, out);
    *out = {x};
    return entered(place, x);
  }
  Status entered(int64_t place, const Tensor& x) const {
    return enters_ && place != none ? enters_(place, x, op_.rows) : Status();
  }

 private:
  LayerOps& op_;
  const Tensor& act_scales_;
  const Enters& enters_;
};

}  // namespace vivace::models
