// A head in the registers of a few lanes: load, RMS norm, rotation, store. For every CUDA op that rotates.
#pragma once
#include "vivace/kernels/rope/rope.h"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/sincos.cuh"

namespace vivace::kernels {

/// Where the chunks of this thread lie in a head, and the sines of its pairs.
template <RopePolicy P>
struct HeadPart {
  static constexpr int V = P.vec, C = P.chunks;
  // First elements of the two vectors of a chunk; -1 where the head has none. In the interleaved style a
  // rotating chunk is one stretch of 2V, and its pairs are neighbours.
  int a[C], b[C];
  bool rotates[C];
  bool interleaved;
  float cosine[C][V], sine[C][V];

  __device__ __forceinline__ HeadPart(int lane, int D, int R, RopeStyle style) : interleaved(style == RopeStyle::interleaved) {
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

  __device__ __forceinline__ void set_angles(const float* inv_freq, int lane, float pos, float factor) {
#pragma unroll
    for (int k = 0; k < C; ++k) {
      if (!rotates[k]) continue;
      float f[V];
#pragma unroll
      for (int i = 0; i < V; ++i) f[i] = inv_freq[(lane + k * P.lanes) * V + i];
#pragma unroll
      for (int i = 0; i < V; ++i) {
        sin_cos(pos * f[i], &sine[k][i], &cosine[k][i]);
        cosine[k][i] *= factor;
        sine[k][i] *= factor;
      }
    }
  }

  /// h[k][0 .. V) are the elements from a[k] on, h[k][V .. 2V) those from b[k] on; absent ones are 0.
  template <class In>
  __device__ __forceinline__ void load_head(const In* head, float (&h)[C][2 * V]) const {
#pragma unroll
    for (int k = 0; k < C; ++k) {
      float lo[V] = {}, hi[V] = {};
      if (a[k] >= 0) load<V>(head + a[k], lo);
      if (b[k] >= 0) load<V>(head + b[k], hi);
#pragma unroll
      for (int i = 0; i < V; ++i) h[k][i] = lo[i], h[k][V + i] = hi[i];
    }
  }

  template <class Out>
  __device__ __forceinline__ void store_head(Out* head, const float (&h)[C][2 * V]) const {
#pragma unroll
    for (int k = 0; k < C; ++k) {
      float lo[V], hi[V];
#pragma unroll
      for (int i = 0; i < V; ++i) lo[i] = h[k][i], hi[i] = h[k][V + i];
      if (a[k] >= 0) store<V>(head + a[k], lo);
      if (b[k] >= 0) store<V>(head + b[k], hi);
    }
  }

  /// h = h * rsqrt(mean(h^2) + eps) * (w + plus). All lanes of the head take part.
  template <class Weight>
  __device__ __forceinline__ void norm(float (&h)[C][2 * V], int D, float eps, Weight&& weight, float plus) const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < C; ++k)
#pragma unroll
      for (int i = 0; i < 2 * V; ++i) sum += h[k][i] * h[k][i];
#pragma unroll
    for (int lane = P.lanes / 2; lane > 0; lane >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    const float inv = rsqrtf(sum / static_cast<float>(D) + eps);
#pragma unroll
    for (int k = 0; k < C; ++k)
#pragma unroll
      for (int i = 0; i < 2 * V; ++i) {
        const int base = i < V ? a[k] : b[k];
        if (base >= 0) h[k][i] *= inv * (weight(base + i % V) + plus);
      }
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
    x = x0 * c - y0 * s;
    y = y0 * c + x0 * s;
  }
};

}  // namespace vivace::kernels
