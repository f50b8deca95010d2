// attention with f32 arithmetic on CUDA cores: any types and head sizes. Formula in vivace/ops/attention.h.
// A few lanes share a key; key j of a slot goes to stream j % streams of the block, and streams merge in
// fixed order, so that a row's bits depend on its own query and keys.
// Chosen when: f32 queries, keys of another 16-bit type, heads above 256; every chip.
#pragma once
#include "vivace/kernels/attention/epilogue.cuh"
#include "vivace/kernels/attention/softmax.cuh"
#include "vivace/kernels/attention/variant.cuh"
#include "vivace/kernels/ptx/pdl.cuh"

namespace vivace::kernels {

/// Elements (i * lanes + lane) * 4 + [0, 4) of a head, i < items / 4; zeros beyond `dim`.
template <AttentionPlain P, class T>
__device__ __forceinline__ void load_head(const T* head, int lane, int dim, float (&out)[P.items]) {
#pragma unroll
  for (int i = 0; i < P.items / 4; ++i) {
    const int at = (i * P.lanes + lane) * 4;
    float part[4] = {};
    if constexpr (P.wide) {
      if (at < dim) load<4>(head + at, part);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (at + e < dim) part[e] = to_float(head[at + e]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) out[4 * i + e] = part[e];
  }
}

/// The same elements as a variant wants them: edit(first element, the four).
template <AttentionPlain P, class Edit>
__device__ __forceinline__ void edit_head(int lane, float (&x)[P.items], Edit&& edit) {
#pragma unroll
  for (int i = 0; i < P.items / 4; ++i) edit((i * P.lanes + lane) * 4, reinterpret_cast<float(&)[4]>(x[4 * i]));
}

/// Grid: T * Hq blocks. Reads the keys and values of one head once a query head.
template <class Q, class Kv, AttentionPlain P, class V = Standard, class Out = Q>
__global__ void __launch_bounds__(P.threads) attention_plain(const __grid_constant__ AttentionArgs a) {
  constexpr int kStreams = P.threads / P.lanes, kTogether = P.items <= 16 ? 4 : 2;
  constexpr int kWidth = P.lanes * P.items;  // of a head in shared memory
  extern __shared__ __align__(16) float partial[];  // [kStreams][kWidth], then maxima and row_sums
  float* const row_maxes = partial + kStreams * kWidth;
  float* const row_sums = row_maxes + kStreams;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = blockIdx.x / static_cast<uint32_t>(a.Hq);
  const int h = static_cast<int>(blockIdx.x % static_cast<uint32_t>(a.Hq)), kv = h / a.group();
  if (t >= valid_rows(a.rows, a.T)) return;
  const AttentionSpan see(a, t);
  const int lane = static_cast<int>(threadIdx.x) % P.lanes, stream = static_cast<int>(threadIdx.x) / P.lanes;

  float q[P.items], sum[P.items] = {};
  load_head<P>(static_cast<const Q*>(a.q) + t * a.q_stride + int64_t{h} * a.D, lane, a.D, q);
  if constexpr (Hooks<V>::kQuery)
    edit_head<P>(lane, q, [&](int d, float(&x)[4]) { variant_query<V>(a, static_cast<int>(t), h, d, x); });
  VariantRow row{};
  if constexpr (Hooks<V>::kEdits)
    row = variant_row<V>(a, static_cast<int>(t), h, kv, static_cast<int>(see.first), static_cast<int>(see.end));
  float row_max = kMinusInfinity, row_sum = 0;
  const auto head_of = [&](const void* base, int64_t stride, int pitch, int dim, int64_t block, int64_t j) {
    return static_cast<const Kv*>(base) + block * stride + a.row_in_block(see.slot, j) * pitch +
           int64_t{kv} * a.head_rows() * dim;
  };
  // Every warp makes the same number of turns, so that shuffles meet.
  for (int64_t j0 = see.first / kStreams * kStreams; j0 < see.end; j0 += kStreams * kTogether) {
    float score[kTogether], value[kTogether][P.items];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int64_t j = j0 + u * kStreams + stream;
      const bool seen = j >= see.first && j < see.end;
      float key[P.items] = {};
      const int64_t block = seen ? a.block(see.slot, j) : -1;
#pragma unroll
      for (int i = 0; i < P.items; ++i) value[u][i] = 0;
      if (block >= 0) {
        load_head<P>(head_of(a.k, a.k_stride, a.k_pitch, a.D, block, j), lane, a.D, key);
        if constexpr (Hooks<V>::kKey)
          edit_head<P>(lane, key, [&](int d, float(&x)[4]) { variant_key<V>(a, see.slot, kv, j, d, x); });
        load_head<P>(head_of(a.v, a.v_stride, a.v_pitch, a.Dv, block, j), lane, a.Dv, value[u]);
      }
      float s = 0;
#pragma unroll
      for (int i = 0; i < P.items; ++i) s += q[i] * key[i];
#pragma unroll
      for (int step = P.lanes / 2; step > 0; step >>= 1) s += __shfl_xor_sync(0xffffffffu, s, step);
      if constexpr (Hooks<V>::kEdits) {
        float one[1][2] = {{s, 0.0f}};
        variant_scores<V>(a, row, false, one, [&](int, int) { return static_cast<int>(j); });
        score[u] = one[0][0];
      } else {
        s *= a.scale;
        if (a.softcap > 0) s = a.softcap * tanhf(s / a.softcap);
        score[u] = seen ? s : kMinusInfinity;
      }
    }
    if constexpr (!Hooks<V>::kSoftmax) {
      row_max = 0;
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
#pragma unroll
        for (int i = 0; i < P.items; ++i) sum[i] += score[u] * value[u][i];
      continue;
    }
    float m = row_max;
#pragma unroll
    for (int u = 0; u < kTogether; ++u) m = fmaxf(m, score[u]);
    const float base = m == kMinusInfinity ? 0.0f : m;  // nothing yet: every weight is 0, not NaN
    const float shrink = expf(row_max - base);
    row_max = m;
    row_sum *= shrink;
#pragma unroll
    for (int i = 0; i < P.items; ++i) sum[i] *= shrink;
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const float p = expf(score[u] - base);
      row_sum += p;
#pragma unroll
      for (int i = 0; i < P.items; ++i) sum[i] += p * value[u][i];
    }
  }

#pragma unroll
  for (int i = 0; i < P.items; ++i) partial[stream * kWidth + ((i / 4) * P.lanes + lane) * 4 + i % 4] = sum[i];
  if (lane == 0) row_maxes[stream] = row_max, row_sums[stream] = row_sum;
  __syncthreads();
  float all = kMinusInfinity, total = 0;
  for (int s = 0; s < kStreams; ++s) all = fmaxf(all, row_maxes[s]);
  const float base = all == kMinusInfinity ? 0.0f : all;
  for (int s = 0; s < kStreams; ++s) total += row_sums[s] * expf(row_maxes[s] - base);
  if (Hooks<V>::kSoftmax && a.lse != nullptr && threadIdx.x == 0) a.lse[t * a.lse_stride + h] = all + logf(total);
  float factor = total > 0 || total != total ? 1.0f / total : 0.0f;
  if (a.sinks != nullptr) {
    const float sink = a.sinks[h], m = fmaxf(sink, all), keys = expf(all - m);
    factor = total == 0 ? 0.0f : keys / (total * keys + expf(sink - m));
  }
  if constexpr (!Hooks<V>::kSoftmax) factor = 1;
  const AttentionEpilogue<Q, Out> epilogue(a);
  Out* const out = static_cast<Out*>(a.out) + t * a.out_stride + int64_t{h} * a.Dv;
  for (int i = static_cast<int>(threadIdx.x); i < a.Dv; i += P.threads) {
    float y = 0;
    for (int s = 0; s < kStreams; ++s) y += partial[s * kWidth + i] * expf(row_maxes[s] - base);
    float one[1] = {variant_output<V>(a, static_cast<int>(t), h, i, y * factor)};
    epilogue.template store_as<1>(out + i, one);
  }
}

}  // namespace vivace::kernels
