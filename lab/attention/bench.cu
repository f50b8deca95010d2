// Attention on one GPU: every cut checked against float64, then timed in graphs, keys and values warm and cold.
//   nvcc -std=c++20 -O2 -gencode=arch=compute_90a,code=sm_90a -I. lab/attention/bench.cu -o /tmp/bench && /tmp/bench
//   rows.jsonl
// Peers: peers.py beside it.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "vivace/kernels/attention/attention.cuh"
#include "vivace/kernels/attention/prefill_tma.cuh"
#include "vivace/kernels/attention/split_kv.cuh"
#include "vivace/kernels/attention/stream.cuh"
#include "vivace/kernels/attention/swap_ab.cuh"
#include "vivace/ops/attention_gpu.h"

namespace {
using namespace vivace;
using namespace vivace::kernels;

#define LAB_CHECK(call)                                                                         \
  do {                                                                                          \
    const cudaError_t lab_error = (call);                                                       \
    if (lab_error != cudaSuccess) {                                                             \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(lab_error)); \
      std::exit(2);                                                                             \
    }                                                                                           \
  } while (0)

__device__ uint32_t mix(uint64_t i) {
  uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>(z >> 32);
}
/// Sums of four uniforms, scaled to variance 1.
template <class T>
__global__ void fill_random(T* p, size_t n, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += size_t{gridDim.x} * blockDim.x) {
    float s = 0;
    for (int j = 0; j < 4; ++j) s += static_cast<float>(mix(seed + i * 4 + j)) * 0x1p-32f - 0.5f;
    p[i] = from_float<T>(s * 1.7320508f);
  }
}

/// The largest |out - reference| over `count` of the rows (t, h), one block each, in float64; and of lse.
template <class Q, class Kv>
__global__ void compare(const AttentionArgs a, int count, float* worst) {
  __shared__ double weight[256], sums[256], shared_row_max;
  const int64_t rows = int64_t{a.T} * a.Hq,
                r = count >= rows ? blockIdx.x : (blockIdx.x * 7919ll * 31 + rows - 1) % rows;
  if (r >= rows) return;
  const int64_t t = r / a.Hq;
  const int h = static_cast<int>(r % a.Hq), kv = h / a.group();
  const AttentionSpan see(a, t);
  const Q* q = static_cast<const Q*>(a.q) + t * a.q_stride + h * a.D;
  double row_max = -INFINITY, row_sum = 0, y = 0;
  for (int64_t j0 = see.first; j0 < see.end; j0 += 256) {
    const int64_t j = j0 + threadIdx.x;
    double s = -INFINITY;
    if (j < see.end) {
      s = 0;
      const int64_t b = a.block(see.slot, j);
      const Kv* k = static_cast<const Kv*>(a.k) + b * a.k_stride + (a.row_in_block(see.slot, j) * a.Hkv + kv) * a.D;
      if (b >= 0)
        for (int i = 0; i < a.D; ++i) s += double(to_float(q[i])) * double(to_float(k[i]));
      s *= a.scale;
    }
    weight[threadIdx.x] = s;
    __syncthreads();
    if (threadIdx.x == 0) {
      double m = row_max;
      for (int i = 0; i < 256; ++i) m = fmax(m, weight[i]);
      shared_row_max = m;
    }
    __syncthreads();
    const double m = shared_row_max, shrink = exp(row_max - m);
    const double p = exp(s - m);
    __syncthreads();
    weight[threadIdx.x] = p;
    __syncthreads();
    row_sum *= shrink, y *= shrink, row_max = m;
    for (int i = 0; i < 256 && j0 + i < see.end; ++i) {
      row_sum += weight[i];
      const int64_t b = a.block(see.slot, j0 + i);
      if (threadIdx.x < a.Dv && b >= 0)
        y += weight[i] *
             double(to_float(static_cast<const Kv*>(
                 a.v)[b * a.v_stride + (a.row_in_block(see.slot, j0 + i) * a.Hkv + kv) * a.Dv + threadIdx.x]));
    }
    __syncthreads();
  }
  sums[threadIdx.x] = 0;
  if (threadIdx.x < a.Dv) {
    const double want = row_sum > 0 ? y / row_sum : 0,
                 got = to_float(static_cast<const Q*>(a.out)[t * a.out_stride + h * a.Dv + threadIdx.x]);
    // In stages of what the formula allows: a rounding of the weights and one of the result.
    sums[threadIdx.x] = fabs(want - got) / (4.0 / 512 + fabs(want) / 128);
    if (!(sums[threadIdx.x] < 1e9)) sums[threadIdx.x] = 1e9;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double e = a.lse && row_sum > 0 ? fabs(row_max + log(row_sum) - a.lse[t * a.lse_stride + h]) / 1e-4 : 0;
    for (int i = 0; i < a.Dv; ++i) e = fmax(e, sums[i]);
    worst[blockIdx.x] = static_cast<float>(e);
  }
}

struct Shape {
  const char* kind;  // decode, prefill
  int B, Hq, Hkv, T, L, D;  // T queries a sequence
  AttentionMask mask;
  bool paged = false;
};

struct Variant {
  std::string name;
  DType q, kv;
  AttentionTile cut;
  void (*kernel)(AttentionArgs);
  void (*prefill_tma)(AttentionTmaArgs) = nullptr;  // instead
  AttentionStream stream = {};              // with split > 0 the cut
  AttentionSplitKV split = {};                // likewise
  AttentionSwapAB swap_ab = {};              // likewise
  void (*uses_swap_ab)(AttentionSwapABArgs) = nullptr;  // instead
  const void* entry() const {
    return uses_swap_ab != nullptr  ? reinterpret_cast<const void*>(uses_swap_ab)
           : prefill_tma != nullptr ? reinterpret_cast<const void*>(prefill_tma)
                                    : reinterpret_cast<const void*>(kernel);
  }
};
// nvcc's host side knows no class-type template parameters of kernels.
template <class Q, class Kv, int d, int dv, int m, int n, int keys, int stages, int split>
__global__ void __launch_bounds__(32 * m * n, 1) tile_kernel(const __grid_constant__ AttentionArgs a) {
  constexpr AttentionTile P{d, dv, m, n, keys, stages, split, true};
  run_attention<AttentionTileKernel<Q, Kv, P, Standard>, Q, P>(a);
}
template <class Q, class Kv, int... kCut>
void add(std::vector<Variant>& all, DType q, DType kv) {
  constexpr AttentionTile P{kCut..., true, false};
  static_assert(P.smem() <= 227 * 1024);
  char name[96];
  std::snprintf(name, sizeof name, "m%d n%d k%d s%d c%d", P.warps_m, P.warps_n, P.keys, P.stages, P.split);
  all.push_back({name, q, kv, P, &tile_kernel<Q, Kv, kCut...>});
}

template <class Q, int d, int dv, int m, int keys, int stages>
__global__ void __launch_bounds__(32 * m + 128, 1) fed_kernel(const __grid_constant__ AttentionTmaArgs f) {
  constexpr AttentionTile P{d, dv, m, 1, keys, stages, 1, true, true, true};
  run_attention_prefill_tma<Q, P, Standard>(f);
}
template <class Q, int d, int dv, int m, int keys, int stages>
void add_fed(std::vector<Variant>& all, DType q) {
  constexpr AttentionTile P{d, dv, m, 1, keys, stages, 1, true, true, true};
  static_assert(P.smem() <= 227 * 1024);
  char name[96];
  std::snprintf(name, sizeof name, "fed m%d k%d s%d", P.warps_m, P.keys, P.stages);
  all.push_back({name, q, q, P, nullptr, &fed_kernel<Q, d, dv, m, keys, stages>});
}

template <class Q, class Kv, int... kCut>
__global__ void __launch_bounds__(AttentionStream{kCut...}.threads(), AttentionStream{kCut...}.occupancy())
    stream_kernel(const __grid_constant__ AttentionArgs a) {
  constexpr AttentionStream P{kCut...};
  run_attention_stream<Q, Kv, P>(a);
}
template <class Q, class Kv, int... kCut>
void add_stream(std::vector<Variant>& all, DType q, DType kv) {
  constexpr AttentionStream P{kCut...};
  char name[96];
  std::snprintf(name, sizeof name, "stream m%d d%d s%d c%d", P.warps_m, P.warps_d, P.stages, P.split);
  all.push_back({name, q, kv, AttentionTile{P.d, P.dv, P.warps_m, 1, 64, P.stages, P.split, true, false},
                 &stream_kernel<Q, Kv, kCut...>, nullptr, P});
}

template <class Q, class Kv, int... kCut>
__global__ void __launch_bounds__(AttentionSplitKV{kCut...}.threads(), AttentionSplitKV{kCut...}.occupancy())
    split_kernel(const __grid_constant__ AttentionTmaArgs f) {
  constexpr AttentionSplitKV P{kCut...};
  run_attention_split_kv<Q, Kv, P>(f);
}
template <class Q, class Kv, int... kCut>
void add_split(std::vector<Variant>& all, DType q, DType kv) {
  constexpr AttentionSplitKV P{kCut...};
  char name[96];
  std::snprintf(name, sizeof name, "split m%d k%d s%d c%d x%d", P.warps_m, P.keys, P.stages, P.split, P.teams);
  all.push_back({name,
                 q,
                 kv,
                 AttentionTile{P.d, P.dv, P.warps_m, 1, P.keys, P.stages, P.split, true, false, true},
                 nullptr,
                 &split_kernel<Q, Kv, kCut...>,
                 {},
                 P});
}

template <class Q, int... kCut>
__global__ void __launch_bounds__(AttentionSwapAB{kCut...}.threads(), AttentionSwapAB{kCut...}.occupancy())
    turned_kernel(const __grid_constant__ AttentionSwapABArgs args) {
  constexpr AttentionSwapAB P{kCut...};
  run_attention_swap_ab<Q, P>(args);
}
template <class Q, int... kCut>
void add_turned(std::vector<Variant>& all, DType q) {
  constexpr AttentionSwapAB P{kCut...};
  static_assert(P.smem() <= 227 * 1024);
  char name[96];
  std::snprintf(name, sizeof name, "swap_ab r%d u%d c%d", P.rows, P.stages, P.split);
  all.push_back({name,
                 q,
                 q,
                 AttentionTile{P.d, P.dv, P.rows > 16 ? 2 : 1, 1, P.kBox, 1, P.split, true, false, true},
                 nullptr,
                 nullptr,
                 {},
                 {},
                 P,
                 &turned_kernel<Q, kCut...>});
}

TensorMap map_of(const void* base, const cuuint64_t (&dims)[4], const cuuint64_t (&strides)[3], int rows) {
  static const auto encode = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found;
    LAB_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
  }();
  CUtensorMap map;
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(rows), 1, 1}, steps[4] = {1, 1, 1, 1};
  const CUresult r = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(base), dims, strides, box,
                            steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS) std::printf("no tensor map: %d\n", static_cast<int>(r)), std::exit(2);
  TensorMap out;
  std::memcpy(&out, &map, sizeof out);
  return out;
}

/// k or v as AttentionTmaArgs says.
TensorMap map_of(const void* base, const AttentionArgs& a, int dim, int64_t stride, int keys) {
  const int64_t e = info(a.kv_dtype).bytes;
  const auto n = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  return map_of(base, {n(dim * e / 2), n(a.L), n(a.Hkv), n(a.B)}, {n(a.Hkv * dim * e), n(dim * e), n(stride * e)},
                std::min(keys, a.page_table ? a.L : keys));
}
/// q as AttentionSwapABArgs says.
TensorMap map_of_queries(const AttentionArgs& a, int box, bool side_by_side) {
  const auto n = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  return map_of(a.q, {n(a.D), n(side_by_side ? int64_t{a.T} * a.Hq : a.group()), n(a.Hkv), n(side_by_side ? 1 : a.T)},
                {n(a.D * 2), n(int64_t{a.group()} * a.D * 2), n(a.q_stride * 2)}, box);
}

bool launch(const Variant& v, const AttentionArgs& a, cudaStream_t stream) {
  const AttentionTile& c = v.cut;
  const int height = a.by_token() && a.group() < c.rows() ? a.group() : c.rows();
  const int64_t tiles = (int64_t{a.T} * a.group() + height - 1) / height;
  cudaLaunchConfig_t config = {};
  config.gridDim = {static_cast<unsigned>(tiles * a.Hkv * c.split), 1, 1};
  config.blockDim = {static_cast<unsigned>(c.threads()), 1, 1};
  config.dynamicSmemBytes = static_cast<size_t>(c.smem());
  config.stream = stream;
  if (const AttentionStream& p = v.stream; p.split > 0) {
    const int64_t all = (int64_t{a.T} * a.group() + p.height(a) - 1) / p.height(a);
    config.gridDim.x = static_cast<unsigned>(all * a.Hkv * p.split);
    config.blockDim.x = static_cast<unsigned>(p.threads());
    config.dynamicSmemBytes = static_cast<size_t>(p.smem(info(a.kv_dtype).bytes, p.height(a)));
  }
  cudaLaunchAttribute attrs[2] = {};
  attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attrs[0].val.programmaticStreamSerializationAllowed = 1;
  attrs[1].id = cudaLaunchAttributeClusterDimension;
  attrs[1].val.clusterDim = {static_cast<unsigned>(c.split), 1, 1};
  config.attrs = attrs;
  config.numAttrs = c.split > 1 ? 2 : 1;
  if (const AttentionSplitKV& p = v.split; p.split > 0) {
    const int64_t height = p.height(a), all = (int64_t{a.T} * a.group() + height - 1) / height;
    config.gridDim.x = static_cast<unsigned>(all * a.Hkv * p.split);
    config.blockDim.x = static_cast<unsigned>(p.threads());
    config.dynamicSmemBytes = static_cast<size_t>(p.smem(p.height(a)));
  }
  if (const AttentionSwapAB& p = v.swap_ab; p.split > 0) {
    config.gridDim.x =
        static_cast<unsigned>((int64_t{a.T} * a.group() + p.height(a) - 1) / p.height(a) * a.Hkv * p.split);
    config.blockDim.x = static_cast<unsigned>(p.threads());
    config.dynamicSmemBytes = static_cast<size_t>(p.smem());
  }
  if (c.warp_specialized) {
    if (v.split.split == 0 && v.swap_ab.split == 0) config.gridDim.x = std::min(config.gridDim.x, 132u);
    AttentionTmaArgs f{{}, map_of(a.k, a, a.D, a.k_stride, c.keys), map_of(a.v, a, a.Dv, a.v_stride, c.keys)};
    std::memcpy(f.args, &a, offsetof(AttentionArgs, extra));
    if (v.uses_swap_ab != nullptr) {
      const auto [box, joined] = AttentionSwapABArgs::queries(a, v.swap_ab.rows);
      return cudaLaunchKernelEx(
                 &config, v.uses_swap_ab,
                 AttentionSwapABArgs{f, box > 0 ? map_of_queries(a, box, joined) : TensorMap{}}) == cudaSuccess;
    }
    return cudaLaunchKernelEx(&config, v.prefill_tma, f) == cudaSuccess;
  }
  return cudaLaunchKernelEx(&config, v.kernel, a) == cudaSuccess;
}

/// Whether the op takes this variant.
bool own(const Variant& v, const AttentionArgs& a) {
  using Op = ops::AttentionGpu;
  if (Op::can_swap_ab(a, Arch::sm90a)) return v.swap_ab == Op::swap_ab(a);
  if (Op::can_split_kv(a, Arch::sm90a)) return v.split == Op::split(a);
  if (Op::role(a) != Op::Role::prefill) return Op::can_stream(a, Arch::sm90a) && v.stream == Op::stream(a);
  return v.prefill_tma != nullptr && v.split.split == 0 && v.swap_ab.split == 0 && v.cut == Op::prefill_tma(a);
}

struct Problem {
  std::vector<char*> kv;  // copies of k and v, together larger than the cache
  char *q = nullptr, *out = nullptr;
  float *lse = nullptr, *worst = nullptr;
  int32_t *pos = nullptr, *slot = nullptr, *table = nullptr;
  size_t half = 0;  // bytes of k
  AttentionArgs a{};

  Problem(const Shape& s, DType kv_type) {
    const int T = s.B * s.T, page = 16, pages = (s.L + page - 1) / page;
    const size_t e = static_cast<size_t>(info(kv_type).bytes), places = static_cast<size_t>(s.B) * s.L;
    half = (places * s.Hkv * s.D * e + 255) / 256 * 256;
    const int copies = std::string(s.kind) == "decode"
                           ? static_cast<int>(std::clamp<size_t>((size_t{320} << 20) / (2 * half), 2, 100))
                           : 1;
    for (int i = 0; i < copies; ++i) {
      char* p;
      LAB_CHECK(cudaMalloc(&p, 2 * half));
      kv.push_back(p);
      if (kv_type == DType::e4m3) fill_random<<<512, 256>>>(reinterpret_cast<e4m3*>(p), 2 * half, i * 17);
      else fill_random<<<512, 256>>>(reinterpret_cast<bf16*>(p), half, i * 17);
    }
    const size_t q_bytes = static_cast<size_t>(T) * s.Hq * s.D * 2;
    LAB_CHECK(cudaMalloc(&q, q_bytes));
    LAB_CHECK(cudaMalloc(&out, q_bytes));
    LAB_CHECK(cudaMalloc(&lse, static_cast<size_t>(T) * s.Hq * 4));
    LAB_CHECK(cudaMalloc(&worst, 1024 * 4));
    fill_random<<<512, 256>>>(reinterpret_cast<bf16*>(q), q_bytes / 2, 99);
    std::vector<int32_t> p, t, order;
    for (int b = 0; b < s.B; ++b)
      for (int i = 0; i < s.T; ++i) p.push_back(s.L - s.T + i), t.push_back(b);
    for (int i = 0; i < s.B * pages; ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), std::mt19937(3));
    const auto upload = [](const std::vector<int32_t>& v) {
      int32_t* d;
      LAB_CHECK(cudaMalloc(&d, v.size() * 4));
      LAB_CHECK(cudaMemcpy(d, v.data(), v.size() * 4, cudaMemcpyHostToDevice));
      return d;
    };
    pos = upload(p), slot = upload(t), table = upload(order);
    a.q = q, a.out = out, a.lse = lse, a.pos = pos, a.slot = s.B > 1 ? slot : nullptr;
    a.q_stride = a.out_stride = int64_t{s.Hq} * s.D, a.lse_stride = s.Hq;
    a.T = T, a.S = s.B, a.Hq = s.Hq, a.Hkv = s.Hkv, a.D = a.Dv = s.D;
    a.B = s.paged ? s.B * pages : s.B, a.L = s.paged ? page : s.L, a.P = s.paged ? pages : 0;
    a.k_stride = a.v_stride = int64_t{a.L} * s.Hkv * s.D;
    a.k_pitch = a.v_pitch = s.Hkv * s.D;
    if (s.paged) a.page_table = table, a.table_stride = pages;
    a.scale = 1.0f / std::sqrt(static_cast<float>(s.D)), a.mask = s.mask, a.dtype = DType::bf16, a.kv_dtype = kv_type;
    LAB_CHECK(cudaDeviceSynchronize());
  }
  ~Problem() {
    for (char* p : kv) cudaFree(p);
    for (void* p : {static_cast<void*>(q), static_cast<void*>(out), static_cast<void*>(lse), static_cast<void*>(worst),
                    static_cast<void*>(pos), static_cast<void*>(slot), static_cast<void*>(table)})
      cudaFree(p);
  }
  AttentionArgs with(size_t copy) const {
    AttentionArgs b = a;
    b.k = kv[copy % kv.size()], b.v = kv[copy % kv.size()] + half;
    return b;
  }
};

/// us a launch: a graph of `count` launches, median of its replays.
double time_graph(int count, const std::function<bool(int, cudaStream_t)>& issue) {
  cudaStream_t stream;
  LAB_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  LAB_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  bool ok = true;
  for (int i = 0; i < count && ok; ++i) ok = issue(i, stream);
  cudaGraph_t graph = nullptr;
  LAB_CHECK(cudaStreamEndCapture(stream, &graph));
  double us = NAN;
  if (ok) {
    cudaGraphExec_t exec;
    LAB_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t a, b;
    LAB_CHECK(cudaEventCreate(&a));
    LAB_CHECK(cudaEventCreate(&b));
    std::vector<float> ms;
    for (int i = 0; i < 9; ++i) {
      LAB_CHECK(cudaEventRecord(a, stream));
      LAB_CHECK(cudaGraphLaunch(exec, stream));
      LAB_CHECK(cudaEventRecord(b, stream));
      LAB_CHECK(cudaStreamSynchronize(stream));
      float t;
      LAB_CHECK(cudaEventElapsedTime(&t, a, b));
      if (i >= 2) ms.push_back(t);
    }
    std::sort(ms.begin(), ms.end());
    us = ms[ms.size() / 2] * 1000.0 / count;
    LAB_CHECK(cudaEventDestroy(a));
    LAB_CHECK(cudaEventDestroy(b));
    LAB_CHECK(cudaGraphExecDestroy(exec));
  }
  LAB_CHECK(cudaGraphDestroy(graph));
  LAB_CHECK(cudaStreamDestroy(stream));
  return us;
}

std::vector<Variant> variants() {
  std::vector<Variant> all;
  constexpr DType b = DType::bf16, f8 = DType::e4m3;
#define CUT(...) add<bf16, bf16, __VA_ARGS__>(all, b, b)
  // decode by tiles: d, dv, warps_m, warps_n, keys, stages, split
  CUT(128, 128, 1, 4, 16, 3, 8);
  CUT(128, 128, 1, 4, 16, 3, 1);
#undef CUT
  // decode and chunk by streams: d, dv, warps_m, warps_d, stages, split, slots
#define CUT(...) add_stream<bf16, bf16, __VA_ARGS__>(all, b, b)
  CUT(128, 128, 1, 4, 3, 2, 2);
#undef CUT
#define CUT(...) add_stream<bf16, e4m3, __VA_ARGS__>(all, b, f8)
  CUT(128, 128, 1, 4, 4, 1, 2);
#undef CUT
  // decode and chunk by split: d, dv, bytes, warps_m, keys, stages, split, teams
#define CUT(...) add_split<bf16, bf16, __VA_ARGS__>(all, b, b)
  CUT(128, 128, 2, 1, 64, 3, 1, 1);
  CUT(128, 128, 2, 1, 64, 3, 2, 1);
  CUT(128, 128, 2, 1, 64, 3, 8, 1);
  CUT(256, 256, 2, 1, 64, 2, 8, 1);
  CUT(128, 128, 2, 2, 64, 3, 4, 1);
#undef CUT
#define CUT(...) add_split<bf16, e4m3, __VA_ARGS__>(all, b, f8)
  CUT(128, 128, 1, 1, 128, 3, 1, 1);
  CUT(128, 128, 1, 1, 64, 3, 2, 1);
  CUT(128, 128, 1, 1, 64, 6, 8, 2);
#undef CUT
  // decode and chunk, keys along the rows: d, dv, rows, stages, split
#define CUT(...) add_turned<bf16, __VA_ARGS__>(all, b)
  CUT(128, 128, 8, 3, 1);
  CUT(128, 128, 8, 3, 2);
  CUT(128, 128, 8, 3, 8);
  CUT(256, 256, 8, 3, 8);
  CUT(256, 256, 32, 2, 8);
  CUT(128, 128, 32, 5, 2);
#undef CUT
#define CUT(...) add_fed<bf16, __VA_ARGS__>(all, b)
  CUT(128, 128, 8, 128, 2);
  CUT(64, 64, 8, 128, 3);
  CUT(72, 72, 8, 128, 2);
  CUT(256, 256, 8, 64, 2);
  CUT(256, 256, 8, 80, 2);
  CUT(256, 256, 4, 64, 2);
  CUT(256, 256, 4, 80, 2);
#undef CUT
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  FILE* rows = std::fopen(argc > 1 ? argv[1] : "attention.jsonl", "w");
  if (rows == nullptr) return 2;
  const std::string only = argc > 2 ? argv[2] : "";  // decode or prefill
  const int length = argc > 3 ? std::atoi(argv[3]) : 0;  // one shape, checked and not timed: for profilers
  const std::vector<Variant> all = variants();
  for (const Variant& v : all) {
    LAB_CHECK(cudaFuncSetAttribute(v.entry(), cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024));
    if (v.cut.split > 8) LAB_CHECK(cudaFuncSetAttribute(v.entry(), cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    if (v.cut.split > 1) {
      const int height = v.cut.warps_m > 1 ? v.cut.rows() : 4;
      cudaLaunchConfig_t config = {};
      config.gridDim = {static_cast<unsigned>(v.cut.split) * 8, 1, 1};
      config.blockDim = {static_cast<unsigned>(v.swap_ab.split > 0  ? v.swap_ab.threads()
                                               : v.split.split > 0  ? v.split.threads()
                                               : v.stream.split > 0 ? v.stream.threads()
                                                                    : v.cut.threads()),
                         1, 1};
      config.dynamicSmemBytes = static_cast<size_t>(v.swap_ab.split > 0  ? v.swap_ab.smem()
                                                    : v.split.split > 0  ? v.split.smem(height)
                                                    : v.stream.split > 0 ? v.stream.smem(info(v.kv).bytes, height)
                                                                         : v.cut.smem());
      cudaLaunchAttribute size = {};
      size.id = cudaLaunchAttributeClusterDimension;
      size.val.clusterDim = {static_cast<unsigned>(v.cut.split), 1, 1};
      config.attrs = &size;
      config.numAttrs = 1;
      int clusters = 0;
      LAB_CHECK(cudaOccupancyMaxActiveClusters(&clusters, v.entry(), &config));
      std::printf("%s, heads of %d, %zu bytes: %d clusters at once\n", v.name.c_str(), v.cut.d, config.dynamicSmemBytes,
                  clusters);
    }
  }
  constexpr auto causal = AttentionMask::causal, full = AttentionMask::full;
  const std::vector<Shape> shapes = {
      {"decode", 1, 32, 8, 1, 1024, 128, causal},
      {"decode", 1, 32, 8, 1, 8192, 128, causal},
      {"decode", 1, 32, 8, 1, 32768, 128, causal},
      {"decode", 16, 32, 8, 1, 4096, 128, causal},
      {"decode", 64, 32, 8, 1, 4096, 128, causal},
      {"decode", 64, 32, 8, 1, 1024, 128, causal},
      {"decode", 1, 8, 1, 1, 1024, 256, causal},
      {"decode", 16, 32, 8, 1, 4096, 128, causal, true},
      {"decode", 1, 8, 1, 50, 1000, 256, full},
      {"decode", 1, 8, 1, 50, 630, 256, full},
      {"decode", 1, 32, 8, 50, 1000, 128, full},
      {"prefill", 1, 32, 8, 1024, 1024, 128, causal},
      {"prefill", 1, 32, 8, 4096, 4096, 128, causal},
      {"prefill", 1, 32, 8, 8192, 8192, 128, causal},
      {"prefill", 4, 32, 8, 2048, 2048, 128, causal, true},
      {"prefill", 1, 32, 8, 16384, 16384, 128, causal},
      {"prefill", 1, 8, 1, 968, 968, 256, full},
      {"prefill", 1, 8, 1, 576, 576, 256, full},
      {"prefill", 3, 16, 16, 256, 256, 72, full},
      {"prefill", 1, 20, 20, 1500, 1500, 64, full},
      {"prefill", 2, 16, 16, 8192, 8192, 256, causal},
  };
  int wrong = 0;
  std::string table;  // what went wrong with the shape at hand
  for (const Shape& s : shapes)
    for (const DType kv : {DType::bf16, DType::e4m3}) {
      if ((!only.empty() && only != s.kind) || (length != 0 && length != s.L)) continue;
      if (kv == DType::e4m3 && (s.D != 128 || std::string(s.kind) != "decode")) continue;
      Problem p(s, kv);
      const bool decode = std::string(s.kind) == "decode";
      const double pairs =
          s.mask == causal && !decode ? double(s.T) * (s.T + 1) / 2 + double(s.T) * (s.L - s.T) : double(s.T) * s.L;
      const double flop = 4.0 * s.B * s.Hq * pairs * s.D, bytes = 2.0 * double(p.half);
      struct Best {
        double us;
        std::string name;
      };
      std::vector<Best> best[2];
      for (const Variant& v : all) {
        if (decode && (s.B * s.Hkv >= 128 ? v.cut.split > 2 : s.L >= 8192 && v.cut.split < 8))
          continue;  // too many blocks, or too few
        if (v.cut.d != s.D || v.kv != kv ||
            (decode ? v.cut.warps_m * 16 > s.T * s.Hq / s.Hkv + 15 : v.cut.warps_m < 4 || v.cut.split > 1))
          continue;
        LAB_CHECK(cudaMemset(p.out, 0xff, static_cast<size_t>(p.a.T) * s.Hq * s.D * 2));
        LAB_CHECK(cudaMemset(p.worst, 0, 4096));
        if (!launch(v, p.with(0), nullptr)) {
          table += "did not launch: " + v.name + ": " + cudaGetErrorString(cudaGetLastError()) + "\n";
          ++wrong;
          continue;
        }
        LAB_CHECK(cudaDeviceSynchronize());
        const int count = s.L > 4096 ? 128 : 512;
        if (kv == DType::e4m3) compare<bf16, e4m3><<<count, 256>>>(p.with(0), count, p.worst);
        else compare<bf16, bf16><<<count, 256>>>(p.with(0), count, p.worst);
        std::vector<float> worst(count);
        LAB_CHECK(cudaMemcpy(worst.data(), p.worst, count * 4, cudaMemcpyDeviceToHost));
        const float error = *std::max_element(worst.begin(), worst.end());
        if (!(error <= 1)) {
          ++wrong;
          char line[160];
          std::snprintf(line, sizeof line, "WRONG %s %d,%d,%d,%d,%d,%d %s: %.3g of the bound\n", s.kind, s.B, s.Hq,
                        s.Hkv, s.T, s.L, s.D, v.name.c_str(), error);
          table += line;
        }
        for (int cold = 0; cold < (length != 0 ? 0 : decode ? 2 : 1); ++cold) {
          const int nodes = decode ? (s.B * int64_t{s.L} >= 65536 ? 10 : 40) : s.L >= 4096 ? 1 : 8;
          const double us =
              time_graph(nodes, [&](int i, cudaStream_t stream) { return launch(v, p.with(cold ? i : 0), stream); });
          best[cold].push_back({us, own(v, p.a) ? v.name + "*" : v.name});
          std::fprintf(
              rows,
              "{\"op\":\"attention\",\"kind\":\"%s\",\"case\":\"B=%d,Hq=%d,Hkv=%d,T=%d,L=%d,D=%d,mask=%s%s,kv=%s,"
              "kvcache=%s\",\"tactic\":\"%s\",\"us\":%.3f,\"tflops\":%.1f,\"gbs\":%.0f,\"bound\":%.3f,\"own\":%s}\n",
              s.kind, s.B, s.Hq, s.Hkv, s.T, s.L, s.D, s.mask == causal ? "causal" : "full", s.paged ? ",page=16" : "",
              name(kv), cold ? "cold" : "warm", v.name.c_str(), us, flop / us / 1e6, bytes / us / 1e3, error,
              own(v, p.a) ? "true" : "false");
        }
      }
      for (int cold = 0; cold < (decode ? 2 : 1); ++cold) {
        std::sort(best[cold].begin(), best[cold].end(), [](const Best& x, const Best& y) { return x.us < y.us; });
        char line[320];
        int at = std::snprintf(line, sizeof line, "%-7s %d,%d,%d,%d,%d,%d%s %s %s", s.kind, s.B, s.Hq, s.Hkv, s.T, s.L,
                               s.D, s.paged ? ",page" : "", name(kv), decode ? (cold ? "cold" : "warm") : "");
        if (!best[cold].empty())
          at += std::snprintf(line + at, sizeof line - at, decode ? " %.0f GB/s" : " %.0f TF",
                              (decode ? bytes / 1e3 : flop / 1e6) / best[cold][0].us);
        for (size_t i = 0; i < std::min<size_t>(6, best[cold].size()) && at < 260; ++i)
          at += std::snprintf(line + at, sizeof line - at, " | %s %.2f", best[cold][i].name.c_str(), best[cold][i].us);
        std::printf("%s%s\n", table.c_str(), line);
        table.clear();
      }
      std::fflush(rows);
      std::fflush(stdout);
    }
  std::printf("%d wrong\n", wrong);
  std::fclose(rows);
  return wrong != 0;
}
