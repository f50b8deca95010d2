// softmax of some rows by vivace/kernels/softmax/softmax.cuh: compiled by NVRTC, launched by the CUDA runtime.
#include <cuda_runtime.h>
#include <nvrtc.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "vivace/kernels/softmax/softmax.h"

namespace kernels = vivace::kernels;

void must(bool ok, const std::string& what) {
  if (ok) return;
  std::printf("%s\n", what.c_str());
  std::exit(1);
}
void must(cudaError_t e) {
  must(e == cudaSuccess, cudaGetErrorString(e));
}

/// The machine code of `instance`, a kernel of `header`, and its name in there.
std::vector<char> compiled(const std::string& header, const char* instance, const std::string& arch,
                           std::string* name) {
  nvrtcProgram program;
  const std::string source = "#include \"" + header + "\"\n";
  must(nvrtcCreateProgram(&program, source.c_str(), "raw_kernel.cu", 0, nullptr, nullptr) == NVRTC_SUCCESS, "NVRTC");
  nvrtcAddNameExpression(program, instance);
  const std::string target = "-arch=" + arch;
  const char* options[] = {"-std=c++20", "-default-device", target.c_str(), "-I" VIVACE_INCLUDE, "-I" CUDA_INCLUDE};
  if (nvrtcCompileProgram(program, 5, options) != NVRTC_SUCCESS) {
    size_t size = 0;
    nvrtcGetProgramLogSize(program, &size);
    std::string log(size, '\0');
    nvrtcGetProgramLog(program, log.data());
    must(false, log);
  }
  const char* lowered = nullptr;
  size_t size = 0;
  must(nvrtcGetLoweredName(program, instance, &lowered) == NVRTC_SUCCESS, "no such kernel");
  *name = lowered;
  nvrtcGetCUBINSize(program, &size);
  std::vector<char> code(size);
  nvrtcGetCUBIN(program, code.data());
  nvrtcDestroyProgram(&program);
  return code;
}

int main() {
  constexpr int kRows = 3, kColumns = 1000;
  // A block a row: 256 threads, each with one group of 4 neighbours in registers, room for 1024 columns. A group is one
  // access, so that rows begin at multiples of 16 bytes and have a multiple of 4 columns.
  constexpr kernels::SoftmaxPolicy kPolicy{.threads = 256, .vec = 4, .items = 1, .wide = true};
  static_assert(kPolicy.capacity() >= kColumns && kColumns % kPolicy.vec == 0);
  const char* instance = "vivace::kernels::softmax<float, float, vivace::kernels::SoftmaxPolicy{256, 4, 1, true}>";

  int major = 9, minor = 0;  // without a GPU: what the code for an H100 would be
  const bool gpu = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
                   cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess;
  if (!gpu) major = 9, minor = 0;
  std::string name;
  const std::vector<char> code =
      compiled("vivace/kernels/softmax/softmax.cuh", instance, "sm_" + std::to_string(10 * major + minor), &name);
  std::printf("%s: %s\n", name.c_str(), code.size() > 1000 ? "compiled" : "empty");
  if (!gpu) {
    std::printf("no GPU\n");
    return 0;
  }

  cudaLibrary_t library;
  cudaKernel_t kernel;
  must(cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  must(cudaLibraryGetKernel(&kernel, library, name.c_str()));

  std::vector<float> x(kRows * kColumns), y(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * static_cast<float>(i % 97);
  const size_t bytes = sizeof(float) * x.size();
  void *dx = nullptr, *dy = nullptr;
  must(cudaMalloc(&dx, bytes)), must(cudaMalloc(&dy, bytes));
  must(cudaMemcpy(dx, x.data(), bytes, cudaMemcpyHostToDevice));

  kernels::SoftmaxArgs args{};  // the struct that the library fills, too; softmax.h says what each member is
  args.x = dx, args.out = dy;
  args.x_stride = args.out_stride = kColumns;
  args.T = kRows, args.H = kColumns, args.scale = 1.0f;
  args.x_dtype = args.out_dtype = vivace::DType::f32;
  void* pointers[] = {&args};
  must(cudaLaunchKernel(kernel, dim3(kRows), dim3(kPolicy.threads), pointers, 0, nullptr));
  must(cudaMemcpy(y.data(), dy, bytes, cudaMemcpyDeviceToHost));

  double worst = 0;
  for (int t = 0; t < kRows; ++t) {
    double sum = 0;
    for (int i = t * kColumns; i < (t + 1) * kColumns; ++i) sum += std::exp(static_cast<double>(x[i]));
    for (int i = t * kColumns; i < (t + 1) * kColumns; ++i)
      worst = std::fmax(worst, std::fabs(y[i] - std::exp(static_cast<double>(x[i])) / sum));
  }
  std::printf("softmax of %d rows, largest error %.1e\n", kRows, worst);
  return worst < 1e-7 ? 0 : 1;
}
