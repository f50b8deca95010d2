// Arguments of `resize_pad`, shared by the CPU and CUDA kernels, and the weights of its filters, which both make
// bit for bit alike. POD; see vivace/ops/resize_pad.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/tile/divisor.h"

namespace vivace::kernels {

/// triangle: as wide as an output pixel is in the frame, so that shrinking averages; in fixed point, u8 between columns
/// and rows. linear: the two neighbours of a point, however far apart outputs are; f32.
enum class ResizeFilter : int32_t { triangle, linear };

/// centre: half of the padding is before the image; end: all of it.
enum class ResizeAlign : int32_t { centre, end };

/// One axis of a frame and of the image in it.
struct ResizeAxis {
  int32_t from, to;  // pixels of the frame, pixels that they become
  int32_t before;    // pixels of padding before them
  int32_t taps;      // triangle: most weights of an output pixel
  double scale;      // from / to
  float step;        // the same, divided in f32: of the linear filter
};

struct ResizePadArgs {
  const uint8_t* x;     // [T, H, W, C]
  void* out;            // [T, OH, OW, C] out_dtype
  const int32_t* rows;  // [1] device-side T, or null
  int64_t x_stride, out_stride;  // elements a frame
  int32_t T, C, OH, OW;
  ResizeAxis y, x_axis;
  ResizeFilter filter;
  DType out_dtype;
  Divisor channels, wide, tiles_x,
      tiles;  // elements of a pixel, of a tile's line; tiles side by side, tiles of a frame
};

inline constexpr int kResizeBits = 22;         // of a fixed-point weight: sums of 255 of them stay below 2^31
inline constexpr int kResizeMostShrink = 128;  // of the triangle filter: its weights fit shared memory

/// A block's tile of the result.
struct ResizePadPolicy {
  int32_t threads, lines, pixels;
  constexpr bool operator==(const ResizePadPolicy&) const = default;
};

/// Operations that no compiler may join into one with a single rounding.
struct Rounded {
#ifdef __CUDA_ARCH__
  static __device__ __forceinline__ double mul(double a, double b) { return __dmul_rn(a, b); }
  static __device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
  static __device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
  static __device__ __forceinline__ float div(float a, float b) { return __fdiv_rn(a, b); }
#else
  // The build turns contraction off for the file that includes this on the host.
  static constexpr double mul(double a, double b) { return a * b; }
  static constexpr float mul(float a, float b) { return a * b; }
  static constexpr float add(float a, float b) { return a + b; }
  static constexpr float div(float a, float b) { return a / b; }
#endif
};

/// Input pixels of one output pixel.
struct ResizeSpan {
  int32_t first, count;
};

/// The triangle's weights of output pixel `i`, in `kResizeBits` bits; they add up to about one.
VV_HD inline ResizeSpan triangle_weights(const ResizeAxis& a, int32_t i, int32_t* weights) {
  const double support = a.scale > 1.0 ? a.scale : 1.0, centre = Rounded::mul(static_cast<double>(i) + 0.5, a.scale);
  const int32_t low = static_cast<int32_t>(centre - support + 0.5), high = static_cast<int32_t>(centre + support + 0.5);
  const int32_t first = low > 0 ? low : 0, count = (high < a.from ? high : a.from) - first;
  const auto weight = [&](int32_t k) {
    const double at = (static_cast<double>(k + first) - centre + 0.5) / support, distance = at < 0 ? -at : at;
    return distance < 1.0 ? 1.0 - distance : 0.0;
  };
  double sum = 0;
  for (int32_t k = 0; k < count; ++k) sum += weight(k);
  for (int32_t k = 0; k < count; ++k)
    weights[k] = static_cast<int32_t>(weight(k) / sum * (1 << kResizeBits) + 0.5);  // the product is exact
  return {first, count};
}

/// A sum of levels times weights as a level.
VV_HD inline int32_t resized_level(int32_t sum) {
  const int32_t level = (sum + (1 << (kResizeBits - 1))) >> kResizeBits;
  return level < 0 ? 0 : level > 255 ? 255 : level;
}

/// The two input pixels between which output pixel `i` lies, and the second one's weight.
struct ResizePoint {
  int32_t first, second;
  float share;
};
VV_HD inline ResizePoint linear_point(const ResizeAxis& a, int32_t i) {
  const float from = Rounded::add(Rounded::mul(static_cast<float>(i) + 0.5f, a.step), -0.5f),
              at = from > 0 ? from : 0.0f;
  const int32_t floor = static_cast<int32_t>(at), first = floor < a.from ? floor : a.from - 1;
  return {first, first + 1 < a.from ? first + 1 : first, Rounded::add(at, -static_cast<float>(first))};
}

/// Between four values, the lower line's weight and the right column's given.
VV_HD inline float between(float top_left, float top_right, float low_left, float low_right, float low, float right) {
  const float left = Rounded::add(1.0f, -right), top = Rounded::add(1.0f, -low);
  const float above = Rounded::add(Rounded::mul(left, top_left), Rounded::mul(right, top_right));
  const float below = Rounded::add(Rounded::mul(left, low_left), Rounded::mul(right, low_right));
  return Rounded::add(Rounded::mul(top, above), Rounded::mul(low, below));
}

/// [0, 255] as [0, 1], and [0, 1] as [-1, 1].
VV_HD inline float unit_of(int32_t level) { return Rounded::div(static_cast<float>(level), 255.0f); }
VV_HD inline float signed_unit(float unit) { return Rounded::add(Rounded::mul(unit, 2.0f), -1.0f); }

}  // namespace vivace::kernels
