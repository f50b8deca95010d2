// norm: RMS or layer normalisation with everything that models fold into it.
#pragma once
#include "vivace/kernels/norm/norm.h"
#include "vivace/ops/ada_contents.h"
#include "vivace/ops/gpu.h"
#include "vivace/ops/quantized_out.h"

namespace vivace::cpu {
class Pool;
void norm(const kernels::NormArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct norm {
  using Args = kernels::NormArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,H", "f32|bf16|f16", "rows to normalise"),
      opt_inout("residual", "T,H", "=x",
                "residual stream: becomes round(residual + gate * x), and its unrounded value is normalised"),
      opt_in("gate", "R,H", "=x", "factor of x before it joins the residual"),
      opt_in("weight", "H", "f32|bf16|f16", "factor of the normalised row; absent means 1"),
      opt_in("bias", "H", "=weight", "added after weight"),
      opt_in("scale", "R,H", "=x", "adaptive scale: the row is multiplied by (1 + scale)"),
      opt_in("shift", "R,H", "=x", "adaptive shift, added last"),
      opt_in("ada_row", "T", "i32",
             "row of gate, scale and shift for each token, outside [0, R) the token's residual and out become NaN; "
             "absent means row min(t, R-1)"),
      out("out", "T,H", "f32|bf16|f16|e4m3", "normalised rows", "x"),
      opt_in("out_scale", "1", "f32", "static quantization scale of an e4m3 out: value ~ out * out_scale; > 0"),
      opt_out("row_scale", "T", "f32",
              "dynamic scales of an e4m3 out: row_scale[t] = amax(row t) / 448, 1 for a zero row"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("kind", "rms|layer", "rms divides by the root mean square, layer also subtracts the mean"),
      real("eps", 1e-6, "added to the mean square or the variance"),
      boolean("weight_plus_one", false, "multiply by (1 + weight), Gemma's convention"),
  };
  static constexpr OpSpec spec{
      .name = "norm",
      .group = "norm",
      .brief =
          "RMS or layer normalisation of rows, with residual, gate, weight, adaptive scale and shift, and quantized "
          "output.",
      .formula =
          "h = f32(x); if residual: h = f32(residual) + f32(gate or 1) * h, residual = round(h), h stays unrounded; "
          "m = mean(h) if layer else 0; y = (h - m) * rsqrt(mean((h - m)^2) + eps) * (w or 1+w) + bias; "
          "y = y * (1 + scale) + shift; out = round(y), or sat_e4m3(y / s) with s = out_scale or row_scale. All in "
          "f32.",
      .source = "RMSNorm arXiv:1910.07467, LayerNorm arXiv:1607.06450, adaptive norm arXiv:2212.09748",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    VV_TRY(check_quantized_out(c));
    VV_TRY(bind_rows(c, a));
    a->out = c.ptr("out"), a->out_stride = c.row_stride("out"), a->out_dtype = c["out"].dtype;
    a->out_scale = c.ptr<float>("out_scale"), a->row_scale = c.ptr<float>("row_scale");
    return {};
  }

  /// All but the output and its scales.
  static Status bind_rows(const Call& c, Args* a) {
    const Tensor& x = c["x"];
    if (c["gate"].present() && !c["residual"].present()) return c.error(Code::kInvalidArgument, "gate needs residual");
    if (c["bias"].present() && !c["weight"].present()) return c.error(Code::kInvalidArgument, "bias needs weight");
    if (c.integer("weight_plus_one") && !c["weight"].present())
      return c.error(Code::kInvalidArgument, "weight_plus_one needs weight");
    if (!(c.real("eps") >= 0)) return c.error(Code::kInvalidArgument, strf("eps must be >= 0, got %g", c.real("eps")));
    if (c.dim("H") < 1) return c.error(Code::kInvalidShape, "H must be at least 1");
    *a = Args{
        .x = x.data,
        .residual = c.ptr("residual"),
        .gate = c.ptr("gate"),
        .weight = c.ptr("weight"),
        .bias = c.ptr("bias"),
        .scale = c.ptr("scale"),
        .shift = c.ptr("shift"),
        .ada_row = c.ptr<int32_t>("ada_row"),
        .out = nullptr,
        .out_scale = nullptr,
        .row_scale = nullptr,
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .residual_stride = c.row_stride("residual"),
        .out_stride = 0,
        .gate_stride = c.row_stride("gate"),
        .scale_stride = c.row_stride("scale"),
        .shift_stride = c.row_stride("shift"),
        .T = static_cast<int32_t>(c.dim("T")),
        .H = static_cast<int32_t>(c.dim("H")),
        .R = static_cast<int32_t>(c.dim("R")),
        .eps = static_cast<float>(c.real("eps")),
        .kind = c.choice<kernels::NormKind>("kind"),
        .weight_plus_one = c.flag("weight_plus_one"),
        .x_dtype = x.dtype,
        .w_dtype = c["weight"].dtype,
        .out_dtype = x.dtype,
    };
    return {};
  }

  static Status inspect(const Call& c, const Contents& read) { return inspect_ada_row(c, read); }
  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.H, e = info(a.x_dtype).bytes, tables = int64_t{a.R} * a.H * e;
    return {.bytes = n * (e * (a.residual ? 3 : 1) + info(a.out_dtype).bytes) +
                     (a.weight ? a.H * info(a.w_dtype).bytes : 0) * (a.bias ? 2 : 1) +
                     tables * ((a.gate != nullptr) + (a.scale != nullptr) + (a.shift != nullptr)),
            .flops = n * 6};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::norm(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/norm/norm.cuh";
    using Policy = kernels::NormPolicy;
    struct Key {
      DType x, w, out;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    // The first row that holds H: threads and items follow from H alone, so that a row's bits do not depend on
    // its company. H200, bf16, one row of 4096 and 8192 of them, us (limit 31.5): 512 x 1 2.12, 78.4; 256 x 2 2.02,
    // 43.2; 128 x 4 1.64, 34.5; 64 x 8 37.6; a warp a row 93.0 (lab/notes/030-memory-bound.md).
    struct Tactic {
      int32_t threads, items;
    };
    static constexpr Tactic kTactics[] = {{64, 1}, {128, 1}, {128, 2}, {128, 4}, {256, 4}, {512, 0}};

    static_assert(kernels::kNormFewRows == static_cast<uint32_t>(kHopper.sm_count));

    static Result<Policy> policy(const Args& a, bool fits) {
      const bool aligned = fits && a.H % kernels::kNormGroup == 0 && vectorizable(a.x, a.x_stride, a.x_dtype, 8) &&
                           vectorizable(a.residual, a.residual_stride, a.x_dtype, 8) &&
                           vectorizable(a.gate, a.gate_stride, a.x_dtype, 8) &&
                           vectorizable(a.scale, a.scale_stride, a.x_dtype, 8) &&
                           vectorizable(a.shift, a.shift_stride, a.x_dtype, 8) &&
                           vectorizable(a.weight, 0, a.w_dtype, 8) && vectorizable(a.bias, 0, a.w_dtype, 8);
      const bool layer = a.kind == kernels::NormKind::layer, scaled = a.row_scale != nullptr;
      for (const Tactic& t : kTactics) {
        // Layer norm with a row's scale, a bias of an RMS norm and long rows of either kind have no plain kernel. With
        // a row's scale the weight is wanted before the reduction; layer norm has time for it in two of them, and
        // without a residual registers.
        const bool few = a.T <= int64_t{kernels::kNormFewRows}, simple = !layer && !scaled;
        const bool plain = aligned && !a.gate && !a.scale && !a.shift && (layer || !a.bias) &&
                           (simple || (layer != scaled && t.items > 0));
        const Policy p{t.threads,
                       t.items,
                       aligned,
                       plain,
                       plain && a.residual,
                       plain && (scaled || (layer && !a.residual) || (simple && early(t) && few)),
                       plain && layer,
                       plain && scaled};
        if (p.items == 0 || a.H <= p.capacity()) return p;
      }
      return Status(Code::kInternal, "no tactic serves this row");  // the last row serves all
    }
    static constexpr bool early(const Tactic& t) { return t.items > 0; }
    static Result<Key> pick(const Args& a, Arch) {
      VV_ASSIGN(const Policy p, policy(a, vectorizable(a.out, a.out_stride, a.out_dtype, 8)));
      return Key{a.x_dtype, a.weight ? a.w_dtype : a.x_dtype, a.out_dtype, p};
    }
    static std::string expression(const Policy& p) {
      const auto flag = [](bool b) { return b ? "true" : "false"; };
      return strf("vivace::kernels::NormPolicy{%d, %d, %s, %s, %s, %s, %s, %s}", p.threads, p.items, flag(p.aligned),
                  flag(p.plain), flag(p.residual), flag(p.early), flag(p.layer), flag(p.scaled));
    }
    static std::string instance(const Key& k) {
      return kernel_expression("norm<%s, %s, %s, %s>", type_name(k.x), type_name(k.w), type_name(k.out),
                               expression(k.p).c_str());
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(a.T);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    /// Every policy once; those with a row's scale where `scales`.
    template <class Visit>
    static void policies(bool scales, Visit&& visit) {
      for (const Tactic& t : kTactics) {
        for (const bool aligned : {true, false})
          visit(Policy{t.threads, t.items, aligned, false, false, false, false, false});
        for (const bool residual : {true, false}) {
          for (const bool soon : {true, false})
            if (!soon || early(t)) visit(Policy{t.threads, t.items, true, true, residual, soon, false, false});
          if (t.items == 0) continue;
          visit(Policy{t.threads, t.items, true, true, residual, !residual, true, false});
          if (scales) visit(Policy{t.threads, t.items, true, true, residual, true, false, true});
        }
      }
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType x : {DType::f32, DType::bf16, DType::f16})
        for (const DType out : {x, DType::e4m3})
          policies(out == DType::e4m3, [&](const Policy& p) { visit(Key{x, x, out, p}); });
    }
  };
};

}  // namespace vivace::ops::defs
