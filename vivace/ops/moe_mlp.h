// moe_mlp: the feed-forward block of a mixture of experts, as routing, grouped products and a weighted sum.
#pragma once
#include "vivace/base/check.h"
#include "vivace/ops/registry.h"

namespace vivace::ops::defs {

struct moe_mlp {
  static constexpr Port kPorts[] = {
      in("x", "T,H", "f32|bf16|f16", "normalised rows"),
      in("router", "E,H", "f32|bf16|f16|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k", "weight of the routing logits"),
      in("w_gate", "E,M,H", "f32|bf16|f16|e4m3|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k", "the experts' gates"),
      in("w_up", "E,M,H", "f32|bf16|f16|e4m3|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k", "the experts' ups"),
      in("w_down", "E,N,M", "f32|bf16|f16|e4m3|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k", "the experts' ways back"),
      opt_in("residual", "T,N", "=out", "added to the result before its one rounding"),
      out("out", "T,N", "f32|bf16|f16", "rows of the block", "residual"),
      inout("logits", "T,E", "f32", "scratch: routing logits"),
      inout("weights", "T,K", "f32", "scratch: weights of the K experts of each token; its width says how many"),
      inout("place", "T,K", "i32", "scratch: see moe_route"),
      inout("token", "T*K", "i32", "scratch: see moe_route"),
      inout("offsets", "E+1", "i32", "scratch: see moe_route"),
      inout("gathered", "T*K,H", "=x", "scratch: x in the experts' order, of several tokens"),
      inout("gate_up", "T*K,2*M", "f32|bf16|f16",
            "scratch: gate rows, then up rows; its dtype is the one they are rounded to"),
      inout("hidden", "T*K,M", "=gate_up", "scratch: the activated product"),
      inout("expert_out", "T*K,N", "=gate_up", "scratch: the experts' results"),
      opt_in("gate_up_scale", "E,2*M", "f32", "of e4m3 gates and ups: factor of each row, gates first"),
      opt_in("down_scale", "E,N", "f32", "of e4m3 ways back: factor of each row"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("act", "silu|gelu_tanh|gelu_erf", "activation of the gate"),
      choice("quant", "f32|q8",
             "how activations enter products with a block-quantized weight, see gemm's attribute act"),
      boolean("renormalize", true, "see moe_route"),
      boolean("shared", false, "the last expert is one that every token takes, see moe_route"),
  };
  static constexpr OpSpec spec{
      .name = "moe_mlp",
      .group = "moe",
      .brief = "Gated MLP of a mixture of experts: routing, the chosen experts, their weighted sum and the residual.",
      .formula =
          "logits = gemm(x, router); moe_route; gathered = rows of x in its order; gate_up = grouped_gemm of gathered "
          "with w_gate and w_up, "
          "times gate_up_scale, rounded; hidden = act_mul(gate_up), rounded; expert_out = grouped_gemm(hidden, "
          "w_down), times down_scale, rounded; out = moe_combine. "
          "Rounding points are those of the ops.",
      .source = "arXiv:2401.04088",
      .ports = kPorts,
      .attrs = kAttrs,
      .composite = true,
  };

  static Status decompose(const Call& c, Recorder& rec) {
    constexpr std::string_view kActs[] = {"silu", "gelu_tanh", "gelu_erf"};
    const int64_t M = c.dim("M");
    for (const auto& [w, scale] : {std::pair{"w_gate", "gate_up_scale"}, {"w_up", "gate_up_scale"},
                                   {"w_down", "down_scale"}})
      if (c[scale].present() && c[w].dtype != DType::e4m3)
        return c.error(Code::kInvalidArgument, strf("%s goes with %s of e4m3, got %s", scale, w, name(c[w].dtype)));
    const Tensor &offsets = c["offsets"], &gathered = c["gathered"];
    const Tensor count = part(offsets, c.dim("E"), 1);  // valid rows of the experts' order
    const auto mode = [&](const char* w) {
      return std::string_view(c.integer("quant") == 1 && is_block(c[w].dtype) ? "q8" : "f32");
    };
    const auto experts = [&](const Tensor& x, const char* w, const Tensor& scale, const Tensor& out) {
      return rec(ops::grouped_gemm,
                 {{"x", x}, {"w", c[w]}, {"w_row_scale", scale}, {"offsets", offsets}, {"out", out}},
                 {{"act", mode(w)}});
    };
    VV_TRY(rec(ops::gemm, {{"x", c["x"]}, {"w", c["router"]}, {"out", c["logits"]}, {"rows", c["rows"]}},
               {{"act", mode("router")}}));
    VV_TRY(rec(ops::moe_route,
               {{"logits", c["logits"]},
                {"weights", c["weights"]},
                {"place", c["place"]},
                {"token", c["token"]},
                {"offsets", offsets},
                {"rows", c["rows"]}},
               {{"renormalize", c.real("renormalize")}, {"shared", c.real("shared")}}));
    const bool one = c.dim("T") == 1;  // its row serves all of its experts as it is
    if (!one) VV_TRY(rec(ops::embedding, {{"table", c["x"]}, {"ids", c["token"]}, {"out", gathered}, {"rows", count}}));
    const Tensor& rows = one ? c["x"] : gathered;
    const Tensor& scale = c["gate_up_scale"];
    if (Tensor both = c["w_gate"]; side_by_side(both, c["w_up"])) {
      both.shape.dim[1] *= 2;  // each expert's gate and up are one matrix
      VV_TRY(rec(ops::grouped_gated_gemm,
                 {{"x", rows},
                  {"w", both},
                  {"w_row_scale", scale},
                  {"offsets", offsets},
                  {"gate_up", c["gate_up"]},
                  {"out", c["hidden"]}},
                 {{"act", kActs[c.integer("act")]}, {"quant", mode("w_gate")}}));
    } else {
      const auto of = [&](int64_t first) { return scale.present() ? part(scale, first, M) : Tensor{}; };
      VV_TRY(experts(rows, "w_gate", of(0), part(c["gate_up"], 0, M)));
      VV_TRY(experts(rows, "w_up", of(M), part(c["gate_up"], M, M)));
      VV_TRY(rec(ops::act_mul, {{"x", c["gate_up"]}, {"out", c["hidden"]}, {"rows", count}},
                 {{"act", kActs[c.integer("act")]}}));
    }
    VV_TRY(experts(c["hidden"], "w_down", c["down_scale"], c["expert_out"]));
    return rec(ops::moe_combine, {{"y", c["expert_out"]},
                                  {"place", c["place"]},
                                  {"weights", c["weights"]},
                                  {"residual", c["residual"]},
                                  {"out", c["out"]},
                                  {"rows", c["rows"]}});
  }

 private:
  /// Whether each expert of `up`, a tensor of the same shape and dtype, begins where that of `gate` ends and the next
  /// of `gate` where it ends.
  static bool side_by_side(const Tensor& gate, const Tensor& up) {
    const int64_t rows = gate.shape[1], step = rows * gate.shape[2];
    return gate.dtype == up.dtype && gate.stride[0] == 2 * step && up.stride[0] == 2 * step &&
           static_cast<char*>(gate.data) + rows * row_bytes(gate.dtype, gate.shape[2]) == up.data;
  }
  /// Elements [begin, begin + count) of the last axis of a tensor of a plain dtype.
  static Tensor part(Tensor t, int64_t begin, int64_t count) {
    if (t.data != nullptr) t.data = static_cast<char*>(t.data) + row_bytes(t.dtype, begin);
    t.shape.dim[t.shape.rank - 1] = count;
    return t;
  }
};

}  // namespace vivace::ops::defs
