// im2col: patches of frames as rows, so that a convolution is a product.
#pragma once
#include <algorithm>
#include <climits>

#include "vivace/kernels/copy/im2col.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void im2col(const kernels::Im2colArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct im2col {
  using Args = kernels::Im2colArgs;
  static constexpr int64_t kMost = 1 << 20;  // of every attribute: far beyond any frame
  static constexpr Port kPorts[] = {
      in("x", "N,H,W,C", "u8|f32|bf16|f16", "frames; of a sequence [N, 1, W, C], for a convolution in one dimension"),
      opt_in("scale", "C", "f32", "factor of each channel, such as 1 / (255 std)"),
      opt_in("offset", "C", "f32", "added after scale, such as -mean / std; padding stays 0"),
      out("out", "T,K", "f32|bf16|f16",
          "a patch a row, T = N * OH * OW; columns from kernel_h * kernel_w * C on become 0, so that K may be rounded "
          "up for the product that follows"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      integer("kernel_h", 1, "lines of a patch"),
      integer("kernel_w", 1, "columns of a patch"),
      integer("stride_h", 1, "lines from one patch to the next"),
      integer("stride_w", 1, "columns from one patch to the next"),
      integer("pad_h", 0, "lines of zeros above and below a frame"),
      integer("pad_w", 0, "columns of zeros on its left and right"),
      choice("order", "hwc|chw",
             "of a patch's elements in its row: as the frame holds them, or as a convolution's weight [out, C, kh, kw] "
             "does"),
  };
  static constexpr OpSpec spec{
      .name = "im2col",
      .group = "copy",
      .brief = "Patches of frames as rows, scaled a channel and padded with zeros.",
      .formula =
          "out[t, j] = round(f32(x[n, y, x, c]) * scale[c] + offset[c]), 0 outside the frame, each operation rounded "
          "to f32: "
          "t = (n * OH + oy) * OW + ox, y = oy * stride_h - pad_h + ky, x = ox * stride_w - pad_w + kx, OH = (H + 2 "
          "pad_h - kernel_h) / stride_h + 1, OW alike; "
          "j = (ky * kernel_w + kx) * C + c in hwc order, (c * kernel_h + ky) * kernel_w + kx in chw order.",
      .source = "convolution as a product, hal-00112631; patch embedding arXiv:2010.11929",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    for (const auto& [name, least] :
         {std::pair{"kernel_h", 1}, {"kernel_w", 1}, {"stride_h", 1}, {"stride_w", 1}, {"pad_h", 0}, {"pad_w", 0}})
      if (const int64_t v = c.integer(name); v < least || v > kMost)
        return c.error(Code::kInvalidArgument, strf("%s must be %d to %ld, got %ld", name, least,
                                                    static_cast<long>(kMost), static_cast<long>(v)));
    const int64_t N = c.dim("N"), H = c.dim("H"), W = c.dim("W"), C = c.dim("C"), T = c.dim("T"), K = c.dim("K");
    if (H < 1 || W < 1 || C < 1)
      return c.error(Code::kInvalidShape, strf("port x: a frame must have a pixel and a channel, got %ld x %ld x %ld",
                                               static_cast<long>(H), static_cast<long>(W), static_cast<long>(C)));
    // Each is below 2^31: no product of two overflows.
    const int64_t h = c.integer("kernel_h"), w = c.integer("kernel_w"), over_h = H + 2 * c.integer("pad_h") - h,
                  over_w = W + 2 * c.integer("pad_w") - w;
    if (over_h < 0 || over_w < 0)
      return c.error(Code::kInvalidShape, strf("port x: a padded frame of %ld x %ld holds no patch of %ld x %ld",
                                               static_cast<long>(over_h + h), static_cast<long>(over_w + w),
                                               static_cast<long>(h), static_cast<long>(w)));
    if (H * W > INT_MAX / C)
      return c.error(Code::kInvalidShape,
                     strf("port x: a frame has %ld x %ld pixels of %ld channels, wanted fewer than 2^31 elements",
                          static_cast<long>(H), static_cast<long>(W), static_cast<long>(C)));
    const int64_t oh = over_h / c.integer("stride_h") + 1, ow = over_w / c.integer("stride_w") + 1;
    if (oh * ow > INT_MAX || N * (oh * ow) != T)
      return c.error(Code::kInvalidShape,
                     strf("port out: %ld frames have %ld x %ld patches each, got T = %ld rows", static_cast<long>(N),
                          static_cast<long>(oh), static_cast<long>(ow), static_cast<long>(T)));
    if (h * w > INT_MAX / C || K < h * w * C)
      return c.error(Code::kInvalidShape,
                     strf("port out: a patch has %ld x %ld x %ld elements, got K = %ld columns", static_cast<long>(h),
                          static_cast<long>(w), static_cast<long>(C), static_cast<long>(K)));
    const auto order = c.choice<kernels::PatchOrder>("order");
    const auto i32 = [](int64_t v) { return static_cast<int32_t>(v); };
    const bool hwc = order == kernels::PatchOrder::hwc;
    *a = Args{
        .x = c.ptr("x"),
        .scale = c.ptr<float>("scale"),
        .offset = c.ptr<float>("offset"),
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .out_stride = c.row_stride("out"),
        .T = i32(T),
        .K = i32(K),
        .H = i32(H),
        .W = i32(W),
        .C = i32(C),
        .kernel_h = i32(h),
        .kernel_w = i32(w),
        .stride_h = i32(c.integer("stride_h")),
        .stride_w = i32(c.integer("stride_w")),
        .pad_h = i32(c.integer("pad_h")),
        .pad_w = i32(c.integer("pad_w")),
        .order = order,
        .x_dtype = c["x"].dtype,
        .out_dtype = c["out"].dtype,
        .per_frame = kernels::Divisor::of(i32(oh * ow)),
        .per_line = kernels::Divisor::of(i32(ow)),
        .outer = kernels::Divisor::of(i32(hwc ? w * C : h * w)),
        .inner = kernels::Divisor::of(i32(hwc ? C : w)),
        .groups = kernels::Divisor::of(i32((K - 1) / kernels::kPatchGroup + 1)),
    };
    return {};
  }

  /// Every patch out; of the frames no more than they hold and no more than patches take.
  static Cost cost(const Args& a) {
    const int64_t taken = int64_t{a.T} * a.columns(), held = int64_t{a.T} / a.per_frame.by * a.H * a.W * a.C;
    return {.bytes = std::min(taken, held) * info(a.x_dtype).bytes + int64_t{a.T} * a.K * info(a.out_dtype).bytes,
            .flops = a.scale || a.offset ? 2 * taken : 0};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::im2col(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/copy/im2col.cuh";
    using Policy = kernels::Im2colPolicy;
    struct Key {
      DType in, out;
      Policy p;
      bool bits;  // elements are moved and not looked at: bf16 stands for any of two bytes, f32 for four
      bool operator==(const Key&) const = default;
    };
    // Each for many elements and for few: pairs of pixels, groups of a pixel as bits and with factors, single elements;
    // then any width and alignment. H200, 32768 rows: pairs 21.5 us for 41.0 of single ones, bits 86.8 for 187
    // (lab/notes/030-memory-bound.md).
    static constexpr Policy kPairs[] = {{512, 4, 2, 2}, {256, 1, 2, 2}}, kBits[] = {{256, 2, 8, 8}, {128, 1, 8, 8}},
                            kWhole[] = {{128, 4, 8, 8}, {128, 1, 8, 8}}, kSingle[] = {{256, 3, 1, 8}, {128, 1, 1, 8}};
    static constexpr Policy kAny = {256, 2, 1, 1};
    static constexpr int64_t kManyElements = 1 << 20;

    static Result<Key> pick(const Args& a, Arch) {
      const int few = int64_t{a.T} * a.K < kManyElements;
      const bool wide = a.K % kernels::kPatchGroup == 0 && vectorizable(a.out, a.out_stride, a.out_dtype, 8);
      const bool whole = a.order == kernels::PatchOrder::hwc && a.C % kernels::kPatchGroup == 0 &&
                         vectorizable(a.x, a.x_stride, a.x_dtype, 8);
      if (wide && whole && a.x_dtype == a.out_dtype && a.scale == nullptr && a.offset == nullptr) {
        const DType t = info(a.x_dtype).bytes == 4 ? DType::f32 : DType::bf16;
        return Key{t, t, kBits[few], true};
      }
      return Key{a.x_dtype, a.out_dtype,
                 pairs(a) ? kPairs[few]
                 : !wide  ? kAny
                 : whole  ? kWhole[few]
                          : kSingle[few],
                 false};
    }
    /// Whether pixels can be taken two by two: no patch, line or frame divides a pair, and each lies on an even byte.
    static bool pairs(const Args& a) {
      const bool even = (a.W | a.kernel_w | a.stride_w | a.pad_w | a.K) % 2 == 0;
      return even && a.order == kernels::PatchOrder::chw && a.x_dtype == DType::u8 && a.C == kernels::kPairChannels &&
             kPairs[0].groups(a) <= kPairs[0].threads && vectorizable(a.x, a.x_stride, a.x_dtype, 2) &&
             vectorizable(a.out, a.out_stride, a.out_dtype, 2);
    }
    static std::string instance(const Key& k) {
      const char* const bits = info(k.in).bytes == 4 ? "unsigned int" : "unsigned short";
      return kernel_expression("im2col<%s, %s, vivace::kernels::Im2colPolicy{%d, %d, %d, %d}>",
                               k.bits ? bits : type_name(k.in), k.bits ? bits : type_name(k.out), k.p.threads,
                               k.p.items, k.p.load, k.p.store);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      const int32_t groups = k.p.groups(a), together = k.p.rows(groups);
      launch->grid[0] = static_cast<uint32_t>((a.T + int64_t{together} - 1) / together * k.p.stretches(groups));
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType in : {DType::u8, DType::f32, DType::bf16, DType::f16})
        for (const DType out : {DType::f32, DType::bf16, DType::f16})
          if (in == DType::u8 || in == out) {
            for (const auto* both : {kWhole, kSingle})
              visit(Key{in, out, both[0], false}), visit(Key{in, out, both[1], false});
            visit(Key{in, out, kAny, false});
            for (const Policy& p : kPairs)
              if (in == DType::u8) visit(Key{in, out, p, false});
          }
      for (const DType t : {DType::f32, DType::bf16})
        for (const Policy& p : kBits) visit(Key{t, t, p, true});
    }
  };
};

}  // namespace vivace::ops::defs
