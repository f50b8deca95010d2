// Launches of a cooperative grid of clusters, tensor maps and times. For the experiments of lab/persistent_policy.
#pragma once
#include <cudaTypedefs.h>

#include <map>
#include <set>

#include "lab/gemm/harness.h"
#include "lab/persistent_policy/parts.cuh"

namespace lab {
constexpr double kClockGhz = 1.98;  // of the action loop, as the study reckons

/// Rows of 16-bit elements in 128-byte swizzled boxes of 64 columns x `box_rows` (x `box_chunks` along the columns).
inline vivace::kernels::TensorMap tensor_map(const void* data, uint64_t rows, uint64_t columns, uint32_t box_rows,
                                             uint32_t box_chunks = 1) {
  static PFN_cuTensorMapEncodeTiled_v12000 encode = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found;
    LAB_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(f);
  }();
  vivace::kernels::TensorMap map;
  const cuuint64_t dims[] = {box_chunks > 1 ? 64 : columns, rows, columns / 64}, pitch[] = {columns * 2, 128};
  const cuuint32_t box[] = {64, box_rows, box_chunks}, steps[] = {1, 1, 1};
  const CUresult r =
      encode(reinterpret_cast<CUtensorMap*>(&map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, box_chunks > 1 ? 3 : 2,
             const_cast<void*>(data), dims, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS) std::printf("cuTensorMapEncodeTiled: %d\n", static_cast<int>(r)), std::exit(2);
  return map;
}

/// Says at the program's end which warps have waited in vain, and where: layer and place as the kernels number them.
inline void watch_waits() {
  static uint32_t* notes;
  constexpr int kAll = kCtas * kWarpsNoted;
  LAB_CHECK(cudaHostAlloc(&notes, kAll * 4, cudaHostAllocMapped));
  std::fill(notes, notes + kAll, 0u);
  LAB_CHECK(cudaMemcpyToSymbol(g_given_up, &notes, sizeof notes));
  std::atexit([] {
    std::map<std::pair<int, uint32_t>, std::pair<int, int>> waits;  // (warp, place) -> blocks, the first
    for (int i = 0; i < kAll; ++i)
      if (notes[i] != 0) {
        auto& w = waits.try_emplace({i % kWarpsNoted, notes[i]}, 0, i / kWarpsNoted).first->second;
        ++w.first;
      }
    int lines = 0;
    for (const auto& [what, blocks] : waits)
      if (++lines <= 40)
        std::printf("warp %d stands at layer %u, place %u in %d blocks, first %d\n", what.first, what.second / 32,
                    what.second % 32, blocks.first, blocks.second);
    std::fflush(stdout);
  });
}

/// One launch of `ctas` blocks in clusters; cooperative, so that a grid that cannot stand whole is refused. Where
/// clusters and cooperation are refused together it is said once, and launched without: the grid fits an empty device
/// all the same (X10).
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), int ctas, int cluster, int threads, int smem, Args... args) {
  static std::set<std::pair<const void*, int>> ready;
  static bool cooperates = true;
  const void* f = reinterpret_cast<const void*>(kernel);
  if (ready.insert({f, cluster}).second) {
    LAB_CHECK(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    if (cluster > 8) LAB_CHECK(cudaFuncSetAttribute(f, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cudaLaunchAttribute attr[2] = {};
  attr[0].id = cudaLaunchAttributeClusterDimension;
  attr[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  attr[1].id = cudaLaunchAttributeCooperative;
  attr[1].val.cooperative = 1;
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(static_cast<unsigned>(ctas)), c.blockDim = dim3(static_cast<unsigned>(threads));
  c.dynamicSmemBytes = static_cast<size_t>(smem), c.attrs = attr, c.numAttrs = cooperates ? 2 : 1;
  cudaError_t error = cudaLaunchKernelEx(&c, kernel, static_cast<Params>(args)...);
  if (error != cudaSuccess && cooperates) {
    std::printf("no cooperative launch of clusters of %d: %s\n", cluster, cudaGetErrorString(error));
    static_cast<void>(cudaGetLastError());
    cooperates = false, c.numAttrs = 1;
    error = cudaLaunchKernelEx(&c, kernel, static_cast<Params>(args)...);
  }
  LAB_CHECK(error);
}

/// us of `run`, by events.
template <class F>
double time_us(const F& run) {
  cudaEvent_t begin, end;
  LAB_CHECK(cudaEventCreate(&begin));
  LAB_CHECK(cudaEventCreate(&end));
  LAB_CHECK(cudaEventRecord(begin));
  run();
  LAB_CHECK(cudaEventRecord(end));
  LAB_CHECK(cudaEventSynchronize(end));
  float ms;
  LAB_CHECK(cudaEventElapsedTime(&ms, begin, end));
  LAB_CHECK(cudaEventDestroy(begin));
  LAB_CHECK(cudaEventDestroy(end));
  return ms * 1e3;
}
template <class F>
double median_us(int runs, const F& run) {
  std::vector<double> us;
  for (int i = 0; i < runs + 2; ++i) {
    const double t = time_us(run);
    if (i >= 2) us.push_back(t);
  }
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}
/// us a phase of a kernel that takes a number of phases: long less short, so that the launch cancels.
template <class F>
double phase_us(const F& run) {
  return (median_us(5, [&] { run(1200); }) - median_us(5, [&] { run(200); })) / 1000;
}

inline void row(const char* experiment, double measured, const char* predicted, const char* go, const char* kill) {
  std::printf("%-58s %7.2f | %s | go %s | kill %s\n", experiment, measured, predicted, go, kill);
  std::fflush(stdout);
}
}  // namespace lab
