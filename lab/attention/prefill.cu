// Prefill by TMA in one process: tiles of attention_prefill_tma, with its form for full masks, and
// attention_prefill_tall, each against the form for any mask, bit by bit, then timed in turn. `check`: not timed.
//   nvcc -std=c++20 -O2 -gencode=arch=compute_90a,code=sm_90a -I. lab/attention/prefill.cu -o prefill
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "vivace/kernels/attention/attention.cuh"

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

// nvcc's host side knows no class-type template parameters of kernels.
template <int d, int m, int keys, int stages, bool one_span>
__global__ void __launch_bounds__(32 * m + 128, 1) tma_kernel(const __grid_constant__ AttentionTmaArgs f) {
  constexpr AttentionTile P{d, d, m, 1, keys, stages, 1, true, true, true, one_span};
  run_attention_prefill_tma<bf16, P, Standard>(f);
}
template <int d, int keys, int stages>
__global__ void __launch_bounds__(512, 1) tall_kernel(const __grid_constant__ AttentionTmaArgs f) {
  constexpr AttentionTile P{d, d, 16, 1, keys, stages, 1, true, true, true, true};
  run_attention_prefill_tall<bf16, P>(f);
}

struct Entry {
  std::string name;
  AttentionTile tile;
  void (*kernel)(AttentionTmaArgs);
};
template <int d, int m, int keys, int stages, bool one_span>
void add_one(std::vector<Entry>& all) {
  const AttentionTile tile{d, d, m, 1, keys, stages, 1, true, true, true, one_span};
  all.push_back({std::to_string(16 * m) + " rows" + (one_span ? ", one span" : ""), tile,
                 &tma_kernel<d, m, keys, stages, one_span>});
}
/// For any mask, then for a full one.
template <int... kCut>
void add(std::vector<Entry>& all) {
  add_one<kCut..., false>(all);
  add_one<kCut..., true>(all);
}
std::vector<Entry> entries() {
  std::vector<Entry> all;
  add<64, 8, 128, 3>(all);
  all.push_back({"256 rows, tall", {64, 64, 16, 1, 128, 3, 1, true, true, true, true}, &tall_kernel<64, 128, 3>});
  add<72, 4, 128, 2>(all);
  add<72, 8, 128, 2>(all);
  add<128, 8, 128, 2>(all);
  add<256, 4, 80, 2>(all);
  add<256, 8, 80, 2>(all);
  return all;
}

struct Shape {
  const char* name;
  int B, T, L, Hq, Hkv, D, m;  // T queries of each of B slots; warps of the reference's tile
  AttentionMask mask;
  bool slots;           // whether a tensor names them, as encoders give it
  bool ragged = false;  // runs and lengths of all kinds, NaN beyond; less rows than T
};

TensorMap map_of(const void* base, const AttentionArgs& a, int keys) {
  static const auto encode = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found;
    LAB_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
  }();
  const auto n = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t dims[4] = {n(a.D), n(a.L), n(a.Hkv), n(a.B)},
                   strides[3] = {n(int64_t{a.Hkv} * a.D * 2), n(a.D * 2), n(a.k_stride * 2)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(keys), 1, 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult r = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(base), dims, strides, box,
                            steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS) std::printf("no tensor map: %d\n", static_cast<int>(r)), std::exit(2);
  TensorMap out;
  std::memcpy(&out, &map, sizeof out);
  return out;
}

struct Problem {
  AttentionArgs a{};
  std::vector<void*> held;
  size_t out_bytes = 0, lse_bytes = 0;

  template <class T>
  T* upload(const std::vector<T>& v) {
    void* p = nullptr;
    LAB_CHECK(cudaMalloc(&p, v.size() * sizeof(T)));
    LAB_CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    held.push_back(p);
    return static_cast<T*>(p);
  }
  explicit Problem(const Shape& s) {
    const int rows = s.B * s.T;
    uint64_t state = 1;
    const auto draw = [&](size_t n) {  // sums of four uniforms, as bf16
      std::vector<uint16_t> v(n);
      for (uint16_t& x : v) {
        float sum = 0;
        for (int i = 0; i < 4; ++i)
          state = state * 6364136223846793005ull + 1442695040888963407ull,
          sum += static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
        sum *= 1.7320508f;
        uint32_t bits;
        std::memcpy(&bits, &sum, 4);
        x = static_cast<uint16_t>(bits >> 16);
      }
      return v;
    };
    std::vector<int32_t> pos, slot, length(s.B, s.L);
    for (int b = 0; b < s.B; ++b)
      for (int i = 0; i < s.T; ++i) pos.push_back(s.L - s.T + i), slot.push_back(b);
    auto k = draw(size_t(s.B) * s.L * s.Hkv * s.D), v = draw(k.size());
    if (s.ragged) {
      const int lengths[] = {s.L, 17, 0, 128, 129, 255, 1, s.L - 1};
      for (int b = 0; b < s.B; ++b) length[b] = lengths[b % 8];
      const int runs[] = {37, 100, 1, 250, 64, 3, 129, 90, 2, 31};
      for (int t = 0, r = 0; t < rows; ++r)
        for (int i = 0; i < runs[r % 10] && t < rows; ++i, ++t) slot[t] = r * 5 % s.B;
      for (int b = 0; b < s.B; ++b)  // what no query sees
        for (size_t i = size_t(length[b]) * s.Hkv * s.D; i < size_t(s.L) * s.Hkv * s.D; ++i)
          k[size_t(b) * s.L * s.Hkv * s.D + i] = v[size_t(b) * s.L * s.Hkv * s.D + i] = 0x7fc0;
      a.length = upload(length), a.rows = upload(std::vector<int32_t>{rows - 5});
    }
    a.q = upload(draw(size_t(rows) * s.Hq * s.D)), a.k = upload(k), a.v = upload(v);
    out_bytes = size_t(rows) * s.Hq * s.D * 2, lse_bytes = size_t(rows) * s.Hq * 4;
    a.out = upload(std::vector<uint16_t>(out_bytes / 2)), a.lse = upload(std::vector<float>(lse_bytes / 4));
    if (s.mask != AttentionMask::full) a.pos = upload(pos);
    if (s.slots || s.B > 1) a.slot = upload(slot);
    a.q_stride = a.out_stride = int64_t{s.Hq} * s.D, a.lse_stride = s.Hq;
    a.T = rows, a.S = a.B = s.B, a.L = s.L, a.Hq = s.Hq, a.Hkv = s.Hkv, a.D = a.Dv = s.D;
    a.k_stride = a.v_stride = int64_t{s.L} * s.Hkv * s.D, a.k_pitch = a.v_pitch = s.Hkv * s.D;
    a.scale = 1.0f / std::sqrt(static_cast<float>(s.D)), a.mask = s.mask, a.dtype = a.kv_dtype = DType::bf16;
  }
  ~Problem() {
    for (void* p : held) cudaFree(p);
  }
};

struct Prepared {
  const Entry* e;
  AttentionTmaArgs f;
  unsigned grid;

  Prepared(const Entry& entry, const AttentionArgs& a)
      : e(&entry), f{{}, map_of(a.k, a, entry.tile.keys), map_of(a.v, a, entry.tile.keys)} {
    std::memcpy(f.args, &a, offsetof(AttentionArgs, extra));
    const int rows = entry.tile.rows();
    const auto tiles = static_cast<unsigned>((int64_t{a.T} * a.group() + rows - 1) / rows * a.Hkv);
    grid = entry.tile.tall() ? tiles : std::min(tiles, 132u);
    LAB_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(entry.kernel),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, entry.tile.smem()));
  }
  void launch(cudaStream_t stream) const {
    cudaLaunchConfig_t config = {};
    config.gridDim = {grid, 1, 1};
    config.blockDim = {static_cast<unsigned>(e->tile.threads()), 1, 1};
    config.dynamicSmemBytes = static_cast<size_t>(e->tile.smem());
    config.stream = stream;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &early;
    config.numAttrs = 1;
    LAB_CHECK(cudaLaunchKernelEx(&config, e->kernel, f));
  }
};

cudaGraphExec_t graph_of(const Prepared& p, int count) {
  cudaStream_t stream;
  LAB_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  LAB_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < count; ++i) p.launch(stream);
  cudaGraph_t graph;
  LAB_CHECK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  LAB_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  LAB_CHECK(cudaGraphDestroy(graph));
  LAB_CHECK(cudaStreamDestroy(stream));
  return exec;
}

}  // namespace

int main(int argc, char** argv) {
  const bool only_check = argc > 1 && std::string(argv[1]) == "check";
  constexpr auto causal = AttentionMask::causal, full = AttentionMask::full;
  const std::vector<Shape> shapes = {
      {"runs of slots, 64", 7, 200, 300, 8, 2, 64, 8, full, true, true},
      {"runs of slots, heads alone, 64", 9, 150, 700, 3, 3, 64, 8, full, true, true},
      {"runs of slots, causal, 64", 7, 200, 300, 8, 2, 64, 8, causal, true, true},
      {"runs of slots, 72", 7, 200, 300, 4, 4, 72, 8, full, true, true},
      {"runs of slots, 256", 7, 200, 300, 8, 1, 256, 8, full, true, true},
      {"Whisper's encoder, 1500 x 20 of 64", 1, 1500, 1500, 20, 20, 64, 8, full, true},
      {"the same without slots", 1, 1500, 1500, 20, 20, 64, 8, full, false},
      {"the same over 512 places", 1, 1500, 512, 20, 20, 64, 8, full, false},
      {"the same over 128 places", 1, 1500, 128, 20, 20, 64, 8, full, false},
      {"8 windows of it", 8, 1500, 1500, 20, 20, 64, 8, full, true},
      {"SigLIP, 2 x 256 x 16 of 72", 2, 256, 256, 16, 16, 72, 4, full, true},
      {"SigLIP, 3 x 256 x 16 of 72", 3, 256, 256, 16, 16, 72, 8, full, true},
      {"Gemma's prefix, 576 x 8 of 256", 1, 576, 576, 8, 1, 256, 4, full, false},
      {"1024 causal x 32/8 of 128", 1, 1024, 1024, 32, 8, 128, 8, causal, false},
      {"8192 causal x 32/8 of 128", 1, 8192, 8192, 32, 8, 128, 8, causal, false},
      {"8192 causal x 32/8 of 64", 1, 8192, 8192, 32, 8, 64, 8, causal, false},
      {"8192 full x 16 of 256", 1, 8192, 8192, 16, 16, 256, 8, full, false},
  };
  const std::vector<Entry> all = entries();
  cudaEvent_t begin, end;
  LAB_CHECK(cudaEventCreate(&begin));
  LAB_CHECK(cudaEventCreate(&end));
  int wrong = 0;
  for (const Shape& s : shapes) {
    Problem p(s);
    std::vector<Prepared> ours;
    for (const Entry& e : all)
      if (e.tile.d == s.D && !(e.tile.one_span && s.mask != full)) ours.emplace_back(e, p.a);
    // The first is the reference.
    std::iter_swap(ours.begin(),
                   std::find_if(ours.begin(), ours.end(), [&](const Prepared& x) { return x.e->tile.warps_m == s.m; }));
    std::vector<char> want, got(p.out_bytes + p.lse_bytes);
    for (const Prepared& x : ours)
      for (int again = 0; again < 3; ++again) {
        LAB_CHECK(cudaMemset(p.a.out, 0xff, p.out_bytes));
        LAB_CHECK(cudaMemset(p.a.lse, 0xff, p.lse_bytes));
        x.launch(nullptr);
        LAB_CHECK(cudaDeviceSynchronize());
        LAB_CHECK(cudaMemcpy(got.data(), p.a.out, p.out_bytes, cudaMemcpyDeviceToHost));
        LAB_CHECK(cudaMemcpy(got.data() + p.out_bytes, p.a.lse, p.lse_bytes, cudaMemcpyDeviceToHost));
        if (want.empty()) want = got;
        if (want == got) continue;
        const auto at = std::mismatch(want.begin(), want.end(), got.begin()).first - want.begin();
        std::printf("WRONG %s: %s differs from byte %zd of %zu on\n", s.name, x.e->name.c_str(), at, got.size());
        ++wrong;
        break;
      }
    if (only_check || s.ragged) {
      std::printf("%-36s %zu forms compared\n", s.name, ours.size());
      continue;
    }
    const int count = s.L > 4096 ? 4 : 40;
    std::vector<cudaGraphExec_t> graphs;
    for (const Prepared& x : ours) graphs.push_back(graph_of(x, count));
    std::vector<std::vector<float>> us(ours.size());
    for (int round = 0; round < 11; ++round)
      for (size_t i = 0; i < ours.size(); ++i) {
        LAB_CHECK(cudaEventRecord(begin, nullptr));
        LAB_CHECK(cudaGraphLaunch(graphs[i], nullptr));
        LAB_CHECK(cudaEventRecord(end, nullptr));
        LAB_CHECK(cudaEventSynchronize(end));
        float ms;
        LAB_CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (round >= 2) us[i].push_back(ms * 1000 / static_cast<float>(count));
      }
    const double pairs = s.mask == causal ? 0.5 * s.T * (s.T + 1) : double(s.T) * s.L;
    const double flop = 4.0 * s.B * s.Hq * pairs * s.D;
    std::printf("%s\n", s.name);
    for (size_t i = 0; i < ours.size(); ++i) {
      std::sort(us[i].begin(), us[i].end());
      const double median = us[i][us[i].size() / 2];
      std::printf("  %-24s%c %9.2f us  %6.1f TFLOP/s  grid %u\n", ours[i].e->name.c_str(), i == 0 ? '*' : ' ', median,
                  flop / median / 1e6, ours[i].grid);
      LAB_CHECK(cudaGraphExecDestroy(graphs[i]));
    }
    std::fflush(stdout);
  }
  std::printf("%d wrong\n", wrong);
  return wrong != 0;
}
