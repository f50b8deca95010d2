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
CodeBuffers top(const CodeBuffers& b, int64_t rows);

class QuantizedRows {
 public:
  static constexpr int64_t none = -1;  // a place that is not calibrated

  /// `act_scales`: [places] f32 of a plan with fixed scales, or absent.
  QuantizedRows(LayerOps& op, const Tensor& act_scales, const Enters& enters)
      : op_(op), act_scales_(act_scales), enters_(enters) {}

  bool seen() const { return enters_ != nullptr; }
  Tensor scale_of(int64_t place) const;
  /// Where a norm's rows go that enter a product at `place`.
  Rows normed(const CodeBuffers& b, int64_t place) const;
  /// Where an activation's rows go that enter a product at `place`: codes at once where their scale is known.
  Rows activated(const CodeBuffers& b, const Tensor& wide, int64_t place) const;
  /// norm(x), or of residual += x, as it enters the products behind it.
  Status norm(const CodeBuffers& b, const Tensor& x, const NormBy& by, int64_t place, Rows* out,
              const Tensor& residual = {}) const;
  /// x as it enters a product: itself, or quantized into codes.
  Status enter(const CodeBuffers& b, const Tensor& x, int64_t place, Rows* out) const;
  /// What activated() gave, once it is written.
  Status enter(const CodeBuffers& b, const Rows& x, int64_t place, Rows* out) const;
  /// ... what the product of `m` reads.
  Status enter(const CodeBuffers& b, const Tensor& x, int64_t place, const Matrix& m, Rows* out) const;
  Status entered(int64_t place, const Tensor& x) const;

 private:
  LayerOps& op_;
  const Tensor& act_scales_;
  const Enters& enters_;
};

}  // namespace vivace::models
