// stft_mel on CUDA: formula in vivace/ops/stft_mel.h. A transform of some hundred samples in f64, as a sum over half of
// them: what lies the same distance before and behind the middle shares its sine and cosine.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/audio/stft_mel.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// Grid: ceil(T / P.frames). Dynamic shared memory as the op's shape() says.
template <StftMelPolicy P>
__global__ void __launch_bounds__(P.threads) stft_mel(const __grid_constant__ StftMelArgs a) {
  extern __shared__ __align__(16) double stft_memory[];
  const int W = a.W, half = W / 2, F = half + 1, tid = static_cast<int>(threadIdx.x);
  double2* const turn = reinterpret_cast<double2*>(stft_memory);       // [W] cos, sin of 2 pi i / W
  double2* const folded = turn + W;  // [F][P.frames] sum and difference of x[n] and x[W - n]
  float* const power = reinterpret_cast<float*>(folded + F * P.frames);  // [P.frames][F]
  for (int i = tid; i < W; i += P.threads) {
    double s, c;
    sincospi(2.0 * i / W, &s, &c);
    turn[i] = {c, s};
  }
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int T = valid_rows(a.rows, a.T), first = static_cast<int>(blockIdx.x) * P.frames;
  if (first >= T) return;
  for (int i = tid; i < F * P.frames; i += P.threads) {
    const int n = i / P.frames, k = i % P.frames, t = first + k;
    double2 v = {0.0, 0.0};
    if (t < T) {
      const int b = a.frames.quotient(t), f = a.frames.remainder(t, b);
      const float* const x = a.x + b * a.x_stride;
      const double here = static_cast<double>(x[a.sample(f, n)]) * static_cast<double>(a.window[n]);
      // The first sample and the middle one have no partner.
      const double there =
          n == 0 || n == half ? 0.0 : static_cast<double>(x[a.sample(f, W - n)]) * static_cast<double>(a.window[W - n]);
      v = {here + there, here - there};
    }
    folded[i] = v;
  }
  __syncthreads();
  for (int f = tid; f < F; f += P.threads) {
    double real[P.frames] = {}, imaginary[P.frames] = {};
    int at = 0;
    for (int n = 0; n < F; ++n) {
      const double2 w = turn[at];
#pragma unroll
      for (int k = 0; k < P.frames; ++k) {
        const double2 v = folded[n * P.frames + k];
        real[k] = fma(v.x, w.x, real[k]);
        imaginary[k] = fma(v.y, w.y, imaginary[k]);
      }
      at += f;
      at = at < W ? at : at - W;
    }
#pragma unroll
    for (int k = 0; k < P.frames; ++k)
      power[k * F + f] = static_cast<float>(fma(real[k], real[k], imaginary[k] * imaginary[k]));
  }
  __syncthreads();
  // A warp takes a frame.
  const int warp = tid / 32, lane = tid % 32;
  for (int k = warp; k < P.frames && first + k < T; k += P.threads / 32) {
    float most = -__uint_as_float(0x7f800000u);
    for (int m = lane; m < a.M; m += 32) {
      const float* const filter = a.filters + m * a.filters_stride;
      float sum = 0.0f;
      for (int f = 0; f < F; ++f) sum = filter[f] != 0.0f ? fmaf(filter[f], power[k * F + f], sum) : sum;
      const float y = log10f(sum < kLeastMel ? kLeastMel : sum);
      a.out[(first + k) * a.out_stride + m] = y;
      most = fmaxf(most, y);
    }
    most = warp_reduce(most, Max());
    if (lane == 0 && a.peak != nullptr) a.peak[first + k] = most;
  }
}

}  // namespace vivace::kernels
