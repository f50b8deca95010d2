// norm_gemm on Hopper, for one or two tokens (ops/norm_gemm.h): gemm_wgmma whose x is no operand of the copy engine. Warps of
// their own read the rows, normalise and round them as `norm` would have written them, and put them where the tensor unit
// reads; meanwhile the ring fills with W. Every block does so for all of its tokens: K T elements a block for a launch less.
#pragma once
#include "vivace/kernels/gemm/norm_gemm.h"
#include "vivace/kernels/gemm/wgmma.cuh"
#include "vivace/kernels/ptx/relaxed.cuh"
#include "vivace/kernels/tile/divide.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// Rows of x -> the panel: norm.cuh's arithmetic in its order, bit for bit.
template <class T, class X, class W, GemmWgmma P, NormPanel N>
struct PanelMaker {
  static constexpr int kEach = N.each(), kGroups = kEach * N.items, kWarps = N.threads / 32;
  static constexpr bool kEarly = kGroups <= 4;  // the weight has registers, and is there before the rows are
  using Group = float[kNormGroup];

  const NormArgs& a;
  const WgmmaPlace<T, P>& place;
  unsigned char* panel;
  int lane, team, member;
  Vec<W, kNormGroup> weight[kEarly ? kGroups : 1];

  __device__ __forceinline__ PanelMaker(const NormArgs& args, const WgmmaPlace<T, P>& place_, unsigned char* to)
      : a(args), place(place_), panel(to), lane(threadIdx.x % 32), team((threadIdx.x / 32 - P.rows / 16 - 1) / N.team), member((threadIdx.x / 32 - P.rows / 16 - 1) % N.team) {
    if constexpr (kEarly)
      if (a.weight != nullptr) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) weight[g] = group<W>(a.weight, 0, column(g));
      }
  }
  /// The first column of this lane's group g: g / items counts warps of norm, g % items its threads' groups.
  __device__ __forceinline__ int column(int g) const {
    return (((member * kEach + g / N.items) * 32 + lane) + g % N.items * N.threads) * kNormGroup;
  }
  /// Eight elements; beyond the row those at its end.
  template <class V>
  __device__ __forceinline__ Vec<V, kNormGroup> group(const void* base, int64_t offset, int col) const {
    return load_raw<kNormGroup, kNormGroup>(static_cast<const V*>(base) + offset + min(col, a.H - kNormGroup));
  }
  /// The sum over the row that norm's block_reduce gives, of this lane's sums of the warps it stands for.
  __device__ __forceinline__ float total(float (&part)[kEach], float* scratch) const {
#pragma unroll
    for (float& v : part) v = warp_reduce(v, Sum());
    if constexpr (N.team == 1) return reduce_parts(part, Sum());
    if (lane == 0) {
#pragma unroll
      for (int v = 0; v < kEach; ++v) scratch[member * kEach + v] = part[v];
    }
    ptx::named_barrier<N.team * 32>(3 + team);
    float all[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all[w] = scratch[w];
    return reduce_parts(all, Sum());
  }
  /// Where the panel has column `col`, the first of a group, of token t; null where another block has it.
  __device__ __forceinline__ T* at(int t, int col) const {
    const int step = col / place.kStep - place.first_step, byte = col % place.kStep * static_cast<int>(sizeof(T));
    if (step < 0 || step >= place.steps) return nullptr;
    const int line = step * P.panel_rows + t;  // the tensor unit's swizzle follows the address
    return reinterpret_cast<T*>(panel + line * 128 + ((byte / 16) ^ (line % 8)) * 16 + byte % 16);
  }
  template <class V, class F>
  __device__ __forceinline__ static void each(const Vec<V, kNormGroup>& raw, Group& y, F&& f) {
    Group p;
    to_floats(raw, p);
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i) y[i] = f(y[i], p[i]);
  }

  /// Rows t of M, one a team. scratch: 2 * kWarps floats a team.
  __device__ __forceinline__ void run(int M, float* scratch) {
    const float per_count = __frcp_rn(static_cast<float>(a.H)), plus = a.weight_plus_one ? 1.0f : 0.0f;
    const float quantum = sizeof(T) == 1 && a.out_scale != nullptr ? *a.out_scale : 1.0f;
    const RoughDivider by(quantum);
    bool odd = false;
    for (int t = team; t < M; t += N.teams(), odd = !odd) {
      Vec<X, kNormGroup> x[kGroups];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) x[g] = group<X>(a.x, t * a.x_stride, column(g));
      const int64_t ada = a.ada_row != nullptr ? a.ada_row[t] : min(t, a.R - 1);
      const bool lost = (a.scale != nullptr || a.shift != nullptr) && (ada < 0 || ada >= a.R);
      float part[kEach];
#pragma unroll
      for (int v = 0; v < kEach; ++v) {
        part[v] = 0;
#pragma unroll
        for (int k = 0; k < N.items; ++k) {
          Group h;
          to_floats(x[v * N.items + k], h);
          if (column(v * N.items + k) < a.H) {
#pragma unroll
            for (const float d : h) part[v] = __fmaf_rn(d, d, part[v]);
          }
        }
      }
      const float inv = rsqrtf(__fmaf_rn(total(part, scratch + (team * 2 + odd) * kWarps), per_count, a.eps));
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int col = column(g);
        if (col >= a.H) continue;
        T* const to = at(t, col);
        if (to == nullptr) continue;
        Group y;
        to_floats(x[g], y);
#pragma unroll
        for (float& v : y) v = lost ? __uint_as_float(0x7fc00000u) : __fmul_rn(v, inv);
        if (a.weight != nullptr) {
          const auto weigh = [&](float v, float w) { return __fmul_rn(v, __fadd_rn(w, plus)); };
          if constexpr (kEarly) each(weight[g], y, weigh);
          else each(group<W>(a.weight, 0, col), y, weigh);
        }
        if (!lost) {
          if (a.scale != nullptr) each(group<X>(a.scale, ada * a.scale_stride, col), y, [](float v, float s) { return __fmul_rn(v, __fadd_rn(1.0f, s)); });
          if (a.shift != nullptr) each(group<X>(a.shift, ada * a.shift_stride, col), y, [](float v, float s) { return __fadd_rn(v, s); });
        }
        if (sizeof(T) == 1 && quantum != 1.0f) by.divide(y);
        store<kNormGroup>(to, y);
      }
      // W's columns beyond K are zeros: what they meet must be finite.
      if (member == 0) {
        const int end = (a.H + place.kStep - 1) / place.kStep * place.kStep, col = a.H + lane * kNormGroup;
        T* const to = col < end ? at(t, col) : nullptr;
        if (to != nullptr) store<kNormGroup>(to, Group{});
      }
    }
  }
};

/// Grid: as gemm_wgmma's.
template <class T, class X, class W, class Out, GemmWgmma P, NormPanel N>
__global__ void __launch_bounds__(P.threads() + 32 * N.warps, 1) norm_gemm(const __grid_constant__ NormGemmArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ float scratch[2 * N.teams() * (N.threads / 32)];
  wgmma_block<T, Out, P, N.warps>(args, [&](const WgmmaPlace<T, P>& place, uint32_t full) {
    PanelMaker<T, X, W, P, N> maker(args.norm, place, gemm_wgmma_smem);
    ptx::touch_parameters(args.norm);
    ptx::dependency_wait();
    maker.run(valid_rows(args.norm.rows, args.norm.T), scratch);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // ordinary stores, for the tensor unit
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(wgmma_made<P>(full));
  });
#endif
}

/// The other form, up to a tile of tokens. x comes through the ring as it is, and warps of their own put y = x inv w in its place, a
/// stage each in turn, before it is multiplied. A row's inverse root is made by one warp of the grid and handed to all others
/// in a word that says both what it is and that it is there, so that nothing else in memory need be ordered. A root that does not
/// come is made once more: no block needs another one to make progress.
template <class T, class X, class W, GemmWgmma P, NormPanel N>
struct RingNorm {
  static constexpr int kWarps = N.threads / 32, kAtOnce = kWarps * N.items > 16 ? kWarps / 2 : kWarps;  // of norm's warps, in registers
  static constexpr int kAcross = 8 * P.boxes, kRows = 32 / kAcross, kEach = P.tokens / kRows;            // lanes a row of a stage, rows at a time, of a lane
  static constexpr int kHalves = P.tokens > 32 ? 2 : 1, kPatience = 1024;
  static_assert(N.warps <= 4 && kAtOnce * N.items <= 16 && P.boxes * sizeof(T) == sizeof(X));

  const NormRingArgs& a;
  const WgmmaPlace<T, P>& place;
  const uint32_t full;
  const int lane, warp, units;  // units: warps of the grid that do this
  const float plus;
  Vec<W, kNormGroup> weight;    // of the stage to come

  __device__ __forceinline__ RingNorm(const NormRingArgs& args, const WgmmaPlace<T, P>& place_, uint32_t full_)
      : a(args), place(place_), full(full_), lane(threadIdx.x % 32), warp(ptx::warp_of_block() - P.rows / 16 - 1), units(static_cast<int>(gridDim.x) * N.warps), plus(args.weight_plus_one ? 1.0f : 0.0f) {}

  /// The first of this lane's columns in a step of K.
  __device__ __forceinline__ int column(int step) const { return (place.first_step + step) * place.kStep + lane % kAcross * kNormGroup; }
  __device__ __forceinline__ void ask_weight(int step) {
    if (a.weight != nullptr) weight = load_raw<kNormGroup, kNormGroup>(static_cast<const W*>(a.weight) + min(column(step), a.g.K - kNormGroup));
  }
  /// 1 / sqrt(mean square + eps) of row t, in every lane: norm.cuh's sums in their order.
  __device__ __forceinline__ float root(int t) const {
    const X* const row = static_cast<const X*>(a.g.x) + t * a.g.x_stride;
    float part[kWarps];
#pragma unroll
    for (int v0 = 0; v0 < kWarps; v0 += kAtOnce) {
      const auto column = [&](int v, int k) { return ((v0 + v) * 32 + lane + k * N.threads) * kNormGroup; };
      Vec<X, kNormGroup> x[kAtOnce][N.items];
#pragma unroll
      for (int v = 0; v < kAtOnce; ++v)
#pragma unroll
        for (int k = 0; k < N.items; ++k) x[v][k] = load_raw<kNormGroup, kNormGroup>(row + min(column(v, k), a.g.K - kNormGroup));
#pragma unroll
      for (int v = 0; v < kAtOnce; ++v) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < N.items; ++k) {
          float h[kNormGroup];
          to_floats(x[v][k], h);
          if (column(v, k) < a.g.K) {
#pragma unroll
            for (const float d : h) sum = __fmaf_rn(d, d, sum);
          }
        }
        part[v0 + v] = sum;
      }
    }
#pragma unroll
    for (float& v : part) v = warp_reduce(v, Sum());
    return rsqrtf(__fmaf_rn(reduce_parts(part, Sum()), __frcp_rn(static_cast<float>(a.g.K)), a.eps));
  }
  __device__ __forceinline__ uint64_t* handed(int t) const { return reinterpret_cast<uint64_t*>(a.meet) + 1 + t; }
  /// Roots of rows lane and lane + 32.
  __device__ __forceinline__ void meet(int M, float (&inv)[kHalves]) const {
    for (int t = static_cast<int>(blockIdx.x) + warp * static_cast<int>(gridDim.x); t < M; t += units) {
      const float mine = root(t);
      if (lane == 0) ptx::store_relaxed(handed(t), uint64_t{1} << 32 | __float_as_uint(mine));
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int t = lane + 32 * h;
      uint64_t word = 0;
      if (t < M)
        for (int i = 0; i < kPatience && (word = ptx::load_relaxed(handed(t))) == 0; ++i) {}
      inv[h] = __uint_as_float(static_cast<uint32_t>(word));
      for (uint32_t late = __ballot_sync(0xffffffffu, t < M && word == 0); late != 0; late &= late - 1) {
        const int at = __ffs(late) - 1;
        const float again = root(at + 32 * h);
        if (lane == at) inv[h] = again;
      }
    }
  }
  /// Stage `step` in `slot`: a lane has 8 columns of every kRows-th row.
  __device__ __forceinline__ void make(int slot, int step, int M, const RoughDivider& by, const float (&inv)[kEach]) const {
    const bool beyond = column(step) >= a.g.K;  // zeros, which W has there too
    float factor[kNormGroup];
    to_floats(weight, factor);
#pragma unroll
    for (float& f : factor) f = __fadd_rn(f, plus);
    unsigned char* const at = gemm_wgmma_smem + slot * P.stage_bytes() + P.rows * 128;
    constexpr int kRun = kEach < 4 ? kEach : 4;
    const int across = lane % kAcross;
#pragma unroll
    for (int first = 0; first < kEach; first += kRun) {
      if (first * kRows >= M) break;
      Vec<X, kNormGroup> x[kRun];
      const auto row = [&](int i) { return (first + i) * kRows + lane / kAcross; };
#pragma unroll
      for (int i = 0; i < kRun; ++i) x[i] = *reinterpret_cast<const Vec<X, kNormGroup>*>(at + across / 8 * P.tokens * 128 + row(i) * 128 + (across % 8 ^ row(i) % 8) * 16);
      if constexpr (P.boxes > 1) __syncwarp();  // codes lie where other lanes' elements were
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        float y[kNormGroup];
        to_floats(x[i], y);
#pragma unroll
        for (int j = 0; j < kNormGroup; ++j) {
          y[j] = __fmul_rn(y[j], inv[first + i]);
          if (a.weight != nullptr) y[j] = __fmul_rn(y[j], factor[j]);
        }
        if (sizeof(T) == 1 && by.s != 1.0f) by.divide(y);
#pragma unroll
        for (float& v : y) v = beyond ? 0.0f : v;
        const int byte = across * kNormGroup * static_cast<int>(sizeof(T));
        store<kNormGroup>(reinterpret_cast<T*>(at + row(i) * 128 + (byte / 16 ^ row(i) % 8) * 16 + byte % 16), y);
      }
    }
  }

  __device__ __forceinline__ void run() {
    int step = warp % place.steps;
    ask_weight(step);
    ptx::touch_parameters(a);
    ptx::dependency_wait();
    const int M = valid_rows(a.g.rows, a.g.T);
    const RoughDivider by(sizeof(T) == 1 && a.out_scale != nullptr ? *a.out_scale : 1.0f);
    float mine[kHalves], inv[kEach];
    meet(M, mine);
    uint32_t left = 0;  // the loads above have come, for their values were looked at
    if (lane == 0) left = atomicInc(reinterpret_cast<unsigned int*>(a.meet), static_cast<unsigned int>(units - 1));
#pragma unroll
    for (int i = 0; i < kEach; ++i) inv[i] = __shfl_sync(0xffffffffu, mine[i * kRows / 32], i * kRows % 32 + lane / kAcross);

    // Stages as the loading thread brings them: without a valid row, those that were on their way.
    const int stride = static_cast<int>(gridDim.x) / P.cluster(), first = static_cast<int>(blockIdx.x) / P.cluster();
    const int tiles = first < place.tiles() ? (place.tiles() - first + stride - 1) / stride : 0, all = M > 0 ? tiles * place.steps : place.ahead();
    for (int k = warp, slot = warp, parity = 0; k < all; k += N.warps) {
      ptx::mbarrier_wait<false>(full + 8 * slot, parity);
      make(slot, step, M, by, inv);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // ordinary stores, for the tensor unit
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(wgmma_made<P>(full) + 8 * slot);
      for (step += N.warps; step >= place.steps;) step -= place.steps;
      ask_weight(step);
      if ((slot += N.warps) >= P.stages) slot -= P.stages, parity ^= 1;
    }
    // The last warp to leave forgets the roots, so that the next launch finds none.
    left = __shfl_sync(0xffffffffu, left, 0);
    if (left == static_cast<uint32_t>(units - 1))
      for (int t = lane; t < M; t += 32) ptx::store_relaxed(handed(t), 0);
  }
};

/// Grid: as gemm_wgmma's. One tile of tokens.
template <class T, class X, class W, class Out, GemmWgmma P, NormPanel N>
__global__ void __launch_bounds__(P.threads() + 32 * N.warps, 1) norm_gemm_ring(const __grid_constant__ NormRingArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wgmma_block<T, Out, P, N.warps>(args, [&](const WgmmaPlace<T, P>& place, uint32_t full) { RingNorm<T, X, W, P, N>(args, place, full).run(); });
#endif
}

}  // namespace vivace::kernels
