// quantize on CUDA: formula in vivace/ops/quantize.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/quantize/quantize.h"
#include "vivace/kernels/tile/divide.cuh"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

template <class Out>
constexpr float kQuantTop = 448.0f;
template <>
inline constexpr float kQuantTop<signed char> = 127.0f;

/// Largest magnitude -> scale; 1 where everything is zero.
template <class Out>
__device__ __forceinline__ float quant_scale(float amax) {
  return amax > 0 ? amax / kQuantTop<Out> : 1.0f;
}

/// x, already divided, as codes.
template <class Out, int V>
__device__ __forceinline__ void store_codes(Out* p, const float (&x)[V]) {
  if constexpr (kQuantTop<Out> == 127.0f && V % 4 == 0) {
    Vec<uint32_t, V / 4> words;
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      int q[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) q[j] = max(__float2int_rn(x[i + j]), -127);  // NaN converts to 0
      asm("{\n\t.reg .b32 upper;\n\tcvt.pack.sat.s8.s32.b32 upper, %4, %3, 0;\n\tcvt.pack.sat.s8.s32.b32 %0, %2, %1, "
          "upper;\n\t}"
          : "=r"(words.v[i / 4])
          : "r"(q[0]), "r"(q[1]), "r"(q[2]), "r"(q[3]));
    }
    *reinterpret_cast<Vec<uint32_t, V / 4>*>(p) = words;
  } else if constexpr (kQuantTop<Out> == 127.0f) {
#pragma unroll
    for (int i = 0; i < V; ++i) p[i] = static_cast<Out>(max(min(__float2int_rn(x[i]), 127), -127));
  } else {
    store<V>(p, x);
  }
}

/// This thread's accesses of a row: all are on their way before the first is used, so there is no branch before
/// a load. Those behind the row's end are what comes before it once more.
template <class In, QuantizePolicy P>
struct QuantPart {
  static constexpr int kItems = P.items > 0 ? P.items : 1;
  Vec<In, P.vec> raw[kItems];

  __device__ __forceinline__ void load(const In* x, int first, int step, int H) {
#pragma unroll
    for (int k = 0; k < kItems; ++k) raw[k] = load_raw<P.vec, P.vec>(x + min(first + k * step, H - P.vec));
  }
  __device__ __forceinline__ float largest(float amax) const {
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      float v[P.vec];
      to_floats(raw[k], v);
#pragma unroll
      for (const float x : v) amax = fmaxf(amax, fabsf(x));
    }
    return amax;
  }
  template <bool kFinite, class Out>
  __device__ __forceinline__ void store(Out* out, int first, int step, int H, const Divider& by) const {
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      float v[P.vec];
      to_floats(raw[k], v);
      by.template divide<kFinite>(v);
      if (first + k * step < H) store_codes(out + first + k * step, v);
    }
  }
};

template <class In, class Out, QuantizePolicy P>
__device__ __forceinline__ void quantize_given(const QuantizeArgs& a) {
  constexpr int kStep = P.threads * P.vec;
  const uint32_t stretches = (static_cast<uint32_t>(a.H) + kStep * P.items - 1) / (kStep * P.items);
  const int64_t t = blockIdx.x / stretches;
  const float scale = a.amax ? quant_scale<Out>(*a.amax) : *a.out_scale;
  if (a.tensor_scale != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *a.tensor_scale = scale;
  if (t >= valid_rows(a.rows, a.T)) return;
  const int first = static_cast<int>(blockIdx.x % stretches) * kStep * P.items + static_cast<int>(threadIdx.x) * P.vec;
  QuantPart<In, P> part;
  part.load(static_cast<const In*>(a.x) + t * a.x_stride, first, kStep, a.H);
  part.template store<false>(static_cast<Out*>(a.out) + t * a.out_stride, first, kStep, a.H, Divider(scale));
}

template <class In, class Out, QuantizePolicy P>
__device__ __forceinline__ void quantize_row(const QuantizeArgs& a) {
  constexpr int kStep = P.threads * P.vec;
  __shared__ float scratch[32];
  const int64_t t = blockIdx.x;
  if (t >= valid_rows(a.rows, a.T)) return;
  const In* x = static_cast<const In*>(a.x) + t * a.x_stride;
  Out* out = static_cast<Out*>(a.out) + t * a.out_stride;
  const int first = static_cast<int>(threadIdx.x) * P.vec;
  QuantPart<In, P> part;
  float amax = 0;
  if constexpr (P.items > 0) {
    if (a.H > 0) {
      part.load(x, first, kStep, a.H);
      amax = part.largest(amax);
    }
  } else {
    for (int col = first; col < a.H; col += kStep) part.load(x, col, 0, a.H), amax = part.largest(amax);
  }
  amax = block_reduce<P.threads, false>(amax, scratch, Max());
  const float scale = quant_scale<Out>(amax);
  if (threadIdx.x == 0) a.row_scale[t] = scale;
  const Divider by(scale);
  // An infinite amax leaves `quick`, so that every quotient by products is finite, or NaN.
  if constexpr (P.items > 0) {
    part.template store<true>(out, first, kStep, a.H, by);
  } else {
    for (int col = first; col < a.H; col += kStep)
      part.load(x, col, 0, a.H), part.template store<true>(out, col, 0, a.H, by);
  }
}

/// P.lanes() neighbouring lanes share 128 columns; those of a lane beyond H are its row's last ones once more,
/// which may belong to the block before: they do not count.
template <class In, class Out, QuantizePolicy P>
__device__ __forceinline__ void quantize_block(const QuantizeArgs& a) {
  constexpr int kLanes = P.lanes(), kUnits = P.threads / kLanes, kStep = kLanes * P.vec;
  static_assert(kLanes * P.vec * P.items == kQuantBlock && kLanes <= 32);
  const uint32_t blocks = (static_cast<uint32_t>(a.H) + kQuantBlock - 1) / kQuantBlock;
  const int64_t unit = int64_t{blockIdx.x} * kUnits + threadIdx.x / kLanes;
  const bool small = gridDim.x < (1u << 31) / kUnits;  // a division of 64 bits costs as much as all the rest
  const int64_t t = small ? static_cast<uint32_t>(unit) / blocks : unit / blocks;
  const int first = static_cast<int>(unit - t * blocks) * kQuantBlock + static_cast<int>(threadIdx.x) % kLanes * P.vec;
  const bool live = t < valid_rows(a.rows, a.T);  // others still take part in the shuffles
  QuantPart<In, P> part;
  float amax = 0;
  if (live) {
    part.load(static_cast<const In*>(a.x) + t * a.x_stride, first, kStep, a.H);
#pragma unroll
    for (int k = 0; k < P.items; ++k) {
      float v[P.vec];
      to_floats(part.raw[k], v);
#pragma unroll
      for (const float x : v) amax = first + k * kStep < a.H ? fmaxf(amax, fabsf(x)) : amax;
    }
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step >>= 1) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, step));
  if (!live) return;
  const float scale = quant_scale<Out>(amax);
  if (threadIdx.x % kLanes == 0) a.block_scale[t * a.block_stride + first / kQuantBlock] = scale;
  part.template store<true>(static_cast<Out*>(a.out) + t * a.out_stride, first, kStep, a.H, Divider(scale));
}

/// Grid: given: T * ceil(H / stretch); row: T; block: all 128-blocks. Moves In + 1 bytes a value.
template <class In, class Out, QuantizePolicy P>
__global__ void __launch_bounds__(P.threads) quantize(const __grid_constant__ QuantizeArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  if constexpr (P.scope == QuantScope::given) quantize_given<In, Out, P>(a);
  else if constexpr (P.scope == QuantScope::row) quantize_row<In, Out, P>(a);
  else quantize_block<In, Out, P>(a);
}

}  // namespace vivace::kernels
