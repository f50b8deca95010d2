// AttentionHeads for any level's lanes: online softmax over blocks of keys on a fixed grid of places, so that a
// row's bits depend on nothing but its own query and keys. A tile's queries share the widened keys and values.
#pragma once
#include <algorithm>
#include <cstring>

#include "vivace/base/float_types.h"
#include "vivace/cpu/attention/level.h"
#include "vivace/cpu/simd/exp.h"

namespace vivace::cpu {

template <class B>
struct Heads {
  using F = typename B::F;
  static constexpr int kKeys = 32;  // places of a block
  static constexpr int32_t kLeastPosition = -(1 << 30);  // of distances: those below count as it, as on a GPU

  /// n values of any type as f32, zeros up to a multiple of 16.
  static void upcast(DType t, const void* src, int64_t at, int n, float* dst) {
    const auto* u16 = static_cast<const uint16_t*>(src) + at;
    int i = 0;
    switch (t) {
      case DType::f32: std::memcpy(dst, static_cast<const float*>(src) + at, n * 4); i = n; break;
      case DType::bf16:
        for (; i + 16 <= n; i += 16) B::store(dst + i, B::load_bf16(u16 + i));
        for (; i < n; ++i) dst[i] = f32_of_bf16(u16[i]);
        break;
      case DType::f16:
        for (; i + 16 <= n; i += 16) B::store(dst + i, B::load_f16(u16 + i));
        for (; i < n; ++i) dst[i] = f32_of_f16(u16[i]);
        break;
      default:
        for (; i < n; ++i) dst[i] = f32_of_e4m3((static_cast<const uint8_t*>(src) + at)[i]);
    }
    for (; i % 16 != 0; ++i) dst[i] = 0;
  }

  /// One query head: its row, its weighted sum so far and the softmax's running state.
  struct Query {
    alignas(64) float p[kKeys];  // scores, then weights, of the block at hand
    float *q, *sum;              // [D], [Dv], padded to lanes
    int64_t t, pos;
    float scale, slope;          // of this head
    float row_max, row_sum;             // largest score so far, sum of exp(score - row_max)
  };

  /// Rows of a block as f32: the cache itself where it has that form, else a widened copy. Rows beyond n repeat
  /// the first.
  struct Rows {
    alignas(64) float copy[kKeys * (kMaxHeadDim + 16)];
    const float* row[kKeys];

    /// Heads of `dim` elements at places [j0, j0 + n) of a slot; zeros where a page does not exist.
    void load(const kernels::AttentionArgs& a, const void* base, int64_t stride, int64_t pitch, int64_t slot,
              int64_t j0, int kv, int n, int dim) {
      const bool direct = a.kv_dtype == DType::f32 && dim % 16 == 0;
      const int padded = padded16(dim),
                wide = padded + 16;  // one line more: rows a power of two apart would share few sets of the cache
      for (int j = 0; j < n; ++j) {
        const int64_t block = a.block(slot, j0 + j),
                      at = block * stride + a.row_in_block(slot, j0 + j) * pitch + int64_t{kv} * a.head_rows() * dim;
        row[j] = direct && block >= 0 ? static_cast<const float*>(base) + at : copy + j * wide;
        if (block < 0) std::memset(copy + j * wide, 0, padded * sizeof(float));
        else if (!direct) upcast(a.kv_dtype, base, at, dim, copy + j * wide);
      }
      for (int j = n; j < kKeys; ++j) row[j] = row[0];
    }
  };

  /// p[j] = q . key j for the first n keys, and some number for the others; of kN queries side by side, each with the
  /// bits that it has alone.
  template <int kN>
  static void scores(Query* const* q, const float* const* key, int n, int D) {
    constexpr int kTogether = B::kTile;
    for (int j0 = 0; j0 < n; j0 += 16) {
      F sums[kN][16];
      for (int j = 0; j < 16; j += kTogether) {
        F s[kN][kTogether];
        for (int m = 0; m < kN; ++m)
          for (int c = 0; c < kTogether; ++c) s[m][c] = B::zero();
        for (int i = 0; i < D; i += 16) {
          F x[kN];
          for (int m = 0; m < kN; ++m) x[m] = B::load(q[m]->q + i);
          for (int c = 0; c < kTogether; ++c) {
            const F y = B::load(key[j0 + j + c] + i);
            for (int m = 0; m < kN; ++m) s[m][c] = B::fma(x[m], y, s[m][c]);
          }
        }
        for (int m = 0; m < kN; ++m)
          for (int c = 0; c < kTogether; ++c) sums[m][j + c] = s[m][c];
      }
      for (int m = 0; m < kN; ++m) B::store(q[m]->p + j0, B::sum16(sums[m]));
    }
  }

  /// Scores of keys [lo, hi) of the block from place j0 on -> weights; the others' are 0.
  static void soften(Query* q, const kernels::AttentionArgs& a, int64_t slot, int64_t j0, int lo, int hi, int Dv) {
    float m = q->row_max, *p = q->p;
    const F scale = B::set(q->scale);
    for (int j = 0; j < kKeys; j += 16) B::store(p + j, B::mul(B::load(p + j), scale));
    if (a.slopes != nullptr)
      for (int j = lo; j < hi; ++j) p[j] += q->slope * static_cast<float>(j0 + j - q->pos);
    if (a.softcap > 0)
      for (int j = lo; j < hi; ++j) p[j] = a.softcap * __builtin_tanhf(p[j] / a.softcap);
    for (int j = 0; j < lo; ++j) p[j] = -__builtin_inff();
    for (int j = hi; j < kKeys; ++j) p[j] = -__builtin_inff();
    if (a.bits != nullptr)
      for (int j = lo; j < hi; ++j)
        if (!a.bit(q->t, slot, j0 + j)) p[j] = -__builtin_inff();
    m = B::most(B::max(B::load(p), B::max(B::load(p + 16), B::set(m))));  // a NaN gives way to the other
    const float base = m == -__builtin_inff() ? 0.0f : m;  // all scores -inf: their exp is 0, not NaN
    const float shrink = exp_negative(q->row_max - base);
    for (int j = 0; j < kKeys; ++j) p[j] = exp_negative(p[j] - base);
    q->row_sum = q->row_sum * shrink + B::sum(B::add(B::load(p), B::load(p + 16)));
    q->row_max = m;
    if (shrink != 1.0f)
      for (int i = 0; i < Dv; i += 16) B::store(q->sum + i, B::mul(B::load(q->sum + i), B::set(shrink)));
  }

  /// sum += weights times values, key after key in each element; a masked key's value is not read.
  template <int kWidth, int kN>
  static void add_values(Query* const* q, const float* const* value, int lo, int hi, int at) {
    F s[kN][kWidth];
    for (int m = 0; m < kN; ++m)
      for (int c = 0; c < kWidth; ++c) s[m][c] = B::load(q[m]->sum + at + c * 16);
    for (int j = lo; j < hi; ++j) {
      F w[kN];
      for (int m = 0; m < kN; ++m) w[m] = B::set(q[m]->p[j]);
      for (int c = 0; c < kWidth; ++c) {
        const F v = B::load(value[j] + at + c * 16);
        for (int m = 0; m < kN; ++m) s[m][c] = B::fma(w[m], v, s[m][c]);
      }
    }
    for (int m = 0; m < kN; ++m)
      for (int c = 0; c < kWidth; ++c) B::store(q[m]->sum + at + c * 16, s[m][c]);
  }
  template <int kN>
  static void add_all(Query* const* q, const float* const* value, int lo, int hi, int Dv) {
    constexpr int kWidth = B::kTile < 4 ? 4 / kN : 4;  // what the level has registers for
    int i = 0;
    for (; i + 16 * kWidth <= Dv; i += 16 * kWidth) add_values<kWidth, kN>(q, value, lo, hi, i);
    for (; i < Dv; i += 16) add_values<1, kN>(q, value, lo, hi, i);
  }

  static void run(const kernels::AttentionArgs& a, const AttentionTile& tile) {
    const int D = padded16(a.D), Dv = padded16(a.Dv), kv = tile.h0 / (a.Hq / a.Hkv);
    Query queries[kQueriesTogether];
    alignas(64) float floats[kQueryFloats];
    Rows rows;
    int64_t begin = INT64_MAX, end = 0;
    for (int i = 0; i < tile.tokens; ++i) {
      if (tile.first[i] < tile.end[i]) {
        begin = tile.first[i] < begin ? tile.first[i] : begin;
        end = tile.end[i] > end ? tile.end[i] : end;
      }
      for (int h = 0; h < tile.heads; ++h) {
        Query& q = queries[i * tile.heads + h];
        const int at = i * tile.heads + h;  // all queries, then all sums: one stride of both would use half the cache
        q.q = floats + at * D, q.sum = floats + tile.tokens * tile.heads * D + at * Dv;
        upcast(a.dtype, a.q, (tile.t + i) * a.q_stride + int64_t{tile.h0 + h} * a.D, a.D, q.q);
        std::memset(q.sum, 0, Dv * sizeof(float));
        q.t = tile.t + i, q.pos = a.pos ? std::max(a.pos[q.t], kLeastPosition) : q.t;
        q.scale = a.head_scale ? a.scale * a.head_scale[tile.h0 + h] : a.scale;
        q.slope = a.slopes ? a.slopes[tile.h0 + h] : 0;
        q.row_max = -__builtin_inff(), q.row_sum = 0;
      }
    }
    for (int64_t j0 = begin / kKeys * kKeys; j0 < end; j0 += kKeys) {
      const int n = static_cast<int>(end - j0 < kKeys ? end - j0 : kKeys);
      Query* live[kQueriesTogether];  // that see keys of this block: those from lo on, below hi
      int lo[kQueriesTogether], hi[kQueriesTogether], count = 0;
      for (int i = 0; i < tile.tokens; ++i) {
        const int from =
            static_cast<int>(tile.first[i] > j0 ? (tile.first[i] - j0 < kKeys ? tile.first[i] - j0 : kKeys) : 0);
        const int to = static_cast<int>(tile.end[i] - j0 < n ? tile.end[i] - j0 : n);
        for (int h = 0; from < to && h < tile.heads; ++h, ++count)
          live[count] = &queries[i * tile.heads + h], lo[count] = from, hi[count] = to;
      }
      const auto pair = [&](int i) { return i + 1 < count && lo[i] == lo[i + 1] && hi[i] == hi[i + 1]; };
      rows.load(a, a.k, a.k_stride, a.k_pitch, tile.slot, j0, kv, n, a.D);
      for (int i = 0; i < count; i += pair(i) ? 2 : 1) {
        if (pair(i))
          scores<2>(live + i, rows.row, hi[i], D);
        else
          scores<1>(live + i, rows.row, hi[i], D);
      }
      for (int i = 0; i < count; ++i) soften(live[i], a, tile.slot, j0, lo[i], hi[i], Dv);
      rows.load(a, a.v, a.v_stride, a.v_pitch, tile.slot, j0, kv, n, a.Dv);
      for (int i = 0; i < count; i += pair(i) ? 2 : 1) {
        if (pair(i))
          add_all<2>(live + i, rows.row, lo[i], hi[i], Dv);
        else
          add_all<1>(live + i, rows.row, lo[i], hi[i], Dv);
      }
    }
    for (int i = 0; i < tile.tokens; ++i)
      for (int h = 0; h < tile.heads; ++h) {
        Query& q = queries[i * tile.heads + h];
        finish(a, tile.t + i, tile.h0 + h, q.row_max, q.row_sum, q.sum);
      }
  }

  static float rounded(DType t, float y) {
    return t == DType::f32 ? y : t == DType::bf16 ? f32_of_bf16(bf16_of_f32(y)) : f32_of_f16(f16_of_f32(y));
  }
  static void finish(const kernels::AttentionArgs& a, int64_t t, int h, float row_max, float row_sum, float* sum) {
    if (a.lse != nullptr) a.lse[t * a.lse_stride + h] = row_max + __builtin_logf(row_sum);
    float factor = row_sum > 0 || row_sum != row_sum ? 1.0f / row_sum : 0.0f;
    if (a.sinks != nullptr) {
      const float sink = a.sinks[h], m = sink > row_max ? sink : row_max, keys = __builtin_expf(row_max - m);
      factor = row_sum == 0 ? 0.0f : keys / (row_sum * keys + __builtin_expf(sink - m));
    }
    const int64_t at = t * a.out_stride + int64_t{h} * a.Dv;
    for (int i = 0; i < a.Dv; ++i) {
      const float y = sum[i] * factor;
      if (a.out_scale != nullptr)
        static_cast<uint8_t*>(a.out)[at + i] = e4m3_of_f32(rounded(a.dtype, y) / *a.out_scale);
      else if (a.dtype == DType::f32) static_cast<float*>(a.out)[at + i] = y;
      else if (a.dtype == DType::bf16) static_cast<uint16_t*>(a.out)[at + i] = bf16_of_f32(y);
      else static_cast<uint16_t*>(a.out)[at + i] = f16_of_f32(y);
    }
  }
};

}  // namespace vivace::cpu
