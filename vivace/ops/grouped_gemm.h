// grouped_gemm: runs of rows, each times a matrix of its own.
#pragma once
#include <optional>

#include "vivace/cpu/simd/isa.h"
#include "vivace/device/tensor_map.h"
#include "vivace/kernels/moe/grouped_gemm.h"
#include "vivace/ops/call.h"
#include "vivace/ops/checked.h"
#include "vivace/ops/gemm_weight_only_gpu.h"
#include "vivace/ops/gemm_table.h"

namespace vivace::cpu {
class Pool;
void grouped_gemm(const kernels::GroupedGemmArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct grouped_gemm {
  using Args = kernels::GroupedGemmArgs;
  static constexpr Port kPorts[] = {
      in("x", "X,K", "f32|bf16|f16",
         "activations, rows of a group together: X = A, or one row that stands for every one"),
      in("w", "E,N,K", "f32|bf16|f16|e4m3|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k",
         "a weight matrix each group; block formats in GGUF's layout"),
      in("offsets", "E+1", "i32", "group e is rows [offsets[e], offsets[e+1]), clamped to [0, A]; they rise"),
      opt_in("counts", "E", "i32",
             "rows that group e has, the first of those that the offsets give it, clamped to their number: the masked "
             "layout, [E, capacity, K], with offsets of multiples of the capacity"),
      out("out", "A,N", "f32|bf16|f16", "result; rows of no group are not written"),
      opt_in("w_row_scale", "E,N", "f32", "of an e4m3 w: factor of each row"),
  };
  static constexpr Attr kAttrs[] = {
      choice("act", "f32|q8", "how activations enter a product with a block-quantized w, as in gemm"),
  };
  static constexpr OpSpec spec{
      .name = "grouped_gemm",
      .group = "moe",
      .brief = "Products of runs of rows with one weight matrix a run: the experts of a mixture.",
      .formula =
          "out[r] = round(x[r] W_e^T) for r in [offsets[e], offsets[e+1]), of these the first counts[e] where counts "
          "are given, each as gemm's formula says, with the factors of W_e's rows where they are given; on Hopper any "
          "number of bf16 rows meet q4_0's values rounded to bf16, where K is a multiple of 256 (act=f32). "
          "Where offsets fall, groups may share rows: then each element of a row that a group names is of one of its "
          "groups, or stays as it was.",
      .source = "grouped products of a mixture of experts arXiv:2211.15841",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const Tensor& w = c["w"];
    const auto act = c.choice<kernels::GemmAct>("act");
    if (act == kernels::GemmAct::q8 && !is_block(w.dtype))
      return c.error(Code::kInvalidArgument,
                     strf("act=q8 needs a block-quantized w, got %s; use act=f32", name(w.dtype)));
    if (c["w_row_scale"].present() && w.dtype != DType::e4m3)
      return c.error(Code::kInvalidArgument, strf("w_row_scale goes with w of e4m3, got %s", name(w.dtype)));
    const int64_t rows = c.dim("X");
    if (rows != c.dim("A") && rows != 1)
      return c.error(Code::kInvalidShape, strf("x has %ld rows, out %ld: wanted as many, or one",
                                               static_cast<long>(rows), static_cast<long>(c.dim("A"))));
    for (const char* d : {"E", "N", "K"})
      if (c.dim(d) < 1)
        return c.error(Code::kInvalidShape, strf("%s must be at least 1, got %ld", d, static_cast<long>(c.dim(d))));
    for (const char* d : {"A", "E", "N", "K"})
      if (c.dim(d) > INT32_MAX - 1)
        return c.error(Code::kInvalidShape, strf("%s = %ld is above 2^31 - 2", d, static_cast<long>(c.dim(d))));
    if (c.place() == Place::host) {
      if (Status s = cpu::check_isa(); !s.ok()) return s;
    }
    *a = Args{
        .x = c.ptr("x"),
        .w = w.data,
        .offsets = c.ptr<int32_t>("offsets"),
        .counts = c.ptr<int32_t>("counts"),
        .w_row_scale = c.ptr<float>("w_row_scale"),
        .out = c.ptr("out"),
        .x_stride = rows == c.dim("A") ? c.row_stride("x") : 0,
        .w_stride = c.row_stride("w"),
        .out_stride = c.row_stride("out"),
        .scale_stride = c.row_stride("w_row_scale"),
        .A = static_cast<int32_t>(c.dim("A")),
        .E = static_cast<int32_t>(c.dim("E")),
        .N = static_cast<int32_t>(c.dim("N")),
        .K = static_cast<int32_t>(c.dim("K")),
        .act = act,
        .x_dtype = c["x"].dtype,
        .w_dtype = w.dtype,
        .out_dtype = c["out"].dtype,
        .gate = kernels::Activation::none,
    };
    return {};
  }

  /// As if every group had rows, up to one each.
  static Cost cost(const Args& a) {
    const int64_t A = a.A, N = a.N, K = a.K, groups = a.E < a.A ? a.E : a.A;
    return {
        .bytes = groups * N * row_bytes(a.w_dtype, K) + A * K * info(a.x_dtype).bytes + A * N * info(a.out_dtype).bytes,
        .flops = 2 * A * N * K};
  }

  static Status inspect(const Call& c, const Contents& read) {
    VV_ASSIGN(const std::vector<int32_t> offsets, read("offsets"));
    for (size_t e = 1; e < offsets.size(); ++e)
      if (offsets[e] < offsets[e - 1])
        return c.error(Code::kInvalidArgument, strf("offsets[%ld] is %d, wanted %d or more: offsets rise",
                                                    static_cast<long>(e), offsets[e], offsets[e - 1]));
    return {};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::grouped_gemm(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/moe/grouped_gemm.cuh";
    using WeightOnly = GemmWeightOnlyGpu;
    using Wgmma = kernels::GroupedWgmma;
    using Act = kernels::GemmAct;
    struct Key {
      WeightOnly::Key weight_only;
      Wgmma wgmma = {};  // of no rows: weight_only serves
      bool operator==(const Key&) const = default;
    };

    // Few rows a group, two blocks an SM: of 64 rows of W or of 48; some tens; hundreds, where arithmetic counts.
    static constexpr Wgmma kTiles[] = {{64, 64, 6}, {48, 64, 7}, {128, 128, 6}, {128, 256, 4}};
    // The same of e4m3 weights, whose stages have twice the elements of K.
    static constexpr Wgmma kEightTiles[] = {
        {64, 32, 6, false, true}, {48, 32, 7, false, true}, {128, 128, 4, false, true}};
    // And of q4_0, whose stages have four times as many: x takes the room.
    static constexpr Wgmma kFourTiles[] = {
        {64, 16, 6, false, false, true}, {48, 16, 7, false, false, true}, {128, 64, 4, false, false, true}};
    static constexpr int64_t kBlocks = 2 * kHopper.sm_count;  // of few rows

    static constexpr int64_t groups(const Args& a) { return a.E < a.A ? a.E : a.A; }
    static int64_t mean_rows(const Args& a) { return groups(a) == 0 ? 0 : a.A / groups(a); }
    static const Wgmma& tile(const Args& a) {
      const int64_t mean = mean_rows(a);
      const bool held = a.w_dtype != a.x_dtype;
      const Wgmma* const few = !held ? kTiles : a.w_dtype == DType::e4m3 ? kEightTiles : kFourTiles;
      if (mean >= 8) return few[held || mean <= 128 ? 2 : 3];
      // Rows of W that the busiest block has: one token's 192 tiles of 64 rows would give 60 SMs two and 72 one.
      // The small tile for a tenth less.
      const auto most = [&](const Wgmma& p) {
        return (groups(a) * ((a.N + p.rows - 1) / p.rows) + kBlocks - 1) / kBlocks * p.rows;
      };
      return few[10 * most(few[1]) < 9 * most(few[0]) ? 1 : 0];
    }
    /// Rows a group has if they are spread evenly, and room for uneven ones: sets the tile, not the bits.
    static int64_t usual_rows(const Args& a) { return mean_rows(a) <= 2 ? mean_rows(a) : 2 * mean_rows(a); }
    /// What TMA takes: rows and experts without gaps between them, starting at 16 bytes.
    static bool has_wgmma(const Args& a, Arch arch) {
      const bool held = a.w_dtype == DType::e4m3 || (a.w_dtype == DType::q4_0 && a.act == Act::f32);
      const int piece = a.w_dtype == DType::q4_0 ? 256 : held ? 16 : 8;  // elements of W in whole 16 bytes
      return chip(arch).wgmma && !portable_only() &&
             (held ? a.x_dtype == DType::bf16
                   : a.x_dtype == a.w_dtype && (a.x_dtype == DType::bf16 || a.x_dtype == DType::f16)) &&
             a.K % piece == 0 && a.w_stride == int64_t{a.N} * a.K && int64_t{a.E} * a.N <= INT32_MAX &&
             vectorizable(a.x, a.x_stride, a.x_dtype, 8) && reinterpret_cast<uintptr_t>(a.w) % 16 == 0;
    }
    static bool weights_by_tma(const Args& a, Arch arch) {
      return a.w_stride == int64_t{a.N} * a.K && int64_t{a.E} * a.N <= INT32_MAX &&
             WeightOnly::has_tma(a.w, row_bytes(a.w_dtype, a.K), a.K, a.w_dtype, arch);
    }
    /// Weights that Hopper's TMA takes have orders of their own.
    static int row_class(const Args& a) { return has_wgmma(a, Arch::sm90a) ? 2 : weights_by_tma(a, Arch::sm90a); }
    static Result<Key> pick(const Args& a, Arch arch) {
      if (has_wgmma(a, arch)) return Key{{a.x_dtype, a.w_dtype, a.out_dtype, a.act, {}}, tile(a)};
      const int64_t pitch = row_bytes(a.w_dtype, a.K), expert = row_bytes(a.w_dtype, a.w_stride);
      const bool bulk = weights_by_tma(a, arch),
                 aligned = expert % 16 == 0 && WeightOnly::aligned(a.w, pitch, a.w_dtype);
      VV_ASSIGN(const WeightOnly::Key weight_only,
                WeightOnly::pick(a.x_dtype, a.w_dtype, a.out_dtype, a.act, usual_rows(a), a.A, a.N, a.K,
                                 WeightOnly::form(1, bulk || aligned, 0, DType::f32, false, false, bulk), arch));
      return Key{weight_only};
    }
    static std::string instance(const Key& k) {
      if (k.wgmma.rows == 0) return WeightOnly::instance("grouped_gemm", k.weight_only);
      return kernel_expression("grouped_wgmma<%s, %s, vivace::kernels::GroupedWgmma{%d, %d, %d, %s%s}>",
                               type_name(k.weight_only.x), type_name(k.weight_only.out), k.wgmma.rows, k.wgmma.tokens,
                               k.wgmma.stages, k.wgmma.gated ? "true" : "false",
                               k.wgmma.four ? ", false, true" : k.wgmma.eight ? ", true" : "");
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      const int64_t columns = k.wgmma.gated ? a.N / 2 : a.N;
      const auto tiles = [&](int tokens, int rows) {
        return (groups(a) + a.A / tokens) * ((columns + rows - 1) / rows);
      };
      if (k.wgmma.rows == 0)
        return WeightOnly::shape(k.weight_only, tiles(k.weight_only.p.tokens(), k.weight_only.p.rows()), a.A, launch);
      launch->block[0] = static_cast<uint32_t>(k.wgmma.threads());
      launch->smem_bytes = static_cast<uint32_t>(k.wgmma.smem_bytes());
      launch->grid[0] = static_cast<uint32_t>(std::min<int64_t>(tiles(k.wgmma.tokens, k.wgmma.columns()), INT32_MAX));
    }
    /// Tensor maps, and as many blocks as the chip holds at once.
    static Status complete(const Args& a, const Key& k, const Target& target, exec::Launch* launch) {
      if (launch->grid[0] == 0) return {};
      if (k.wgmma.rows == 0) {
        kernels::GroupedWeightOnlyArgs weight_only{};
        weight_only.g = a;
        VV_TRY(WeightOnly::map(k.weight_only, a.w, int64_t{a.E} * a.N, a.K, row_bytes(a.w_dtype, a.K),
                               &weight_only.w_map));
        launch->set_args(weight_only);
        return {};
      }
      const int bytes = info(a.x_dtype).bytes, at_once = kHopper.sm_smem_kib * 1024 / (k.wgmma.smem_bytes() + 1024);
      kernels::GroupedWgmmaArgs args{};
      const bool one = a.x_stride == 0;
      VV_TRY(device::encode_map({.data = a.x,
                                 .rows = one ? 1 : a.A,
                                 .columns = a.K,
                                 .pitch = (one ? a.K : a.x_stride) * bytes,
                                 .element_bytes = bytes,
                                 .box_rows = k.wgmma.box()},
                                &args.x_map));
      const int64_t rows = int64_t{a.E} * a.N, pitch = row_bytes(a.w_dtype, a.K);
      if (k.wgmma.four)
        VV_TRY(device::encode_map(device::WordMapShape{.data = a.w,
                                                       .rows = rows,
                                                       .words = pitch / 4,
                                                       .pitch = pitch,
                                                       .box_rows = k.wgmma.box_w(),
                                                       .box_words = k.wgmma.row_bytes() / 4},
                                  &args.w_map));
      else
        VV_TRY(device::encode_map({.data = a.w,
                                   .rows = rows,
                                   .columns = a.K,
                                   .pitch = pitch,
                                   .element_bytes = info(a.w_dtype).bytes,
                                   .box_rows = k.wgmma.box_w()},
                                  &args.w_map));
      args.g = a;
      launch->set_args(args);
      launch->grid[0] = std::min(launch->grid[0], static_cast<uint32_t>(target.sm_count() * at_once));
      return {};
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      const bool wgmma = chip(arch).wgmma && !portable_only(), bulk = chip(arch).tma && !portable_only();
      if (wgmma)
        for (const DType t : {DType::bf16, DType::f16})
          for (const Wgmma& p : kTiles) visit(Key{{t, t, t, Act::f32, {}}, p});
      if (wgmma)
        for (const Wgmma& p : kEightTiles)
          visit(Key{{DType::bf16, DType::e4m3, DType::bf16, Act::f32, {}}, p});
      if (wgmma)
        for (const Wgmma& p : kFourTiles) visit(Key{{DType::bf16, DType::q4_0, DType::bf16, Act::f32, {}}, p});
      // As pick() would on this chip: the first tactic that its shared memory holds, for few and many rows perhaps the
      // same.
      std::optional<WeightOnly::Key> last;
      const auto one = [&](DType x, DType w, Act act, int64_t rows, bool aligned) {
        const WeightOnly::Policy form = WeightOnly::form(1, aligned, 0, DType::f32, false, false, bulk && aligned);
        if (const Result<WeightOnly::Key> k = WeightOnly::pick(x, w, x, act, rows, 8, 4096, 4096, form, arch);
            k.ok() && last != *k)
          visit(Key{*(last = *k)});
      };
      for (const int64_t rows : {1, 32}) one(DType::bf16, DType::bf16, Act::f32, rows, !wgmma);
      for (const int64_t rows : {1, 32}) one(DType::bf16, DType::e4m3, Act::f32, rows, !wgmma);
      one(DType::bf16, DType::q4_0, Act::f32, 1, !wgmma);
      one(DType::bf16, DType::q4_k, Act::f32, 1, true);
      one(DType::bf16, DType::q6_k, Act::q8, 1, false);
      one(DType::f32, DType::f32, Act::f32, 1, false);
      one(DType::f16, DType::f16, Act::f32, 1, !wgmma);
    }
  };
};

}  // namespace vivace::ops::defs
