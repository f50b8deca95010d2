// What quantize_block_scaled and dequantize_block_scaled share: their arguments' checks, tactics and grid.
#pragma once
#include "vivace/kernels/quantize/quantize_block_scaled.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

/// `values` names the floating-point port, `packed` that of the codes; H values a row.
inline Status bind_block_scaled(const Call& c, const char* values, const char* packed, int64_t H,
                                kernels::BlockScaledArgs* a) {
  const int64_t T = c.dim("T");
  const auto layout = c.choice<kernels::ScaleLayout>("layout");
  if (H < kernels::kBlockScaledGroup || H % kernels::kBlockScaledGroup != 0)
    return c.error(Code::kInvalidShape, strf("port %s: wanted a multiple of %d columns, got %ld", values,
                                             kernels::kBlockScaledGroup, static_cast<long>(H)));
  const int64_t want = fp4_scale_bytes(T, H, layout), got = c["scales"].shape[0];
  if (want != got)
    return c.error(Code::kInvalidShape, strf("port scales: wanted %ld entries (fp4_scale_bytes), got %ld",
                                             static_cast<long>(want), static_cast<long>(got)));
  *a = kernels::BlockScaledArgs{
      .values = c.ptr(values),
      .packed = c.ptr(packed),
      .scales = c.ptr("scales"),
      .tensor_scale = c.ptr<float>("tensor_scale"),
      .rows = c.ptr<int32_t>("rows"),
      .values_stride = c.row_stride(values),
      .packed_stride = c.row_stride(packed),
      .T = static_cast<int32_t>(T),
      .H = static_cast<int32_t>(H),
      .layout = layout,
      .dtype = c[values].dtype,
  };
  return {};
}

/// The ports of an op that ends in FP4 codes: `values` is the port whose rows they are.
inline Status bind_block_scaled_out(const Call& c, const char* values, int64_t H, kernels::BlockScaledArgs* a) {
  VV_TRY(bind_block_scaled(c, values, "out", H, a));
  a->values = nullptr;
  return {};
}
/// Bytes of the codes and scales.
inline int64_t block_scaled_bytes(const kernels::BlockScaledArgs& a) {
  return int64_t{a.T} * a.H / 2 + int64_t{a.T} * a.H / kernels::kBlockScaledGroup;
}
/// Rows that have scales.
inline int64_t block_scaled_rows(const kernels::BlockScaledArgs& a) {
  return a.layout == kernels::ScaleLayout::swizzled ? (int64_t{a.T} + 127) / 128 * 128 : int64_t{a.T};
}
inline bool block_scaled_aligned(const kernels::BlockScaledArgs& a) {
  return vectorizable(a.packed, a.packed_stride, DType::u8, 4);
}
inline constexpr const char* kBlockScaledLayoutDoc =
    "linear: [T, H/16] dense; swizzled: tiles of 128 rows x 4 scales, 512 bytes each, tile rows outermost, "
    "scale (m, k) of a tile at byte (m % 32) * 16 + (m / 32) * 4 + k, padded to whole tiles";

inline Cost cost_block_scaled(const kernels::BlockScaledArgs& a) {
  const int64_t n = int64_t{a.T} * a.H;
  return {.bytes = n * info(a.dtype).bytes + n / 2 + n / kernels::kBlockScaledGroup, .flops = n * 2};
}

struct BlockScaledKey {
  DType t;
  kernels::BlockScaledPolicy p;
  bool operator==(const BlockScaledKey&) const = default;
};
inline constexpr kernels::BlockScaledPolicy kBlockScaledTactics[] = {{128, 8}, {128, 1}};

inline BlockScaledKey pick_block_scaled(const kernels::BlockScaledArgs& a) {
  const bool wide =
      vectorizable(a.values, a.values_stride, a.dtype, 8) && vectorizable(a.packed, a.packed_stride, DType::u8, 8);
  return {a.dtype, kBlockScaledTactics[wide ? 0 : 1]};
}

inline std::string block_scaled_expression(const char* op, const BlockScaledKey& k) {
  return kernel_expression("%s<%s, vivace::kernels::BlockScaledPolicy{%d, %d}>", op, type_name(k.t), k.p.threads,
                           k.p.vec);
}

/// `blocks` scales, one thread each.
inline void shape_block_scaled(int64_t blocks, const BlockScaledKey& k, exec::Launch* launch) {
  launch->grid[0] = static_cast<uint32_t>((blocks + k.p.threads - 1) / k.p.threads);
  launch->block[0] = static_cast<uint32_t>(k.p.threads);
}

template <class Visit>
void visit_block_scaled(Visit&& visit) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const auto& p : kBlockScaledTactics) visit(BlockScaledKey{t, p});
}

}  // namespace vivace::ops
