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

/// One group of a row: its elements on their way, then scaled and stored.
template <class In, Im2colPolicy P>
struct PatchGroup {
  Vec<In, kPatchGroup> raw;
  uint32_t real = 0;  // bit i: element i is a pixel of the frame, not padding

  /// `y`, `x`: the frame's line and column where the patch begins, negative in the padding.
  __device__ __forceinline__ void load(const Im2colArgs& a, const In* frame, int y, int x, int col) {
    PatchPlace at(a, col);
#pragma unroll
    for (int i = 0; i < kPatchGroup; i += P.load) {
      const int line = y + at.line, pixel = x + at.pixel;
      if (col + i < a.columns() && line >= 0 && line < a.H && pixel >= 0 && pixel < a.W) {
        const In* p = frame + (line * a.W + pixel) * a.C + at.channel;
        if constexpr (P.load == kPatchGroup) {
          raw = load_raw<kPatchGroup, kPatchGroup>(p);
          real = ~0u;
        } else {
          raw.v[i] = *p;
          real |= 1u << i;
        }
      }
      if constexpr (P.load == 1) at.next(a);
    }
  }
  template <class Out>
  __device__ __forceinline__ void store(const Im2colArgs& a, Out* row, int col) const {
    float v[kPatchGroup];
    PatchPlace at(a, col);
    const bool scaled = a.scale != nullptr || a.offset != nullptr;
#pragma unroll
    for (int i = 0; i < kPatchGroup; ++i) {
      v[i] = real >> i & 1u ? to_float(raw.v[i]) : 0.0f;
      if (!scaled) continue;
      if (real >> i & 1u) {
        if (a.scale != nullptr) v[i] = __fmul_rn(v[i], a.scale[at.channel]);
        if (a.offset != nullptr) v[i] = __fadd_rn(v[i], a.offset[at.channel]);
      }
      at.next(a);
    }
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
  const int groups = static_cast<int>(a.groups.by), together = P.rows(groups), stretches = P.stretches(groups);
  const int block = static_cast<int>(blockIdx.x), first = stretches == 1 ? 0 : block % stretches * P.slots();
  const int t0 = stretches == 1 ? block * together : block / stretches, valid = valid_rows(a.rows, a.T);
  PatchGroup<In, P> part[P.items];
  int row[P.items], col[P.items];
#pragma unroll
  for (int k = 0; k < P.items; ++k) {
    const int i = first + k * P.threads + static_cast<int>(threadIdx.x), r = a.groups.quotient(i), t = t0 + r;
    row[k] = r < together && t < valid ? t : -1;
    col[k] = a.groups.remainder(i, r) * kPatchGroup;
    if (row[k] < 0) continue;
    const int n = a.per_frame.quotient(t), patch = a.per_frame.remainder(t, n), oy = a.per_line.quotient(patch), ox = a.per_line.remainder(patch, oy);
    part[k].load(a, static_cast<const In*>(a.x) + n * a.x_stride, oy * a.stride_h - a.pad_h, ox * a.stride_w - a.pad_w, col[k]);
  }
#pragma unroll
  for (int k = 0; k < P.items; ++k)
    if (row[k] >= 0) part[k].store(a, static_cast<Out*>(a.out) + row[k] * a.out_stride, col[k]);
}

}  // namespace vivace::kernels
