// The step again, slow and plain, in f64: one kernel an op, nothing rounded but what the model's tensors are.
#pragma once
#include <cuda_bf16.h>

namespace lab {

using Weight = const __nv_bfloat16*;

/// y = x / rms(x) * gain; one thread.
__global__ void norm_reference(const double* x, Weight gain, double* y, int n, double epsilon) {
  double squares = 0;
  for (int i = 0; i < n; ++i) squares += x[i] * x[i];
  const double inv = 1 / sqrt(squares / n + epsilon);
  for (int i = 0; i < n; ++i) y[i] = x[i] * inv * static_cast<double>(__bfloat162float(gain[i]));
}
/// y[row] = w[row] x, plus add[row] where it is given; a block of 128 a row.
__global__ void product_reference(Weight w, const double* x, double* y, int k, const double* add) {
  __shared__ double parts[128];
  double sum = 0;
  for (int i = threadIdx.x; i < k; i += 128)
    sum += static_cast<double>(__bfloat162float(w[static_cast<size_t>(blockIdx.x) * k + i])) * x[i];
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int i = 1; i < 128; ++i) sum += parts[i];
  y[blockIdx.x] = sum + (add ? add[blockIdx.x] : 0);
}
/// A head a block, one thread: its norm where a gain is given, then the rotation of dims d and d + size / 2.
__global__ void rope_reference(double* x, Weight gain, const float* cosine, const float* sine, int size,
                               double epsilon) {
  double* v = x + blockIdx.x * size;
  if (gain) {
    double squares = 0;
    for (int i = 0; i < size; ++i) squares += v[i] * v[i];
    const double inv = 1 / sqrt(squares / size + epsilon);
    for (int i = 0; i < size; ++i) v[i] *= inv * static_cast<double>(__bfloat162float(gain[i]));
  }
  for (int d = 0; d < size / 2; ++d) {
    const double a = v[d], b = v[d + size / 2];
    v[d] = a * cosine[d] - b * sine[d];
    v[d + size / 2] = b * cosine[d] + a * sine[d];
  }
}
/// A query head a block, `size` threads. Keys and values [kv heads, context, size] below `position`, then the new ones.
__global__ void attend_reference(const double* q, const double* new_k, const double* new_v, Weight keys, Weight values,
                                 double* out, int position, int context, int size, int group) {
  extern __shared__ double weight[];
  const int head = blockIdx.x, kv = head / group, d = threadIdx.x;
  for (int key = d; key <= position; key += size) {
    double s = 0;
    for (int i = 0; i < size; ++i)
      s += q[head * size + i] *
           (key == position
                ? new_k[kv * size + i]
                : static_cast<double>(__bfloat162float(keys[(static_cast<size_t>(kv) * context + key) * size + i])));
    weight[key] = s / sqrt(static_cast<double>(size));
  }
  __syncthreads();
  double most = weight[0], mass = 0, sum = 0;
  for (int key = 1; key <= position; ++key) most = fmax(most, weight[key]);
  for (int key = 0; key <= position; ++key) {
    const double w = exp(weight[key] - most);
    mass += w;
    sum +=
        w * (key == position
                 ? new_v[kv * size + d]
                 : static_cast<double>(__bfloat162float(values[(static_cast<size_t>(kv) * context + key) * size + d])));
  }
  out[head * size + d] = sum / mass;
}
/// h = silu(gate) up of rows that take turns.
__global__ void gate_reference(const double* both, double* h, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) h[i] = both[2 * i] / (1 + exp(-both[2 * i])) * both[2 * i + 1];
}
/// Uniform values of a standard deviation around a mean.
__global__ void draw(__nv_bfloat16* to, size_t n, float mean, float deviation, unsigned seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    unsigned h =
        static_cast<unsigned>(i) * 0x9e3779b9u + static_cast<unsigned>(i >> 32) * 0x85ebca6bu + seed * 0xc2b2ae35u;
    h ^= h >> 16, h *= 0x7feb352du, h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 16;
    to[i] = __float2bfloat16(mean + deviation * 1.7320508f * (static_cast<float>(h) * 0x1p-31f - 1.f));
  }
}

}  // namespace lab
