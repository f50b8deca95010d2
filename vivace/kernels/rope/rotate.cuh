// A head in the registers of a few lanes: load, RMS norm, rotation, store. For every CUDA op that rotates.
#pragma once
#include "vivace/kernels/rope/rope.h"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/sincos.cuh"

namespace vivace::kernels {

/// N elements of a norm weight, whose type is known at run time only: [D] values that stay in L1.
template <int N>
__device__ __forceinline__ void load_weight(const void* w, DType dtype, int i, float (&out)[N]) {
  const uint16_t* halves = static_cast<const uint16_t*>(w) + i;
  if (dtype == DType::f32) {
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = static_cast<const float*>(w)[i + j];
    return;
  }
  Vec<uint16_t, N> raw;
  if (reinterpret_cast<uint64_t>(halves) % sizeof(raw) == 0) {
    raw = load_raw<N, N>(halves);
  } else {
    raw = load_raw<1, N>(halves);
  }
  if (dtype == DType::bf16) {
    to_floats(reinterpret_cast<const Vec<bf16, N>&>(raw), out);
  } else {
    to_floats(reinterpret_cast<const Vec<f16, N>&>(raw), out);
  }
}

/// The token's sines, computed once a block and shared by its heads.
template <RopePolicy P>
struct RopeAngles {
  alignas(16) float cosine[P.pairs()];
  alignas(16) float sine[P.pairs()];

  /// Where pair `i` lies. Chunks of eight are cut in two halves, far from each other: eight lanes that read 16 bytes
  /// each of neighbouring chunks then meet every bank once.
  __device__ __forceinline__ static int place(int i) {
    return P.vec == 8 ? (i & 4) / 4 * (P.pairs() / 2) + i / 8 * 4 + (i & 3) : i;
  }

  __device__ __forceinline__ void put(int i, float angle, float factor) {
    float s, c;
    sin_cos(angle, &s, &c);
    cosine[place(i)] = __fmul_rn(c, factor);
    sine[place(i)] = __fmul_rn(s, factor);
  }
  /// All threads of the block; a barrier must follow.
  __device__ __forceinline__ void fill(const float* inv_freq, int R, float pos, float factor) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < R; i += P.threads) put(i, __fmul_rn(pos, inv_freq[i]), factor);
  }
  /// The same of angles that are made: R cosines, then R sines.
  __device__ __forceinline__ void copy(const float* from, int R) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < R; i += P.threads)
      cosine[place(i)] = from[i], sine[place(i)] = from[R + i];
  }
  /// The same where each pair has a position of its own, `at(pair)`.
  template <class At>
  __device__ __forceinline__ void fill_each(const float* inv_freq, int R, float factor, At&& at) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < R; i += P.threads)
      put(i, __fmul_rn(static_cast<float>(at(i)), inv_freq[i]), factor);
  }
};

/// Where the chunks of this thread lie in a head. Products and sums are written out: the compiler must not
/// contract them one way in one tactic and another way in the next.
template <RopePolicy P>
struct HeadPart {
  static constexpr int V = P.vec, A = P.access, C = P.chunks;
  // First elements of the two vectors of a chunk; -1 where the head has none. In the interleaved style a
  // rotating chunk is one stretch of 2V, and its pairs are neighbours.
  int a[C], b[C];
  bool rotates[C];
  bool interleaved;
  float cosine[C][V], sine[C][V];

  __device__ __forceinline__ HeadPart(int lane, int D, int R, RopeStyle style)
      : interleaved(style == RopeStyle::interleaved) {
    const int pairs = (R + V - 1) / V;  // chunks that rotate
#pragma unroll
    for (int k = 0; k < C; ++k) {
      const int chunk = lane + k * P.lanes;
      rotates[k] = chunk < pairs;
      a[k] = !rotates[k] ? 2 * R + (chunk - pairs) * 2 * V : interleaved ? chunk * 2 * V : chunk * V;
      b[k] = a[k] + (rotates[k] && !interleaved ? R : V);
      if (a[k] >= D) a[k] = -1;
      if (a[k] < 0 || b[k] >= D) b[k] = -1;
    }
  }

  __device__ __forceinline__ void take_angles(const RopeAngles<P>& angles, int lane) {
#pragma unroll
    for (int k = 0; k < C; ++k) {
      if (!rotates[k]) continue;
      const int first = (lane + k * P.lanes) * V;
      if constexpr (V == 8) {
#pragma unroll
        for (int i = 0; i < V; i += 4) {
          load<4>(angles.cosine + RopeAngles<P>::place(first + i), reinterpret_cast<float(&)[4]>(cosine[k][i]));
          load<4>(angles.sine + RopeAngles<P>::place(first + i), reinterpret_cast<float(&)[4]>(sine[k][i]));
        }
      } else {
        load<V>(angles.cosine + first, cosine[k]);
        load<V>(angles.sine + first, sine[k]);
      }
    }
  }

  /// A head as it lies in memory, so that several in flight cost few registers.
  template <class In>
  struct Raw {
    Vec<In, V> lo[C], hi[C];
  };
  template <class In>
  __device__ __forceinline__ void load_head(const In* head, Raw<In>& r) const {
#pragma unroll
    for (int k = 0; k < C; ++k) {
      if constexpr (A > 1)
        r.lo[k] = {}, r.hi[k] = {};  // four words of zeros rather than as many selections as elements
      if (a[k] >= 0) r.lo[k] = load_raw<A, V>(head + a[k]);
      if (b[k] >= 0) r.hi[k] = load_raw<A, V>(head + b[k]);
    }
  }

  /// h[k][0 .. V) are the elements from a[k] on, h[k][V .. 2V) those from b[k] on; absent ones are 0.
  template <class In>
  __device__ __forceinline__ void upcast(const Raw<In>& r, float (&h)[C][2 * V]) const {
#pragma unroll
    for (int k = 0; k < C; ++k) {
      if constexpr (A > 1) {
        float lo[V], hi[V];
        to_floats(r.lo[k], lo);
        to_floats(r.hi[k], hi);
#pragma unroll
        for (int i = 0; i < V; ++i) h[k][i] = lo[i], h[k][V + i] = hi[i];
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          h[k][i] = a[k] >= 0 ? to_float(r.lo[k].v[i]) : 0.0f;
          h[k][V + i] = b[k] >= 0 ? to_float(r.hi[k].v[i]) : 0.0f;
        }
      }
    }
  }

  template <class Out>
  __device__ __forceinline__ void store_head(Out* head, const float (&h)[C][2 * V]) const {
#pragma unroll
    for (int k = 0; k < C; ++k) {
      float lo[V], hi[V];
#pragma unroll
      for (int i = 0; i < V; ++i) lo[i] = h[k][i], hi[i] = h[k][V + i];
      if (a[k] >= 0) store_by<A>(head + a[k], lo);
      if (b[k] >= 0) store_by<A>(head + b[k], hi);
    }
  }

  /// rsqrt(mean(h^2) + eps), in every lane of the head. All of them take part.
  __device__ __forceinline__ float inverse_rms(const float (&h)[C][2 * V], int D, float eps) const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < C; ++k)
#pragma unroll
      for (int i = 0; i < 2 * V; ++i) sum = fmaf(h[k][i], h[k][i], sum);
#pragma unroll
    for (int lane = P.lanes / 2; lane > 0; lane >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    return rsqrtf(fmaf(sum, __frcp_rn(static_cast<float>(D)), eps));
  }

  /// weight + plus; 0 + plus where the head has no element.
  __device__ __forceinline__ void load_weights(const void* w, DType dtype, float plus,
                                               float (&weight)[C][2 * V]) const {
#pragma unroll
    for (int k = 0; k < C; ++k) {
      float lo[V] = {}, hi[V] = {};
      if (a[k] >= 0) load_weight<V>(w, dtype, a[k], lo);
      if (b[k] >= 0) load_weight<V>(w, dtype, b[k], hi);
#pragma unroll
      for (int i = 0; i < V; ++i) weight[k][i] = __fadd_rn(lo[i], plus), weight[k][V + i] = __fadd_rn(hi[i], plus);
    }
  }
  /// h = h * (inverse * weight).
  __device__ __forceinline__ void scale(float (&h)[C][2 * V], float inverse, const float (&weight)[C][2 * V]) const {
#pragma unroll
    for (int k = 0; k < C; ++k)
#pragma unroll
      for (int i = 0; i < 2 * V; ++i) h[k][i] = __fmul_rn(h[k][i], __fmul_rn(inverse, weight[k][i]));
  }

  __device__ __forceinline__ void rotate(float (&h)[C][2 * V]) const {
#pragma unroll
    for (int k = 0; k < C; ++k) {
      if (!rotates[k]) continue;
      if (interleaved) {
#pragma unroll
        for (int i = 0; i < V; ++i) turn(h[k][2 * i], h[k][2 * i + 1], cosine[k][i], sine[k][i]);
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i) turn(h[k][i], h[k][V + i], cosine[k][i], sine[k][i]);
      }
    }
  }

 private:
  __device__ __forceinline__ static void turn(float& x, float& y, float c, float s) {
    const float x0 = x, y0 = y;
    x = fmaf(x0, c, -__fmul_rn(y0, s));
    y = fmaf(y0, c, __fmul_rn(x0, s));
  }
};

}  // namespace vivace::kernels
