// softmax of one row on the GPU, by Vivace's kernel and without its runtime.
#include <cmath>
#include <cstdio>
#include <vector>

#include "vivace/kernels/softmax/softmax_launch.h"

int main() {
  constexpr int kColumns = 1000;
  std::vector<float> x(kColumns), y(kColumns);
  double sum = 0;
  for (int i = 0; i < kColumns; ++i) sum += std::exp(x[i] = 0.01f * static_cast<float>(i % 97));

  // Whatever is wrong with a call is said before a GPU is asked for: here, tensors in host memory.
  const auto on = [](void* p, vivace::Place place) {
    return vivace::tensor(p, vivace::DType::f32, vivace::Shape(1, kColumns), place);
  };
  const vivace::Status host = vivace::launch::softmax(
      {{"x", on(x.data(), vivace::Place::host)}, {"out", on(y.data(), vivace::Place::host)}}, {}, nullptr);
  std::printf("%s\n", host.to_string().c_str());

  float *dx = nullptr, *dy = nullptr;
  if (cudaMalloc(&dx, sizeof(float) * kColumns) != cudaSuccess ||
      cudaMalloc(&dy, sizeof(float) * kColumns) != cudaSuccess) {
    std::printf("no GPU\n");
    return 0;
  }
  cudaMemcpy(dx, x.data(), sizeof(float) * kColumns, cudaMemcpyHostToDevice);
  const vivace::Status s = vivace::launch::softmax(
      {{"x", on(dx, vivace::Place::device)}, {"out", on(dy, vivace::Place::device)}}, {}, nullptr);
  if (!s.ok()) {
    std::printf("%s\n", s.to_string().c_str());
    return 1;
  }
  cudaMemcpy(y.data(), dy, sizeof(float) * kColumns, cudaMemcpyDeviceToHost);
  double worst = 0;
  for (int i = 0; i < kColumns; ++i)
    worst = std::fmax(worst, std::fabs(y[i] - std::exp(static_cast<double>(x[i])) / sum));
  std::printf("softmax of %d values, largest error %.1e\n", kColumns, worst);
  return worst < 1e-7 ? 0 : 1;
}
