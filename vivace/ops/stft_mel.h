// stft_mel: frames of a signal as logarithms of mel bands, what speech models hear.
#pragma once
#include <algorithm>

#include "vivace/kernels/audio/stft_mel.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void stft_mel(const kernels::StftMelArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct stft_mel {
  using Args = kernels::StftMelArgs;
  static constexpr int64_t kMostHop = 1 << 16;
  static constexpr Port kPorts[] = {
      in("x", "B,N", "f32", "signals"),
      in("window", "W", "f32",
         "factor of each sample of a frame, such as a periodic Hann window; W is even and 512 at most"),
      in("filters", "M,F", "f32", "share of each frequency in each band, F = W / 2 + 1"),
      out("out", "T,M", "f32", "a frame a row, T = B * frames: the first frames of every signal, all of them or fewer"),
      opt_out("peak", "T", "f32", "the largest band of each frame; NaN is passed over"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      integer("hop", 160, "samples from one frame to the next"),
      choice("pad", "reflect|none",
             "reflect: frame f is centred on sample f * hop, and the signal goes on reflected at its ends, which are "
             "not doubled; none: it begins there and lies within the signal"),
  };
  static constexpr OpSpec spec{
      .name = "stft_mel",
      .group = "audio",
      .brief = "Short-time Fourier transform of signals as base-10 logarithms of mel bands.",
      .formula =
          "out[t, m] = log10(max(sum_f filters[m, f] * P[t, f], 1e-10)); P[t, f] = f32(|sum_n window[n] * x[b, s(n)] * "
          "e^(-2 pi i n f / W)|^2), transform and square in f64, bands in f32; "
          "t = b * frames + k, s(n) = k * hop + n, less W / 2 and reflected where pad=reflect. A frequency of share 0 "
          "does not count; NaN stays NaN.",
      .source = "mel bands of arXiv:2212.04356",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t B = c.dim("B"), N = c.dim("N"), W = c.dim("W"), M = c.dim("M"), F = c.dim("F"), T = c.dim("T"),
                  hop = c.integer("hop");
    const auto pad = c.choice<kernels::FramePad>("pad");
    const auto i32 = [](int64_t v) { return static_cast<int32_t>(v); };
    if (W < 2 || W % 2 != 0 || W > kernels::kMostWindow)
      return c.error(Code::kUnsupported, strf("port window: W must be even and 2 to %d, got %ld", kernels::kMostWindow,
                                              static_cast<long>(W)));
    if (F != W / 2 + 1)
      return c.error(Code::kInvalidShape,
                     strf("port filters: %ld samples a frame have %ld frequencies, got F = %ld", static_cast<long>(W),
                          static_cast<long>(W / 2 + 1), static_cast<long>(F)));
    if (hop < 1 || hop > kMostHop)
      return c.error(Code::kInvalidArgument,
                     strf("hop must be 1 to %ld, got %ld", static_cast<long>(kMostHop), static_cast<long>(hop)));
    if (M < 1 || M > INT32_MAX || N > INT32_MAX - 2 * kernels::kMostWindow || T > INT32_MAX)
      return c.error(Code::kInvalidShape,
                     strf("M must be 1 at least, and N, M and T below 2^31, got N = %ld, M = %ld, T = %ld",
                          static_cast<long>(N), static_cast<long>(M), static_cast<long>(T)));
    if (T == 0) {
      *a = Args{};
      a->frames = kernels::Divisor::of(1), a->W = 2, a->M = 1, a->hop = 1;
      return {};
    }
    if (B < 1 || T % B != 0)
      return c.error(Code::kInvalidShape, strf("port out: %ld signals have as many frames each, got T = %ld rows",
                                               static_cast<long>(B), static_cast<long>(T)));
    const bool reflect = pad == kernels::FramePad::reflect;
    if (reflect && N <= W / 2)
      return c.error(Code::kInvalidShape, strf("port x: pad=reflect wants more than W / 2 = %ld samples, got N = %ld",
                                               static_cast<long>(W / 2), static_cast<long>(N)));
    const int64_t held = reflect ? N / hop + 1 : N < W ? 0 : (N - W) / hop + 1, frames = T / B;
    if (frames > held)
      return c.error(Code::kInvalidShape,
                     strf("port out: a signal of %ld samples has %ld frames, got T = %ld rows for B = %ld",
                          static_cast<long>(N), static_cast<long>(held), static_cast<long>(T), static_cast<long>(B)));
    *a = Args{
        .x = c.ptr<float>("x"),
        .window = c.ptr<float>("window"),
        .filters = c.ptr<float>("filters"),
        .out = c.ptr<float>("out"),
        .peak = c.ptr<float>("peak"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .filters_stride = c.row_stride("filters"),
        .out_stride = c.row_stride("out"),
        .T = i32(T),
        .N = i32(N),
        .W = i32(W),
        .M = i32(M),
        .hop = i32(hop),
        .pad = pad,
        .frames = kernels::Divisor::of(i32(frames)),
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t F = a.F(), signals = a.T / int64_t{a.frames.by},
                  held = std::min<int64_t>(a.N, int64_t{a.frames.by} * a.hop + a.W);
    return {.bytes = 4 * (signals * held + int64_t{a.T} * (a.M + (a.peak != nullptr)) + a.W + int64_t{a.M} * F),
            .flops = int64_t{a.T} * F * (2 * F + 2 * a.M)};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::stft_mel(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/audio/stft_mel.cuh";
    using Policy = kernels::StftMelPolicy;
    struct Key {
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr Policy kTactic = {224, 4};  // 201 frequencies of 400 samples

    static Result<Key> pick(const Args&, Arch) { return Key{kTactic}; }
    static std::string instance(const Key& k) {
      return kernel_expression("stft_mel<vivace::kernels::StftMelPolicy{%d, %d}>", k.p.threads, k.p.frames);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>((int64_t{a.T} + k.p.frames - 1) / k.p.frames);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
      launch->smem_bytes = static_cast<uint32_t>(16 * a.W + (16 + 4) * a.F() * k.p.frames);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      visit(Key{kTactic});
    }
  };
};

}  // namespace vivace::ops::defs
