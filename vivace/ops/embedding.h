// embedding: rows of a table, by token id.
#pragma once
#include "vivace/kernels/embedding/embedding.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void embedding(const kernels::EmbeddingArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct embedding {
  using Args = kernels::EmbeddingArgs;
  static constexpr Port kPorts[] = {
      in("table", "V,H", "f32|bf16|f16|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k", "one row a token of the vocabulary"),
      in("ids", "T", "i32",
         "row of table for each token; an id outside [0, V) gives a row of NaN, so that the mistake shows"),
      out("out", "T,H", "f32|bf16|f16", "the rows"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      real("scale", 1,
           "factor of every element, used in f32 (Gemma: sqrt(H) rounded to the model's dtype by the caller)"),
  };
  static constexpr OpSpec spec{
      .name = "embedding",
      .group = "embedding",
      .brief = "Gathers rows of a plain or block-quantized table by token id.",
      .formula = "out[t] = round(f32(table[ids[t]]) * f32(scale)); NaN if ids[t] is outside [0, V). "
                 "A block format is dequantized to f32 as its definition says, then scaled and rounded once.",
      .source = "table lookup; block formats as GGUF stores them",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    *a = Args{
        .table = c.ptr("table"),
        .ids = c.ptr<int32_t>("ids"),
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .table_stride = c.row_stride("table"),
        .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")),
        .H = static_cast<int32_t>(c.dim("H")),
        .V = static_cast<int32_t>(c.dim("V")),
        .scale = static_cast<float>(c.real("scale")),
        .table_dtype = c["table"].dtype,
        .out_dtype = c["out"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.H;
    return {.bytes = a.T * row_bytes(a.table_dtype, a.H) + n * info(a.out_dtype).bytes + a.T * int64_t{4}, .flops = n};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::embedding(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/embedding/embedding.cuh";
    using Policy = kernels::EmbeddingPolicy;
    struct Key {
      DType table, out;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr Policy kTactics[] = {{128, 8, 8, 1}, {256, 8, 8, 2}, {128, 8, 1, 1}, {128, 1, 1, 4}};
    static constexpr int64_t kManyElements = 1 << 20;  // from here on bytes in flight decide, below latency
    static constexpr DType kBlockFormats[] = {DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1,
                                              DType::q8_0, DType::q4_k, DType::q5_k, DType::q6_k};

    static Result<Key> pick(const Args& a, Arch) {
      const bool store = a.H % 8 == 0 && vectorizable(a.out, a.out_stride, a.out_dtype, 8);
      const bool block = is_block(a.table_dtype),
                 wide = store && (block || vectorizable(a.table, a.table_stride, a.table_dtype, 8));
      return Key{a.table_dtype, a.out_dtype,
                 kTactics[wide    ? (int64_t{a.T} * a.H >= kManyElements ? 1 : 0)
                          : block ? 2
                                  : 3]};
    }
    static std::string instance(const Key& k) {
      // A block format has no element type: its bytes stand for it.
      return kernel_expression(
          "embedding<%s, static_cast<vivace::DType>(%d), %s, vivace::kernels::EmbeddingPolicy{%d, %d, %d, %d}>",
          is_block(k.table) ? "unsigned char" : type_name(k.table), static_cast<int>(k.table), type_name(k.out),
          k.p.threads, k.p.vec, k.p.store_vec, k.p.items);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(a.T * ((a.H + k.p.stretch() - 1) / k.p.stretch()));
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const int row : {0, 1, 3}) visit(Key{t, t, kTactics[row]});
      for (const DType t : kBlockFormats)
        for (const DType out : {DType::f32, DType::bf16, DType::f16})
          for (const int row : {0, 1, 2}) visit(Key{t, out, kTactics[row]});
    }
  };
};

}  // namespace vivace::ops::defs
