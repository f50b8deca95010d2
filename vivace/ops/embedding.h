// embedding: rows of a table, by token id.
#pragma once
#include "vivace/kernels/embedding/embedding.h"
#include "vivace/ops/call.h"

namespace vivace::cpu {
class Pool;
void embedding(const kernels::EmbeddingArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct embedding {
  using Args = kernels::EmbeddingArgs;
  static constexpr Port kPorts[] = {
      in("table", "V,H", "f32|bf16|f16|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k", "one row a token of the vocabulary"),
      in("ids", "T", "i32", "row of table for each token; an id outside [0, V) gives a row of NaN, so that the mistake shows"),
      out("out", "T,H", "f32|bf16|f16", "the rows"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      real("scale", 1, "factor of every element, used in f32 (Gemma: sqrt(H) rounded to the model's dtype by the caller)"),
  };
  static constexpr OpSpec spec{
      .name = "embedding",
      .group = "embedding",
      .brief = "Gathers rows of a plain or block-quantised table by token id.",
      .formula = "out[t] = round(f32(table[ids[t]]) * f32(scale)); NaN if ids[t] is outside [0, V). "
                 "A block format is dequantised to f32 as its definition says, then scaled and rounded once.",
      .source = "table lookup; block formats as GGUF stores them",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    *a = Args{
        .table = c.ptr("table"), .ids = c.ptr<int32_t>("ids"), .out = c.ptr("out"), .rows = c.ptr<int32_t>("rows"),
        .table_stride = c.row_stride("table"), .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")), .H = static_cast<int32_t>(c.dim("H")), .V = static_cast<int32_t>(c.dim("V")),
        .scale = static_cast<float>(c.real("scale")), .table_dtype = c["table"].dtype, .out_dtype = c["out"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.H;
    return {.bytes = a.T * row_bytes(a.table_dtype, a.H) + n * info(a.out_dtype).bytes + a.T * int64_t{4}, .flops = n};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::embedding(a, pool); }
};

}  // namespace vivace::ops::defs
