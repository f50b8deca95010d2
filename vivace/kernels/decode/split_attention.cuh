// Attention of one token over a part of the cached keys of one kv head: every splits-th stage of 64 of them.
// Chosen when: decode_layers, decode_layers_cross.
#pragma once
#include "vivace/kernels/decode/product.cuh"
#include "vivace/kernels/ptx/exp2.cuh"
#include "vivace/kernels/ptx/tma.cuh"

namespace vivace::kernels::decode {

constexpr float kNoScore = -1e30f;

/// What a step is of: read once a block, before anyone waits, so that all its warps mean the same.
struct Now {
  int32_t pos, slot;
  int32_t block, at;  // where the position lies in the caches
  uint32_t turn;      // of the first layer
  int32_t there;      // whether there is a row
};

/// Four dims of a head in a lane (D / 4 lanes a head): its norm, then the rotation of dims d and d + D / 2.
template <DecodeLayersPolicy P>
__device__ __forceinline__ float4 norm_and_rotate(uint4 words, uint2 gain, float4 cosine, float4 sine, float eps) {
  constexpr int kLanes = P.D / 4;
  float4 v = make_float4(value_of(words.x), value_of(words.y), value_of(words.z), value_of(words.w));
  if constexpr (P.norms) {
    float s = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
#pragma unroll
    for (int m = kLanes / 2; m; m /= 2) s += __shfl_xor_sync(0xffffffffu, s, m);
    const float inv = rsqrtf(s * (1.0f / P.D) + eps);
    v.x *= inv * low_of(gain.x), v.y *= inv * high_of(gain.x), v.z *= inv * low_of(gain.y),
        v.w *= inv * high_of(gain.y);
  }
  const float side = threadIdx.x % kLanes < kLanes / 2 ? -1.0f : 1.0f;
  float4 p;
  p.x = __shfl_xor_sync(0xffffffffu, v.x, kLanes / 2), p.y = __shfl_xor_sync(0xffffffffu, v.y, kLanes / 2);
  p.z = __shfl_xor_sync(0xffffffffu, v.z, kLanes / 2), p.w = __shfl_xor_sync(0xffffffffu, v.w, kLanes / 2);
  return make_float4(v.x * cosine.x + side * p.x * sine.x, v.y * cosine.y + side * p.y * sine.y,
                     v.z * cosine.z + side * p.z * sine.z, v.w * cosine.w + side * p.w * sine.w);
}

/// The producer's side: every splits-th stage of the keys before the position, then of the values. A stage is one box;
/// what lies behind the position in it is left to those who read it.
template <DecodeLayersPolicy P>
__device__ __forceinline__ void bring_cache(Ring<P>& ring, const DecodeLayersTmaArgs& f, const Now& now, int layer,
                                            uint64_t policy) {
  constexpr int kSplits = P.splits(), kKeys = P.kKeys;
  const int lane = static_cast<int>(threadIdx.x % 32), kv = static_cast<int>(blockIdx.x) / kSplits,
            split = static_cast<int>(blockIdx.x) % kSplits;
#pragma unroll 1
  for (int first = split * kKeys; first <= now.pos; first += kSplits * kKeys) {
    const DecodeLayersArgs::Place place = f.a.place(now.slot, first);
    const int held = place.block < 0 ? 0 : min(kKeys, now.pos - first);
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
      ring.claim();
      if (lane == 0) write_shared(ring.shared + P.held_at() + ring.slot * 4, held);
      ring.expect(held > 0 ? kKeys * P.D * 2 : 0);
      if (lane == 0 && held > 0)
        ptx::tma_load(ring.bytes_at(0), which ? f.v : f.k, ring.full(0), kv * (P.D / 2),
                      layer * (which ? f.v_rows : f.k_rows) + place.block * f.a.L + place.at, policy);
      ring.advance(1);
    }
  }
}

/// A warp's 8 keys of a stage, and of each value a lane's D / 32 dims, in registers.
template <auto P>
struct HeldKeys {
  static constexpr int kDims = P.D / 32;
  uint4 keys[P.D / 64][2];
  uint32_t values[8][kDims / 2];

  /// Row lane / 4 of a tile. Odd rows take their halves in turn: two rows would meet in the same banks.
  __device__ __forceinline__ void read_key(uint32_t from) {
    const int lane = static_cast<int>(threadIdx.x % 32), odd = lane / 4 & 1;
#pragma unroll
    for (int i = 0; i < P.D / 64; ++i) {
      const uint32_t at = from + i * 128 + lane % 4 * 16;
      const uint4 early = read_shared(at + odd * 64), late = read_shared(at + (odd ^ 1) * 64);
      keys[i][0] = odd ? late : early, keys[i][1] = odd ? early : late;
    }
  }
  __device__ __forceinline__ void read_value(int key, uint32_t from) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int d = 0; d < kDims / 2; ++d) values[key][d] = read_shared_word(from + lane * kDims * 2 + d * 4);
  }
  /// The warp's part of a stage of which `held` keys are there; values behind them may be no numbers, and become 0.
  __device__ __forceinline__ void read(uint32_t stage_of_keys, uint32_t stage_of_values, int held) {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    read_key(stage_of_keys + (warp * 8 + lane / 4) * P.D * 2);
#pragma unroll
    for (int k = 0; k < 8; ++k) read_value(k, stage_of_values + (warp * 8 + k) * P.D * 2);
    if (held < P.kKeys)
#pragma unroll
      for (int k = 0; k < 8; ++k)
#pragma unroll
        for (int d = 0; d < kDims / 2; ++d)
          if (warp * 8 + k >= held) values[k][d] = 0;
  }
};

/// The softmax of a warp's keys so far: of row lane / 4 (a head) its largest score and sum, of every head of the group
/// a lane's dims of the weighted values.
template <auto P>
struct WarpSoftmax {
  static constexpr int kGroup = P.group(), kDims = P.D / 32, kLanes = P.lanes();
  float most = kNoScore, mass = 0;
  float out[kGroup][kDims] = {};

  /// Takes in a stage. `in0`, `in1`: whether the warp's keys lane % 4 * 2 and the next one are seen.
  __device__ __forceinline__ void add(const HeldKeys<P>& held, uint32_t query, uint32_t weights, bool in0, bool in1,
                                      bool first) {
    const int lane = static_cast<int>(threadIdx.x % 32), row = lane / 4;
    float c[2][4] = {};  // heads are rows, keys columns
#pragma unroll
    for (int i = 0; i < P.D / 64; ++i) {
      const uint32_t left = query + min(row, kGroup - 1) * P.D * 2 + i * 128 + lane % 4 * 16;
      multiply_piece(c, read_shared(left), held.keys[i][0]);
      multiply_piece(c, read_shared(left + 64), held.keys[i][1]);
    }
    const float scale = 1.4426950408889634f * rsqrtf(static_cast<float>(P.D));
    const float s0 = in0 ? (c[0][0] + c[1][2]) * scale : kNoScore, s1 = in1 ? (c[0][1] + c[1][3]) * scale : kNoScore;
    float top = fmaxf(s0, s1);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)), most);
    const float kept = ptx::exp2_fast(most - top);
    const float p0 = in0 ? ptx::exp2_fast(s0 - top) : 0, p1 = in1 ? ptx::exp2_fast(s1 - top) : 0;
    float sum = p0 + p1;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    most = top, mass = mass * kept + sum;
    if (row < kLanes) {
      const uint32_t to = weights + (lane % 4 * 2 * kLanes + row) * 4;
      write_shared(to, __float_as_uint(row < kGroup ? p0 : 0));
      write_shared(to + kLanes * 4, __float_as_uint(row < kGroup ? p1 : 0));
      if (lane % 4 == 0) write_shared(weights + (8 * kLanes + row) * 4, __float_as_uint(kept));
    }
    __syncwarp();
    float by[kLanes];
    const auto read = [&](int line) {
#pragma unroll
      for (int g = 0; g < kLanes; g += 4) {
        const uint4 w = read_shared(weights + (line * kLanes + g) * 4);
        by[g] = __uint_as_float(w.x), by[g + 1] = __uint_as_float(w.y), by[g + 2] = __uint_as_float(w.z),
        by[g + 3] = __uint_as_float(w.w);
      }
    };
    if (!first) {
      read(8);
#pragma unroll
      for (int g = 0; g < kGroup; ++g)
#pragma unroll
        for (int d = 0; d < kDims; ++d) out[g][d] *= by[g];
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      read(k);
#pragma unroll
      for (int g = 0; g < kGroup; ++g)
#pragma unroll
        for (int d = 0; d < kDims / 2; ++d) {
          out[g][2 * d] += by[g] * low_of(held.values[k][d]);
          out[g][2 * d + 1] += by[g] * high_of(held.values[k][d]);
        }
    }
  }
  /// Leaves it where the block's warps meet.
  __device__ __forceinline__ void leave(float* parts, float* maxima, float* masses) const {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32), row = lane / 4;
    if (row < kGroup && lane % 4 == 0) maxima[warp * 8 + row] = most, masses[warp * 8 + row] = mass;
#pragma unroll
    for (int g = 0; g < kGroup; ++g)
#pragma unroll
      for (int d = 0; d < kDims; ++d) parts[(warp * kGroup + g) * P.D + lane * kDims + d] = out[g][d];
  }
};

/// What the warps left becomes the block's part of a head: words of a value and of its mass, a pair a column.
template <auto P>
__device__ __forceinline__ void send_parts(const float* parts, const float* maxima, const float* masses,
                                           uint32_t* words, uint32_t tag) {
  constexpr int kWarps = P.kWarps, kWidth = P.group() * P.D, kSplits = P.splits();
  const int kv = static_cast<int>(blockIdx.x) / kSplits, split = static_cast<int>(blockIdx.x) % kSplits;
  for (int mine = static_cast<int>(threadIdx.x); mine < kWidth; mine += kWarps * 32) {
    const int g = mine / P.D;
    float top = kNoScore, total = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, maxima[w * 8 + g]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float share = ptx::exp2_fast(maxima[w * 8 + g] - top);
      total += share * masses[w * 8 + g];
      sum += share * parts[w * kWidth + mine];
    }
    const bool none = total == 0;  // no key was seen; of scores that are no numbers the sum is none either
    store_words(words + ((kv * kWidth + mine) * kSplits + split) * 2, word_of(none ? 0 : sum / total, tag),
                word_of(none ? kNoScore : top + __log2f(total), tag));
  }
}

/// The least power of two that is not below n.
VV_HD constexpr int power_of_two(int n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}
/// The parts of the splits of this block's columns become columns of the attended row: some lanes a column, each a
/// split. Lanes behind the last split weigh nothing.
template <auto P>
__device__ __forceinline__ void merge_parts(const uint32_t* parts, uint32_t* attended, BlockRows columns,
                                            uint32_t tag) {
  constexpr int kSplits = P.splits(), kLine = power_of_two(kSplits), kPer = 32 / kLine;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int begin = warp * kPer; begin < columns.count; begin += P.kWarps * kPer) {
    const int local = begin + lane / kLine, column = columns.first + min(local, columns.count - 1);
    const int split = kLine == kSplits ? lane % kLine : min(lane % kLine, kSplits - 1);
    const uint2 v = wait_two_words(parts + (column * kSplits + split) * 2, tag);
    const float mass = kLine == kSplits || lane % kLine < kSplits ? value_of(v.y) : kNoScore;
    float top = mass;
#pragma unroll
    for (int s = kLine / 2; s; s /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, s));
    float share = ptx::exp2_fast(mass - top), sum = share * value_of(v.x);
#pragma unroll
    for (int s = kLine / 2; s; s /= 2)
      share += __shfl_xor_sync(0xffffffffu, share, s), sum += __shfl_xor_sync(0xffffffffu, sum, s);
    if (lane % kLine == 0 && local < columns.count)
      store_word(attended + column, word_of(__fdividef(sum, share), tag));
  }
}

}  // namespace vivace::kernels::decode
