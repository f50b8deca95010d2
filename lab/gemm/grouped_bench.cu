// Products of experts on one GPU: errors against float64 and time against the bytes of the experts that have rows.
//   nvcc -std=c++20 -gencode=arch=compute_90a,code=sm_90a -I. -cubin lab/gemm/grouped_kernels.cu -o grouped.cubin
//   nvcc -std=c++20 -O2 -gencode=arch=compute_90a,code=sm_90a -I. lab/gemm/grouped_bench.cu -lcuda -o grouped_bench
//   ./grouped_bench grouped.cubin [rows.jsonl]
#include <cuda.h>
#include <cxxabi.h>

#include <cstring>
#include <numeric>
#include <random>

#include "lab/gemm/harness.h"
#include "vivace/kernels/gemm/weight_only.h"
#include "vivace/ops/grouped_gemm.h"

namespace lab {
using namespace vivace;
using namespace vivace::kernels;

struct Variant {
  std::string name;
  CUkernel kernel;
  bool wgmma;
  GroupedWgmma p;
  GemmWeightOnly codes;
};

std::vector<Variant> variants(CUlibrary library) {
  unsigned count = 0;
  cuLibraryGetKernelCount(&count, library);
  std::vector<CUkernel> kernels(count);
  cuLibraryEnumerateKernels(kernels.data(), count, library);
  std::vector<Variant> all;
  for (CUkernel k : kernels) {
    const char* mangled = nullptr;
    cuKernelGetName(&mangled, k);
    int status = 0;
    char* text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
    Variant v = {};
    v.kernel = k;
    int smem = 0;
    if (const char* p = std::strstr(text, "GroupedWgmma{")) {
      std::sscanf(p, "GroupedWgmma{%d, %d, %d", &v.p.rows, &v.p.tokens, &v.p.stages);
      v.wgmma = true,
      v.name = "w" + std::to_string(v.p.rows) + "x" + std::to_string(v.p.tokens) + "/" + std::to_string(v.p.stages);
      smem = v.p.smem_bytes();
    } else if (const char* c = std::strstr(text, "GemmWeightOnly{")) {
      GemmWeightOnly& q = v.codes;
      std::sscanf(c, "GemmWeightOnly{%d, %d, %d, %d, %d, %d, %d", &q.warps_n, &q.warps_k, &q.row_tiles, &q.token_tiles,
                  &q.stages, &q.cluster, &q.panel);
      q.aligned = true, v.name = "codes " + std::to_string(q.token_tiles * 8) + " c" + std::to_string(q.cluster);
      smem = q.smem_bytes(DType::bf16, DType::bf16, GemmAct::f32, q.tokens());
    }
    std::free(text);
    if (cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem, k, 0) == CUDA_SUCCESS)
      all.push_back(v);
    else std::printf("%s: %d bytes of shared memory\n", v.name.c_str(), smem);
  }
  std::sort(all.begin(), all.end(), [](const Variant& a, const Variant& b) { return a.name < b.name; });
  return all;
}

void encode(TensorMap* map, const void* data, int64_t rows, int64_t K, int box_rows) {
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(K), static_cast<cuuint64_t>(rows)},
                   pitch[] = {static_cast<cuuint64_t>(K) * 2};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  if (cuTensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
                             const_cast<void*>(data), dims, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
    std::printf("no map\n");
}

bool launch(const Variant& v, const GroupedGemmArgs& g, cudaStream_t stream) {
  CUlaunchAttribute attr[2];
  attr[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attr[0].value.programmaticStreamSerializationAllowed = 1;
  attr[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  CUlaunchConfig c = {};
  c.gridDimY = c.gridDimZ = c.blockDimY = c.blockDimZ = 1, c.hStream = stream, c.attrs = attr, c.numAttrs = 1;
  GroupedWgmmaArgs args = {};
  args.g = g;
  const int groups = std::min(g.E, g.A);
  if (v.wgmma) {
    encode(&args.x_map, g.x, g.A, g.K, v.p.box());
    encode(&args.w_map, g.w, int64_t{g.E} * g.N, g.K, v.p.rows);
    const int tiles = (groups + g.A / v.p.tokens) * ((g.N + v.p.rows - 1) / v.p.rows),
              at_once = 132 * std::max(1, 228 * 1024 / (v.p.smem_bytes() + 1024));
    c.gridDimX = static_cast<unsigned>(std::min(tiles, at_once)), c.blockDimX = static_cast<unsigned>(v.p.threads()),
    c.sharedMemBytes = static_cast<unsigned>(v.p.smem_bytes());
    void* params[] = {&args};
    return cuLaunchKernelEx(&c, reinterpret_cast<CUfunction>(v.kernel), params, nullptr) == CUDA_SUCCESS;
  }
  const GemmWeightOnly& q = v.codes;
  attr[1].value.clusterDim = {static_cast<unsigned>(q.cluster), 1, 1};
  c.numAttrs = q.cluster > 1 ? 2 : 1;
  c.gridDimX = static_cast<unsigned>((groups + g.A / q.tokens()) * ((g.N + q.rows() - 1) / q.rows()) * q.cluster),
  c.blockDimX = static_cast<unsigned>(q.threads());
  c.sharedMemBytes = static_cast<unsigned>(q.smem_bytes(DType::bf16, DType::bf16, GemmAct::f32, q.tokens()));
  GroupedWeightOnlyArgs codes = {};  // no map: W comes by cp.async
  codes.g = args.g;
  void* params[] = {&codes};
  return cuLaunchKernelEx(&c, reinterpret_cast<CUfunction>(v.kernel), params, nullptr) == CUDA_SUCCESS;
}

/// Offsets of T tokens that choose `top` of E experts each.
std::vector<int> route(int T, int E, int top) {
  std::mt19937 rng(7);
  std::vector<int> count(E), order(E);
  std::iota(order.begin(), order.end(), 0);
  for (int t = 0; t < T; ++t) {
    for (int i = 0; i < top; ++i)
      std::swap(order[i], order[i + static_cast<int>(rng() % static_cast<unsigned>(E - i))]);
    for (int i = 0; i < top; ++i) ++count[order[i]];
  }
  std::vector<int> offsets(E + 1);
  std::partial_sum(count.begin(), count.end(), offsets.begin() + 1);
  return offsets;
}

}  // namespace lab

int main(int argc, char** argv) {
  using namespace lab;
  LAB_CHECK(cudaFree(nullptr));
  CUlibrary library;
  if (cuLibraryLoadFromFile(&library, argv[1], nullptr, nullptr, 0, nullptr, nullptr, 0) != CUDA_SUCCESS)
    return std::printf("no %s\n", argv[1]), 2;
  FILE* rows = argc > 2 ? std::fopen(argv[2], "w") : nullptr;
  const std::vector<Variant> all = variants(library);
  constexpr int E = 128, kTop = 8, kMost = 4096 * kTop, kPick = 4096, kCopies = 3;
  struct Shape { int N, K; };
  const Shape shapes[] = {{768, 2048}, {2048, 768}, {1536, 2048}};
  const size_t w_elements = size_t{E} * 1536 * 2048;
  bf16 *w = device_alloc<bf16>(w_elements * kCopies), *x = device_alloc<bf16>(size_t{kMost} * 2048),
       *out = device_alloc<bf16>(size_t{kMost} * 2048);
  fill_random<<<2048, 256>>>(w, w_elements * kCopies, 1);
  fill_random<<<2048, 256>>>(x, size_t{kMost} * 2048, 2);
  int* d_offsets = device_alloc<int>(E + 1);
  int2* d_pick = device_alloc<int2>(kPick);
  double *d_ref = device_alloc<double>(kPick), *d_size = device_alloc<double>(kPick);
  cudaStream_t stream;
  LAB_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int wrong = 0;
  for (const Shape& s : shapes)
    for (const int T : {1, 4, 32, 128, 512, 4096}) {
      const std::vector<int> offsets = route(T, E, kTop);
      LAB_CHECK(cudaMemcpy(d_offsets, offsets.data(), offsets.size() * 4, cudaMemcpyHostToDevice));
      const int A = T * kTop;
      int there = 0;
      for (int e = 0; e < E; ++e) there += offsets[e + 1] > offsets[e];
      const double bytes = there * double(s.N) * s.K * 2 + A * (double(s.K) + s.N) * 2, flops = 2.0 * A * s.N * s.K;
      const double least =
          std::max(bytes / 4.27e12, flops / 0.8e15) * 1e6;  // the copy rate, and what large products reach
      // Rows of x and of w (of the row's expert) of each output that is checked.
      std::vector<int2> pick(kPick), at(kPick);
      for (int i = 0; i < kPick; ++i) {
        const int r = static_cast<int>(i * 2654435761u % A), n = static_cast<int>((i * 40503u + 17) % s.N);
        int e = 0;
        while (offsets[e + 1] <= r) ++e;
        pick[i] = {r, e * s.N + n}, at[i] = {r, n};
      }
      LAB_CHECK(cudaMemcpy(d_pick, pick.data(), kPick * sizeof(int2), cudaMemcpyHostToDevice));
      reference<bf16><<<kPick / 8, 256>>>(x, w, s.K, d_pick, kPick, d_ref, d_size);
      std::vector<double> ref(kPick), size(kPick);
      LAB_CHECK(cudaMemcpy(ref.data(), d_ref, kPick * 8, cudaMemcpyDeviceToHost));
      LAB_CHECK(cudaMemcpy(size.data(), d_size, kPick * 8, cudaMemcpyDeviceToHost));
      std::printf("%dx%d T=%d, %d experts, at least %.1f us:", s.N, s.K, T, there, least);
      bool taken = false;
      for (const Variant& v : all) {
        if (!v.wgmma && (v.codes.token_tiles == 1) != (T <= 32)) continue;
        GroupedGemmArgs g = {};
        g.x = x, g.w = w, g.offsets = d_offsets, g.out = out, g.x_stride = s.K, g.w_stride = int64_t{s.N} * s.K,
        g.out_stride = s.N;
        g.A = A, g.E = E, g.N = s.N, g.K = s.K, g.x_dtype = g.w_dtype = g.out_dtype = DType::bf16;
        const bool op = v.wgmma && v.p == ops::defs::grouped_gemm::Gpu::tile(g);  // the tile that the op takes
        taken |= op;
        LAB_CHECK(cudaMemset(out, 0xff, size_t(A) * s.N * 2));
        const bool ok = launch(v, g, stream);
        const cudaError_t e = cudaStreamSynchronize(stream);
        if (!ok || e != cudaSuccess)
          return std::printf("%s: launch %d, %s\n", v.name.c_str(), ok, cudaGetErrorString(e)), 3;
        std::vector<uint16_t> bits(size_t(A) * s.N);
        LAB_CHECK(cudaMemcpy(bits.data(), out, bits.size() * 2, cudaMemcpyDeviceToHost));
        double worst = 0;
        for (int i = 0; i < kPick; ++i) {
          const uint32_t word = uint32_t(bits[size_t(at[i].x) * s.N + at[i].y]) << 16;
          float got;
          std::memcpy(&got, &word, 4);
          const double share =
              std::abs(got - ref[i]) / (std::abs(ref[i]) * 0x1p-8 + (s.K / 16 + 16) * 0x1p-24 * size[i]);
          if (!(share <= worst)) worst = share;
        }
        wrong += !(worst <= 1);
        const double us = time_graph(T <= 4 ? 24 : 6, [&](int i, cudaStream_t st) {
          GroupedGemmArgs h = g;
          h.w = w + i % kCopies * w_elements;
          return launch(v, h, st);
        });
        std::printf(" | %s %.1f (%.0f %%)%s", v.name.c_str(), us, 100 * least / us, worst <= 1 ? "" : " WRONG");
        if (rows)
          std::fprintf(rows,
                       "{\"tactic\":\"%s\",\"op\":%s,\"T\":%d,\"experts\":%d,\"N\":%d,\"K\":%d,\"us\":%.3f,\"least_"
                       "us\":%.3f,\"bound\":%.3f}\n",
                       v.name.c_str(), op ? "true" : "false", T, there, s.N, s.K, us, least, worst);
      }
      std::printf("\n");
      std::fflush(stdout);
      if (!taken) return std::printf("the op's tile is not in %s\n", argv[1]), 2;
    }
  std::printf("%d wrong\n", wrong);
  if (rows) std::fclose(rows);
  return wrong != 0;
}
