// act_mul: the gated activation of an MLP, from one merged matrix, from two, or the activation alone.
#pragma once
#include "vivace/kernels/gate/act_mul.h"
#include "vivace/ops/gpu.h"
#include "vivace/ops/quantized_out.h"

namespace vivace::cpu {
class Pool;
void act_mul(const kernels::ActMulArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct act_mul {
  using Args = kernels::ActMulArgs;
  static constexpr Port kPorts[] = {
      opt_in("x", "T,2*H", "f32|bf16|f16", "merged rows: H gate values, then H up values; exactly one of x and gate"),
      opt_in("gate", "T,H", "f32|bf16|f16", "argument of the activation"),
      opt_in("up", "T,H", "=gate", "factor of the activated gate; absent means the activation alone"),
      opt_in("inv_scale", "H", "f32", "factor of each channel, the inverse of the next product's input smoothing"),
      out("out", "T,H", "f32|bf16|f16|e4m3", "gated rows", "gate"),
      opt_in("out_scale", "1", "f32", "static quantization scale of an e4m3 out: value ~ out * out_scale; > 0"),
      opt_out("row_scale", "T", "f32",
              "dynamic scales of an e4m3 out: row_scale[t] = amax(row t) / 448, 1 for a zero row"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("act", "silu|gelu_tanh|gelu_erf|relu|relu2", "activation of the gate; relu2 is relu squared"),
  };
  static constexpr OpSpec spec{
      .name = "act_mul",
      .group = "gate",
      .brief = "Activation of the gate times up, with per-channel scale and quantized output.",
      .formula =
          "y = act(f32(gate)) * f32(up) * inv_scale, factors that are absent left out, multiplied from left to right; "
          "out = round(y), or sat_e4m3(y / s) with s = out_scale or row_scale. All in f32. "
          "silu = g / (1 + exp(-g)); gelu_tanh = g/2 * (1 + tanh(sqrt(2/pi) * (g + 0.044715 * g^3))); "
          "gelu_erf = g/2 * (1 + erf(g / sqrt(2))).",
      .source = "GLU variants arXiv:2002.05202, GELU arXiv:1606.08415, squared ReLU arXiv:2109.08668",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    VV_TRY(bind_rows(c, a));
    VV_TRY(check_quantized_out(c));
    a->out = c.ptr("out"), a->out_stride = c.row_stride("out"), a->out_dtype = c["out"].dtype;
    a->out_scale = c.ptr<float>("out_scale"), a->row_scale = c.ptr<float>("row_scale");
    return {};
  }

  /// All but the output and its scales.
  static Status bind_rows(const Call& c, Args* a) {
    const Tensor &x = c["x"], &gate = c["gate"], &up = c["up"];
    if (x.present() == gate.present())
      return c.error(Code::kInvalidArgument,
                     strf("takes exactly one of x (merged) and gate, got %s", x.present() ? "both" : "neither"));
    if (x.present() && up.present())
      return c.error(Code::kInvalidArgument, "x holds gate and up, so that port up must be absent; got both");
    const Tensor& g = x.present() ? x : gate;
    const int64_t H = x.present() ? x.shape[1] / 2 : gate.shape[1];
    const void* merged_up = x.data ? static_cast<const char*>(x.data) + H * info(g.dtype).bytes : nullptr;
    *a = Args{
        .gate = g.data, .up = x.present() ? merged_up : up.data, .inv_scale = c.ptr<float>("inv_scale"), .out = nullptr,
        .out_scale = nullptr, .row_scale = nullptr, .rows = c.ptr<int32_t>("rows"),
        .gate_stride = g.stride[0], .up_stride = x.present() ? x.stride[0] : c.row_stride("up"), .out_stride = 0,
        .T = static_cast<int32_t>(c.dim("T")), .H = static_cast<int32_t>(H),
        .act = static_cast<kernels::Activation>(c.integer("act") + 1),  // the choices leave out Activation::none
        .dtype = g.dtype, .out_dtype = g.dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.H;
    return {.bytes = n * (info(a.dtype).bytes * (a.up ? 2 : 1) + info(a.out_dtype).bytes) +
                     (a.inv_scale ? a.H * int64_t{4} : 0),
            .flops = n * 6};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::act_mul(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/gate/act_mul.cuh";
    using Policy = kernels::ActMulPolicy;
    struct Key {
      DType in, out;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    // Short stretches and many blocks: H200, bf16, 8192 x 4096 from merged rows, us (limit 47.2): 128 threads x 1
    // group of 8, 12 blocks an SM 48.3; x 2 51.7; x 4 52.3; 256 x 2 54.8 (lab/notes/030-memory-bound.md).
    static constexpr Policy kTactics[] = {
        {128, 8, 1, false, 12}, {128, 4, 1, false, 12}, {128, 1, 4, false, 1},
        {256, 8, 4, true, 1}, {256, 4, 8, true, 1}, {256, 8, 0, true, 1}, {256, 1, 0, true, 1},
    };
    /// An access has at most 16 bytes.
    static constexpr bool serves(const Policy& p, DType in) {
      return p.vec == 1 || p.items == 0 || (p.vec == 4) == (in == DType::f32);
    }

    static Result<Key> pick(const Args& a, Arch) {
      const bool wide = a.H % 8 == 0 && vectorizable(a.gate, a.gate_stride, a.dtype, 8) &&
                        vectorizable(a.up, a.up_stride, a.dtype, 8) &&
                        vectorizable(a.out, a.out_stride, a.out_dtype, 8);
      const bool whole = a.row_scale != nullptr;
      for (const Policy& p : kTactics)
        if (p.whole_row == whole && (p.vec > 1) == wide && serves(p, a.dtype) &&
            (!whole || p.items == 0 || a.H <= p.stretch()))
          return Key{a.dtype, a.out_dtype, p};
      return Status(Code::kInternal, "no tactic serves this row");  // the last of each kind serves all
    }
    static std::string instance(const Key& k) {
      return kernel_expression("act_mul<%s, %s, vivace::kernels::ActMulPolicy{%d, %d, %d, %s, %d}>", type_name(k.in),
                               type_name(k.out), k.p.threads, k.p.vec, k.p.items, k.p.whole_row ? "true" : "false",
                               k.p.blocks);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      const int64_t stretches = k.p.whole_row ? 1 : (a.H + k.p.stretch() - 1) / k.p.stretch();
      launch->grid[0] = static_cast<uint32_t>(a.T * stretches);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType in : {DType::f32, DType::bf16, DType::f16})
        for (const Policy& p : kTactics)
          if (serves(p, in)) {
            visit(Key{in, DType::e4m3, p});
            if (!p.whole_row) visit(Key{in, in, p});
          }
    }
  };
};

}  // namespace vivace::ops::defs
