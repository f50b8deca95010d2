// LayerOps: rows, the matrices they meet, and the ops between, as every transformer here records them.
#pragma once
#include "vivace/engine/weight_uploader.h"
#include "vivace/ops/registry.h"

namespace vivace::models {

/// A product's matrix [N, K], with what its epilogue takes: [N] or absent; of a quantized matrix its scales.
struct Matrix {
  Tensor w, bias = {};
  engine::Scales scale = {};
  double factor = 1;  // of the product, before the bias
};

/// A matrix that loading may make of up to three parts.
struct Linear : Matrix {
  Tensor parts[3] = {}, part_bias[3] = {};
};

/// Weights of a norm, [H] x 2.
struct Norm {
  Tensor weight, bias;
};

/// An adaptive norm's side: parts of a table, and which of its rows each token takes; absent: there is one.
struct Ada {
  Tensor scale = {}, shift = {}, gate = {}, rows = {};
};

/// Which norm rows come by.
struct NormBy {
  Tensor weight = {}, bias = {};
  Ada ada = {};
  std::string_view kind = "rms";  // or "layer"
  double eps = 0;                 // 0: the layer's
};

inline NormBy layer_norm(const Norm& n, double eps = 0) {
  return {n.weight, n.bias, {}, "layer", eps};
}

/// Rows that enter a product. Exactly one of three: rows as they are, e4m3 with a scale of each row or of all; rows
/// that the product makes of `raw` by `norm`, x being scratch; rows whose RMS norm is deferred: x is them times its
/// factors, in e4m3 by `scale` where that is there, and the product scales its sums by `squares`.
struct Rows {
  Tensor x, row_scale = {}, scale = {};
  Tensor raw = {};
  NormBy norm = {};
  Tensor squares = {}, factors = {};  // [T, H / 8]; [T], scratch
};

/// What a product does with its sums before they are written.
struct Epilogue {
  Tensor residual = {}, gate = {}, out_scale = {};
  std::string_view act = "none";
};

/// Records on `rec`; each op is held to `rows` valid rows, where that is present.
class LayerOps {
 public:
  /// `block_act`: how activations enter products with block-quantized weights, gemm's `act`. `plus_one`: weights of RMS
  /// norms are stored less 1, as Gemma's are.
  LayerOps(ops::Recorder& rec, double eps, const char* block_act = "f32", bool plus_one = false)
      : rec_(rec), eps_(eps), block_act_(block_act), plus_one_(plus_one) {}

  /// out = norm(x), or, with a residual, of residual += x.
  Status norm(const Tensor& x, const NormBy& by, const Rows& out, const Tensor& residual = {});
  /// out = x as e4m3, by the scale of all where `out` has one, else with one of each row.
  Status quantize(const Tensor& x, const Rows& out);
  /// out = epilogue(x w). The norm that x stands for, if any, is taken in the same op.
  Status linear(const Rows& x, const Matrix& m, const Tensor& out, const Epilogue& e = {});
  /// out = act(gate) * up, the rows of m being gates and ups in turn.
  Status gated(const Rows& x, const Matrix& m, const Rows& out, std::string_view act);
  /// The first rows of a stack whose norms are deferred: `to` is what a product takes of x, e4m3 where `to` has a
  /// scale. Weights that are stored less 1 have the dtype of x.
  Status defer_norm(const Tensor& x, const NormBy& by, const Rows& to);
  /// linear() onto `out`, and then defer_norm(out, by, to).
  Status linear_then_defer(const Rows& x, const Matrix& m, const Tensor& out, const Epilogue& e, const NormBy& by,
                           const Rows& to);
  /// out[t] = table[ids[t]] * scale.
  Status gather(const Tensor& table, const Tensor& ids, const Tensor& out, double scale = 1);

  /// Plain weights take activations as they are under every plan.
  std::string_view act(const Tensor& w) const { return is_block(w.dtype) ? block_act_ : "f32"; }

  Tensor rows;  // [1] i32, or absent

 private:
  double eps(const NormBy& by) const { return by.eps > 0 ? by.eps : eps_; }
  double plus_one(const NormBy& by) const { return plus_one_ && by.kind == "rms" && by.weight.present() ? 1 : 0; }
  /// The factor of a norm that is taken behind, as rms_rows takes it: whole, or less 1 as one row for all tokens.
  Tensor factor(const NormBy& by) const { return plus_one(by) != 0 ? Tensor{} : by.weight; }
  Tensor factor_less_one(const NormBy& by) const;
  Status deferred(const Rows& x, const Matrix& m, const Rows& out, bool gated, std::string_view act);
  Status folded(const Rows& x, const Matrix& m, const Tensor& out, const Epilogue& e, bool gated);

  ops::Recorder& rec_;
  double eps_;
  const char* block_act_;
  bool plus_one_;
};

}  // namespace vivace::models
