// norm_gemm on Hopper, for one or two tokens (ops/norm_gemm.h): gemm_wgmma whose x is no operand of TMA. Warps of
// their own read the rows, normalise and round them as `norm` would have written them, and put them where the tensor
// core reads; meanwhile the ring fills with W. Every block does so for all of its tokens: K T elements a block for a
// launch less. Whatever can stands before the dependency wait, and nothing that waits for a loaded value before the
// rows' loads: each block's first product waits for these.
// Chosen when: Hopper, where wins() of vivace/ops/norm_gemm.h finds it faster than its parts.
#pragma once
#include "vivace/kernels/gemm/norm_gemm.h"
#include "vivace/kernels/gemm/wgmma.cuh"
#include "vivace/kernels/tile/divide.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// Rows of x -> the panel: norm.cuh's arithmetic in its order, bit for bit.
template <class T, class X, class W, GemmWgmma P, NormPanel N>
struct PanelProducer {
  static constexpr int kEach = N.each(), kGroups = kEach * N.items, kWarps = N.threads / 32;
  static constexpr int kTurns = (P.panel_rows + N.teams() - 1) / N.teams();  // rows of a team
  static constexpr bool kAdaptive = N.adaptive, kLayer = N.layer;
  static constexpr bool kEarly = kGroups <= 4;  // the weight has registers, and is there before the rows are
  using Group = float[kNormGroup];

  const NormArgs& a;
  const WgmmaTileCoord<T, P>& coord;
  unsigned char* panel;
  int lane, team, member;
  float per_count, plus;
  int spots[kGroups];  // of this lane's groups of its first row, found before the wait
  Vec<W, kNormGroup> weight[kEarly ? kGroups : 1], bias[kEarly && kLayer ? kGroups : 1];

  __device__ __forceinline__ PanelProducer(const NormArgs& args, const WgmmaTileCoord<T, P>& coord_, unsigned char* to)
      : a(args),
        coord(coord_),
        panel(to),
        lane(threadIdx.x % 32),
        team((threadIdx.x / 32 - P.rows / 16 - 1) / N.team),
        member((threadIdx.x / 32 - P.rows / 16 - 1) % N.team) {
    per_count = __frcp_rn(static_cast<float>(a.H)), plus = a.weight != nullptr && a.weight_plus_one ? 1.0f : 0.0f;
    if constexpr (kEarly) {
#pragma unroll
      for (Vec<W, kNormGroup>& one : weight)
#pragma unroll
        for (W& v : one.v) v = from_float<W>(1.0f);
      if (a.weight != nullptr) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) weight[g] = group<W>(a.weight, 0, column(g));
      }
      if (kLayer && a.bias != nullptr) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) bias[kLayer ? g : 0] = group<W>(a.bias, 0, column(g));
      }
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      spots[g] = column(g) < a.H ? spot(team, column(g)) : -1;
      asm volatile("" : "+r"(spots[g]));
    }
    asm volatile("" : "+f"(per_count), "+f"(plus));  // done before the wait
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
  /// Where in the panel column `col`, the first of a group, of token t lies, in bytes; negative where another block has
  /// it.
  __device__ __forceinline__ int spot(int t, int col) const {
    const int step = col / coord.kStep - coord.first_step, byte = col % coord.kStep * static_cast<int>(sizeof(T));
    const int line = step * P.panel_rows + t;  // the tensor core's swizzle follows the address
    return step < 0 || step >= coord.steps ? -1 : line * 128 + ((byte / 16) ^ (line % 8)) * 16 + byte % 16;
  }
  __device__ __forceinline__ void put(int at, const Group& y) const {
    store<kNormGroup>(reinterpret_cast<T*>(panel + at), y);
  }
  template <class V, class F>
  __device__ __forceinline__ static void each(const Vec<V, kNormGroup>& raw, Group& y, F&& f) {
    Group p;
    to_floats(raw, p);
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i) y[i] = f(y[i], p[i]);
  }

  /// Rows t of the valid ones, one a team. scratch: 2 * kWarps floats a team.
  __device__ __forceinline__ void run(float* scratch) {
    const int M = valid_rows(a.rows, a.T);
    const float quantum = sizeof(T) == 1 && a.out_scale != nullptr ? *a.out_scale : 1.0f;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int t = team + turn * N.teams();
      if (t >= a.T) break;
      Vec<X, kNormGroup> x[kGroups];
      const X* const row = static_cast<const X*>(a.x) + t * a.x_stride;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        x[g] = Vec<X, kNormGroup>{};
        if (column(g) < a.H) x[g] = load_raw<kNormGroup, kNormGroup>(row + column(g));
      }
      int64_t ada = 0;
      bool lost = false;
      if constexpr (kAdaptive) {
        ada = a.ada_row != nullptr ? a.ada_row[t] : min(t, a.R - 1);
        lost = (a.scale != nullptr || a.shift != nullptr) && (ada < 0 || ada >= a.R);
      }
      // Sums over the row, each in norm's order; what lies beyond the row is zero and joins none.
      const auto sum = [&](int which, auto&& f) {
        float part[kEach];
#pragma unroll
        for (int v = 0; v < kEach; ++v) {
          part[v] = 0;
#pragma unroll
          for (int k = 0; k < N.items; ++k) {
            Group h;
            to_floats(x[v * N.items + k], h);
            if (kLayer && column(v * N.items + k) >= a.H) continue;
#pragma unroll
            for (const float d : h) part[v] = f(part[v], d);
          }
        }
        return total(part, scratch + (team * 2 + which % 2) * kWarps);  // the one before may still be read
      };
      float mean = 0;
      if constexpr (kLayer) mean = __fmul_rn(sum(0, [](float s, float h) { return __fadd_rn(s, h); }), per_count);
      const float squares = sum(kLayer ? 1 : turn, [&](float s, float h) {
        const float d = kLayer ? __fsub_rn(h, mean) : h;
        return __fmaf_rn(d, d, s);
      });
      const float inv = rsqrtf(__fmaf_rn(squares, per_count, a.eps));
      const RoughDivider by(quantum);  // made here: in front of the row's loads it would make them wait for the scale
      if (t >= M) break;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int col = column(g);
        const int at = turn == 0 ? spots[g] : col < a.H ? spot(t, col) : -1;
        if (at < 0) continue;
        Group y;
        to_floats(x[g], y);
#pragma unroll
        for (float& v : y)
          v = lost ? __uint_as_float(0x7fc00000u) : __fmul_rn(kLayer ? __fsub_rn(v, mean) : v, inv);
        const auto weigh = [&](float v, float w) { return __fmul_rn(v, __fadd_rn(w, plus)); };
        if constexpr (kEarly) each(weight[g], y, weigh);
        else if (a.weight != nullptr) each(group<W>(a.weight, 0, col), y, weigh);
        if (kLayer && a.bias != nullptr) {
          const auto add = [](float v, float b) { return __fadd_rn(v, b); };
          if constexpr (kEarly) each(bias[kLayer ? g : 0], y, add);
          else each(group<W>(a.bias, 0, col), y, add);
        }
        if (kAdaptive && !lost) {
          if (a.scale != nullptr)
            each(group<X>(a.scale, ada * a.scale_stride, col), y,
                 [](float v, float s) { return __fmul_rn(v, __fadd_rn(1.0f, s)); });
          if (a.shift != nullptr)
            each(group<X>(a.shift, ada * a.shift_stride, col), y, [](float v, float s) { return __fadd_rn(v, s); });
        }
        if constexpr (sizeof(T) == 1) by.divide_flat(y);
        put(at, y);
      }
      // W's columns beyond K are zeros: what they meet must be finite.
      if (member == 0) {
        const int end = (a.H + coord.kStep - 1) / coord.kStep * coord.kStep, col = a.H + lane * kNormGroup,
                  at = col < end ? spot(t, col) : -1;
        if (at >= 0) put(at, Group{});
      }
    }
  }
};

/// Grid: as gemm_wgmma's.
template <class T, class X, class W, class Out, GemmWgmma P, NormPanel N>
__global__ void __launch_bounds__(P.threads() + 32 * N.warps, 1) norm_gemm(const __grid_constant__ NormGemmArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ float scratch[2 * N.teams() * (N.threads / 32)];
  wgmma_block<T, Out, P, N.warps>(args, [&](const WgmmaTileCoord<T, P>& coord, const WgmmaRing<P>& ring) {
    PanelProducer<T, X, W, P, N> maker(args.norm, coord, gemm_wgmma_smem);
    ptx::touch_parameters(args.norm);
    ptx::dependency_wait();
    maker.run(scratch);
    ptx::tensor_fence();  // ordinary stores, for the tensor core
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(wgmma_panel_full<P>(ring));
  });
#endif
}

}  // namespace vivace::kernels
