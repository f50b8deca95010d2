// Arguments of `im2col`, shared by the CPU and CUDA kernels. POD; see vivace/ops/im2col.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/tile/divisor.h"

namespace vivace::kernels {

/// Order of a patch's elements in its row: as the frame holds them, or as a convolution's weight [out, C, kh, kw] does.
enum class PatchOrder : int32_t { hwc, chw };

struct Im2colArgs {
  const void* x;        // [N, H, W, C] x_dtype, one frame after another
  const float* scale;   // [C] or null
  const float* offset;  // [C] or null
  void* out;            // [T, K] out_dtype, T = N * OH * OW
  const int32_t* rows;  // [1] device-side T, or null
  int64_t x_stride, out_stride;  // elements a frame; elements a row
  int32_t T, K, H, W, C;
  int32_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
  PatchOrder order;
  DType x_dtype, out_dtype;
  // What indices are divided by: patches of a frame and of a line of them; of a patch's elements the outer
  // stretches (hwc: kw * C, chw: kh * kw) and the inner ones (C, kw); groups of a row.
  Divisor per_frame, per_line, outer, inner, groups;

  VV_HD constexpr int32_t columns() const { return kernel_h * kernel_w * C; }  // of K; the others are 0
};

inline constexpr int kPatchGroup = 8;  // neighbouring columns that one thread takes together

/// A thread keeps its group of columns, whose places in a patch are found once, and takes `items` rows of it. A
/// block takes whole rows, or a stretch of them where they have more groups than it has threads.
struct Im2colPolicy {
  int32_t threads;
  int32_t items;
  int32_t load;   // elements an access: 8 where C and order keep a group within a pixel, else 1
  int32_t store;  // columns an access: 8, or 1 for any width and alignment
  constexpr bool operator==(const Im2colPolicy&) const = default;
  VV_HD constexpr int32_t together(int32_t groups) const { return groups < threads ? threads / groups : 1; }  // rows side by side
  VV_HD constexpr int32_t rows(int32_t groups) const { return together(groups) * items; }                    // of a block
  VV_HD constexpr int32_t stretches(int32_t groups) const { return (groups + threads - 1) / threads; }       // of a row
};

}  // namespace vivace::kernels
