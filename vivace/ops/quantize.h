// quantize: rows to 8-bit codes; which scale port is given says how fine the scales are.
#pragma once
#include "vivace/kernels/quantize/quantize.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void quantize(const kernels::QuantizeArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct quantize {
  using Args = kernels::QuantizeArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,H", "f32|bf16|f16", "rows to quantize"),
      out("out", "T,H", "e4m3|i8", "codes: value ~ code * scale"),
      opt_in("out_scale", "1", "f32", "static scale of the whole tensor; > 0"),
      opt_in("amax", "1", "f32", "largest magnitude of the tensor, which its dynamic scale is made from"),
      opt_out("tensor_scale", "1", "f32", "the scale made from amax; needs amax"),
      opt_out("row_scale", "T", "f32", "dynamic scale of each row"),
      opt_out("block_scale", "T,(H+127)/128", "f32",
              "dynamic scale of each 128 columns of each row; the last block may be short"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "quantize",
      .group = "quantize",
      .brief = "Quantizes rows to e4m3 or int8 with a static, tensor, row or 128-column scale.",
      .formula =
          "s = out_scale, or amax / top over the tensor (amax given), row or block, 1 where amax is 0, with top 448 "
          "for e4m3 and 127 for i8; "
          "q = f32(x) / s; out = sat_e4m3(q), or rint(q) to even, clamped to [-127, 127], NaN to 0. All in f32; NaN "
          "does not enter amax.",
      .source = "OCP OFP8 1.0; block scales arXiv:2412.19437",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    int scales = 0;
    for (const char* port : {"out_scale", "amax", "row_scale", "block_scale"}) scales += c[port].present();
    if (scales != 1)
      return c.error(Code::kInvalidArgument,
                     strf("takes exactly one of out_scale, amax, row_scale and block_scale, got %d", scales));
    if (c["amax"].present() != c["tensor_scale"].present())
      return c.error(Code::kInvalidArgument, "amax and tensor_scale go together: the scale made from amax is written");
    if (c.dim("H") < 1) return c.error(Code::kInvalidShape, "H must be at least 1");
    *a = Args{
        .x = c.ptr("x"),
        .out = c.ptr("out"),
        .out_scale = c.ptr<float>("out_scale"),
        .amax = c.ptr<float>("amax"),
        .tensor_scale = c.ptr<float>("tensor_scale"),
        .row_scale = c.ptr<float>("row_scale"),
        .block_scale = c.ptr<float>("block_scale"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .out_stride = c.row_stride("out"),
        .block_stride = c.row_stride("block_scale"),
        .T = static_cast<int32_t>(c.dim("T")),
        .H = static_cast<int32_t>(c.dim("H")),
        .x_dtype = c["x"].dtype,
        .out_dtype = c["out"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.H;
    return {.bytes = n * (info(a.x_dtype).bytes + 1) + (a.row_scale ? a.T * int64_t{4} : 0) +
                     (a.block_scale ? a.T * blocks(a) * 4 : 0),
            .flops = n * 2};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::quantize(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/quantize/quantize.cuh";
    using Policy = kernels::QuantizePolicy;
    using Scope = kernels::QuantScope;
    struct Key {
      DType in, out;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    // Preference order within a scope: the first row whose access width the call allows and that holds H.
    static constexpr Policy kTactics[] = {
        {128, 8, 1, Scope::given}, {256, 8, 2, Scope::given}, {128, 1, 4, Scope::given}, {32, 8, 1, Scope::row},
        {128, 8, 1, Scope::row},   {128, 8, 2, Scope::row},   {128, 8, 4, Scope::row},   {256, 8, 4, Scope::row},
        {512, 8, 4, Scope::row},   {512, 8, 0, Scope::row},   {512, 1, 0, Scope::row},   {128, 8, 2, Scope::block},
        {256, 1, 4, Scope::block},
    };

    static Result<Key> pick(const Args& a, Arch) {
      const bool wide = a.H % 8 == 0 && vectorizable(a.x, a.x_stride, a.x_dtype, 8) &&
                        vectorizable(a.out, a.out_stride, a.out_dtype, 8);
      const bool few = int64_t{a.T} * a.H < 1 << 20;
      const Scope scope = a.row_scale ? Scope::row : a.block_scale ? Scope::block : Scope::given;
      for (const Policy& p : kTactics) {
        if (p.scope != scope || (p.vec > 1 && !wide)) continue;
        if (scope == Scope::row && p.items > 0 && a.H > p.stretch()) continue;
        if (scope == Scope::given && p.vec > 1 && (p.items == 1) != few) continue;
        return Key{a.x_dtype, a.out_dtype, p};
      }
      return Status(Code::kInternal, "no tactic serves this call");  // the last row of each scope serves all
    }
    static std::string instance(const Key& k) {
      return kernel_expression(
          "quantize<%s, %s, vivace::kernels::QuantizePolicy{%d, %d, %d, static_cast<vivace::kernels::QuantScope>(%d)}>",
          type_name(k.in), type_name(k.out), k.p.threads, k.p.vec, k.p.items, static_cast<int>(k.p.scope));
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      const int64_t T = a.T, units = k.p.scope == Scope::block ? k.p.threads / k.p.lanes() : 1;
      const int64_t grid = k.p.scope == Scope::row     ? T
                           : k.p.scope == Scope::block ? (T * blocks(a) + units - 1) / units
                                                       : T * ((a.H + k.p.stretch() - 1) / k.p.stretch());
      launch->grid[0] = static_cast<uint32_t>(grid);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType in : {DType::f32, DType::bf16, DType::f16})
        for (const DType out : {DType::e4m3, DType::i8})
          for (const Policy& p : kTactics) visit(Key{in, out, p});
    }
  };

 private:
  static int64_t blocks(const Args& a) { return (int64_t{a.H} + kernels::kQuantBlock - 1) / kernels::kQuantBlock; }
};

}  // namespace vivace::ops::defs
