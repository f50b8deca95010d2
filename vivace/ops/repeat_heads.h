// repeat_heads: each head several times, for attention that knows no groups.
#pragma once
#include <climits>

#include "vivace/kernels/copy/repeat_heads.h"
#include "vivace/ops/call.h"
#include "vivace/ops/stretch.h"

namespace vivace::cpu {
class Pool;
void repeat_heads(const kernels::RepeatHeadsArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct repeat_heads {
  using Args = kernels::RepeatHeadsArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,Hkv,D", "f32|bf16|f16|e4m3", "key or value heads"),
      out("out", "T,Hq,D", "=x", "query head h has key head h / (Hq / Hkv); Hq is a multiple of Hkv"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "repeat_heads",
      .group = "copy",
      .brief = "Repeats every head Hq / Hkv times, neighbours first.",
      .formula = "out[t, h] = x[t, h / (Hq / Hkv)], bit by bit. Vivace's attention reads grouped heads without it.",
      .source = "grouped-query attention arXiv:2305.13245",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t Hkv = c.dim("Hkv"), Hq = c.dim("Hq"), D = c.dim("D");
    if (Hkv < 1 || Hq < 1 || D < 1 || Hq % Hkv != 0)
      return c.error(Code::kInvalidShape,
                     strf("port out: Hq must be a multiple of Hkv and D at least 1, got Hq = %ld, Hkv = %ld, D = %ld",
                          static_cast<long>(Hq), static_cast<long>(Hkv), static_cast<long>(D)));
    if (Hq > INT_MAX / D)
      return c.error(Code::kInvalidShape, strf("port out: a row has %ld heads of %ld, wanted fewer than 2^31 elements",
                                               static_cast<long>(Hq), static_cast<long>(D)));
    *a = Args{
        .x = c.ptr("x"),
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")),
        .Hkv = static_cast<int32_t>(Hkv),
        .D = static_cast<int32_t>(D),
        .repeats = static_cast<int32_t>(Hq / Hkv),
        .bytes = info(c["x"].dtype).bytes,
        .head = kernels::Divisor::of(static_cast<int32_t>(D)),
        .copies = kernels::Divisor::of(static_cast<int32_t>(Hq / Hkv)),
    };
    return {};
  }
  static Cost cost(const Args& a) {
    return {.bytes = int64_t{a.T} * a.Hkv * a.D * a.bytes * (1 + a.repeats), .flops = 0};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::repeat_heads(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/copy/repeat_heads.cuh";
    struct Key {
      int32_t bytes;
      kernels::StretchPolicy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr DType bits(int32_t bytes) {
      return bytes == 4 ? DType::f32 : bytes == 2 ? DType::bf16 : DType::u8;
    }  // any type of that size
    static int64_t width(const Args& a) { return int64_t{a.Hkv} * a.repeats * a.D; }
    static double moved(int32_t bytes) { return 1.25 * bytes; }  // of an element of out, with four repeats
    static Result<Key> pick(const Args& a, Arch) {
      const DType t = bits(a.bytes);
      const bool wide = a.D % 8 == 0 && vectorizable(a.x, a.x_stride, t, 8) && vectorizable(a.out, a.out_stride, t, 8);
      return Key{a.bytes, pick_stretch(a.T, width(a), wide, a.bytes, moved(a.bytes))};
    }
    static std::string instance(const Key& k) {
      return stretch_expression("repeat_heads",
                                k.bytes == 4   ? "unsigned int"
                                : k.bytes == 2 ? "unsigned short"
                                               : "unsigned char",
                                k.p);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) { shape_stretch(a.T, width(a), k.p, launch); }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const int32_t bytes : {4, 2, 1})
        each_stretch(bytes, moved(bytes), [&](const auto& p) { visit(Key{bytes, p}); });
    }
  };
};

}  // namespace vivace::ops::defs
