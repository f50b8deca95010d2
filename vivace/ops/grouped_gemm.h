// grouped_gemm: runs of rows, each times a matrix of its own.
#pragma once
#include <optional>

#include "vivace/cpu/simd/isa.h"
#include "vivace/kernels/moe/grouped_gemm.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gemm_codes_gpu.h"

namespace vivace::cpu {
class Pool;
void grouped_gemm(const kernels::GroupedGemmArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct grouped_gemm {
  using Args = kernels::GroupedGemmArgs;
  static constexpr Port kPorts[] = {
      in("x", "A,K", "f32|bf16|f16", "activations, rows of a group together"),
      in("w", "E,N,K", "f32|bf16|f16|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k", "a weight matrix each group; block formats in GGUF's layout"),
      in("offsets", "E+1", "i32", "group e is rows [offsets[e], offsets[e+1]), clamped to [0, A]"),
      out("out", "A,N", "f32|bf16|f16", "result; rows of no group are not written"),
  };
  static constexpr Attr kAttrs[] = {
      choice("act", "f32|q8", "how activations enter a product with a block-quantised w, as in gemm"),
  };
  static constexpr OpSpec spec{
      .name = "grouped_gemm",
      .group = "moe",
      .brief = "Products of runs of rows with one weight matrix a run: the experts of a mixture.",
      .formula = "out[r] = round(x[r] W_e^T) for r in [offsets[e], offsets[e+1]), each as gemm's formula says, to the bit.",
      .source = "grouped products of a mixture of experts arXiv:2211.15841",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const Tensor& w = c["w"];
    const auto act = c.choice<kernels::GemmAct>("act");
    if (act == kernels::GemmAct::q8 && !is_block(w.dtype))
      return c.error(Code::kInvalidArgument, strf("act=q8 needs a block-quantised w, got %s; use act=f32", name(w.dtype)));
    for (const char* d : {"E", "N", "K"})
      if (c.dim(d) < 1) return c.error(Code::kInvalidShape, strf("%s must be at least 1, got %ld", d, static_cast<long>(c.dim(d))));
    for (const char* d : {"A", "E", "N", "K"})
      if (c.dim(d) > INT32_MAX - 1) return c.error(Code::kInvalidShape, strf("%s = %ld is above 2^31 - 2", d, static_cast<long>(c.dim(d))));
    if (c.place() == Place::host) {
      if (Status s = cpu::check_isa(); !s.ok()) return s;
    }
    *a = Args{
        .x = c.ptr("x"), .w = w.data, .offsets = c.ptr<int32_t>("offsets"), .out = c.ptr("out"), .x_stride = c.row_stride("x"),
        .w_stride = c.row_stride("w"), .out_stride = c.row_stride("out"), .A = static_cast<int32_t>(c.dim("A")),
        .E = static_cast<int32_t>(c.dim("E")), .N = static_cast<int32_t>(c.dim("N")), .K = static_cast<int32_t>(c.dim("K")),
        .act = act, .x_dtype = c["x"].dtype, .w_dtype = w.dtype, .out_dtype = c["out"].dtype,
    };
    return {};
  }

  /// As if every group had rows, up to one each.
  static Cost cost(const Args& a) {
    const int64_t A = a.A, N = a.N, K = a.K, groups = a.E < a.A ? a.E : a.A;
    return {.bytes = groups * N * row_bytes(a.w_dtype, K) + A * K * info(a.x_dtype).bytes + A * N * info(a.out_dtype).bytes, .flops = 2 * A * N * K};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::grouped_gemm(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/moe/grouped_gemm.cuh";
    using Codes = GemmCodesGpu;
    using Key = Codes::Key;
    using Act = kernels::GemmAct;

    /// Rows a group has if they are spread evenly, and room for uneven ones: sets the tile, not the bits.
    static int64_t usual_rows(const Args& a) {
      const int64_t groups = a.E < a.A ? a.E : a.A, mean = groups == 0 ? 0 : a.A / groups;
      return mean <= 2 ? mean : 2 * mean;
    }
    /// K is cut as if eight groups had rows: one token's experts fill the chip, many do not pay for it.
    static int cluster(const Args& a, Arch arch) {
      const int s = Codes::split(int64_t{a.N} * 8, a.K, a.w_dtype, arch);
      return s > 2 ? 2 : s;
    }
    static Result<Key> pick(const Args& a, Arch arch) {
      const int64_t pitch = row_bytes(a.w_dtype, a.K), expert = row_bytes(a.w_dtype, a.w_stride);
      return Codes::pick(a.x_dtype, a.w_dtype, a.out_dtype, a.act, usual_rows(a), Codes::form(cluster(a, arch), Codes::aligned(a.w, pitch, a.w_dtype) && expert % 16 == 0), arch);
    }
    static std::string instance(const Key& k) { return Codes::instance("grouped_gemm", k); }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      const int64_t slots = (a.E < a.A ? a.E : a.A) + a.A / k.p.tokens();
      Codes::shape(k, slots * ((a.N + k.p.rows() - 1) / k.p.rows()), a.A, launch);
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      // As pick() would on this chip: the first tactic that its shared memory holds, for few and many rows perhaps the same.
      std::optional<Key> last;
      const auto one = [&](DType x, DType w, Act act, int64_t rows, bool aligned) {
        if (const Result<Key> k = Codes::pick(x, w, x, act, rows, Codes::form(1, aligned), arch); k.ok() && last != *k) visit(*(last = *k));
      };
      for (const int64_t rows : {1, 32}) one(DType::bf16, DType::bf16, Act::f32, rows, true);
      one(DType::bf16, DType::q4_0, Act::f32, 1, true);
      one(DType::bf16, DType::q4_k, Act::f32, 1, true);
      one(DType::bf16, DType::q6_k, Act::q8, 1, false);
      one(DType::f32, DType::f32, Act::f32, 1, false);
      one(DType::f16, DType::f16, Act::f32, 1, true);
    }
  };
};

}  // namespace vivace::ops::defs
