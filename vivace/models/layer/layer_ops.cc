#include "vivace/models/layer/layer_ops.h"

#include "vivace/base/check.h"

namespace vivace::models {

Status LayerOps::norm(const Tensor& x, const NormBy& by, const Rows& out, const Tensor& residual) {
  return rec_(ops::norm,
              {{"x", x},
               {"residual", residual},
               {"weight", by.weight},
               {"bias", by.bias},
               {"scale", by.ada.scale},
               {"shift", by.ada.shift},
               {"ada_row", by.ada.rows},
               {"out", out.x},
               {"row_scale", out.row_scale},
               {"out_scale", out.scale},
               {"rows", rows}},
              {{"kind", by.kind}, {"eps", eps(by)}, {"weight_plus_one", plus_one(by)}});
}

Status LayerOps::quantize(const Tensor& x, const Rows& out) {
  return rec_(ops::quantize,
              {{"x", x}, {"out", out.x}, {"row_scale", out.row_scale}, {"out_scale", out.scale}, {"rows", rows}});
}

Status LayerOps::linear(const Rows& x, const Matrix& m, const Tensor& out, const Epilogue& e) {
  if (x.squares.present()) {
    if (e.residual.present() || e.gate.present() || e.out_scale.present())
      return Status(Code::kInternal, "a deferred norm is followed by a product with an activation alone");
    return deferred(x, m, {out}, false, e.act);
  }
  if (x.raw.present()) return folded(x, m, out, e, false);
  return rec_(ops::gemm,
              {{"x", x.x},
               {"x_row_scale", x.row_scale},
               {"x_scale", x.scale},
               {"w", m.w},
               {"w_row_scale", m.scale.row},
               {"w_block_scale", m.scale.block},
               {"w_scale", m.scale.whole},
               {"bias", m.bias},
               {"gate", e.gate},
               {"residual", e.residual},
               {"out", out},
               {"out_scale", e.out_scale},
               {"rows", rows}},
              {{"act", act(m.w)}, {"epilogue", e.act}, {"alpha", m.factor}});
}

Status LayerOps::gated(const Rows& x, const Matrix& m, const Rows& out, std::string_view activation) {
  if (x.squares.present()) return deferred(x, m, out, true, activation);
  if (x.raw.present()) return folded(x, m, out.x, {.out_scale = out.scale, .act = activation}, true);
  return rec_(ops::gated_gemm,
              {{"x", x.x},
               {"x_row_scale", x.row_scale},
               {"x_scale", x.scale},
               {"w", m.w},
               {"w_row_scale", m.scale.row},
               {"w_block_scale", m.scale.block},
               {"w_scale", m.scale.whole},
               {"bias", m.bias},
               {"out", out.x},
               {"out_scale", out.scale},
               {"rows", rows}},
              {{"act", activation}, {"quant", act(m.w)}});
}

Status LayerOps::deferred(const Rows& x, const Matrix& m, const Rows& out, bool gated, std::string_view activation) {
  return rec_(ops::rms_gemm,
              {{"x", x.x},
               {"squares", x.squares},
               {"row_scale", x.factors},
               {"x_scale", x.scale},
               {"w", m.w},
               {"w_row_scale", m.scale.row},
               {"w_scale", m.scale.whole},
               {"bias", m.bias},
               {"out", out.x},
               {"out_scale", out.scale},
               {"rows", rows}},
              {{"eps", eps(x.norm)}, {"gated", gated ? 1.0 : 0.0}, {"epilogue", activation}});
}

Status LayerOps::folded(const Rows& x, const Matrix& m, const Tensor& out, const Epilogue& e, bool gated) {
  if (e.gate.present()) return Status(Code::kInternal, "a folded norm is followed by a product without a gate");
  return rec_(ops::norm_gemm,
              {{"x", x.raw},
               {"weight", x.norm.weight},
               {"norm_bias", x.norm.bias},
               {"scale", x.norm.ada.scale},
               {"shift", x.norm.ada.shift},
               {"ada_row", x.norm.ada.rows},
               {"normed", x.x},
               {"normed_scale", x.scale},
               {"w", m.w},
               {"w_row_scale", m.scale.row},
               {"w_block_scale", m.scale.block},
               {"w_scale", m.scale.whole},
               {"bias", m.bias},
               {"residual", e.residual},
               {"out", out},
               {"out_scale", e.out_scale},
               {"rows", rows}},
              {{"kind", x.norm.kind},
               {"eps", eps(x.norm)},
               {"weight_plus_one", plus_one(x.norm)},
               {"gated", gated ? 1.0 : 0.0},
               {"act", act(m.w)},
               {"epilogue", e.act}});
}

Tensor LayerOps::factor_less_one(const NormBy& by) const {
  if (plus_one(by) == 0) return by.ada.scale;
  return tensor(by.weight.data, by.weight.dtype, Shape(1, by.weight.shape[0]), by.weight.place);
}

Status LayerOps::defer_norm(const Tensor& x, const NormBy& by, const Rows& to) {
  return rec_(ops::rms_rows, {{"x", x},
                              {"weight", factor(by)},
                              {"scale", factor_less_one(by)},
                              {"scaled", to.x},
                              {"scaled_scale", to.scale},
                              {"squares", to.squares},
                              {"rows", rows}});
}

Status LayerOps::linear_then_defer(const Rows& x, const Matrix& m, const Tensor& out, const Epilogue& e,
                                   const NormBy& by, const Rows& to) {
  return rec_(ops::gemm_rms_rows, {{"x", x.x},
                                   {"x_scale", x.scale},
                                   {"x_row_scale", x.row_scale},
                                   {"w", m.w},
                                   {"w_row_scale", m.scale.row},
                                   {"w_scale", m.scale.whole},
                                   {"bias", m.bias},
                                   {"gate", e.gate},
                                   {"residual", e.residual},
                                   {"out", out},
                                   {"weight", factor(by)},
                                   {"scale", factor_less_one(by)},
                                   {"scaled", to.x},
                                   {"scaled_scale", to.scale},
                                   {"squares", to.squares},
                                   {"rows", rows}});
}

Status LayerOps::gather(const Tensor& table, const Tensor& ids, const Tensor& out, double scale) {
  return rec_(ops::embedding, {{"table", table}, {"ids", ids}, {"out", out}, {"rows", rows}}, {{"scale", scale}});
}

}  // namespace vivace::models
