// batched_gemm: one product a batch entry, each with a matrix of its own.
#pragma once
#include "vivace/ops/registry.h"

namespace vivace::ops::defs {

struct batched_gemm {
  static constexpr Port kPorts[] = {
      in("x", "B,T,K", "f32|bf16|f16|e4m3", "activations of each entry"),
      read_ahead(in("w", "B,N,K", "f32|bf16|f16|e4m3|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k",
                    "weights of each entry, one output a row")),
      out("out", "B,T,N", "f32|bf16|f16", "results"),
  };
  static constexpr Attr kAttrs[] = {
      choice("act", "f32|q8", "how activations enter a product with a block-quantized w, as in gemm"),
      real("alpha", 1, "factor of the products"),
  };
  static constexpr OpSpec spec{
      .name = "batched_gemm",
      .group = "gemm",
      .brief = "Independent products of equal shape, the entries of a batch any stride apart.",
      .formula = "out[b] = gemm(x[b], w[b]) for each b, to the bit.",
      .source = "the composition of the op that it names",
      .ports = kPorts,
      .attrs = kAttrs,
      .composite = true,
  };

  static Status decompose(const Call& c, Recorder& rec) {
    const std::string_view act = c.integer("act") == 1 ? "q8" : "f32";
    for (int64_t b = 0; b < c.dim("B"); ++b)
      VV_TRY(rec(ops::gemm, {{"x", entry(c["x"], b)}, {"w", entry(c["w"], b)}, {"out", entry(c["out"], b)}},
                 {{"act", act}, {"alpha", c.real("alpha")}}));
    return {};
  }

 private:
  /// Matrix b of a tensor of three axes.
  static Tensor entry(Tensor t, int64_t b) {
    if (t.data != nullptr) t.data = static_cast<char*>(t.data) + row_bytes(t.dtype, b * t.stride[0]);
    for (int i = 0; i < 2; ++i) t.shape.dim[i] = t.shape.dim[i + 1], t.stride[i] = t.stride[i + 1];
    t.shape.rank = 2;
    return t;
  }
};

}  // namespace vivace::ops::defs
