// The peer: cuBLASLt's best algorithm of those that its heuristic offers. Opened at run time.
#pragma once
#include <cublasLt.h>
#include <dlfcn.h>

#include "lab/gemm/harness.h"

namespace lab {

class Blas {
 public:
  Blas() {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"})
      if ((lib_ = dlopen(name, RTLD_NOW))) break;
    if (!lib_) {
      std::printf("no cuBLASLt: %s\n", dlerror());
      return;
    }
    workspace_ = device_alloc<char>(kWorkspace);
    call<decltype(&cublasLtCreate)>("cublasLtCreate")(&handle_);
  }
  bool ok() const { return handle_ != nullptr; }

  /// us a product y = x W^T (row-major), bf16 out, weights rotated. NaN where nothing serves it.
  double time(cudaDataType_t type, const char* x, const char* w, size_t w_bytes, int copies, void* y, int M, int N, int K, int nodes, int algorithms) {
    if (!ok()) return NAN;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t la, lb, lc;
    cublasLtMatmulPreference_t preference;
    call<decltype(&cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate")(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    call<decltype(&cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute")(op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    const auto layout = call<decltype(&cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
    layout(&la, type, K, N, K);
    layout(&lb, type, K, M, K);
    layout(&lc, CUDA_R_16BF, N, M, N);
    call<decltype(&cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate")(&preference);
    call<decltype(&cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute")(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof kWorkspace);
    std::vector<cublasLtMatmulHeuristicResult_t> found(algorithms);
    int count = 0;
    call<decltype(&cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic")(handle_, op, la, lb, lc, lc, preference, algorithms, found.data(), &count);
    const auto matmul = call<decltype(&cublasLtMatmul)>("cublasLtMatmul");
    const float one = 1, zero = 0;
    double best = NAN;
    for (int i = 0; i < count; ++i) {
      const double us = time_graph(nodes, [&](int n, cudaStream_t stream) {
        return matmul(handle_, op, &one, w + n % copies * w_bytes, la, x, lb, &zero, y, lc, y, lc, &found[i].algo, workspace_, kWorkspace, stream) == CUBLAS_STATUS_SUCCESS;
      }, 3);
      if (!(us >= best)) best = us;  // NaN too
    }
    call<decltype(&cublasLtMatmulPreferenceDestroy)>("cublasLtMatmulPreferenceDestroy")(preference);
    const auto destroy = call<decltype(&cublasLtMatrixLayoutDestroy)>("cublasLtMatrixLayoutDestroy");
    destroy(la), destroy(lb), destroy(lc);
    call<decltype(&cublasLtMatmulDescDestroy)>("cublasLtMatmulDescDestroy")(op);
    return best;
  }

 private:
  static constexpr size_t kWorkspace = 64 << 20;
  template <class F>
  F call(const char* name) {
    return reinterpret_cast<F>(dlsym(lib_, name));
  }
  void* lib_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  char* workspace_ = nullptr;
};

}  // namespace lab
