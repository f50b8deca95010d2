// gated_delta by chunks of 64 tokens on tensor cores: prompts. Formula in vivace/ops/gated_delta.h.
//
// With c the running sum of decay within a chunk, S0 the state before it and rows k, q, v, the tokens' corrections u
// solve
//   u_i = beta_i (v_i - e^c_i S0^T k_i - sum over j < i of e^(c_i - c_j) (k_i . k_j) u_j)      (arXiv:2412.06464, 3.3)
//   out_i = e^c_i S0^T q_i + sum over j <= i of e^(c_i - c_j) (q_i . k_j) u_j
//   S = e^c_last S0 + sum of e^(c_last - c_j) k_j u_j^T
// Keys and queries enter products as they are, in bf16; their lengths are factors of the f32 results. What is not bf16
// (state, corrections, scores) enters as the sum of two bf16, which leaves 16 bits; the system is solved in f32.
// Chosen when: bf16, heads of 64, 96 or 128, from 32 tokens a sequence on, 164 KiB of shared memory an SM.
#pragma once
#include "vivace/kernels/linear/delta_gates.cuh"
#include "vivace/kernels/linear/gated_delta.h"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/ldmatrix.cuh"
#include "vivace/kernels/ptx/mma.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

template <GatedDeltaChunks P>
struct GatedDeltaChunkKernel {
  using In = bf16;
  static constexpr int kTokens = P.kTokens, kColumns = P.kColumns, kTiles = kColumns / 8, kPitch = P.d + 8,
                       kNarrow = kColumns + 8, kSolve = kColumns + 4, kLower = kTokens + 4;
  static constexpr float kLeast =
      -30.0f;  // of a token's decay: beyond it the state is as good as gone, and sums of decays stay exact enough

  const GatedDeltaArgs& a;
  In *stages, *state_high, *state_low, *u_high, *u_low, *x_high,
      *x_low;  // shared memory, as GatedDeltaChunks::smem() counts it
  float *lower, *solved, *inverse, *part, *sums, *k_factor, *q_factor, *beta;
  int thread, warp, lane, hk, hv, column0;
  float gates[2], rates[2];  // fetch()
  float state[kTiles][4];  // rows 16 warp + lane / 4 and 8 further, columns 8 n + 2 (lane % 4) and the next

  __device__ __forceinline__ In* keys(int stage) const { return stages + stage * P.stage(); }
  __device__ __forceinline__ In* queries(int stage) const { return keys(stage) + kTokens * kPitch; }
  __device__ __forceinline__ In* values(int stage) const { return keys(stage) + 2 * kTokens * kPitch; }

  /// Tokens [t0, past) of a chunk on their way; zeros behind them.
  __device__ __forceinline__ void bring(int stage, int t0, int past) const {
    constexpr int kC = P.d / 8, kCv = kColumns / 8;
    for (int i = thread; i < kTokens * kC; i += P.kThreads) {
      const int r = i / kC, at = i % kC * 8;
      const bool take = t0 + r < past;
      const int64_t t = take ? t0 + r : 0, head = int64_t{hk} * P.d + at;
      ptx::copy16(keys(stage) + r * kPitch + at, static_cast<const In*>(a.k) + t * a.k_stride + head, take);
      ptx::copy16(queries(stage) + r * kPitch + at, static_cast<const In*>(a.q) + t * a.q_stride + head, take);
    }
    for (int i = thread; i < kTokens * kCv; i += P.kThreads) {
      const int r = i / kCv, at = column0 + i % kCv * 8;
      const bool take = t0 + r < past && at < a.Dv;
      ptx::copy16(values(stage) + r * kNarrow + i % kCv * 8,
                  static_cast<const In*>(a.v) + (take ? (t0 + r) * a.v_stride + int64_t{hv} * a.Dv + at : 0), take);
    }
    ptx::copy_commit();
  }

  /// Decays and betas of two tokens of a chunk, in the first warp; a chunk ahead, since they come from far.
  __device__ __forceinline__ void fetch(int t0, int past) {
    if (warp != 0) return;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int t = t0 + 2 * lane + e;
      gates[e] = rates[e] = 0.0f;
      if (t >= past) continue;
      if (a.gates.present()) {
        gates[e] = fmaxf(delta_decay<In>(a.gates, t, hv), kLeast), rates[e] = delta_beta<In>(a.gates, t, hv);
      } else {
        if (a.decay != nullptr) gates[e] = fmaxf(a.decay[t * a.decay_stride + hv], kLeast);
        rates[e] = a.beta != nullptr ? a.beta[t * a.beta_stride + hv] : 1.0f;
      }
    }
  }
  /// Lengths of the chunk's keys and queries, half a warp each; betas, running sums of decays.
  __device__ __forceinline__ void measure(int stage) const {
#pragma unroll
    for (int pass = 0; pass < 2 * kTokens / 16; ++pass) {
      const int r = pass * 16 + warp * 2 + lane / 16, at = lane % 16 * 8;
      float square = 0;
      if (at < P.d) {
        const uint4 x =
            *reinterpret_cast<const uint4*>((r < kTokens ? keys(stage) : queries(stage)) + r % kTokens * kPitch + at);
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float low = __uint_as_float(words[i] << 16), high = __uint_as_float(words[i] & 0xffff0000u);
          square += low * low + high * high;
        }
      }
#pragma unroll
      for (int step = 8; step > 0; step >>= 1) square += __shfl_xor_sync(0xffffffffu, square, step);
      const float factor = a.normalize ? rsqrtf(square + 1e-6f) : 1.0f;
      if (lane % 16 == 0) (r < kTokens ? k_factor : q_factor)[r % kTokens] = r < kTokens ? factor : factor * a.scale;
    }
    if (warp == 0) {
      float sum = gates[0] + gates[1];
#pragma unroll
      for (int step = 1; step < 32; step <<= 1) {
        const float before = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += before;
      }
      const float before = __shfl_up_sync(0xffffffffu, sum, 1);  // no later token's decay enters a token's sum
      sums[2 * lane] = lane > 0 ? before + gates[0] : gates[0], sums[2 * lane + 1] = sum;
      beta[2 * lane] = rates[0], beta[2 * lane + 1] = rates[1];
    }
  }

  /// Rows r0 .. r0 + 15 of `rows` times every key, and times the state before the chunk. Those of later keys go unused:
  /// skipping them would keep products from overlapping.
  __device__ __forceinline__ void products(const In* rows, const In* k, int r0, float (&scores)[kTokens / 8][4],
                                           float (&read)[kTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) read[n][0] = read[n][1] = read[n][2] = read[n][3] = 0;
#pragma unroll 2
    for (int step = 0; step < P.d / 16; step += 2) {
      uint32_t f[2][4];
#pragma unroll
      for (int u = 0; u < 2; ++u)
        ptx::load_matrix4(ptx::shared_address(rows + (r0 + lane % 16) * kPitch + (step + u) * 16 + lane / 16 * 8),
                          f[u]);
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
        uint32_t b[4];
        ptx::load_matrix4(ptx::shared_address(k + (n * 8 + lane % 8) * kPitch + step * 16 + lane / 8 * 8), b);
        ptx::mma16816<In>(scores[n], f[0][0], f[0][1], f[0][2], f[0][3], b[0], b[1]);
        ptx::mma16816<In>(scores[n], f[1][0], f[1][1], f[1][2], f[1][3], b[2], b[3]);
      }
#pragma unroll
      for (int u = 0; u < 2; ++u) multiply(f[u], state_high, state_low, (step + u) * 16, read);
    }
  }
  /// sums += fragment times rows k0 .. k0 + 15 of high + low.
  __device__ __forceinline__ void multiply(const uint32_t (&f)[4], const In* high, const In* low, int k0,
                                           float (&to)[kTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      const int at = (k0 + lane % 16) * kNarrow + n * 8 + lane / 16 * 8;
      uint32_t h[4], l[4];
      ptx::load_matrix4_transposed(ptx::shared_address(high + at), h);
      ptx::load_matrix4_transposed(ptx::shared_address(low + at), l);
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        ptx::mma16816<In>(to[n + u], f[0], f[1], f[2], f[3], l[2 * u], l[2 * u + 1]);
        ptx::mma16816<In>(to[n + u], f[0], f[1], f[2], f[3], h[2 * u], h[2 * u + 1]);
      }
    }
  }

  /// Two values as the sum of two pairs of bf16.
  __device__ __forceinline__ static void split(float x, float y, uint32_t& high, uint32_t& low) {
    high = ptx::pack<In>(x, y);
    low = ptx::pack<In>(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u));
  }
  __device__ __forceinline__ static void put(In* high, In* low, int at, float x, float y) {
    uint32_t h, l;
    split(x, y, h, l);
    *reinterpret_cast<uint32_t*>(high + at) = h, *reinterpret_cast<uint32_t*>(low + at) = l;
  }

  /// The system's matrix below its diagonal and its right side, of rows r0 on.
  __device__ __forceinline__ void set_up(int stage, int r0, const float (&scores)[kTokens / 8][4],
                                         const float (&read)[kTiles][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = r0 + lane / 4 + 8 * i;
      const float c = sums[r], by = beta[r] * k_factor[r];
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = n * 8 + lane % 4 * 2 + e;
          lower[r * kLower + j] = j < r ? by * k_factor[j] * __expf(c - sums[j]) * scores[n][2 * i + e] : 0.0f;
        }
      const float decayed = __expf(c) * k_factor[r];
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = n * 8 + lane % 4 * 2 + e;
          solved[r * kSolve + at] =
              beta[r] * (to_float(values(stage)[r * kNarrow + at]) - decayed * read[n][2 * i + e]);
        }
    }
  }

  /// (1 + lower) u = solved, in place; blocks of 16 rows, the inverses of whose diagonals come first.
  __device__ __forceinline__ void solve() const {
    if (thread < kTokens) {
      const int b = thread / 16, column = thread % 16;
      float x[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float s = i == column ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j < i; ++j) s -= lower[(b * 16 + i) * kLower + b * 16 + j] * x[j];
        x[i] = s;
        inverse[(b * 16 + i) * 17 + column] = s;
      }
    }
    __syncthreads();
    const int row = thread / 16, at = thread % 16 * 2;
    const float last = sums[kTokens - 1];
#pragma unroll 1
    for (int b = 0; b < kTokens / 16; ++b) {
      const int r = b * 16 + row;
      float x = solved[r * kSolve + at], y = solved[r * kSolve + at + 1];
#pragma unroll 16
      for (int j = 0; j < b * 16; ++j) {
        const float l = lower[r * kLower + j];
        x -= l * solved[j * kSolve + at], y -= l * solved[j * kSolve + at + 1];
      }
      part[row * kSolve + at] = x, part[row * kSolve + at + 1] = y;
      __syncthreads();
      x = y = 0;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const float l = inverse[r * 17 + j];
        x += l * part[j * kSolve + at], y += l * part[j * kSolve + at + 1];
      }
      solved[r * kSolve + at] = x, solved[r * kSolve + at + 1] = y;
      put(u_high, u_low, r * kNarrow + at, x, y);
      const float w = k_factor[r] * __expf(last - sums[r]);
      put(x_high, x_low, r * kNarrow + at, x * w, y * w);
      __syncthreads();
    }
  }

  /// What the queries of rows r0 on read.
  __device__ __forceinline__ void answer(int t0, int past, int r0, const float (&scores)[kTokens / 8][4],
                                         float (&read)[kTiles][4]) const {
    const int r[2] = {r0 + lane / 4, r0 + lane / 4 + 8};
    const float c[2] = {sums[r[0]], sums[r[1]]}, by[2] = {q_factor[r[0]], q_factor[r[1]]};
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) read[n][e] *= by[e / 2] * __expf(c[e / 2]);
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      if (k * 16 > r0 + 15) break;
      uint32_t high[4], low[4];
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float w[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int j = k * 16 + half * 8 + lane % 4 * 2 + e;
            w[e] = j <= r[i] ? by[i] * k_factor[j] * __expf(c[i] - sums[j]) * scores[2 * k + half][2 * i + e] : 0.0f;
          }
          split(w[0], w[1], high[2 * half + i], low[2 * half + i]);
        }
      multiply(high, u_high, u_low, k * 16, read);
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        uint32_t u[4];
        ptx::load_matrix4_transposed(
            ptx::shared_address(u_high + (k * 16 + lane % 16) * kNarrow + n * 8 + lane / 16 * 8), u);
        ptx::mma16816<In>(read[n], low[0], low[1], low[2], low[3], u[0], u[1]);
        ptx::mma16816<In>(read[n + 1], low[0], low[1], low[2], low[3], u[2], u[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (t0 + r[i] >= past) continue;
      In* const to = static_cast<In*>(a.out) + (t0 + r[i]) * a.out_stride + int64_t{hv} * a.Dv + column0;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int at = n * 8 + lane % 4 * 2;
        if (column0 + at < a.Dv)
          *reinterpret_cast<uint32_t*>(to + at) = ptx::pack<In>(read[n][2 * i], read[n][2 * i + 1]);
      }
    }
  }

  /// The state's rows of this warp after the chunk, in registers and as two bf16 in shared memory.
  __device__ __forceinline__ void advance(int stage) {
    if (warp * 16 >= P.d) return;
    const float keep = __expf(sums[kTokens - 1]);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[n][e] *= keep;
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      uint32_t f[4];  // keys transposed: rows of the state by tokens
      ptx::load_matrix4_transposed(ptx::shared_address(keys(stage) + (k * 16 + lane % 8 + lane / 16 * 8) * kPitch +
                                                       warp * 16 + lane / 8 % 2 * 8),
                                   f);
      multiply(f, x_high, x_low, k * 16, state);
    }
    show();
  }
  __device__ __forceinline__ void show() const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        put(state_high, state_low, (warp * 16 + lane / 4 + 8 * i) * kNarrow + n * 8 + lane % 4 * 2, state[n][2 * i],
            state[n][2 * i + 1]);
  }
  /// f(element of the state in registers, its place in a.state) for those that exist.
  template <class F>
  __device__ __forceinline__ void each(int64_t slot, F&& f) {
    if (warp * 16 >= P.d) return;
    float* const stored = a.state + slot * a.state_stride + int64_t{hv} * P.d * a.Dv + column0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = n * 8 + lane % 4 * 2 + e % 2;
        if (column0 + at < a.Dv) f(state[n][e], stored + int64_t{warp * 16 + lane / 4 + e / 2 * 8} * a.Dv + at);
      }
  }
};

/// Grid: N * Hv * ceil(Dv / columns) blocks.
template <GatedDeltaChunks P>
__global__ void __launch_bounds__(P.kThreads, 1) gated_delta_chunks(const __grid_constant__ GatedDeltaArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using Kernel = GatedDeltaChunkKernel<P>;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const uint32_t slices = static_cast<uint32_t>((a.Dv + P.kColumns - 1) / P.kColumns);
  const int slice = static_cast<int>(blockIdx.x % slices),
            hv = static_cast<int>(blockIdx.x / slices % static_cast<uint32_t>(a.Hv));
  const int n = static_cast<int>(blockIdx.x / slices / static_cast<uint32_t>(a.Hv));
  const int T = valid_rows(a.rows, a.T), first = a.sequences.first(n, T), past = a.sequences.past(n, T);
  if (first >= past) return;
  constexpr int kNarrowTile = P.kTokens * Kernel::kNarrow;
  bf16* const stages = reinterpret_cast<bf16*>(memory);
  bf16* const states = stages + 2 * P.stage();
  bf16* const us = states + 2 * P.d * Kernel::kNarrow;
  float* const lower = reinterpret_cast<float*>(us + 4 * kNarrowTile);
  float* const solved = lower + P.kTokens * Kernel::kLower;
  float* const inverse = solved + P.kTokens * Kernel::kSolve;
  float* const part = inverse + P.kTokens * 17;
  float* const sums = part + 16 * Kernel::kSolve;
  Kernel k{a,
           stages,
           states,
           states + P.d * Kernel::kNarrow,
           us,
           us + kNarrowTile,
           us + 2 * kNarrowTile,
           us + 3 * kNarrowTile,
           lower,
           solved,
           inverse,
           part,
           sums,
           sums + P.kTokens,
           sums + 2 * P.kTokens,
           sums + 3 * P.kTokens,
           static_cast<int>(threadIdx.x),
           static_cast<int>(threadIdx.x / 32),
           static_cast<int>(threadIdx.x % 32),
           hv / a.group(),
           hv,
           slice * P.kColumns,
           {},
           {},
           {}};
  const int slot = a.sequences.row(n);
  k.bring(0, first, past);
  k.fetch(first, past);
  if (!a.sequences.starts_at_zero(n)) k.each(slot, [](float& x, const float* stored) { x = *stored; });
  if (k.warp * 16 < P.d) k.show();
  int stage = 0;
#pragma unroll 1
  for (int t0 = first; t0 < past; t0 += P.kTokens, stage ^= 1) {
    k.bring(stage ^ 1, t0 + P.kTokens, past);  // nothing behind the end
    ptx::copy_wait<1>();
    __syncthreads();
    k.measure(stage);
    __syncthreads();
    k.fetch(t0 + P.kTokens, past);
    float scores[P.kTokens / 8][4], read[Kernel::kTiles][4];
    const int r0 = k.warp % 4 * 16;
    const bool asks = k.warp < 4;  // of queries; the other warps of keys
    k.products(asks ? k.queries(stage) : k.keys(stage), k.keys(stage), r0, scores, read);
    if (!asks) k.set_up(stage, r0, scores, read);
    __syncthreads();
    k.solve();
    if (asks) k.answer(t0, past, r0, scores, read);
    k.advance(stage);
    __syncthreads();  // the next chunk's successor is brought over these keys
  }
  if (slot >= 0 && !a.frozen) k.each(slot, [](const float& x, float* stored) { *stored = x; });
}

}  // namespace vivace::kernels
