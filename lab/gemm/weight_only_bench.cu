// Products with block-quantized weights on one GPU: errors against float64, bits across token counts and
// tactics, time beside cuBLASLt's bf16 product of the same shape. The cubin says what is tried.
//   nvcc -std=c++20 -split-compile=0 -gencode=arch=compute_90a,code=sm_90a -I. -cubin lab/gemm/weight_only_kernels.cu
//   -o codes.cubin nvcc -std=c++20 -O2 -gencode=arch=compute_90a,code=sm_90a -I. lab/gemm/weight_only_bench.cu -ldl
//   -lcuda -o codes_bench
//   ./codes_bench codes.cubin [rows.jsonl] [nopeer] [few]: one to eight tokens of the products that decode steps have
#include <cuda.h>
#include <cxxabi.h>

#include <cstring>
#include <map>

#include "lab/gemm/blas.h"
#include "lab/gemm/harness.h"
#include "vivace/kernels/gemm/weight_only.h"
#include "vivace/kernels/quantize/blocks.cuh"

namespace lab {
using namespace vivace;
using namespace vivace::kernels;

/// Random codes; scales of a useful size, as halves at the offsets that the format has them.
__global__ void fill_blocks(uint8_t* p, size_t blocks, int bytes, int scale_at, bool min, uint64_t seed) {
  for (size_t b = blockIdx.x * size_t{blockDim.x} + threadIdx.x; b < blocks; b += size_t{gridDim.x} * blockDim.x) {
    for (int i = 0; i < bytes; ++i) p[b * bytes + i] = static_cast<uint8_t>(mix(seed + b * bytes + i));
    const auto scale = [&](int at, float top) {
      const f16 h = from_float<f16>(top * (0.25f + static_cast<float>(mix(seed + b * 7 + at)) * 0x1p-32f));
      p[b * bytes + at] = static_cast<uint8_t>(h.bits), p[b * bytes + at + 1] = static_cast<uint8_t>(h.bits >> 8);
    };
    scale(scale_at, 0.02f);
    if (min) scale(scale_at + 2, 0.02f);
  }
}

/// Scales beside W: of a useful size, as e4m3 (groups of 16) or bf16.
__global__ void fill_scales(uint8_t* p, size_t bytes, bool eight, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < bytes; i += size_t{gridDim.x} * blockDim.x)
    p[i] = eight ? 0x10 + mix(seed + i) % 24 : i % 2 ? 0x3c : static_cast<uint8_t>(mix(seed + i));
}

/// Element k of the row that starts with element `start` of W; `scales` are those of W, in groups of `group`.
template <DType W>
__device__ float weight(const uint8_t* w, int64_t start, int64_t k, const uint8_t* scales, int group) {
  if constexpr (W == DType::e2m1 || W == DType::i4) {
    const int code = w[(start + k) / 2] >> (k % 2 * 4) & 15, m = code & 7;
    const int64_t at = (start + k) / group;
    if (W == DType::i4)
      return static_cast<float>((code ^ 8) - 8) * to_float(bf16{reinterpret_cast<const uint16_t*>(scales)[at]});
    const float size = m < 4 ? 0.5f * m : m < 6 ? m - 2.0f : 2.0f * m - 8.0f;
    return (code & 8 ? -size : size) * to_float(e4m3{scales[at]});
  } else {
    const uint8_t* row = w + row_bytes(W, start);
    float y[8];
    constexpr int kBlock = is_block(W) ? info(W).block : 8;
    if constexpr (is_block(W)) decode8<W>(row + k / kBlock * info(W).bytes, static_cast<int>(k % kBlock / 8 * 8), y);
    else y[k % 8] = to_float(e4m3{row[k]});
    return y[k % 8];
  }
}

/// As lab::reference, over blocks of 32: x as it is, or as int8 stands for it. The size counts a block's largest
/// weight.
template <DType W>
__global__ void reference_blocks(const bf16* x, const uint8_t* w, const uint8_t* scales, int group, int64_t K, bool q8,
                                 const int2* pick, int count, double* ref, double* size) {
  const int i = static_cast<int>((blockIdx.x * size_t{blockDim.x} + threadIdx.x) / 32), lane = threadIdx.x % 32;
  if (i >= count) return;
  double s = 0, m = 0;
  for (int64_t k = lane; k < K; k += 32) {
    float v = to_float(x[pick[i].x * K + k]), amax = fabsf(v);
    const float wk = weight<W>(w, pick[i].y * K, k, scales, group);
    float top = fabsf(wk);
    for (int d = 16; d > 0; d /= 2)
      amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, d)), top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    double used = v;
    if (q8)
      used = static_cast<double>(rintf(__fmul_rn(v, __fdiv_rn(127.0f, amax)))) *
             static_cast<double>(__fdiv_rn(amax, 127.0f));
    s += used * static_cast<double>(wk);
    m += fabs(used) * 2 * static_cast<double>(top);
  }
  for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d), m += __shfl_xor_sync(~0u, m, d);
  if (lane == 0) ref[i] = s, size[i] = m;
}

struct Variant {
  std::string name;
  CUkernel kernel;
  DType w;
  GemmAct act;
  GemmWeightOnly p;
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
    const char *w = std::strstr(text, "DType)"), *act = std::strstr(text, "GemmAct)"),
               *p = std::strstr(text, "GemmWeightOnly{");
    if (!w || !act || !p) continue;
    Variant v = {};
    char name[112];
    v.kernel = k, v.w = static_cast<DType>(std::atoi(w + 6)), v.act = static_cast<GemmAct>(std::atoi(act + 8));
    std::vector<int> fields;
    for (const char* at = std::strchr(p, '{') + 1; *at && *at != '}';) {
      const char* value = *at == '(' ? std::strchr(at, ')') + 1 : at;
      fields.push_back(*value == 't' ? 1 : std::atoi(value));
      while (*at && *at != ',' && *at != '}') ++at;
      while (*at == ',' || *at == ' ') ++at;
    }
    fields.resize(15);
    const auto at = [&](int i) { return fields[i]; };
    v.p = {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7) != 0, at(8), static_cast<DType>(at(9)),
           at(10) != 0, at(11) != 0, at(12), at(13) != 0, at(14) != 0};
    std::snprintf(name, sizeof name, "%s %s %d.%d.%d.%d/%d c%d p%d%s%s%s", vivace::name(v.w),
                  v.act == GemmAct::q8 ? "q8" : "f32", v.p.warps_n, v.p.warps_k, v.p.row_tiles, v.p.token_tiles,
                  v.p.stages, v.p.cluster, v.p.panel, v.p.aligned ? "" : "u", v.p.tma_steps > 0 ? "b" : "",
                  v.p.x_ring ? "x" : "");
    v.name = name;
    int device = 0;
    const int smem = std::min(v.p.smem_bytes(DType::bf16, v.w, v.act, v.p.tokens()),
                              227 * 1024);  // a launch of fewer tokens may fit
    if (cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem, k, device) == CUDA_SUCCESS)
      all.push_back(v);
    std::free(text);
  }
  std::sort(all.begin(), all.end(), [](const Variant& a, const Variant& b) { return a.name < b.name; });
  return all;
}

bool launch(const Variant& v, const GemmArgs& a, cudaStream_t stream) {
  CUlaunchAttribute attr[2];
  attr[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attr[0].value.programmaticStreamSerializationAllowed = 1;
  attr[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attr[1].value.clusterDim = {static_cast<unsigned>(v.p.cluster), 1, 1};
  CUlaunchConfig c = {};
  const auto tiles = [](int n, int tile) { return (n + tile - 1) / tile; };
  c.gridDimX = static_cast<unsigned>(tiles(a.N, v.p.rows()) * tiles(a.T, v.p.tokens()) * v.p.cluster);
  if (v.p.persistent() && a.T <= v.p.tokens())
    c.gridDimX = std::min(
        c.gridDimX,
        132u * std::max(1u, std::min(228 * 1024 / (unsigned(v.p.smem_bytes(DType::bf16, v.w, v.act, a.T)) + 1024),
                                     unsigned(v.p.blocks(DType::bf16, v.w, v.act)))));
  c.gridDimY = c.gridDimZ = c.blockDimY = c.blockDimZ = 1;
  c.blockDimX = static_cast<unsigned>(v.p.threads());
  c.sharedMemBytes = static_cast<unsigned>(v.p.smem_bytes(DType::bf16, v.w, v.act, a.T));
  c.hStream = stream;
  c.attrs = attr;
  c.numAttrs = v.p.cluster > 1 ? 2 : 1;
  GemmWeightOnlyArgs codes = {};
  codes.g = a;
  void* params[] = {&codes};
  if (v.p.tma_steps > 0) {
    const cuuint64_t dims[] = {static_cast<cuuint64_t>(row_bytes(v.w, a.K) / 4), static_cast<cuuint64_t>(a.N)},
                     pitch[] = {static_cast<cuuint64_t>(row_bytes(v.w, a.w_stride))};
    const cuuint32_t box[] = {static_cast<cuuint32_t>(v.p.pitch(v.w) / 4), static_cast<cuuint32_t>(16 * v.p.row_tiles)},
                     steps[] = {1, 1};
    if (cuTensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(&codes.w_map), CU_TENSOR_MAP_DATA_TYPE_UINT32, 2,
                               const_cast<void*>(a.w), dims, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
      return false;
  }
  if (v.p.x_ring) {
    const cuuint64_t dims[] = {static_cast<cuuint64_t>(a.K / 4), static_cast<cuuint64_t>(a.T)},
                     pitch[] = {static_cast<cuuint64_t>(a.x_stride * 2)};
    const cuuint32_t box[] = {static_cast<cuuint32_t>(v.p.x_pitch(DType::bf16, v.w, v.act) / 8),
                              static_cast<cuuint32_t>(even_tokens(a.T, v.p.tokens()))},
                     steps[] = {1, 1};
    if (cuTensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(&codes.x_map), CU_TENSOR_MAP_DATA_TYPE_UINT64, 2,
                               const_cast<void*>(a.x), dims, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
      return false;
  }
  return cuLaunchKernelEx(&c, reinterpret_cast<CUfunction>(v.kernel), params, nullptr) == CUDA_SUCCESS;
}

}  // namespace lab

int main(int argc, char** argv) {
  using namespace lab;
  LAB_CHECK(cudaFree(nullptr));
  CUlibrary library;
  if (cuLibraryLoadFromFile(&library, argv[1], nullptr, nullptr, 0, nullptr, nullptr, 0) != CUDA_SUCCESS)
    return std::printf("no %s\n", argv[1]), 2;
  FILE* rows = argc > 2 ? std::fopen(argv[2], "w") : nullptr;
  const bool few_tokens = argc > 4;
  const std::vector<Variant> all = variants(library);
  std::printf("%zu kernels\n", all.size());

  constexpr size_t kPool = size_t{640} << 20;
  constexpr int kMaxT = 512;
  uint8_t* w = device_alloc<uint8_t>(kPool);
  uint8_t* scales = device_alloc<uint8_t>(kPool / 8);
  char* plain = device_alloc<char>(kPool);
  bf16 *x = device_alloc<bf16>(size_t{kMaxT} * 17408), *out = device_alloc<bf16>(size_t{kMaxT} * 34816);
  fill_random<<<1024, 256>>>(x, size_t{kMaxT} * 17408, 3);
  fill_random<<<1024, 256>>>(reinterpret_cast<bf16*>(plain), kPool / 2, 4);
  constexpr int kPick = 4096;
  int2* d_pick = device_alloc<int2>(kPick);
  double *d_ref = device_alloc<double>(kPick), *d_size = device_alloc<double>(kPick);
  Blas blas;
  struct Shape { int N, K; };
  const std::vector<Shape> shapes =
      few_tokens
          ? std::vector<Shape>{{34816, 5120}, {16384, 5120}, {5120, 17408}, {5120, 6144},
                               {24576, 4096}, {4096, 12288}, {6144, 4096},  {4096, 4096}}
          : std::vector<Shape>{{24576, 4096}, {6144, 4096}, {4096, 4096}, {4096, 12288}, {1024, 4096}, {600, 1536}};
  const std::vector<int> tokens = few_tokens ? std::vector<int>{1, 2, 4, 8} : std::vector<int>{1, 8, 16, 32, 64, 512};
  const double copy = copy_rate(plain, kPool / 2);
  std::printf("copy %.0f GB/s\n", copy / 1e9);
  std::map<std::pair<int, int>, std::map<int, double>> peer;
  int wrong = 0;
  cudaStream_t stream;
  LAB_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  DType filled = DType::f64;
  std::vector<double> ref(kPick), size(kPick);
  for (const Variant& v : all) {
    if (v.w != filled) {
      const int bytes = info(v.w).bytes, at = v.w == DType::q6_k ? 208 : 0;
      if (is_block(v.w)) fill_blocks<<<4096, 256>>>(w, kPool / bytes, bytes, at, v.p.has_min(v.w), 9);
      else if (v.w == DType::e4m3) fill_random<<<1024, 256>>>(reinterpret_cast<e4m3*>(w), kPool, 5);
      else
        fill_blocks<<<4096, 256>>>(w, kPool / 32, 32, 0, false, 5),
            fill_scales<<<1024, 256>>>(scales, kPool / 8, v.w == DType::e2m1, 6);
      filled = v.w;
    }
    std::string line = v.name + ":";
    for (const Shape& s : shapes) {
      if (s.K % info(v.w).block != 0) continue;
      if (v.p.cluster > 1 && (s.N + 63) / 64 * v.p.cluster > 600) continue;
      if (v.p.tma_steps > 0 && v.p.cluster > 1 && s.N > 6144) continue;
      if (v.p.tma_steps > 0 && (s.K % 32 != 0 || row_bytes(v.w, s.K) % 16 != 0)) continue;
      std::vector<uint16_t> first;
      for (int M : tokens) {
        const bool few = M <= v.p.tokens() && (v.p.tokens() == 8 || M > v.p.tokens() / 2);
        const bool mine = M > 64                                      ? v.p.tma_steps == 0 && v.p.tokens() == 64
                          : v.p.tma_steps > 0 && v.p.token_tiles == 4 ? M >= 32
                                                                      : few && (!v.p.x_ring || M > 1 || few_tokens);
        if (!mine || v.p.smem_bytes(DType::bf16, v.w, v.act, std::min(M, v.p.tokens())) > 227 * 1024) continue;
        const size_t w_bytes = static_cast<size_t>(row_bytes(v.w, s.K)) * s.N;
        const int copies = static_cast<int>(std::clamp<size_t>((size_t{200} << 20) / w_bytes, 2, 60)),
                  nodes = std::clamp(copies * 2, 8, 60);
        GemmArgs a = {};
        a.x = x, a.w = w, a.out = out, a.x_stride = a.w_stride = s.K, a.out_stride = s.N, a.T = M, a.N = s.N, a.K = s.K,
        a.alpha = 1.0f;
        a.act = v.act, a.block_rows = 1, a.block_group = v.p.group, a.scale_dtype = v.p.scale, a.x_dtype = DType::bf16,
        a.w_dtype = v.w, a.out_dtype = DType::bf16;
        if (v.p.group > 0) a.w_block_scale = scales, a.block_stride = (s.K + v.p.group - 1) / v.p.group;
        const size_t scale_bytes = a.block_stride * s.N * info(a.scale_dtype).bytes;
        std::vector<int2> pick(kPick);
        for (int i = 0; i < kPick; ++i)
          pick[i] = {static_cast<int>(i * 2654435761u % M), static_cast<int>((i * 40503u + 17) % s.N)};
        LAB_CHECK(cudaMemcpy(d_pick, pick.data(), kPick * sizeof(int2), cudaMemcpyHostToDevice));
        const auto reference = [&]<DType W>() {
          reference_blocks<W>
              <<<kPick / 8, 256>>>(x, w, scales, v.p.group, s.K, v.act == GemmAct::q8, d_pick, kPick, d_ref, d_size);
        };
        switch (v.w) {
          case DType::q4_0: reference.operator()<DType::q4_0>(); break;
          case DType::q4_1: reference.operator()<DType::q4_1>(); break;
          case DType::q5_0: reference.operator()<DType::q5_0>(); break;
          case DType::q5_1: reference.operator()<DType::q5_1>(); break;
          case DType::q8_0: reference.operator()<DType::q8_0>(); break;
          case DType::q4_k: reference.operator()<DType::q4_k>(); break;
          case DType::q5_k: reference.operator()<DType::q5_k>(); break;
          case DType::q6_k: reference.operator()<DType::q6_k>(); break;
          case DType::e2m1: reference.operator()<DType::e2m1>(); break;
          case DType::i4: reference.operator()<DType::i4>(); break;
          default: reference.operator()<DType::e4m3>(); break;
        }
        LAB_CHECK(cudaMemset(out, 0xff, size_t(M) * s.N * 2));
        LAB_CHECK(cudaDeviceSynchronize());
        const bool ok = launch(v, a, stream);
        const cudaError_t e = cudaStreamSynchronize(stream);
        if (!ok || e != cudaSuccess) {
          std::printf("%s M=%d %dx%d: launch %d, %s\n", v.name.c_str(), M, s.N, s.K, ok, cudaGetErrorString(e));
          return 3;
        }
        std::vector<uint16_t> bits(size_t(M) * s.N);
        LAB_CHECK(cudaMemcpy(bits.data(), out, bits.size() * 2, cudaMemcpyDeviceToHost));
        LAB_CHECK(cudaMemcpy(ref.data(), d_ref, kPick * 8, cudaMemcpyDeviceToHost));
        LAB_CHECK(cudaMemcpy(size.data(), d_size, kPick * 8, cudaMemcpyDeviceToHost));
        double worst = 0;
        for (int i = 0; i < kPick; ++i) {
          const uint32_t word = uint32_t(bits[size_t(pick[i].x) * s.N + pick[i].y]) << 16;
          float got;
          std::memcpy(&got, &word, 4);
          const double share =
              std::abs(got - ref[i]) / (std::abs(ref[i]) * 0x1p-8 + (s.K / 16 + 16) * 0x1p-24 * size[i]);
          if (!(share <= worst)) worst = share;
        }
        static std::map<std::vector<int>, std::vector<uint16_t>> base;  // row 0, by all that may change bits
        auto& known =
            base[{static_cast<int>(v.w), static_cast<int>(v.act), s.N, s.K, v.p.cluster, v.p.warps_k, v.p.tma_steps}];
        bits.resize(s.N);
        if (known.empty()) known = bits;
        const bool same = known == bits;
        wrong += !(worst <= 1) + !same;
        if (!(worst <= 1) || !same)
          std::printf("%s M=%d %dx%d: %.3g of the bound%s\n", v.name.c_str(), M, s.N, s.K, worst,
                      same ? "" : ", other bits");
        if (few_tokens && v.p.tokens() != 8) continue;
        const double us = time_graph(nodes, [&](int i, cudaStream_t st) {
          GemmArgs b = a;
          b.w = w + i % copies * w_bytes;
          if (v.p.group > 0) b.w_block_scale = scales + i % copies * scale_bytes;
          return launch(v, b, st);
        });
        auto& lt = peer[{s.N, s.K}];
        if (argc > 3) lt[M] = NAN;
        if (!lt.count(M)) {
          const size_t bytes = size_t(s.N) * s.K * 2;
          const int n = static_cast<int>(std::clamp<size_t>(kPool / bytes, 2, 40));
          lt[M] =
              blas.time(CUDA_R_16BF, reinterpret_cast<char*>(x), plain, bytes, n, out, M, s.N, s.K, std::max(8, n), 4)
                  .peer;
          std::printf("cuBLASLt bf16 M=%d %dx%d %.2f us\n", M, s.N, s.K, lt[M]);
        }
        char text[96];
        std::snprintf(text, sizeof text, " %dx%d,%d %.2f (%.0f%% x%.2f)", s.N, s.K, M, us,
                      100.0 * static_cast<double>(w_bytes + scale_bytes) / us * 1e6 / copy, lt[M] / us);
        line += text;
        if (rows)
          std::fprintf(rows,
                       "{\"w\":\"%s\",\"act\":\"%s\",\"tactic\":\"%s\",\"M\":%d,\"N\":%d,\"K\":%d,\"us\":%.3f,\"gbs\":%"
                       ".0f,\"bound\":%.3f,\"cublaslt_bf16_us\":%.3f}\n",
                       vivace::name(v.w), v.act == GemmAct::q8 ? "q8" : "f32", v.name.c_str(), M, s.N, s.K, us,
                       w_bytes / us / 1e3, worst, lt[M]);
      }
    }
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
  std::printf("%d wrong\n", wrong);
  if (rows) std::fclose(rows);
  return wrong != 0;
}
