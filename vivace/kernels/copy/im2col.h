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

inline constexpr int kPatchGroup = 8;   // neighbouring columns that one thread takes together
inline constexpr int kPatchPair =
    2;  // or two neighbouring pixels of every channel, where a row holds one channel after the other
inline constexpr int kPairChannels = 3;

/// A thread keeps its columns, whose places in a patch are found once, and takes `items` rows of them. A
/// block takes whole rows, or a stretch of them where they have more groups than it has threads.
struct Im2colPolicy {
  int32_t threads;
  int32_t items;
  int32_t load;   // 8: elements an access, where C and order keep a group within a pixel; 2: pixels, of three channels
                  // of a byte; 1: elements
  int32_t store;  // columns an access: 8, 2, or 1 for any width and alignment
  constexpr bool operator==(const Im2colPolicy&) const = default;
  /// Threads that a row takes.
  VV_HD constexpr int32_t groups(const Im2colArgs& a) const {
    return load == kPatchPair ? a.kernel_h * a.kernel_w / kPatchPair : static_cast<int32_t>(a.groups.by);
  }
  VV_HD constexpr int32_t together(int32_t groups) const {
    return groups < threads ? threads / groups : 1;
  }                                                                                        // rows side by side
  VV_HD constexpr int32_t rows(int32_t groups) const { return together(groups) * items; }  // of a block
  VV_HD constexpr int32_t stretches(int32_t groups) const { return (groups + threads - 1) / threads; }       // of a row
};

}  // namespace vivace::kernels
