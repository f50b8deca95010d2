// im2col on CUDA: formula in vivace/ops/im2col.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/copy/im2col.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

__device__ __forceinline__ float to_float(unsigned char v) { return static_cast<float>(v); }

/// Where column `col` of a patch lies: line and pixel of the patch, channel.
struct PatchPlace {
  int line, pixel, channel;

  __device__ __forceinline__ PatchPlace(const Im2colArgs& a, int col) {
    const int outer = a.outer.quotient(col), rest = a.outer.remainder(col, outer), q = a.inner.quotient(rest),
              r = a.inner.remainder(rest, q);
    if (a.order == PatchOrder::hwc) {
      line = outer, pixel = q, channel = r;
    } else {
      channel = outer, line = q, pixel = r;
    }
  }
  __device__ __forceinline__ void next(const Im2colArgs& a) {
    if (a.order == PatchOrder::hwc) {
      if (++channel < a.C) return;
      channel = 0;
      if (++pixel < a.kernel_w) return;
      pixel = 0, ++line;
    } else {
      if (++pixel < a.kernel_w) return;
      pixel = 0;
      if (++line < a.kernel_h) return;
      line = 0, ++channel;
    }
  }
};

// Each kind of columns finds their places when it is made, before the kernel may read anything, and reads what it needs
// in begin().

/// Any group of columns, element by element: where they lie in a patch, and what becomes of them.
template <class In, class Out, Im2colPolicy P>
struct PatchElements {
  using Raw = Vec<In, kPatchGroup>;

  const Im2colArgs& a;
  int col;
  uint32_t part = 0;            // bit i: column i is one of the patch, not what fills its row up
  uint32_t place[kPatchGroup];  // elements from the patch's first one, of a patch within the frame
  float scale[kPatchGroup], offset[kPatchGroup];

  __device__ __forceinline__ PatchElements(const Im2colArgs& args, int group) : a(args), col(group * kPatchGroup) {}
  __device__ __forceinline__ void begin() {
    PatchPlace at(a, col);
#pragma unroll
    for (int i = 0; i < kPatchGroup; ++i) {
      const bool within = col + i < a.columns();
      part |= static_cast<uint32_t>(within) << i;
      place[i] = (static_cast<uint32_t>(at.line) * a.W + at.pixel) * a.C + at.channel;
      scale[i] = a.scale != nullptr && within ? a.scale[at.channel] : 1.0f;
      offset[i] = a.offset != nullptr && within ? a.offset[at.channel] : -0.0f;  // x + -0 is x, of either sign
      at.next(a);
    }
  }

  /// The group's elements of the patch that begins at the frame's line y and column x, negative in the padding;
  /// returns bit i for each that is one of the frame's.
  __device__ __forceinline__ uint32_t load(const In* frame, int y, int x, Raw& raw) const {
    const In* patch = frame + (int64_t{y} * a.W + x) * a.C;
    const bool inner = y >= 0 && y + a.kernel_h <= a.H && x >= 0 && x + a.kernel_w <= a.W;
    uint32_t real = part;
    if (!inner) {
      PatchPlace at(a, col);
#pragma unroll 1
      for (int i = 0; i < kPatchGroup; ++i) {
        const int line = y + at.line, pixel = x + at.pixel;
        if (line < 0 || line >= a.H || pixel < 0 || pixel >= a.W) real &= ~(1u << i);
        at.next(a);
      }
    }
#pragma unroll
    for (int i = 0; i < kPatchGroup; ++i)
      if (real >> i & 1u) raw.v[i] = patch[static_cast<int32_t>(place[i])];
    return real;
  }

  __device__ __forceinline__ void store(Out* row, const Raw& raw, uint32_t real) const {
    float v[kPatchGroup];
#pragma unroll
    for (int i = 0; i < kPatchGroup; ++i)
      v[i] = real >> i & 1u ? __fadd_rn(__fmul_rn(to_float(raw.v[i]), scale[i]), offset[i]) : 0.0f;
    if constexpr (P.store == kPatchGroup) {
      kernels::store<kPatchGroup>(row + col, v);
    } else {
#pragma unroll
      for (int i = 0; i < kPatchGroup; ++i)
        if (col + i < a.K) row[col + i] = from_float<Out>(v[i]);
    }
  }
};

/// Whether a patch's pixel lies in its frame, and where, in elements from its first channel.
struct PixelPlace {
  int line, pixel, place;
  __device__ __forceinline__ bool within(const Im2colArgs& a, int y, int x) const {
    if ((a.pad_h | a.pad_w) == 0) return true;
    return static_cast<uint32_t>(y + line) < static_cast<uint32_t>(a.H) &&
           static_cast<uint32_t>(x + pixel) < static_cast<uint32_t>(a.W);
  }
};

/// A group within one pixel: one access. Where In and Out are one unsigned integer, elements without factors move as
/// bits.
template <class In, class Out, Im2colPolicy P>
struct PatchGroup : PixelPlace {
  using Raw = Vec<In, kPatchGroup>;

  const Im2colArgs& a;
  int col, channel;
  bool part;  // of the patch, not what fills its row up

  __device__ __forceinline__ PatchGroup(const Im2colArgs& args, int group)
      : a(args), col(group * kPatchGroup), part(col < a.columns()) {
    const PatchPlace at(a, col);
    line = at.line, pixel = at.pixel, channel = at.channel, place = (at.line * a.W + at.pixel) * a.C + at.channel;
  }
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ bool load(const In* frame, int y, int x, Raw& raw) const {
    const bool real = part && within(a, y, x);
    if (real) raw = load_raw<kPatchGroup, kPatchGroup>(frame + (int64_t{y} * a.W + x) * a.C + place);
    else raw = {};
    return real;
  }
  __device__ __forceinline__ void store(Out* row, const Raw& raw, bool real) const {
    if constexpr (kIsSame<In, Out> && (kIsSame<In, uint16_t> || kIsSame<In, uint32_t>)) {
      *reinterpret_cast<Raw*>(row + col) = raw;
    } else {
      float v[kPatchGroup];
#pragma unroll
      for (int i = 0; i < kPatchGroup; ++i) {
        const float factor = a.scale != nullptr && part ? a.scale[channel + i] : 1.0f,
                    more = a.offset != nullptr && part ? a.offset[channel + i] : -0.0f;
        v[i] = real ? __fadd_rn(__fmul_rn(to_float(raw.v[i]), factor), more) : 0.0f;
      }
      kernels::store<kPatchGroup>(row + col, v);
    }
  }
};

/// Two neighbouring pixels of three bytes each, and a pair of columns for each channel. Threads of a warp read a
/// stretch of each line and write one of each channel: with eight columns of one channel a thread, every byte asked for
/// lies in a line of its own.
template <class In, class Out, Im2colPolicy P>
struct PatchPairs : PixelPlace {
  static constexpr int C = kPairChannels;
  struct Raw {
    uint16_t v[C];  // r g, b r, g b: a pixel is an odd number of bytes, a pair an even one
  };

  const Im2colArgs& a;
  int pair;
  float scale[C], offset[C];

  __device__ __forceinline__ PatchPairs(const Im2colArgs& args, int group) : a(args), pair(group) {
    line = a.inner.quotient(2 * pair), pixel = a.inner.remainder(2 * pair, line), place = (line * a.W + pixel) * C;
  }
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int c = 0; c < C; ++c)
      scale[c] = a.scale != nullptr ? a.scale[c] : 1.0f, offset[c] = a.offset != nullptr ? a.offset[c] : -0.0f;
  }
  __device__ __forceinline__ bool load(const In* frame, int y, int x, Raw& raw) const {
    const bool real = within(a, y, x);  // both pixels or none: frames, steps and padding are even
    const In* from = frame + (int64_t{y} * a.W + x) * C + place;
#pragma unroll
    for (int i = 0; i < C; ++i)
      if (real) raw.v[i] = reinterpret_cast<const uint16_t*>(from)[i];
    return real;
  }
  __device__ __forceinline__ void store(Out* row, const Raw& raw, bool real) const {
    const auto byte = [&](int i) { return static_cast<unsigned char>(raw.v[i / 2] >> (8 * (i % 2))); };
    const int area = a.kernel_h * a.kernel_w;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float v[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) v[i] = 0.0f;
      if (real)
#pragma unroll
        for (int i = 0; i < 2; ++i) v[i] = __fadd_rn(__fmul_rn(to_float(byte(C * i + c)), scale[c]), offset[c]);
      kernels::store<2>(row + c * area + 2 * pair, v);
    }
    const float none[2] = {};
    for (int col = C * area + 2 * pair; col < a.K; col += area) kernels::store<2>(row + col, none);
  }
};

template <class In, class Out, Im2colPolicy P>
struct PatchColumns {
  using Type = PatchElements<In, Out, P>;
};
template <class In, class Out, Im2colPolicy P>
  requires(P.load == kPatchGroup)
struct PatchColumns<In, Out, P> {
  using Type = PatchGroup<In, Out, P>;
};
template <class In, class Out, Im2colPolicy P>
  requires(P.load == kPatchPair)
struct PatchColumns<In, Out, P> {
  using Type = PatchPairs<In, Out, P>;
};

/// Grid: ceil(T / rows) * stretches blocks. Moves every patch out and each pixel that a patch takes in.
template <class In, class Out, Im2colPolicy P>
__global__ void __launch_bounds__(P.threads) im2col(const __grid_constant__ Im2colArgs a) {
  using Columns = typename PatchColumns<In, Out, P>::Type;
  const int groups = P.groups(a), together = P.together(groups), stretches = P.stretches(groups);
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int side = stretches > 1          ? 0
                   : P.load == kPatchPair ? a.outer.quotient(kPatchPair * thread)
                                          : a.groups.quotient(thread);
  const int group = stretches > 1 ? block % stretches * P.threads + thread : thread - side * groups;
  const int first = (stretches == 1 ? block : block / stretches) * P.rows(groups) + side;
  Columns columns(a, group);
  // The row that was looked at last: its frame, line and place in it.
  int at = first, n = a.per_frame.quotient(at), patch = a.per_frame.remainder(at, n), oy = a.per_line.quotient(patch),
      ox = a.per_line.remainder(patch, oy);
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int valid = valid_rows(a.rows, a.T);
  if (side >= together || group >= groups || first >= valid) return;
  columns.begin();
  typename Columns::Raw raw[P.items];
  uint32_t real[P.items];
#pragma unroll
  for (int k = 0; k < P.items; ++k) {
    const int t = min(first + k * together, valid - 1);  // rows behind the last are read as it
    if (P.load > 1 && k > 0 && ox + t - at < static_cast<int>(a.per_line.by)) {
      ox += t - at;  // further in the same line of patches; single elements have no registers for it
    } else if (k > 0) {
      n = a.per_frame.quotient(t), patch = a.per_frame.remainder(t, n);
      oy = a.per_line.quotient(patch), ox = a.per_line.remainder(patch, oy);
    }
    at = t;
    real[k] = columns.load(static_cast<const In*>(a.x) + n * a.x_stride, oy * a.stride_h - a.pad_h,
                           ox * a.stride_w - a.pad_w, raw[k]);
  }
#pragma unroll
  for (int k = 0; k < P.items; ++k)
    if (const int t = first + k * together; t < valid)
      columns.store(static_cast<Out*>(a.out) + t * a.out_stride, raw[k], real[k]);
}

}  // namespace vivace::kernels
