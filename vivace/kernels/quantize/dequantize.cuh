// dequantize on CUDA: formula in vivace/ops/dequantize.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/quantize/dequantize.h"
#include "vivace/kernels/tile/stretch.cuh"

namespace vivace::kernels {

__device__ __forceinline__ float to_float(signed char v) { return static_cast<float>(v); }

/// V codes as they lie in memory, as words where they fill some.
template <class In, int V, bool kWords = (kIsSame<In, signed char> && V % 4 == 0) || kByWords<In, V>>
struct CodeGroup {
  Vec<In, V> raw;
  __device__ __forceinline__ void values(float (&v)[V]) const { to_floats(raw, v); }
};
template <class In, int V>
struct CodeGroup<In, V, true> {
  Vec<uint32_t, V / 4> raw;
  __device__ __forceinline__ void values(float (&v)[V]) const {
    if constexpr (kIsSame<In, signed char>) {
#pragma unroll
      for (int i = 0; i < V; ++i) v[i] = static_cast<float>(static_cast<signed char>(raw.v[i / 4] >> (i % 4 * 8)));
    } else {
      words_to_floats(raw, v);
    }
  }
};

/// Grid: T * ceil(H / stretch) blocks. Moves 1 + Out bytes an element. vec divides 128.
template <class In, class Out, StretchPolicy P>
__global__ void __launch_bounds__(P.threads) dequantize(const __grid_constant__ DequantizeArgs a) {
  const StretchPlace<P> place(a.H);
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = place.t;
  if (t >= valid_rows(a.rows, a.T)) return;
  const In* x = static_cast<const In*>(a.x) + t * a.x_stride;
  CodeGroup<In, P.vec> codes[P.items];
  float scale[P.items];
  place.each_clamped([&](int k, int col) { codes[k] = *reinterpret_cast<const CodeGroup<In, P.vec>*>(x + col); });
  if (a.block_scale != nullptr) {
    place.each_clamped([&](int k, int col) { scale[k] = a.block_scale[t * a.block_stride + col / kQuantBlock]; });
  } else {
    const float whole = a.scale ? *a.scale : a.row_scale ? a.row_scale[t] : 1.0f;
#pragma unroll
    for (float& s : scale) s = whole;
  }
  place.each([&](int k, int col) {
    float v[P.vec];
    codes[k].values(v);
#pragma unroll
    for (float& f : v) f *= scale[k];
    store<P.vec>(static_cast<Out*>(a.out) + t * a.out_stride + col, v);
  });
}

}  // namespace vivace::kernels
