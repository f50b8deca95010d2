// gated_mlp: the gated feed-forward block, as three products and one activation.
#pragma once
#include "vivace/base/check.h"
#include "vivace/ops/registry.h"

namespace vivace::ops::defs {

struct gated_mlp {
  static constexpr Port kPorts[] = {
      in("x", "T,H", "f32|bf16|f16", "normalised rows"),
      read_ahead(in("w_gate", "M,H", "f32|bf16|f16|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k", "weight of the gate")),
      read_ahead(in("w_up", "M,H", "f32|bf16|f16|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k", "weight of up")),
      read_ahead(in("w_down", "N,M", "f32|bf16|f16|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k", "weight of the way back")),
      opt_in("residual", "T,N", "=out", "added to the result before its one rounding"),
      out("out", "T,N", "f32|bf16|f16", "rows of the block", "residual"),
      inout("gate_up", "T,2*M", "f32|bf16|f16",
            "scratch: gate rows, then up rows; its dtype is the one they are rounded to"),
      inout("hidden", "T,M", "=gate_up", "scratch: the activated product"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("act", "silu|gelu_tanh|gelu_erf", "activation of the gate"),
      choice("quant", "f32|q8",
             "how activations enter products with a block-quantized weight, see gemm's attribute act"),
  };
  static constexpr OpSpec spec{
      .name = "gated_mlp",
      .group = "gate",
      .brief = "Gated MLP: down(act(gate(x)) * up(x)) with residual.",
      .formula = "gate_up = [gemm(x, w_gate), gemm(x, w_up)], rounded; hidden = act_mul(gate_up), rounded; "
                 "out = round(residual + hidden w_down^T). Rounding points are those of gemm and act_mul.",
      .source = "GLU variants arXiv:2002.05202",
      .ports = kPorts,
      .attrs = kAttrs,
      .composite = true,
  };

  static Status decompose(const Call& c, Recorder& rec) {
    constexpr std::string_view kActs[] = {"silu", "gelu_tanh", "gelu_erf"};
    const std::string_view act = kActs[c.integer("act")];
    const int64_t M = c.dim("M");
    // A weight that is not block-quantized takes f32 activations whatever `quant` says.
    const auto mode = [&](const char* w) {
      return std::string_view(c.integer("quant") == 1 && is_block(c[w].dtype) ? "q8" : "f32");
    };
    if (Tensor both = c["w_gate"]; follows(c["w_up"], both)) {
      both.shape.dim[0] *= 2;  // side by side they are one product
      VV_TRY(rec(ops::gemm, {{"x", c["x"]}, {"w", both}, {"out", c["gate_up"]}, {"rows", c["rows"]}},
                 {{"act", mode("w_gate")}}));
    } else {
      VV_TRY(rec(ops::gemm,
                 {{"x", c["x"]}, {"w", c["w_gate"]}, {"out", columns(c["gate_up"], 0, M)}, {"rows", c["rows"]}},
                 {{"act", mode("w_gate")}}));
      VV_TRY(rec(ops::gemm,
                 {{"x", c["x"]}, {"w", c["w_up"]}, {"out", columns(c["gate_up"], M, M)}, {"rows", c["rows"]}},
                 {{"act", mode("w_up")}}));
    }
    VV_TRY(rec(ops::act_mul, {{"x", c["gate_up"]}, {"out", c["hidden"]}, {"rows", c["rows"]}}, {{"act", act}}));
    return rec(
        ops::gemm,
        {{"x", c["hidden"]}, {"w", c["w_down"]}, {"residual", c["residual"]}, {"out", c["out"]}, {"rows", c["rows"]}},
        {{"act", mode("w_down")}});
  }

 private:
  /// Whether `second` begins where `first`, a dense matrix of the same shape and dtype, ends.
  static bool follows(const Tensor& second, const Tensor& first) {
    return first.dtype == second.dtype && first.is_dense() && second.is_dense() &&
           static_cast<char*>(first.data) + first.span_bytes() == second.data;
  }
  /// Columns [begin, begin + count) of a matrix of a plain dtype.
  static Tensor columns(Tensor t, int64_t begin, int64_t count) {
    if (t.data != nullptr) t.data = static_cast<char*>(t.data) + row_bytes(t.dtype, begin);
    t.shape.dim[1] = count;
    return t;
  }
};

}  // namespace vivace::ops::defs
