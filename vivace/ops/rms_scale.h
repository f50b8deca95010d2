// rms_scale: the factor of each row in an RMS norm, from sums of squares.
#pragma once
#include "vivace/kernels/norm/rms_rows.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void rms_scale(const kernels::RmsScaleArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct rms_scale {
  using Args = kernels::RmsScaleArgs;
  static constexpr Port kPorts[] = {
      in("squares", "T,S", "f32", "parts of each row's sum of squares, see rms_rows"),
      out("row_scale", "T", "f32", "factor of each row"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      real("columns", 0, "columns of the rows; 0: 8 a part"),
      real("eps", 1e-6, "added to the mean square"),
  };
  static constexpr OpSpec spec{
      .name = "rms_scale",
      .group = "norm",
      .brief = "The factor of each row in an RMS norm, from parts of its sum of squares.",
      .formula = "row_scale[t] = 1 / sqrt(sum(squares[t]) / columns + eps), in f32, added in one order.",
      .source = "RMSNorm arXiv:1910.07467",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  /// The sums that a call with these ports and attributes reads; `columns` as the attribute says.
  static Status squares_of(const Call& c, double columns, double eps, kernels::RmsSquares* s) {
    const int64_t count = c.dim("S"), H = columns == 0 ? kernels::kRmsColumns * count : static_cast<int64_t>(columns);
    if (count < 1 || count > INT32_MAX / kernels::kRmsColumns)
      return c.error(Code::kInvalidShape,
                     strf("port squares: wanted 1 to 2^28 parts a row, got %ld", static_cast<long>(count)));
    if (!(eps >= 0)) return c.error(Code::kInvalidArgument, strf("eps must be >= 0, got %g", eps));
    if (static_cast<double>(H) != (columns == 0 ? static_cast<double>(H) : columns) ||
        (H + kernels::kRmsColumns - 1) / kernels::kRmsColumns != count)
      return c.error(Code::kInvalidArgument,
                     strf("squares has %ld parts of 8 columns, but columns is %g", static_cast<long>(count), columns));
    *s = {.sums = c.ptr<float>("squares"),
          .stride = c.row_stride("squares"),
          .count = static_cast<int32_t>(count),
          .H = static_cast<int32_t>(H),
          .eps = static_cast<float>(eps)};
    return {};
  }
  static Status bind(const Call& c, Args* a) {
    if (c.dim("T") > INT32_MAX)
      return c.error(Code::kInvalidShape, strf("T = %ld is above 2^31 - 1", static_cast<long>(c.dim("T"))));
    *a = Args{.squares = {},
              .row_scale = c.ptr<float>("row_scale"),
              .rows = c.ptr<int32_t>("rows"),
              .T = static_cast<int32_t>(c.dim("T"))};
    return squares_of(c, c.real("columns"), c.real("eps"), &a->squares);
  }
  static Cost cost(const Args& a) {
    return {.bytes = int64_t{a.T} * (a.squares.count + 1) * 4, .flops = int64_t{a.T} * a.squares.count};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::rms_scale(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/norm/rms_rows.cuh";
    struct Key {
      kernels::RmsScalePolicy p;
      bool operator==(const Key&) const = default;
    };
    static Result<Key> pick(const Args&, Arch) { return Key{{128, 16}}; }
    static std::string instance(const Key& k) {
      return kernel_expression("rms_scale<vivace::kernels::RmsScalePolicy{%d, %d}>", k.p.threads, k.p.row_threads);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>((int64_t{a.T} * k.p.row_threads + k.p.threads - 1) / k.p.threads);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) { visit(Key{{128, 16}}); }
  };
};

}  // namespace vivace::ops::defs
