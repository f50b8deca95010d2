// im2col on CUDA: formula in vivace/ops/im2col.h.
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
    const int outer = a.outer.quotient(col), rest = a.outer.remainder(col, outer), q = a.inner.quotient(rest), r = a.inner.remainder(rest, q);
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

/// A group of columns: where its elements lie in a patch, and what becomes of them.
template <class In, Im2colPolicy P>
struct PatchColumns {
  const Im2colArgs& a;
  int col;
  uint32_t part = 0;                      // bit i: column i is one of the patch, not what fills its row up
  uint32_t place[kPatchGroup / P.load];   // elements from the patch's first one, of a patch within the frame
  float scale[kPatchGroup], offset[kPatchGroup];

  __device__ __forceinline__ PatchColumns(const Im2colArgs& args, int first) : a(args), col(first) {
    PatchPlace at(a, col);
#pragma unroll
    for (int i = 0; i < kPatchGroup; ++i) {
      const bool within = col + i < a.columns();
      part |= static_cast<uint32_t>(within) << i;
      if (i % P.load == 0) place[i / P.load] = (static_cast<uint32_t>(at.line) * a.W + at.pixel) * a.C + at.channel;
      scale[i] = a.scale != nullptr && within ? a.scale[at.channel] : 1.0f;
      offset[i] = a.offset != nullptr && within ? a.offset[at.channel] : -0.0f;  // x + -0 is x, of either sign
      if constexpr (P.load == kPatchGroup) ++at.channel;  // all of one pixel
      else at.next(a);
    }
  }

  /// The group's elements of the patch that begins at the frame's line y and column x, negative in the padding;
  /// returns bit i for each that is one of the frame's.
  __device__ __forceinline__ uint32_t load(const In* frame, int y, int x, Vec<In, kPatchGroup>& raw) const {
    const In* patch = frame + (int64_t{y} * a.W + x) * a.C;
    const bool inner = y >= 0 && y + a.kernel_h <= a.H && x >= 0 && x + a.kernel_w <= a.W;
    uint32_t real = part;
    if (!inner) {
      PatchPlace at(a, col);
#pragma unroll 1
      for (int i = 0; i < kPatchGroup; i += P.load) {
        const int line = y + at.line, pixel = x + at.pixel;
        if (line < 0 || line >= a.H || pixel < 0 || pixel >= a.W) real &= P.load == kPatchGroup ? 0u : ~(1u << i);
        at.next(a);
      }
    }
#pragma unroll
    for (int i = 0; i < kPatchGroup; i += P.load) {
      if (!(real >> i & 1u)) continue;
      if constexpr (P.load == kPatchGroup) raw = load_raw<kPatchGroup, kPatchGroup>(patch + static_cast<int32_t>(place[0]));
      else raw.v[i] = patch[static_cast<int32_t>(place[i])];
    }
    return real;
  }

  template <class Out>
  __device__ __forceinline__ void store(Out* row, const Vec<In, kPatchGroup>& raw, uint32_t real) const {
    float v[kPatchGroup];
#pragma unroll
    for (int i = 0; i < kPatchGroup; ++i) v[i] = real >> i & 1u ? __fadd_rn(__fmul_rn(to_float(raw.v[i]), scale[i]), offset[i]) : 0.0f;
    if constexpr (P.store == kPatchGroup) {
      kernels::store<kPatchGroup>(row + col, v);
    } else {
#pragma unroll
      for (int i = 0; i < kPatchGroup; ++i)
        if (col + i < a.K) row[col + i] = from_float<Out>(v[i]);
    }
  }
};

/// Grid: ceil(T / rows) * stretches blocks. Moves every patch out and each pixel that a patch takes in.
template <class In, class Out, Im2colPolicy P>
__global__ void __launch_bounds__(P.threads) im2col(const __grid_constant__ Im2colArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int groups = static_cast<int>(a.groups.by), together = P.together(groups), stretches = P.stretches(groups);
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int side = stretches == 1 ? a.groups.quotient(thread) : 0;
  const int group = stretches == 1 ? a.groups.remainder(thread, side) : block % stretches * P.threads + thread;
  const int first = (stretches == 1 ? block : block / stretches) * P.rows(groups) + side, valid = valid_rows(a.rows, a.T);
  if (side >= together || group >= groups || first >= valid) return;
  const PatchColumns<In, P> columns(a, group * kPatchGroup);
  Vec<In, kPatchGroup> raw[P.items];
  uint32_t real[P.items];
#pragma unroll
  for (int k = 0; k < P.items; ++k) {
    const int t = min(first + k * together, valid - 1);  // no branch before a load: rows behind the last are read as it
    const int n = a.per_frame.quotient(t), patch = a.per_frame.remainder(t, n), oy = a.per_line.quotient(patch), ox = a.per_line.remainder(patch, oy);
    real[k] = columns.load(static_cast<const In*>(a.x) + n * a.x_stride, oy * a.stride_h - a.pad_h, ox * a.stride_w - a.pad_w, raw[k]);
  }
#pragma unroll
  for (int k = 0; k < P.items; ++k)
    if (const int t = first + k * together; t < valid) columns.store(static_cast<Out*>(a.out) + t * a.out_stride, raw[k], real[k]);
}

}  // namespace vivace::kernels
