// resize_pad on CUDA: formula in vivace/ops/resize_pad.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/copy/resize_pad.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// A level, or a value of [0, 1] between levels, as an element of the result.
template <class Out>
__device__ __forceinline__ Out picture_element(float unit) { return from_float<Out>(signed_unit(unit)); }

/// An element between four pixels. Levels are rounded to the nearest, ties to even.
template <class Out>
__device__ __forceinline__ Out linear_element(const ResizePadArgs& a, const uint8_t* frame, int line, int pixel,
                                              int channel) {
  const ResizePoint y = linear_point(a.y, line), x = linear_point(a.x_axis, pixel);
  const uint8_t* const top = frame + int64_t{y.first} * a.x_axis.from * a.C + channel;
  const uint8_t* const low = frame + int64_t{y.second} * a.x_axis.from * a.C + channel;
  const int left = x.first * a.C, right = x.second * a.C;
  if constexpr (kIsSame<Out, uint8_t>) {
    const float level = between(top[left], top[right], low[left], low[right], y.share, x.share);
    return static_cast<uint8_t>(min(max(__float2int_rn(level), 0), 255));
  } else {
    return picture_element<Out>(
        between(unit_of(top[left]), unit_of(top[right]), unit_of(low[left]), unit_of(low[right]), y.share, x.share));
  }
}

/// The triangle's weights of a tile: made once, by as many threads as it has lines and pixels.
template <ResizePadPolicy P>
struct TriangleTile {
  int32_t *lines, *pixels;  // [P.lines, taps], [P.pixels, taps] in shared memory
  ResizeSpan* spans;        // of the lines, then of the pixels

  __device__ __forceinline__ TriangleTile(const ResizePadArgs& a, int32_t* memory, ResizeSpan* s)
      : lines(memory), pixels(memory + P.lines * a.y.taps), spans(s) {}

  __device__ __forceinline__ void fill(const ResizePadArgs& a, int first_line, int first_pixel) {
    // One call of the weights for lines and pixels alike: the divisions in f64 are large.
    const int i = static_cast<int>(threadIdx.x);
    const bool line = i < P.lines;
    const ResizeAxis axis = line ? a.y : a.x_axis;
    const int at = line ? first_line + i : first_pixel + i - P.lines;
    if (i < P.lines + P.pixels && at >= 0 && at < axis.to)
      spans[i] = triangle_weights(axis, at, line ? lines + i * axis.taps : pixels + (i - P.lines) * axis.taps);
    __syncthreads();
  }

  /// Columns of each line first, rounded to a level, then lines.
  __device__ __forceinline__ int level(const ResizePadArgs& a, const uint8_t* frame, int line, int pixel,
                                       int channel) const {
    const ResizeSpan y = spans[line], x = spans[P.lines + pixel];
    const int32_t *const wy = lines + line * a.y.taps, *const wx = pixels + pixel * a.x_axis.taps;
    const uint8_t* from = frame + (int64_t{y.first} * a.x_axis.from + x.first) * a.C + channel;
    int32_t sum = 0;
    for (int k = 0; k < y.count; ++k, from += a.x_axis.from * a.C) {
      int32_t across = 0;
#pragma unroll 4
      for (int j = 0; j < x.count; ++j) across += from[j * a.C] * wx[j];
      sum += resized_level(across) * wy[k];
    }
    return resized_level(sum);
  }
};

/// Grid: T * tiles of a frame. A thread makes elements of a tile, neighbours along a line.
template <class Out, ResizeFilter F, ResizePadPolicy P>
__global__ void __launch_bounds__(P.threads) resize_pad(const __grid_constant__ ResizePadArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int block = static_cast<int>(blockIdx.x), t = a.tiles.quotient(block);
  if (t >= valid_rows(a.rows, a.T)) return;
  const int tile = a.tiles.remainder(block, t), down = a.tiles_x.quotient(tile),
            across = a.tiles_x.remainder(tile, down);
  // The image's line and pixel at which the tile begins; negative in the padding.
  const int first_line = down * P.lines - a.y.before, first_pixel = across * P.pixels - a.x_axis.before;
  const uint8_t* const frame = a.x + t * a.x_stride;
  extern __shared__ __align__(16) int32_t resize_weights[];
  __shared__ ResizeSpan spans[P.lines + P.pixels];
  TriangleTile<P> triangle(a, resize_weights, spans);
  if constexpr (F == ResizeFilter::triangle) triangle.fill(a, first_line, first_pixel);
  for (int e = static_cast<int>(threadIdx.x); e < P.lines * static_cast<int>(a.wide.by); e += P.threads) {
    const int i = a.wide.quotient(e), rest = a.wide.remainder(e, i), j = a.channels.quotient(rest),
              channel = a.channels.remainder(rest, j);
    const int line = first_line + i, pixel = first_pixel + j;
    if (line + a.y.before >= a.OH || pixel + a.x_axis.before >= a.OW) continue;
    Out* const to = static_cast<Out*>(a.out) + t * a.out_stride +
                    (int64_t{line + a.y.before} * a.OW + pixel + a.x_axis.before) * a.C + channel;
    const bool inside = line >= 0 && line < a.y.to && pixel >= 0 && pixel < a.x_axis.to;
    if constexpr (F == ResizeFilter::linear) {
      if (inside) {
        *to = linear_element<Out>(a, frame, line, pixel, channel);
        continue;
      }
    }
    const int level = F == ResizeFilter::triangle && inside ? triangle.level(a, frame, i, j, channel) : 0;
    if constexpr (kIsSame<Out, uint8_t>) *to = static_cast<uint8_t>(level);
    else *to = picture_element<Out>(unit_of(level));
  }
}

}  // namespace vivace::kernels
