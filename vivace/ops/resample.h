// resample: signals at another rate, by a filter of one phase for each output that comes between inputs.
#pragma once
#include "vivace/kernels/audio/resample.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void resample(const kernels::ResampleArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct resample {
  using Args = kernels::ResampleArgs;
  static constexpr int64_t kMostSignals = 65535;
  static constexpr double kMostStep = 1 << 30;
  static constexpr Port kPorts[] = {
      in("x", "B,N", "f32", "signals"),
      in("filter", "U,K", "f32", "K taps of each of U phases: output o stands o * down / U inputs from the first"),
      out("out", "B,O", "f32", "signals of U / down times the rate"),
  };
  static constexpr Attr kAttrs[] = {
      integer("down", 1, "steps of 1 / U of an input from one output to the next"),
      integer("first", 0,
              "where the first tap lies, in inputs from the one at or before an output; -(K / 2 - 1) for a filter that "
              "is centred"),
  };
  static constexpr OpSpec spec{
      .name = "resample",
      .group = "audio",
      .brief = "Polyphase resampling of signals by a ratio of whole numbers.",
      .formula =
          "out[b, o] = sum_k filter[(o * down) mod U, k] * x[b, floor(o * down / U) + first + k], x outside of the "
          "signal left out; f32.",
      .source = "polyphase filters: R. E. Crochiere and L. R. Rabiner, Multirate Digital Signal Processing, 1983",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t B = c.dim("B"), N = c.dim("N"), U = c.dim("U"), K = c.dim("K"), O = c.dim("O");
    const double down = c.real("down"), first = c.real("first");
    if (U < 1 || K < 1)
      return c.error(Code::kInvalidShape, strf("port filter: wanted a phase and a tap at least, got %ld x %ld",
                                               static_cast<long>(U), static_cast<long>(K)));
    if (N < 1) return c.error(Code::kInvalidShape, "port x: wanted a sample at least, got N = 0");
    if (!(down >= 1 && down <= kMostStep))
      return c.error(Code::kInvalidArgument, strf("down must be 1 to %.0f, got %g", kMostStep, down));
    if (!(first >= -kMostStep && first <= kMostStep))
      return c.error(Code::kInvalidArgument, strf("first must be -%.0f to %.0f, got %g", kMostStep, kMostStep, first));
    if (B > kMostSignals)
      return c.error(Code::kInvalidShape,
                     strf("B must be at most %ld, got %ld", static_cast<long>(kMostSignals), static_cast<long>(B)));
    for (const auto& [name, v] : {std::pair{"N", N}, {"O", O}, {"U", U}, {"K", K}})
      if (v >= INT32_MAX)
        return c.error(Code::kInvalidShape, strf("%s = %ld is not below 2^31 - 1", name, static_cast<long>(v)));
    const auto i32 = [](int64_t v) { return static_cast<int32_t>(v); };
    *a = Args{
        .x = c.ptr<float>("x"),
        .filter = c.ptr<float>("filter"),
        .out = c.ptr<float>("out"),
        .x_stride = c.row_stride("x"),
        .filter_stride = c.row_stride("filter"),
        .out_stride = c.row_stride("out"),
        .down = static_cast<int64_t>(down),
        .first = static_cast<int64_t>(first),
        .B = i32(B),
        .N = i32(N),
        .O = i32(O),
        .up = i32(U),
        .K = i32(K),
    };
    return {};
  }

  static Cost cost(const Args& a) {
    return {.bytes = 4 * (int64_t{a.B} * (int64_t{a.N} + a.O) + int64_t{a.up} * a.K),
            .flops = 2 * int64_t{a.B} * a.O * a.K};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::resample(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/audio/resample.cuh";
    using Policy = kernels::ResamplePolicy;
    struct Key {
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr Policy kTactic = {256};

    static Result<Key> pick(const Args&, Arch) { return Key{kTactic}; }
    static std::string instance(const Key& k) {
      return kernel_expression("resample<vivace::kernels::ResamplePolicy{%d}>", k.p.threads);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>((int64_t{a.O} + k.p.threads - 1) / k.p.threads);
      launch->grid[1] = static_cast<uint32_t>(a.B);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      visit(Key{kTactic});
    }
  };
};

}  // namespace vivace::ops::defs
