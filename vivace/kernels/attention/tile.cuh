// attention of 16-bit queries on tensor cores (mma.sync): prefill tiles and split decode in one kernel.
// Formula in vivace/ops/attention.h, tile config in AttentionTile.
// Chosen when: 16-bit queries over equal or e4m3 keys, heads up to 256, on chips without wgmma; on Hopper what no
// other kernel takes: decode with terms or a soft cap, prefill of other heads than 64, 128 and 256.
#pragma once
#include "vivace/kernels/attention/epilogue.cuh"
#include "vivace/kernels/attention/runs.cuh"
#include "vivace/kernels/attention/softmax.cuh"
#include "vivace/kernels/attention/variant.cuh"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/ldmatrix.cuh"
#include "vivace/kernels/ptx/mma.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/pdl.cuh"

namespace vivace::kernels {

/// The threads of one stream: a warp, several, or the block.
template <AttentionTile P>
__device__ __forceinline__ void stream_sync(int stream) {
  if constexpr (P.warps_m == 1) __syncwarp();
  else if constexpr (P.warps_n == 1) __syncthreads();
  else ptx::named_barrier<P.warps_m * 32>(stream + 1);
}

struct AsItIs {};

/// Elements at .. at + 7 of a head into shared memory as type Q; zeros where `take` is false or the head ends.
/// edit(x): what becomes of the eight on their way.
template <class Q, class T, bool kWide, class Edit = AsItIs>
__device__ __forceinline__ void copy_eight(Q* to, const T* head, int at, int dim, bool take, Edit edit = {}) {
  if constexpr (kWide && sizeof(T) == 2 && kSameType<Edit, AsItIs>) {
    ptx::copy16(to, head + (at < dim ? at : 0), take && at < dim);
  } else {
    float x[8] = {};
    if (take) {
      if constexpr (kWide) {
        if (at < dim) load<8>(head + at, x);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (at + i < dim) x[i] = to_float(head[at + i]);
      }
      if constexpr (!kSameType<Edit, AsItIs>) edit(x);
    }
    store<8>(to, x);
  }
}

template <class Q, class Kv, AttentionTile P, class V, class Out = Q>
struct AttentionTileKernel {
  static constexpr int kKeys = P.keys, kDim = P.padded(P.d), kDimV = P.padded(P.dv), kPitch = P.pitch(P.d),
                       kPitchV = P.pitch(P.dv);
  static constexpr int kSteps = kDim / 16, kKeyTiles = kKeys / 8, kOutTiles = kDimV / 8, kStride = P.split * P.warps_n;
  static constexpr bool kHoldQ = P.d <= 128;  // queries in registers; larger heads read them again for each block

  const AttentionArgs& a;
  Q *queries, *stages;  // shared memory: [P.rows()][kPitch]; this stream's [P.stages][keys [kKeys][kPitch], values
                        // [kKeys][kPitchV]]
  float* partials;      // shared memory of the merge, over the stages
  int kv, rank;         // kv head; block of the cluster
  int warp_m, stream, lane;
  int row0, row_end;    // rows t * group + head of the tile; below 2^31, as positions are (pick and bind check it)

  float out[kOutTiles][4];          // a warp's [16 rows][8 kOutTiles columns], as mma16816 holds it
  float row_max[2], row_sum[2];     // of rows lane / 4 and lane / 4 + 8; row_sum: this lane's share
  int first[2], end[2];      // keys they see
  int token[Hooks<V>::kEdits ? 2 : 1];  // of those rows, for a variant
  uint32_t q[kHoldQ ? kSteps : 1][4];   // a warp's [16 rows][16 kSteps elements]

  /// Elements [at, at + 8) of row `row` of a tile of `rows`: rows one after the other, or, for wgmma, panels
  /// of 64 elements swizzled in groups of 8 rows.
  template <int kRows, int kTo>
  __device__ __forceinline__ static Q* smem_at(Q* tile, int row, int at) {
    if constexpr (P.wgmma) return tile + (at / 64 * kRows + row) * 64 + (at / 8 % 8 ^ row % 8) * 8;
    else return tile + row * kTo + at;
  }

  __device__ __forceinline__ int my_row(int i) const { return row0 + warp_m * 16 + lane / 4 + 8 * i; }

  __device__ __forceinline__ void load_queries() {
    const int group = a.group();
    for (int i = static_cast<int>(threadIdx.x); i < P.rows() * (kDim / 8); i += P.threads()) {
      const int row = row0 + i / (kDim / 8), t = row / group;
      const bool take = row < row_end;
      const Q* head =
          static_cast<const Q*>(a.q) + (take ? int64_t{t} * a.q_stride + (kv * group + row % group) * int64_t{P.d} : 0);
      const int at = i % (kDim / 8) * 8;
      Q* const to = smem_at<P.rows(), kPitch>(queries, i / (kDim / 8), at);
      if constexpr (Hooks<V>::kQuery)
        copy_eight<Q, Q, P.wide>(to, head, at, P.d, take,
                                 [&](float(&x)[8]) { variant_query<V>(a, t, kv * group + row % group, at, x); });
      else
        copy_eight<Q, Q, P.wide>(to, head, at, P.d, take);
    }
    ptx::copy_commit();
  }

  /// Rows of block b of keys or values into a stage; zeros outside of [lo, hi) and for pages that do not exist.
  template <int kD, int kPadded, int kTo, bool kPaged, bool kEdit = false>
  __device__ __forceinline__ void load_rows(Q* to, const void* base, int64_t stride, int pitch, int64_t slot, int b,
                                            int lo, int hi) const {
    constexpr int kThreads = P.warps_m * 32, kC = kPadded / 8;
    const int thread = warp_m * 32 + lane;
    const Kv* const heads = static_cast<const Kv*>(base) + int64_t{kv} * a.head_rows() * kD;
    if constexpr (!kPaged && !kEdit && kThreads % kC == 0) {  // a thread keeps its column: one address that advances
      const int row0 = thread / kC, at = thread % kC * 8;
      int j = b * kKeys + row0;
      const Kv* head = heads + a.slot_at(slot, stride, pitch) + int64_t{j} * pitch;
#pragma unroll
      for (int row = 0; row < kKeys; row += kThreads / kC) {
        if (kKeys % (kThreads / kC) != 0 && row0 + row >= kKeys) break;
        const bool take = j >= lo && j < hi;
        copy_eight<Q, Kv, P.wide>(smem_at<kKeys, kTo>(to, row0 + row, at), take ? head : heads, at, kD, take);
        head += int64_t{kThreads / kC} * pitch;
        j += kThreads / kC;
      }
    } else {
#pragma unroll 2
      for (int i0 = 0; i0 < kKeys * kC; i0 += kThreads) {
        const int i = i0 + thread;
        if (kKeys * kC % kThreads != 0 && i >= kKeys * kC) break;
        const int row = i / kC, j = b * kKeys + row;
        const int64_t block = j >= lo && j < hi ? a.block(slot, j) : -1;
        const Kv* head = block >= 0 ? heads + block * stride + a.row_in_block(slot, j) * pitch : heads;
        Q* const element = smem_at<kKeys, kTo>(to, row, i % kC * 8);
        if constexpr (kEdit)
          copy_eight<Q, Kv, P.wide>(element, head, i % kC * 8, kD, block >= 0,
                                    [&](float(&x)[8]) { variant_key<V>(a, slot, kv, j, i % kC * 8, x); });
        else
          copy_eight<Q, Kv, P.wide>(element, head, i % kC * 8, kD, block >= 0);
      }
    }
  }
  __device__ __forceinline__ void load_keys(Q* to, int64_t slot, int b, int lo, int hi) const {
    if (a.page_table == nullptr)
      load_rows<P.d, kDim, kPitch, false, Hooks<V>::kKey>(to, a.k, a.k_stride, a.k_pitch, slot, b, lo, hi);
    else load_rows<P.d, kDim, kPitch, true, Hooks<V>::kKey>(to, a.k, a.k_stride, a.k_pitch, slot, b, lo, hi);
  }
  __device__ __forceinline__ void load_values(Q* to, int64_t slot, int b, int lo, int hi) const {
    if (a.page_table == nullptr)
      load_rows<P.dv, kDimV, kPitchV, false>(to, a.v, a.v_stride, a.v_pitch, slot, b, lo, hi);
    else load_rows<P.dv, kDimV, kPitchV, true>(to, a.v, a.v_stride, a.v_pitch, slot, b, lo, hi);
  }
  __device__ __forceinline__ void load_block(Q* stage, int64_t slot, int b, int lo, int hi) const {
    load_keys(stage, slot, b, lo, hi);
    load_values(stage + kKeys * kPitch, slot, b, lo, hi);
  }

  __device__ __forceinline__ void query_fragment(int step, uint32_t (&f)[4]) const {
    ptx::load_matrix4(ptx::shared_address(queries + (warp_m * 16 + lane % 16) * kPitch + step * 16 + lane / 16 * 8), f);
  }

  /// Scores of a block, in powers of two: keys 8 n + 2 (lane % 4) + {0, 1} in s[n].
  __device__ __forceinline__ void scores(const Q* keys, float (&s)[kKeyTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t f[4];
      if constexpr (kHoldQ) {
#pragma unroll
        for (int i = 0; i < 4; ++i) f[i] = q[step][i];
      } else {
        query_fragment(step, f);
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t k[4];
        ptx::load_matrix4(
            ptx::shared_address(keys + (n * 8 + lane % 8 + lane / 16 * 8) * kPitch + step * 16 + lane / 8 % 2 * 8), k);
        ptx::mma16816<Q>(s[n], f[0], f[1], f[2], f[3], k[0], k[1]);
        ptx::mma16816<Q>(s[n + 1], f[0], f[1], f[2], f[3], k[2], k[3]);
      }
    }
    scale(s);
  }
  __device__ __forceinline__ void scale(float (&s)[kKeyTiles][4]) const {
    if constexpr (Hooks<V>::kEdits) return;  // softmax_block() asks the variant
    if (a.softcap > 0) {
      const float factor = a.softcap * kLog2e;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = factor * tanhf(s[n][i] * a.scale / a.softcap);
    } else {
      const float factor = a.scale * kLog2e;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] *= factor;
    }
  }

  /// Scores become probabilities 2^(s - row_max); what the sums so far must shrink by.
  __device__ __forceinline__ void softmax_block(int key0, float (&s)[kKeyTiles][4], float (&shrinks)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (Hooks<V>::kEdits) {
        float mine[kKeyTiles][2];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) mine[n][0] = s[n][2 * i], mine[n][1] = s[n][2 * i + 1];
        // Made anew for each block: loads that hit, where registers are short.
        const VariantRow r =
            variant_row<V>(a, token[i], kv * a.group() + my_row(i) - token[i] * a.group(), kv, first[i], end[i]);
        variant_scores<V>(a, r, key0 >= first[i] && key0 + kKeys <= end[i], mine,
                          [&](int n, int e) { return key0 + n * 8 + lane % 4 * 2 + e; });
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) s[n][2 * i + e] = mine[n][e] * (Hooks<V>::kSoftmax ? kLog2e : 1.0f);
      } else if (key0 < first[i] || key0 + kKeys > end[i]) {  // part of the block is not seen
        const int from = first[i] - key0, to = end[i] - key0;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int j = n * 8 + lane % 4 * 2 + e;
            if (j < from || j >= to) s[n][2 * i + e] = kMinusInfinity;
          }
      }
      if constexpr (!Hooks<V>::kSoftmax) {  // the sums need no base: every stream's is 0
        row_max[i] = 0, shrinks[i] = 1;
        continue;
      }
      float m = row_max[i];
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) m = fmaxf(m, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
      const float base = softmax_base(m), shrink = ptx::exp2_fast(row_max[i] - base);
      row_max[i] = m;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          s[n][2 * i + e] = ptx::exp2_fast(s[n][2 * i + e] - base);
          sum += s[n][2 * i + e];
        }
      row_sum[i] = row_sum[i] * shrink + sum;
      shrinks[i] = shrink;
    }
  }
  __device__ __forceinline__ void shrink(const float (&by)[2]) {
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n) out[n][0] *= by[0], out[n][1] *= by[0], out[n][2] *= by[1], out[n][3] *= by[1];
  }

  /// Probabilities as an operand of wgmma in registers.
  __device__ __forceinline__ static void round(const float (&s)[kKeyTiles][4], uint32_t (&p)[kKeys / 16][4]) {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      p[k][0] = ptx::pack<Q>(s[2 * k][0], s[2 * k][1]);
      p[k][1] = ptx::pack<Q>(s[2 * k][2], s[2 * k][3]);
      p[k][2] = ptx::pack<Q>(s[2 * k + 1][0], s[2 * k + 1][1]);
      p[k][3] = ptx::pack<Q>(s[2 * k + 1][2], s[2 * k + 1][3]);
    }
  }
  __device__ __forceinline__ void add_values(const Q* values, const float (&s)[kKeyTiles][4]) {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const uint32_t p[4] = {ptx::pack<Q>(s[2 * k][0], s[2 * k][1]), ptx::pack<Q>(s[2 * k][2], s[2 * k][3]),
                             ptx::pack<Q>(s[2 * k + 1][0], s[2 * k + 1][1]),
                             ptx::pack<Q>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < kOutTiles; n += 2) {
        uint32_t v[4];
        ptx::load_matrix4_transposed(
            ptx::shared_address(values + (k * 16 + lane % 16) * kPitchV + n * 8 + lane / 16 * 8), v);
        ptx::mma16816<Q>(out[n], p[0], p[1], p[2], p[3], v[0], v[1]);
        ptx::mma16816<Q>(out[n + 1], p[0], p[1], p[2], p[3], v[2], v[3]);
      }
    }
  }

  __device__ __forceinline__ void clear() {
    row_max[0] = row_max[1] = kMinusInfinity, row_sum[0] = row_sum[1] = 0;
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
  }
  /// Empty state for the rows of tokens [ta, tb), which share a slot; what any of them sees, the same in every warp.
  __device__ __forceinline__ void begin(int ta, int tb, int* least, int* most) {
    const int group = a.group();
    if constexpr (P.one_span) *least = 0, *most = static_cast<int>(AttentionSpan(a, ta).end);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = my_row(i) / group;
      first[i] = end[i] = 0;
      if constexpr (P.one_span) {
        if (in_run(my_row(i), ta, tb)) end[i] = *most;
      } else if (my_row(i) < row_end && t >= ta && t < tb) {
        const AttentionSpan see(a, t);
        first[i] = static_cast<int>(see.first), end[i] = static_cast<int>(see.end);
      }
      if constexpr (Hooks<V>::kEdits) token[i] = t;
    }
    clear();
    if constexpr (!P.one_span) span_of_tokens(a, ta, tb, lane, least, most);
  }

  /// Tokens [ta, tb): all their keys.
  __device__ __forceinline__ void attend(int ta, int tb) {
    int lo, hi;
    begin(ta, tb, &lo, &hi);
    const int64_t slot = AttentionSpan(a, ta).slot;
    const int me = rank * P.warps_n + stream;
    int b = lo / kKeys / kStride * kStride + me;  // this stream's blocks: b, b + kStride, ...
    if (b < lo / kKeys) b += kStride;
    const int past = hi > lo ? (hi + kKeys - 1) / kKeys : 0;
    constexpr int kStage = kKeys * (kPitch + kPitchV);
#pragma unroll
    for (int s = 0; s < P.stages - 1; ++s) {
      if (b + s * kStride < past) load_block(stages + s * kStage, slot, b + s * kStride, lo, hi);
      ptx::copy_commit();
    }
    if constexpr (kHoldQ) {  // waits for the queries alone: they are the oldest group
      ptx::copy_wait<P.stages - 1>();
      __syncthreads();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) query_fragment(step, q[step]);
    } else {
      ptx::copy_wait<P.stages - 1>();
      __syncthreads();
    }
    int full = 0, empty = P.stages - 1;  // stages to read and to write
    for (; b < past; b += kStride) {
      ptx::copy_wait<P.stages - 2>();
      stream_sync<P>(stream);
      if (b + (P.stages - 1) * kStride < past)
        load_block(stages + empty * kStage, slot, b + (P.stages - 1) * kStride, lo, hi);
      ptx::copy_commit();
      float s[kKeyTiles][4];
      const Q* keys = stages + full * kStage;
      scores(keys, s);
      float by[2];
      softmax_block(b * kKeys, s, by);
      shrink(by);
      add_values(keys + kKeys * kPitch, s);
      full = full + 1 == P.stages ? 0 : full + 1;
      empty = empty + 1 == P.stages ? 0 : empty + 1;
    }
    ptx::copy_wait<0>();
    stream_sync<P>(stream);  // the stages are free for the next run
    reduce_row_sum();
  }
  __device__ __forceinline__ void reduce_row_sum() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      row_sum[i] += __shfl_xor_sync(0xffffffffu, row_sum[i], 1);
      row_sum[i] += __shfl_xor_sync(0xffffffffu, row_sum[i], 2);
    }
  }

  __device__ __forceinline__ void put(const AttentionEpilogue<Q, Out>& epilogue, int row, int column, float x,
                                      float y) const {
    const int group = a.group();
    const int64_t t = row / group;
    Out* to = static_cast<Out*>(a.out) + t * a.out_stride + (kv * group + row % group) * int64_t{P.dv} + column;
    if constexpr (Hooks<V>::kOutput) {
      const int h = kv * group + row % group;
      x = variant_output<V>(a, static_cast<int>(t), h, column, x),
      y = variant_output<V>(a, static_cast<int>(t), h, column + 1, y);
    }
    if constexpr (P.wide) {
      float both[2] = {x, y};
      if (column < P.dv) epilogue.template store_as<2>(to, both);
    } else {
      float first[1] = {x}, second[1] = {y};
      if (column < P.dv) epilogue.template store_as<1>(to, first);
      if (column + 1 < P.dv) epilogue.template store_as<1>(to + 1, second);
    }
  }
  __device__ __forceinline__ float finish(int row, float highest, float total, bool write_lse) const {
    const int group = a.group(), h = kv * group + row % group;
    if constexpr (!Hooks<V>::kSoftmax) return 1.0f;
    if (write_lse && a.lse != nullptr) a.lse[int64_t{row / group} * a.lse_stride + h] = softmax_lse(highest, total);
    return softmax_factor(a, h, highest, total);
  }
  __device__ __forceinline__ bool in_run(int row, int ta, int tb) const {
    return row < row_end && row >= ta * a.group() && row < tb * a.group();
  }

  __device__ __forceinline__ void write_direct(int ta, int tb) const {
    const AttentionEpilogue<Q, Out> epilogue(a);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = my_row(i);
      if (!in_run(row, ta, tb)) continue;
      const float factor = finish(row, row_max[i], row_sum[i], lane % 4 == 0);
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n)
        put(epilogue, row, n * 8 + lane % 4 * 2, out[n][2 * i] * factor, out[n][2 * i + 1] * factor);
    }
  }

  static constexpr int kPartial = P.partial();  // floats: sums by row, maxima, row_sums

  /// Streams meet in shared memory, blocks of the cluster in distributed shared memory; both in fixed order.
  __device__ __forceinline__ void merge(int ta, int tb) const {
    constexpr int kRows = P.rows(), kPairs = kDimV / 2;
    const AttentionEpilogue<Q, Out> epilogue(a);
    __syncthreads();  // all stages are free
    float* const mine = partials + stream * kPartial;
    float* const ends =
        partials + P.warps_n * kPartial;  // maxima and row_sums of this block; its sums take stream 0's position
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = warp_m * 16 + lane / 4 + 8 * i;
      if (!in_run(row0 + r, ta, tb)) continue;
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n)
        store<2>(mine + r * kDimV + n * 8 + lane % 4 * 2, {out[n][2 * i], out[n][2 * i + 1]});
      if (lane % 4 == 0) mine[kRows * kDimV + r] = row_max[i], mine[kRows * kDimV + kRows + r] = row_sum[i];
    }
    __syncthreads();
    const int begin = max(ta * a.group() - row0, 0), count = min(tb * a.group(), row_end) - row0 - begin;
    for (int i = static_cast<int>(threadIdx.x); i < count * kPairs; i += P.threads()) {
      const int r = begin + i / kPairs, column = i % kPairs * 2;
      float highest = kMinusInfinity, total = 0, x = 0, y = 0;
#pragma unroll
      for (int s = 0; s < P.warps_n; ++s) highest = fmaxf(highest, partials[s * kPartial + kRows * kDimV + r]);
      const float base = softmax_base(highest);
#pragma unroll
      for (int s = 0; s < P.warps_n; ++s) {
        const float* from = partials + s * kPartial;
        const float w = ptx::exp2_fast(from[kRows * kDimV + r] - base);
        const Vec<float, 2> v = *reinterpret_cast<const Vec<float, 2>*>(from + r * kDimV + column);
        total += from[kRows * kDimV + kRows + r] * w;
        x += v.v[0] * w, y += v.v[1] * w;
      }
      if constexpr (P.split == 1) {
        const float factor = finish(row0 + r, highest, total, column == 0);
        put(epilogue, row0 + r, column, x * factor, y * factor);
      } else {
        store<2>(partials + r * kDimV + column, {x, y});
        if (column == 0) ends[r] = highest, ends[kRows + r] = total;
      }
    }
    if constexpr (P.split > 1) {
      ptx::cluster_sync<P.split>();
      for (int i = rank * P.threads() + static_cast<int>(threadIdx.x); i < count * kPairs; i += P.split * P.threads()) {
        const int r = begin + i / kPairs, column = i % kPairs * 2;
        float row_maxes[P.split], row_sums[P.split];
        uint64_t sums[P.split];
#pragma unroll
        for (int c = 0; c < P.split; ++c) {
          row_maxes[c] = __uint_as_float(ptx::remote_load<P.split>(reinterpret_cast<const uint32_t*>(ends + r), c));
          row_sums[c] =
              __uint_as_float(ptx::remote_load<P.split>(reinterpret_cast<const uint32_t*>(ends + kRows + r), c));
          sums[c] = ptx::remote_load<P.split>(reinterpret_cast<const uint64_t*>(partials + r * kDimV + column), c);
        }
        float highest = kMinusInfinity, total = 0, x = 0, y = 0;
#pragma unroll
        for (int c = 0; c < P.split; ++c) highest = fmaxf(highest, row_maxes[c]);
        const float base = softmax_base(highest);
#pragma unroll
        for (int c = 0; c < P.split; ++c) {
          const float w = ptx::exp2_fast(row_maxes[c] - base);
          total += row_sums[c] * w;
          x += __uint_as_float(static_cast<uint32_t>(sums[c])) * w,
              y += __uint_as_float(static_cast<uint32_t>(sums[c] >> 32)) * w;
        }
        const float factor = finish(row0 + r, highest, total, column == 0);
        put(epilogue, row0 + r, column, x * factor, y * factor);
      }
      ptx::cluster_sync<P.split>();  // nobody leaves, or writes its next partial, while others read
    }
    __syncthreads();
  }
};

/// Grid: tiles * Hkv * split blocks, clusters of split; tiles of the last tokens first, which see most keys.
template <class Kernel, class Q, AttentionTile P>
__device__ __forceinline__ void run_attention(const AttentionArgs& a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int rank = ptx::cluster_rank<P.split>(), warp = static_cast<int>(threadIdx.x) / 32;
  const int group = a.group(), height = a.by_token() && group < P.rows() ? group : P.rows();
  const uint32_t heads = static_cast<uint32_t>(a.Hkv), index = blockIdx.x / P.split;
  const int tile = static_cast<int>(gridDim.x / P.split / heads - 1 - index / heads);
  const int rows = valid_rows(a.rows, a.T) * group, row0 = tile * height;
  if (row0 >= rows) return;  // the whole cluster
  Q* const queries = reinterpret_cast<Q*>(memory);
  Q* const stages = queries + P.query_bytes() / 2;
  const int stream = warp / P.warps_m;
  Kernel k{a, queries, stages + stream * P.stages * (P.stage_bytes() / 2), reinterpret_cast<float*>(stages),
           static_cast<int>(index % heads), rank, warp % P.warps_m, stream, static_cast<int>(threadIdx.x % 32),
           row0, min(row0 + height, rows)};
  k.load_queries();
  const int past = (k.row_end - 1) / group + 1;
  for (int ta = row0 / group; ta < past;) {
    const int tb = run_end(a, ta, past, k.lane);
    k.attend(ta, tb);
    if constexpr (P.merges()) k.merge(ta, tb);
    else k.write_direct(ta, tb);
    ta = tb;
  }
}

template <class Q, class Kv, AttentionTile P, class V = Standard, class Out = Q>
__global__ void __launch_bounds__(P.threads(), 1) attention_tile(const __grid_constant__ AttentionArgs a) {
  run_attention<AttentionTileKernel<Q, Kv, P, V, Out>, Q, P>(a);
}

}  // namespace vivace::kernels
