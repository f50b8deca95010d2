// What quantize_micro and dequantize_micro share: their arguments' checks, tactics and grid.
#pragma once
#include "vivace/kernels/quantize/quantize_micro.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

/// `values` names the floating-point port, `packed` that of the codes; H values a row.
inline Status bind_micro(const Call& c, const char* values, const char* packed, int64_t H, kernels::MicroArgs* a) {
  const int64_t T = c.dim("T");
  const auto layout = c.choice<kernels::ScaleLayout>("layout");
  if (H < kernels::kMicroBlock || H % kernels::kMicroBlock != 0)
    return c.error(Code::kInvalidShape, strf("port %s: wanted a multiple of %d columns, got %ld", values, kernels::kMicroBlock, static_cast<long>(H)));
  const int64_t want = fp4_scale_bytes(T, H, layout), got = c["scales"].shape[0];
  if (want != got) return c.error(Code::kInvalidShape, strf("port scales: wanted %ld entries (fp4_scale_bytes), got %ld", static_cast<long>(want), static_cast<long>(got)));
  *a = kernels::MicroArgs{
      .values = c.ptr(values), .packed = c.ptr(packed), .scales = c.ptr("scales"), .tensor_scale = c.ptr<float>("tensor_scale"),
      .rows = c.ptr<int32_t>("rows"), .values_stride = c.row_stride(values), .packed_stride = c.row_stride(packed),
      .T = static_cast<int32_t>(T), .H = static_cast<int32_t>(H), .layout = layout, .dtype = c[values].dtype,
  };
  return {};
}

/// The ports of an op that ends in FP4 codes: `values` is the port whose rows they are.
inline Status bind_micro_out(const Call& c, const char* values, int64_t H, kernels::MicroArgs* a) {
  VV_TRY(bind_micro(c, values, "out", H, a));
  a->values = nullptr;
  return {};
}
/// Bytes of the codes and scales.
inline int64_t micro_bytes(const kernels::MicroArgs& a) { return int64_t{a.T} * a.H / 2 + int64_t{a.T} * a.H / kernels::kMicroBlock; }
/// Rows that have scales.
inline int64_t micro_rows(const kernels::MicroArgs& a) {
  return a.layout == kernels::ScaleLayout::swizzled ? (int64_t{a.T} + 127) / 128 * 128 : int64_t{a.T};
}
inline bool micro_aligned(const kernels::MicroArgs& a) { return vectorizable(a.packed, a.packed_stride, DType::u8, 4); }
inline constexpr const char* kMicroLayoutDoc =
    "linear: [T, H/16] dense; swizzled: tiles of 128 rows x 4 scales, 512 bytes each, tile rows outermost, "
    "scale (m, k) of a tile at byte (m % 32) * 16 + (m / 32) * 4 + k, padded to whole tiles";

inline Cost cost_micro(const kernels::MicroArgs& a) {
  const int64_t n = int64_t{a.T} * a.H;
  return {.bytes = n * info(a.dtype).bytes + n / 2 + n / kernels::kMicroBlock, .flops = n * 2};
}

struct MicroKey {
  DType t;
  kernels::MicroPolicy p;
  bool operator==(const MicroKey&) const = default;
};
inline constexpr kernels::MicroPolicy kMicroTactics[] = {{128, 8}, {128, 1}};

inline MicroKey pick_micro(const kernels::MicroArgs& a) {
  const bool wide = vectorizable(a.values, a.values_stride, a.dtype, 8) && vectorizable(a.packed, a.packed_stride, DType::u8, 8);
  return {a.dtype, kMicroTactics[wide ? 0 : 1]};
}

inline std::string micro_expression(const char* op, const MicroKey& k) {
  return kernel_expression("%s<%s, vivace::kernels::MicroPolicy{%d, %d}>", op, type_name(k.t), k.p.threads, k.p.vec);
}

/// `blocks` scales, one thread each.
inline void shape_micro(int64_t blocks, const MicroKey& k, exec::Launch* launch) {
  launch->grid[0] = static_cast<uint32_t>((blocks + k.p.threads - 1) / k.p.threads);
  launch->block[0] = static_cast<uint32_t>(k.p.threads);
}

template <class Visit>
void visit_micro(Visit&& visit) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const auto& p : kMicroTactics) visit(MicroKey{t, p});
}

}  // namespace vivace::ops
