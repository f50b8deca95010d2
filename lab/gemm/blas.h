// The peer: cuBLASLt's best algorithm of those that its heuristic offers. Opened at run time.
#pragma once
#include <cublasLt.h>
#include <dlfcn.h>

#include <memory>

#include "lab/gemm/harness.h"

namespace lab {

#define LAB_BLAS(name) reinterpret_cast<decltype(&name)>(dlsym(lib_, #name))

class Blas {
 public:
  struct Times {
    double peer = NAN, ours = NAN;
  };
  Blas() {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"})
      if ((lib_ = dlopen(name, RTLD_NOW))) break;
    if (!lib_) {
      std::printf("no cuBLASLt: %s\n", dlerror());
      return;
    }
    workspace_ = device_alloc<char>(kWorkspace);
    LAB_BLAS(cublasLtCreate)(&handle_);
  }
  bool ok() const { return handle_ != nullptr; }

  /// us a product y = x W^T (row-major), bf16 out, weights rotated, of the best algorithm and of `ours`, in turn. NaN
  /// where nothing serves it.
  Times time(cudaDataType_t type, const char* x, const char* w, size_t w_bytes, int copies, void* y, int M, int N,
             int K, int nodes, int algorithms, const Graph* ours = nullptr) {
    if (!ok()) return {};
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t la, lb, lc;
    cublasLtMatmulPreference_t preference;
    LAB_BLAS(cublasLtMatmulDescCreate)(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    LAB_BLAS(cublasLtMatmulDescSetAttribute)(op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    const auto layout = LAB_BLAS(cublasLtMatrixLayoutCreate);
    layout(&la, type, K, N, K);
    layout(&lb, type, K, M, K);
    layout(&lc, CUDA_R_16BF, N, M, N);
    LAB_BLAS(cublasLtMatmulPreferenceCreate)(&preference);
    LAB_BLAS(cublasLtMatmulPreferenceSetAttribute)(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                                   sizeof kWorkspace);
    cublasLtMatmulHeuristicResult_t found[16];  // a vector of this unnamed type stops nvcc 13.0
    int count = 0;
    LAB_BLAS(cublasLtMatmulAlgoGetHeuristic)(handle_, op, la, lb, lc, lc, preference, algorithms, found, &count);
    const auto matmul = LAB_BLAS(cublasLtMatmul);
    const float one = 1, zero = 0;
    const auto made = [&](int i) {
      return std::make_unique<Graph>(nodes, [&, i](int n, cudaStream_t stream) {
        return matmul(handle_, op, &one, w + n % copies * w_bytes, la, x, lb, &zero, y, lc, y, lc, &found[i].algo,
                      workspace_, kWorkspace, stream) == CUBLAS_STATUS_SUCCESS;
      });
    };
    std::unique_ptr<Graph> best;
    double least = INFINITY;
    for (int i = 0; i < count; ++i) {
      auto graph = made(i);
      if (const double t = in_turn({graph.get()}, 3)[0]; t < least) least = t, best = std::move(graph);
    }
    Times us;
    if (best && ours) {
      const std::vector<double> both = in_turn({best.get(), ours}, 9);
      us = {both[0], both[1]};
    } else if (best) {
      us.peer = least;
    }
    LAB_BLAS(cublasLtMatmulPreferenceDestroy)(preference);
    const auto destroy = LAB_BLAS(cublasLtMatrixLayoutDestroy);
    destroy(la), destroy(lb), destroy(lc);
    LAB_BLAS(cublasLtMatmulDescDestroy)(op);
    return us;
  }

 private:
  static constexpr size_t kWorkspace = 64 << 20;
  void* lib_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  char* workspace_ = nullptr;
};

}  // namespace lab
