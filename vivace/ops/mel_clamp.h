// mel_clamp: the quiet end of a log-mel spectrum cut off, and the rest brought to the range that models were trained
// on.
#pragma once
#include "vivace/kernels/audio/mel_clamp.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void mel_clamp(const kernels::MelClampArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct mel_clamp {
  using Args = kernels::MelClampArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,M", "f32", "base-10 logarithms of mel bands, as stft_mel makes them, T = B * frames"),
      in("peak", "B", "f32", "the largest value of each signal, over whatever stretch of it counts"),
      opt_in("length", "B", "i32", "frames of each signal that are real; the others become 0, whatever they hold"),
      out("out", "T,M", "f32|bf16|f16", "features", "x"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {real("range", 8, "decades below the peak that are kept")};
  static constexpr OpSpec spec{
      .name = "mel_clamp",
      .group = "audio",
      .brief = "Log-mel bands clamped to some decades below a signal's peak and scaled to about [-1, 1].",
      .formula =
          "out[t, m] = round((max(x[t, m], peak[b] - range) + 4) / 4), each operation rounded to f32; 0 where t - b * "
          "frames >= length[b]. NaN of x stays NaN.",
      .source = "log-mel features of arXiv:2212.04356",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t B = c.dim("B"), T = c.dim("T"), M = c.dim("M");
    if (!(c.real("range") >= 0))
      return c.error(Code::kInvalidArgument, strf("range must be >= 0, got %g", c.real("range")));
    if (T > INT32_MAX || M > INT32_MAX)
      return c.error(Code::kInvalidShape,
                     strf("T and M must be below 2^31, got %ld and %ld", static_cast<long>(T), static_cast<long>(M)));
    if (T > 0 && (B < 1 || T % B != 0))
      return c.error(Code::kInvalidShape, strf("port out: %ld signals have as many frames each, got T = %ld rows",
                                               static_cast<long>(B), static_cast<long>(T)));
    *a = Args{
        .x = c.ptr<float>("x"),
        .peak = c.ptr<float>("peak"),
        .length = c.ptr<int32_t>("length"),
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .out_stride = c.row_stride("out"),
        .range = static_cast<float>(c.real("range")),
        .T = static_cast<int32_t>(T),
        .M = static_cast<int32_t>(M),
        .frames = kernels::Divisor::of(T > 0 ? static_cast<int32_t>(T / B) : 1),
        .out_dtype = c["out"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    return {.bytes = int64_t{a.T} * a.M * (4 + info(a.out_dtype).bytes), .flops = int64_t{a.T} * a.M * 3};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::mel_clamp(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/audio/mel_clamp.cuh";
    using Policy = kernels::MelClampPolicy;
    struct Key {
      DType out;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr Policy kTactic = {256};

    static Result<Key> pick(const Args& a, Arch) { return Key{a.out_dtype, kTactic}; }
    static std::string instance(const Key& k) {
      return kernel_expression("mel_clamp<%s, vivace::kernels::MelClampPolicy{%d}>", type_name(k.out), k.p.threads);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      const int32_t warps = k.p.threads / 32;
      launch->grid[0] = static_cast<uint32_t>((int64_t{a.T} + warps - 1) / warps);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType out : {DType::f32, DType::bf16, DType::f16}) visit(Key{out, kTactic});
    }
  };
};

}  // namespace vivace::ops::defs
