// resize_pad: frames scaled to fit an image's size, centred, the rest black.
#pragma once
#include <algorithm>
#include <climits>
#include <cmath>

#include "vivace/kernels/copy/resize_pad.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void resize_pad(const kernels::ResizePadArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct resize_pad {
  using Args = kernels::ResizePadArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,H,W,C", "u8", "frames, such as RGB"),
      out("out", "T,OH,OW,C", "u8|f32|bf16|f16", "images: levels, or [-1, 1] with -1 where there is no image"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("align", "centre|end", "where the padding is: around the image, or before it"),
      choice("filter", "triangle|linear",
             "triangle: averages where it shrinks, in fixed point as Pillow's bilinear; linear: between two neighbours "
             "however much it shrinks, in f32 as torch's bilinear without antialiasing"),
  };
  static constexpr OpSpec spec{
      .name = "resize_pad",
      .group = "copy",
      .brief = "Frames scaled to fit an image, their shape kept, centred on black.",
      .formula =
          "r = max(W / OW, H / OH) in f64, w = clamp(trunc(W / r), 1, OW), h alike; columns (OW - w) / 2 on, lines (OH "
          "- h) / 2 on, hold the image, with align=end columns OW - w on, lines OH - h on; all else level 0. "
          "triangle: weight of input k for output i is max(1 - |k - c + 0.5| / s, 0), c = (i + 0.5) * W / w, s = max(W "
          "/ w, 1), for k from trunc(c - s + 0.5) to trunc(c + s + 0.5) - 1 within the frame, "
          "divided by their sum in f64 and rounded to 22 bits; columns first, sums rounded to levels, then lines "
          "alike. "
          "linear: between inputs trunc(p) and trunc(p) + 1, p = max((i + 0.5) * f32(W / w) - 0.5, 0), the last input "
          "repeated, each operation rounded to f32: of x / 255, or where out is u8 of x, rounded to the nearest even. "
          "A float out is round(v * 2 - 1), v the level divided by 255, each operation rounded to f32.",
      .source =
          "triangle filter: Pillow's Image.resize(BILINEAR) of openpi's resize_with_pad; linear: "
          "torch.nn.functional.interpolate(bilinear) of lerobot's resize_with_pad",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t T = c.dim("T"), H = c.dim("H"), W = c.dim("W"), C = c.dim("C"), OH = c.dim("OH"), OW = c.dim("OW");
    for (const auto& [port, h, w] : {std::tuple{"x", H, W}, {"out", OH, OW}}) {
      if (h < 1 || w < 1 || C < 1)
        return c.error(Code::kInvalidShape,
                       strf("port %s: wanted a pixel and a channel at least, got %ld x %ld of %ld", port,
                            static_cast<long>(h), static_cast<long>(w), static_cast<long>(C)));
      if (h > INT_MAX || w > INT_MAX || h * w > INT_MAX / C)
        return c.error(Code::kInvalidShape,
                       strf("port %s: wanted fewer than 2^31 elements a frame, got %ld x %ld of %ld", port,
                            static_cast<long>(h), static_cast<long>(w), static_cast<long>(C)));
    }
    const auto i32 = [](int64_t v) { return static_cast<int32_t>(v); };
    const double ratio =
        std::max(static_cast<double>(W) / static_cast<double>(OW), static_cast<double>(H) / static_cast<double>(OH));
    const int64_t before = c.choice<kernels::ResizeAlign>("align") == kernels::ResizeAlign::end ? 1 : 2;
    const auto axis = [&](int64_t from, int64_t most) {
      const int64_t to = std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(from) / ratio), 1, most);
      const double scale = static_cast<double>(from) / static_cast<double>(to);
      return kernels::ResizeAxis{i32(from),
                                 i32(to),
                                 i32((most - to) / before),
                                 i32(static_cast<int64_t>(std::ceil(std::max(scale, 1.0))) * 2 + 1),
                                 scale,
                                 static_cast<float>(from) / static_cast<float>(to)};
    };
    const kernels::ResizeAxis y = axis(H, OH), x = axis(W, OW);
    const auto filter = c.choice<kernels::ResizeFilter>("filter");
    if (const double most = std::max(y.scale, x.scale);
        filter == kernels::ResizeFilter::triangle && most > kernels::kResizeMostShrink)
      return c.error(
          Code::kUnsupported,
          strf(
              "port x: the triangle filter shrinks at most %d times, %ld x %ld to %ld x %ld is %g; shrink in two calls",
              kernels::kResizeMostShrink, static_cast<long>(H), static_cast<long>(W), static_cast<long>(OH),
              static_cast<long>(OW), most));
    constexpr kernels::ResizePadPolicy p = Gpu::kTactic;
    const int64_t tiles_x = (OW + p.pixels - 1) / p.pixels, tiles = tiles_x * ((OH + p.lines - 1) / p.lines);
    if (p.lines * p.pixels * C > INT_MAX)
      return c.error(Code::kInvalidShape, strf("port x: wanted fewer channels, got %ld", static_cast<long>(C)));
    if (T > INT_MAX / tiles)
      return c.error(Code::kInvalidShape,
                     strf("port out: %ld images of %ld x %ld have 2^31 tiles or more; call with fewer",
                          static_cast<long>(T), static_cast<long>(OH), static_cast<long>(OW)));
    *a = Args{
        .x = c.ptr<uint8_t>("x"),
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .out_stride = c.row_stride("out"),
        .T = i32(T),
        .C = i32(C),
        .OH = i32(OH),
        .OW = i32(OW),
        .y = y,
        .x_axis = x,
        .filter = filter,
        .out_dtype = c["out"].dtype,
        .channels = kernels::Divisor::of(i32(C)),
        .wide = kernels::Divisor::of(i32(p.pixels * C)),
        .tiles_x = kernels::Divisor::of(i32(tiles_x)),
        .tiles = kernels::Divisor::of(i32(tiles)),
    };
    return {};
  }

  /// Every element out; of the frames all, but for the linear filter no more than four an element.
  static Cost cost(const Args& a) {
    const int64_t out = int64_t{a.T} * a.OH * a.OW * a.C, held = int64_t{a.T} * a.y.from * a.x_axis.from * a.C,
                  picture = int64_t{a.T} * a.y.to * a.x_axis.to * a.C;
    const bool linear = a.filter == kernels::ResizeFilter::linear;
    const int64_t across = int64_t{a.T} * a.y.from * a.x_axis.to * a.C * a.x_axis.taps;
    return {.bytes = (linear ? std::min(held, 4 * picture) : held) + out * info(a.out_dtype).bytes,
            .flops = linear ? 9 * picture : 2 * (across + picture * a.y.taps)};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::resize_pad(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/copy/resize_pad.cuh";
    using Policy = kernels::ResizePadPolicy;
    struct Key {
      DType out;
      kernels::ResizeFilter filter;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr Policy kTactic = {256, 8, 32};

    static Result<Key> pick(const Args& a, Arch) { return Key{a.out_dtype, a.filter, kTactic}; }
    static std::string instance(const Key& k) {
      return kernel_expression(
          "resize_pad<%s, vivace::kernels::ResizeFilter::%s, vivace::kernels::ResizePadPolicy{%d, %d, %d}>",
          type_name(k.out), k.filter == kernels::ResizeFilter::triangle ? "triangle" : "linear", k.p.threads, k.p.lines,
          k.p.pixels);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(int64_t{a.T} * a.tiles.by);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
      if (k.filter == kernels::ResizeFilter::triangle)
        launch->smem_bytes = static_cast<uint32_t>((k.p.lines * a.y.taps + k.p.pixels * a.x_axis.taps) *
                                                   static_cast<int32_t>(sizeof(int32_t)));
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType out : {DType::u8, DType::f32, DType::bf16, DType::f16})
        for (const auto filter : {kernels::ResizeFilter::triangle, kernels::ResizeFilter::linear})
          visit(Key{out, filter, kTactic});
    }
  };
};

}  // namespace vivace::ops::defs
