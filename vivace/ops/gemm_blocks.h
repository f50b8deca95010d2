// gemm's scales of pieces of rows: w_block_scale, w_block_zero, x_block_scale. Their rules, once.
#pragma once
#include "vivace/kernels/gemm/gemm.h"
#include "vivace/ops/call.h"

namespace vivace::ops {

/// How wide a piece is, from the entries a row has: the width of 16, 32, 64, 128 that gives as many; 0: none does.
constexpr int block_group(int64_t K, int64_t entries) {
  for (const int g : {16, 32, 64, 128})
    if ((K + g - 1) / g == entries) return g;
  return 0;
}

/// Fills the block fields of `a`, whose other fields are set. Errors name the port, the shapes and what would do.
inline Status bind_blocks(const Call& c, kernels::GemmArgs* a) {
  const Tensor &x = c["x"], &w = c["w"], &scale = c["w_block_scale"], &zero = c["w_block_zero"];
  const bool half_bytes = w.dtype == DType::e2m1 || w.dtype == DType::i4;
  if (half_bytes && !scale.present())
    return c.error(Code::kInvalidArgument, strf("w is %s, which has no scale of its own: it needs w_block_scale, [N, "
                                                "K/16] e4m3 for FP4, [N, K/32], [N, K/64] or [N, K/128] for integers",
                                                name(w.dtype)));
  if (w.dtype == DType::i8 && !scale.present() && !c["w_row_scale"].present() && !c["w_scale"].present())
    return c.error(Code::kInvalidArgument, "w is i8: it needs one of w_row_scale, w_scale and w_block_scale");
  if (zero.present() && w.dtype != DType::i4)
    return c.error(Code::kInvalidArgument, strf("w_block_zero goes with an i4 w, got %s", name(w.dtype)));
  if (c["x_block_scale"].present()) {
    if (x.dtype != DType::e4m3 || !scale.present())
      return c.error(Code::kInvalidArgument, "x_block_scale goes with an e4m3 x and with w_block_scale");
    a->x_block_scale = c.ptr<float>("x_block_scale");
    a->x_block_stride = c.row_stride("x_block_scale");
  }
  if (!scale.present()) return {};
  if (is_block(w.dtype) || (!half_bytes && w.dtype != DType::e4m3 && w.dtype != DType::i8))
    return c.error(Code::kInvalidArgument,
                   strf("w_block_scale goes with w of e2m1, i4, e4m3 or i8, got %s", name(w.dtype)));
  const int64_t R = scale.shape[0], C = scale.shape[1], N = a->N, K = a->K;
  a->block_rows = R == N ? 1 : R == (N + 127) / 128 ? 128 : 0;
  a->block_group = block_group(K, C);
  const bool whole = !half_bytes || a->block_rows == 1;
  if (a->block_rows == 0 || a->block_group == 0 || !whole || (zero.present() && a->block_group == 16))
    return c.error(Code::kInvalidShape,
                   strf("port w_block_scale: [%ld, %ld] does not divide w [%ld, %ld]: wanted N rows (or ceil(N/128) "
                        "for 8-bit w) of ceil(K/g) entries, g of %s 32, 64, 128",
                        static_cast<long>(R), static_cast<long>(C), static_cast<long>(N), static_cast<long>(K),
                        zero.present() ? "" : "16,"));
  if (zero.present() && (zero.shape[0] != R || zero.shape[1] != C))
    return c.error(Code::kInvalidShape,
                   strf("port w_block_zero: wanted w_block_scale's [%ld, %ld], got [%ld, %ld]", static_cast<long>(R),
                        static_cast<long>(C), static_cast<long>(zero.shape[0]), static_cast<long>(zero.shape[1])));
  a->w_block_scale = scale.data;
  a->scale_dtype = scale.dtype;
  a->block_stride = c.row_stride("w_block_scale");
  a->w_block_zero = c.ptr<int8_t>("w_block_zero");
  a->zero_stride = c.row_stride("w_block_zero");
  return {};
}

}  // namespace vivace::ops
