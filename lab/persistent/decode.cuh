// One decode step of one token as one persistent kernel: all layers and the head, a thread block an SM.
//
// Warps 0..7 consume, warp 8 produces: it copies the block's weights and cached keys and values into the ring in
// program order and never waits for an activation. Activations pass between blocks as self-validating words
// (exchange.cuh); there is no barrier of the grid. K of a product is cut over the warps in units of 64, and a warp
// polls only the words of its own units, so nothing but the sums of a product meets at a barrier of the block.
//
// What a buffer of words held is read by everyone before it is written again two layers later: every block takes part
// in gate and up, which needs all of the row behind o, which needs every block's part of it, and so on around the
// layer.
#pragma once
#include <cuda_bf16.h>

#include "models.cuh"
#include "ring.cuh"

namespace lab {

constexpr int kConsumers = 256, kThreads = kConsumers + 32, kWarps = 8;
constexpr int kKeys = 64;    // keys of a block: 8 a warp
constexpr int kSplits = 16;  // blocks of a kv head
constexpr int kRows = 128;   // rows of a product between two barriers
constexpr int kMergeColumns = 16;
constexpr float kNoScore = -1e30f;

struct Step {
  const __nv_bfloat16 *qkv, *o, *gate_up, *down;       // [layers, n, k]; gate and up in turn
  const __nv_bfloat16 *norms, *final_norm, *qk_norms;  // [layers, 2, d], [d], [layers, 2, head]
  const __nv_bfloat16 *embedding, *head;               // [vocab, d]
  __nv_bfloat16* cache;                                // [layers, 2, kv heads, context, head]
  const float *cosine, *sine;                          // [head / 2] of this position
  uint32_t* words;                                     // [2, Words<M>::kAll]
  float *logits, *trace;                               // [vocab]; [layers, d] or null
  float* best;                                         // [blocks]: largest logit of a block
  int* best_index;                                     // [blocks]
  long long* stamps;                                   // [layers, kStamps] of block stamp_cta, or null
  Stuck* stuck;
  int token, position, context, stamp_cta;
  uint32_t turn;          // turn of layer 0; a step takes `layers` turns
  uint32_t delay, plant;  // stress: seed of random delays; number of a planted fault
  int same_layer;         // 1: every layer reads the weights of layer 0
};

constexpr int kStamps = 22;

template <class M>
struct Words {
  static constexpr int round(int n) { return (n + 31) / 32 * 32; }
  static constexpr int kQ = M::kHeads * M::kHead, kKv = M::kKvHeads * M::kHead;
  static constexpr int kX = 0, kMid = kX + round(M::kD), kHidden = kMid + round(M::kD),
                       kAttended = kHidden + round(M::kFfn);
  static constexpr int kQkv = kAttended + round(kQ), kPart = kQkv + round(kQ + 2 * kKv);
  static constexpr int kAll = kPart + kQ * kSplits * 2;  // [column, split], two words each
};

template <class M>
struct Shared {
  static constexpr int kSlotBytes = M::kSlotBytes;
  static constexpr int kWide = M::kFfn > Words<M>::kQ ? M::kFfn : Words<M>::kQ;
  static constexpr int kGroup = M::kHeads / M::kKvHeads;
  static constexpr int kX = 0;                                            // bf16 row of a product
  static constexpr int kSums = kX + (kWide > M::kD ? kWide : M::kD) * 2;  // [2, 8 warps, kRows]
  static constexpr int kSquares = kSums + 2 * kWarps * kRows * 4;         // [2, 8]
  static constexpr int kQuery = kSquares + 64;                            // [8 warps, group, head] bf16
  static constexpr int kNewKey = kQuery + kWarps * kGroup * M::kHead * 2;
  static constexpr int kNewValue = kNewKey + M::kHead * 2;
  static constexpr int kWeights = kNewValue + M::kHead * 2;                // [8 warps, 8 keys, 4 heads]
  static constexpr int kParts = kWeights + kWarps * 8 * 16;                // [8 warps, group, head] f32
  static constexpr int kMaxima = kParts + kWarps * kGroup * M::kHead * 4;  // [8 warps, 4]
  static constexpr int kMasses = kMaxima + kWarps * 16;
  static constexpr int kBest = kMasses + kWarps * 16;  // [4] values, [4] indices
  static constexpr int kBarriers = kBest + 32;
  static constexpr int kRing = (kBarriers + 512 + 127) / 128 * 128;
  static constexpr int kSlots = (232448 - kRing) / kSlotBytes < 32 ? (232448 - kRing) / kSlotBytes : 32;
  static constexpr int kBytes = kRing + kSlots * kSlotBytes;
};

/// Rows of `n` that a block has: the first blocks have one more.
struct Rows {
  int first, count;
  __device__ __forceinline__ explicit Rows(int n) {
    const int blocks = gridDim.x, me = blockIdx.x, each = n / blocks, more = n % blocks;
    first = me * each + min(me, more);
    count = each + (me < more);
  }
};

/// Stress: sometimes a wait of up to 8 us.
__device__ __noinline__ void dawdle_some(uint32_t seed, uint32_t layer, uint32_t point) {
  uint32_t h = seed * 0x9e3779b9u ^ (blockIdx.x * 73856093u) ^ (layer * 19349663u) ^ (point * 83492791u) ^
               (threadIdx.x / 32 * 2654435761u);
  h ^= h >> 15, h *= 0x2c1b3c6du, h ^= h >> 12, h *= 0x297a2d39u, h ^= h >> 15;
  if (h & 7) return;
  const long long until = clock64() + ((h >> 8) & 0x3fff);
  while (clock64() < until) {
  }
}

/// kProbe: what only checks need, stamps and delays. It is compiled out where time counts.
template <bool kProbe>
__device__ __forceinline__ void dawdle(uint32_t seed, uint32_t layer, uint32_t point) {
  if (kProbe && seed) dawdle_some(seed, layer, point);
}

__device__ __forceinline__ uint32_t pair_of(float a, float b) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ float low_of(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_of(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
/// Two pairs of bf16 at element `at` (a multiple of four) of a row that mma() reads as its left side: of eight elements
/// the pairs 0, 2, 1, 3 lie in turn, so that a lane reads with one load what row lane / 4 multiplies by pairs 0 and 1
/// and what row lane / 4 + 8 multiplies by pairs 2 and 3. So one row fills both halves, and nothing is moved between
/// registers.
__device__ __forceinline__ void write_left(uint32_t row, int at, uint32_t first, uint32_t second) {
  const uint32_t to = row + at / 8 * 16 + at / 4 % 2 * 4;
  write_shared_word(to, first);
  write_shared_word(to + 8, second);
}
/// c[0][0..1] and c[1][2..3] are the two halves of the sums of row lane / 4 and columns lane % 4 * 2, + 1.
__device__ __forceinline__ void multiply_piece(float (&c)[2][4], uint4 left, uint4 right) {
  mma(c[0], left, right.x, right.y);
  mma(c[1], left, right.z, right.w);
}

/// The words of a row of kK that a warp polls: units warp, warp + 8, ... of 64; half a warp a unit, four words a lane.
template <int kK>
struct Units {
  static constexpr int kCount = kK / 64, kLoads = ((kCount + kWarps - 1) / kWarps + 1) / 2;
  __device__ static __forceinline__ int unit(int j) {
    return threadIdx.x / 32 + kWarps * (2 * j + threadIdx.x % 32 / 16);
  }
  __device__ static __forceinline__ int at(int j) { return unit(j) * 64 + threadIdx.x % 16 * 4; }
  __device__ static __forceinline__ bool mine(int j) { return unit(j) < kCount; }
};

/// Bytes from row to row of a stage: rows are multiples of 128 bytes, and two of them must not meet in the same banks.
__host__ __device__ constexpr int stride_of(int columns) {
  return columns * 2 + 64;
}

/// Rows [0, rows) of the block's part of a product times the row in `x`, as this warp's sums: sums[row]. kStages stages
/// at a time, whatever tile or piece of K they are. What the ring holds of the first ones is in registers before
/// `take()` waits for the row. The shape is known to the compiler: between a word's arrival and the next word's way out
/// one warp's instructions follow each other at four cycles or more, so what could be known before costs there.
template <class M, int kK, int kCut, int kStages, class R, class Take>
__device__ __forceinline__ void multiply(R& ring, uint32_t x, float* sums, int rows, bool wait, uint32_t layer,
                                         Take take) {
  constexpr int kAhead = kCut / 64 / kWarps, kPieces = kK / kCut;  // units of a stage in registers; stages of a tile
  static_assert(kK % kCut == 0 && kCut <= M::kCut && kCut % 64 == 0 && (kPieces == 1 || kCut % (64 * kWarps) == 0));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t right = lane / 4 * stride_of(M::kCut) + lane % 4 * 16 + warp * 128;
  const uint32_t left = x + lane % 4 * 16 + warp * 128;
  const int all = (rows + 7) / 8 * kPieces;
  int piece = 0;  // of the first stage
  float2 total = make_float2(0, 0);
#pragma unroll 1
  for (int stage = 0; stage < all; stage += kStages) {
    const int count = min(all - stage, kStages);
    if (wait)
#pragma unroll
      for (int s = 0; s < kStages; ++s)
        if (s < count) ring.wait(s, layer);
    uint32_t at[kStages], row[kStages];
    uint4 w[kStages][kAhead][2];
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      // three of one tile's pieces, or pieces of any tile where they do not divide it
      const int of = kPieces == 1 ? 0 : kStages % kPieces == 0 ? s % kPieces : (piece + s) % kPieces;
      at[s] = ring.bytes_at(s) + right, row[s] = left + of * kCut * 2;
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        w[s][i][0] = read_shared(at[s] + i * kWarps * 128), w[s][i][1] = read_shared(at[s] + i * kWarps * 128 + 64);
    }
    if (stage == 0) take();
    float c[kStages][2][4] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      uint4 v[kStages][2];
#pragma unroll
      for (int s = 0; s < kStages; ++s)
        v[s][0] = read_shared(row[s] + i * kWarps * 128), v[s][1] = read_shared(row[s] + i * kWarps * 128 + 64);
#pragma unroll
      for (int s = 0; s < kStages; ++s)
        if (s < count) multiply_piece(c[s], v[s][0], w[s][i][0]), multiply_piece(c[s], v[s][1], w[s][i][1]);
    }
    if (kCut / 64 % kWarps && warp < kCut / 64 % kWarps)
#pragma unroll
      for (int s = 0; s < kStages; ++s)
#pragma unroll
        for (int half = 0; half < 128; half += 64)
          multiply_piece(c[s], read_shared(row[s] + kAhead * kWarps * 128 + half),
                         read_shared(at[s] + kAhead * kWarps * 128 + half));
    ring.release(count);
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      total.x += c[s][0][0] + c[s][1][2], total.y += c[s][0][1] + c[s][1][3];
      const int of = kPieces == 1 ? 0 : kStages % kPieces == 0 ? s % kPieces : (piece + s) % kPieces;
      if (of == kPieces - 1) {
        if (lane < 4 && s < count) *reinterpret_cast<float2*>(sums + lane * 2) = total;
        sums += 8, total = make_float2(0, 0);
      }
    }
    if (kStages % kPieces) piece = (piece + kStages) % kPieces;
  }
}

/// The producer's side of multiply().
template <class M, class R>
__device__ __forceinline__ void bring(R& ring, const __nv_bfloat16* w, int k, int cut, int rows, uint64_t policy,
                                      uint32_t layer) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int row = 0; row < rows; row += 8)
#pragma unroll 1
    for (int column = 0; column < k; column += cut) {
      const int count = min(8, rows - row);
      ring.claim(count * cut * 2, layer);
      if (lane < count)
        copy_bulk(ring.bytes_at(0) + lane * stride_of(M::kCut), w + static_cast<size_t>(row + lane) * k + column,
                  cut * 2, ring.full + ring.slot * 8, policy);
      ring.advance(1);
    }
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int m = 16; m; m /= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
  return v;
}
__device__ __forceinline__ float sum_of_warps(const float* sums, int row) {
  float v[kWarps];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) v[w] = sums[w * kRows + row];
  return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

/// A head's four dims in a lane (kHead / 4 lanes a head): its norm, then the rotation of dims d and d + kHead / 2.
template <int kHead, bool kNorm>
__device__ __forceinline__ float4 norm_and_rotate(uint4 words, uint2 gain, float4 cosine, float4 sine, float epsilon) {
  constexpr int kLanes = kHead / 4;
  float4 v = make_float4(value_of(words.x), value_of(words.y), value_of(words.z), value_of(words.w));
  if (kNorm) {
    float s = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
#pragma unroll
    for (int m = kLanes / 2; m; m /= 2) s += __shfl_xor_sync(0xffffffffu, s, m);
    const float inv = rsqrtf(s / kHead + epsilon);
    v.x *= inv * low_of(gain.x), v.y *= inv * high_of(gain.x), v.z *= inv * low_of(gain.y),
        v.w *= inv * high_of(gain.y);
  }
  const float side = threadIdx.x % kLanes < kLanes / 2 ? -1.f : 1.f;
  float4 p;
  p.x = __shfl_xor_sync(0xffffffffu, v.x, kLanes / 2), p.y = __shfl_xor_sync(0xffffffffu, v.y, kLanes / 2);
  p.z = __shfl_xor_sync(0xffffffffu, v.z, kLanes / 2), p.w = __shfl_xor_sync(0xffffffffu, v.w, kLanes / 2);
  return make_float4(v.x * cosine.x + side * p.x * sine.x, v.y * cosine.y + side * p.y * sine.y,
                     v.z * cosine.z + side * p.z * sine.z, v.w * cosine.w + side * p.w * sine.w);
}

template <class M, bool kProbe>
struct Consumer {
  using W = Words<M>;
  using S = Shared<M>;
  using R = Ring<S::kSlots, S::kSlotBytes>;
  using X = Units<M::kD>;
  static constexpr int kGroup = S::kGroup, kHead = M::kHead;

  const Step& p;
  unsigned char* shared;
  uint32_t base;  // its shared address
  R ring;
  uint32_t turn, layer = 0;
  const __nv_bfloat16* embedded = nullptr;
  uint2 gain[Units<M::kD>::kLoads];  // of the next norm, requested a phase before
  int parity = 0;
  int finisher;  // thread 0 of the last warp is 0: that warp polls the fewest words

  __device__ __forceinline__ float* sums(int at) const { return reinterpret_cast<float*>(shared + at); }
  __device__ __forceinline__ float* product_sums() const { return sums(S::kSums) + parity * kWarps * kRows; }
  __device__ __forceinline__ float* squares() const { return sums(S::kSquares) + parity * kWarps; }
  __device__ __forceinline__ const uint32_t* read_at(int place, uint32_t of) const {
    return p.words + (of & 1) * W::kAll + place;
  }
  __device__ __forceinline__ uint32_t* write_at(int place) const { return p.words + (turn & 1) * W::kAll + place; }
  __device__ __forceinline__ void stamp(int point) const {
    if constexpr (!kProbe) return;
    if (p.stamps && static_cast<int>(blockIdx.x) == p.stamp_cta && finisher == 0)
      p.stamps[layer * kStamps + point] = clock64();
  }
  __device__ __forceinline__ float inverse_root() const {
    const float4 a = reinterpret_cast<const float4*>(squares())[0], b = reinterpret_cast<const float4*>(squares())[1];
    const float s = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
    return rsqrtf(s * (1.f / M::kD) + M::kEpsilon);
  }

  __device__ __forceinline__ void attend(float4 cosine, float4 sine) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv = blockIdx.x / kSplits, split = blockIdx.x % kSplits;
    constexpr int kQuads = kGroup * kHead / 4, kLoads = (kQuads + 31) / 32;
    const uint32_t tag = tag_of(turn), query = base + S::kQuery + warp * kGroup * kHead * 2;
    const bool owner = p.position / kKeys == split && p.position % kKeys / 8 == warp, low = lane < kHead / 4;
    uint2 q_gain = make_uint2(0, 0), k_gain = q_gain;
    if (M::kQkNorm) {
      q_gain = load_constant(p.qk_norms + (layer * 2) * kHead + lane % (kHead / 4) * 4);
      k_gain = load_constant(p.qk_norms + (layer * 2 + 1) * kHead + lane % (kHead / 4) * 4);
    }
    // what is cached needs nobody: this warp's 8 keys and, of each value, a lane's kHead / 32 dims
    constexpr int kDims = kHead / 32;
    const int first = split * kKeys + warp * 8, row = lane / 4, odd = row & 1;
    ring.wait(0, layer);
    ring.wait(1, layer);
    uint4 keys[kHead / 64][2];
    uint32_t values[8][kDims / 2];
    auto read_key = [&](uint32_t from) {  // odd rows take their halves in turn: two rows would meet in the same banks
#pragma unroll
      for (int i = 0; i < kHead / 64; ++i) {
        const uint32_t at = from + i * 128 + lane % 4 * 16;
        const uint4 early = read_shared(at + odd * 64), late = read_shared(at + (odd ^ 1) * 64);
        keys[i][0] = odd ? late : early, keys[i][1] = odd ? early : late;
      }
    };
    read_key(ring.bytes_at(0) + (warp * 8 + row) * kHead * 2);
#pragma unroll
    for (int k = 0; k < 8; ++k)
#pragma unroll
      for (int d = 0; d < kDims / 2; ++d)
        values[k][d] = read_shared_word(ring.bytes_at(1) + (warp * 8 + k) * kHead * 2 + lane * kDims * 2 + d * 4);

    // the queries, and with them, in one warp, the new key and value
    uint4 v[kLoads + 2];
    int offset[kLoads + 2];
    uint32_t wanted = owner && low ? 3u << kLoads : 0;
#pragma unroll
    for (int j = 0; j < kLoads; ++j)
      offset[j] = kv * kGroup * kHead + (j * 32 + lane) * 4, wanted |= wanted_quad<kQuads>(j) ? 1u << j : 0;
    offset[kLoads] = W::kQ + kv * kHead + lane * 4, offset[kLoads + 1] = offset[kLoads] + W::kKv;
    wait_words(v, read_at(W::kQkv, turn), offset, wanted, tag, true, p.stuck, 2, layer);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const float4 r = norm_and_rotate<kHead, M::kQkNorm>(v[j], q_gain, cosine, sine, M::kEpsilon);
      if (wanted_quad<kQuads>(j)) write_left(query, (j * 32 + lane) * 4, pair_of(r.x, r.y), pair_of(r.z, r.w));
    }
    if (owner) {  // the new position: rotated, rounded, kept here and in the cache
      const float4 k = norm_and_rotate<kHead, M::kQkNorm>(v[kLoads], k_gain, cosine, sine, M::kEpsilon);
      if (low) {
        const uint2 key = make_uint2(pair_of(k.x, k.y), pair_of(k.z, k.w));
        const uint2 value = make_uint2(pair_of(value_of(v[kLoads + 1].x), value_of(v[kLoads + 1].y)),
                                       pair_of(value_of(v[kLoads + 1].z), value_of(v[kLoads + 1].w)));
        write_shared(base + S::kNewKey + lane * 8, key.x, key.y);
        write_shared(base + S::kNewValue + lane * 8, value.x, value.y);
        __nv_bfloat16* row =
            p.cache + ((static_cast<size_t>(layer) * 2 * M::kKvHeads + kv) * p.context + p.position) * kHead + lane * 4;
        *reinterpret_cast<uint2*>(row) = key;
        *reinterpret_cast<uint2*>(row + static_cast<size_t>(M::kKvHeads) * p.context * kHead) = value;
      }
    }
    __syncwarp();
    if (owner) {
      if (first + row == p.position) read_key(base + S::kNewKey);
#pragma unroll
      for (int k = 0; k < 8; ++k)
#pragma unroll
        for (int d = 0; d < kDims / 2; ++d)
          if (first + k == p.position) values[k][d] = read_shared_word(base + S::kNewValue + lane * kDims * 2 + d * 4);
    }
    stamp(4);

    // scores: heads are rows, keys columns
    float c[2][4] = {};
#pragma unroll
    for (int i = 0; i < kHead / 64; ++i) {
      const uint32_t left = query + min(row, kGroup - 1) * kHead * 2 + i * 128 + lane % 4 * 16;
      const uint4 a = read_shared(left), a2 = read_shared(left + 64);
      multiply_piece(c, a, keys[i][0]);
      multiply_piece(c, a2, keys[i][1]);
    }
    const float scale = 1.4426950408889634f * rsqrtf(static_cast<float>(kHead));
    const int column = first + lane % 4 * 2;
    const bool in0 = column <= p.position, in1 = column + 1 <= p.position;
    const float s0 = in0 ? (c[0][0] + c[1][2]) * scale : kNoScore, s1 = in1 ? (c[0][1] + c[1][3]) * scale : kNoScore;
    float most = fmaxf(s0, s1);
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float p0 = in0 ? exp2f(s0 - most) : 0, p1 = in1 ? exp2f(s1 - most) : 0;
    float mass = p0 + p1;
    mass += __shfl_xor_sync(0xffffffffu, mass, 1);
    mass += __shfl_xor_sync(0xffffffffu, mass, 2);
    float* weights = sums(S::kWeights) + warp * 32;
    if (row < 4)
      weights[lane % 4 * 8 + row] = row < kGroup ? p0 : 0, weights[lane % 4 * 8 + 4 + row] = row < kGroup ? p1 : 0;
    if (row < kGroup && lane % 4 == 0) sums(S::kMaxima)[warp * 4 + row] = most, sums(S::kMasses)[warp * 4 + row] = mass;
    __syncwarp();

    float out[kGroup][kDims] = {};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint4 w = read_shared(base + S::kWeights + warp * 128 + k * 16);
      const float weight[4] = {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w)};
#pragma unroll
      for (int g = 0; g < kGroup; ++g)
#pragma unroll
        for (int d = 0; d < kDims / 2; ++d) {
          out[g][2 * d] += weight[g] * low_of(values[k][d]);
          out[g][2 * d + 1] += weight[g] * high_of(values[k][d]);
        }
    }
    ring.release(2);
    float* parts = sums(S::kParts) + warp * kGroup * kHead;
#pragma unroll
    for (int g = 0; g < kGroup; ++g)
#pragma unroll
      for (int d = 0; d < kDims; ++d) parts[g * kHead + lane * kDims + d] = out[g][d];
    stamp(5);
    consumers_meet();
    stamp(6);
    dawdle<kProbe>(p.delay, layer, 40);
    const int mine = threadIdx.x;
    if (mine < kGroup * kHead) {
      const int g = mine / kHead;
      float top = kNoScore, total = 0, sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) top = fmaxf(top, sums(S::kMaxima)[w * 4 + g]);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float share = exp2f(sums(S::kMaxima)[w * 4 + g] - top);
        total += share * sums(S::kMasses)[w * 4 + g];
        sum += share * sums(S::kParts)[w * kGroup * kHead + mine];
      }
      store_words(write_at(W::kPart) + ((kv * kGroup * kHead + mine) * kSplits + split) * 2,
                  word_of(total > 0 ? sum / total : 0, tag), word_of(total > 0 ? top + __log2f(total) : kNoScore, tag));
    }
    stamp(7);
  }
  template <int kQuads>
  __device__ static __forceinline__ bool wanted_quad(int j) {
    return j * 32 + static_cast<int>(threadIdx.x) % 32 < kQuads;
  }

  /// Parts of the splits of this block's columns become the attended row: half a warp a column, a lane a split.
  __device__ __forceinline__ void merge(Rows columns) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = lane % kSplits;
    if (warp * 2 < columns.count) {
      const int local = min(warp * 2 + lane / kSplits, columns.count - 1), column = columns.first + local;
      const uint32_t tag = tag_of(turn);
      const uint32_t* part = read_at(W::kPart, turn) + (column * kSplits + split) * 2;
      uint2 v = load_two_words(part);
      uint32_t polls = 0;
      while (((v.x ^ tag) | (v.y ^ tag)) & 0xff) {
        v = load_two_words(part);
        if (++polls == kPatience) give_up(p.stuck, 4, layer, tag, v.x);
      }
      __syncwarp();
      const float mass = value_of(v.y);
      float top = mass;
#pragma unroll
      for (int s = kSplits / 2; s; s /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, s));
      float share = exp2f(mass - top), sum = share * value_of(v.x);
#pragma unroll
      for (int s = kSplits / 2; s; s /= 2)
        share += __shfl_xor_sync(0xffffffffu, share, s), sum += __shfl_xor_sync(0xffffffffu, sum, s);
      if (split == 0 && warp * 2 + lane / kSplits < columns.count)
        store_word(write_at(W::kAttended) + column, word_of(__fdividef(sum, share), tag));
    }
  }

  /// Waits for this warp's words of a row and leaves them in `x` as bf16, times the norm's gain. Returns the squares'
  /// sum.
  template <int kK, bool kNorm>
  __device__ __forceinline__ float take_row(const uint32_t* from, uint32_t tag, bool wait) {
    using U = Units<kK>;
    const uint32_t x = base + S::kX;
    uint4 v[U::kLoads];
    int offset[U::kLoads];
    uint32_t wanted = 0;
    float squares = 0;
#pragma unroll
    for (int j = 0; j < U::kLoads; ++j) offset[j] = U::at(j), wanted |= U::mine(j) ? 1u << j : 0;
    if (from) {
      wait_words(v, from, offset, wanted, tag, wait, p.stuck, 1, layer);
    } else {  // the first layer's
#pragma unroll
      for (int j = 0; j < U::kLoads; ++j) {
        const uint2 e = U::mine(j) ? load_constant(embedded + offset[j]) : make_uint2(0, 0);
        v[j] = make_uint4(e.x << 16, e.x & 0xffff0000u, e.y << 16, e.y & 0xffff0000u);
      }
    }
#pragma unroll
    for (int j = 0; j < U::kLoads; ++j) {
      float a = value_of(v[j].x), b = value_of(v[j].y), c = value_of(v[j].z), d = value_of(v[j].w);
      if constexpr (kNorm) {
        squares += a * a + b * b + c * c + d * d;
        a *= low_of(gain[j].x), b *= high_of(gain[j].x), c *= low_of(gain[j].y), d *= high_of(gain[j].y);
      }
      if (U::mine(j)) write_left(x, offset[j], pair_of(a, b), pair_of(c, d));
    }
    __syncwarp();
    return squares;
  }
  __device__ __forceinline__ void ask_gain(const __nv_bfloat16* from) {
#pragma unroll
    for (int j = 0; j < X::kLoads; ++j) gain[j] = X::mine(j) ? load_constant(from + X::at(j)) : make_uint2(0, 0);
  }
  /// A product of `rows` rows: waits for the row at `from`, then `ask()`s for what a later phase needs, multiplies, and
  /// when all warps' sums have met calls `finish(row's sum of warps, inverse root)` in thread `row` of the last warps.
  template <int kK, int kCut, int kStages, bool kNorm, class Ask, class Finish>
  __device__ __forceinline__ void product(const uint32_t* from, uint32_t tag, int rows, int threads, int point, Ask ask,
                                          Finish finish) {
    const int warp = threadIdx.x / 32;
    float square = 0;
    dawdle<kProbe>(p.delay, layer, point);
    multiply<M, kK, kCut, kStages>(
        ring, base + S::kX, product_sums() + warp * kRows, rows, !(kProbe && p.plant == 2 && layer == 3), layer, [&] {
          square = take_row<kK, kNorm>(from, tag, !(kProbe && p.plant == 1 && layer == 3 && point == 17));
          ask();
          stamp(point);
        });
    if constexpr (kNorm) {
      square = warp_sum(square);
      if (threadIdx.x % 32 == 0) squares()[warp] = square;
    }
    stamp(point + 1);
    consumers_meet();
    stamp(point + 2);
    dawdle<kProbe>(p.delay, layer, point + 1);
    if (finisher < threads) finish(kNorm ? inverse_root() : 1);
    stamp(point + 3);
    parity ^= 1;
  }

  __device__ __forceinline__ void run() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    finisher = (kWarps - 1 - warp) * 32 + lane;
    const Rows qkv(W::kQ + 2 * W::kKv), model(M::kD), hidden(M::kFfn), columns(W::kQ), head(M::kVocab);
    const bool attends = static_cast<int>(blockIdx.x) < M::kKvHeads * kSplits;
    embedded = p.embedding + static_cast<size_t>(p.token) * M::kD;
    float residual = finisher < model.count ? __bfloat162float(embedded[model.first + finisher]) : 0;
    const int rotated = lane % (kHead / 8) * 4;
    const float4 cosine = *reinterpret_cast<const float4*>(p.cosine + rotated);
    const float4 sine = *reinterpret_cast<const float4*>(p.sine + rotated);
    ask_gain(p.norms);
    turn = p.turn;
    auto nothing = [] {};
    auto send = [&](int place, float v) { store_word(write_at(place) + finisher, word_of(v, tag_of(turn))); };
#pragma unroll 1
    for (layer = 0; layer < M::kLayers; ++layer, ++turn) {
      product<M::kD, M::kCut, M::kStagesQkv, true>(
          layer ? read_at(W::kX, turn - 1) : nullptr, tag_of(turn - 1), qkv.count, qkv.count, 0,
          [&] { ask_gain(p.norms + (static_cast<size_t>(layer) * 2 + 1) * M::kD); },
          [&](float inv) { send(W::kQkv + qkv.first, sum_of_warps(product_sums(), finisher) * inv); });
      if (attends) attend(cosine, sine);
      dawdle<kProbe>(p.delay, layer, 41);
      merge(columns);
      stamp(8);
      product<W::kQ, M::kCutO, M::kStagesO, false>(read_at(W::kAttended, turn), tag_of(turn), model.count, model.count,
                                                   9, nothing, [&](float) {
                                                     residual += sum_of_warps(product_sums(), finisher);
                                                     send(W::kMid + model.first, residual);
                                                   });
      product<M::kD, M::kCut, M::kStagesUp, true>(
          read_at(W::kMid, turn), tag_of(turn), hidden.count * 2, hidden.count, 13,
          [&] {
            ask_gain(layer + 1 < M::kLayers ? p.norms + (static_cast<size_t>(layer) + 1) * 2 * M::kD : p.final_norm);
          },
          [&](float inv) {
            const float gate = sum_of_warps(product_sums(), finisher * 2) * inv;
            const float up = sum_of_warps(product_sums(), finisher * 2 + 1) * inv;
            send(W::kHidden + hidden.first, __fdividef(gate, 1 + __expf(-gate)) * up);
          });
      product<M::kFfn, M::kCutDown, M::kStagesDown, false>(
          read_at(W::kHidden, turn), tag_of(turn), model.count, model.count, 17, nothing, [&](float) {
            residual += sum_of_warps(product_sums(), finisher);
            send(W::kX + model.first, residual);
            if (kProbe && p.trace) p.trace[layer * M::kD + model.first + finisher] = residual;
          });
    }

    // head: kRows rows at a time, whose finishers keep the largest
    float best = -INFINITY, inv = 0;
    int best_at = 0;
    layer = M::kLayers - 1;
#pragma unroll 1
    for (int row = 0; row < head.count; row += kRows) {
      const int rows = min(kRows, head.count - row);
      float square = 0;
      multiply<M, M::kD, M::kCut, M::kStagesUp>(
          ring, base + S::kX, product_sums() + warp * kRows, rows, true, layer, [&] {
            if (row == 0) square = take_row<M::kD, true>(read_at(W::kX, turn - 1), tag_of(turn - 1), true);
          });
      if (row == 0) {
        square = warp_sum(square);
        if (lane == 0) squares()[warp] = square;
      }
      consumers_meet();
      if (row == 0) inv = inverse_root();
      if (finisher < rows) {
        const float v = sum_of_warps(product_sums(), finisher) * inv;
        const int at = head.first + row + finisher;
        p.logits[at] = v;
        if (v > best) best = v, best_at = at;
      }
      parity ^= 1;
    }
    if (finisher < kRows) {
#pragma unroll
      for (int m = 16; m; m /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, m);
        const int other_at = __shfl_xor_sync(0xffffffffu, best_at, m);
        if (other > best || (other == best && other_at < best_at)) best = other, best_at = other_at;
      }
      if (lane == 0) {
        sums(S::kBest)[finisher / 32] = best;
        reinterpret_cast<int*>(shared + S::kBest)[4 + finisher / 32] = best_at;
      }
    }
    consumers_meet();
    if (finisher == 0) {
      for (int w = 1; w < kRows / 32; ++w) {
        const float other = sums(S::kBest)[w];
        const int other_at = reinterpret_cast<int*>(shared + S::kBest)[4 + w];
        if (other > best || (other == best && other_at < best_at)) best = other, best_at = other_at;
      }
      p.best[blockIdx.x] = best;
      p.best_index[blockIdx.x] = best_at;
    }
  }
};

template <class M, bool kProbe>
__device__ __forceinline__ void produce(const Step& p, Ring<Shared<M>::kSlots, Shared<M>::kSlotBytes> ring) {
  using W = Words<M>;
  constexpr int kQkvRows = W::kQ + 2 * W::kKv;
  const Rows qkv(kQkvRows), model(M::kD), hidden(M::kFfn), head(M::kVocab);
  const bool attends = static_cast<int>(blockIdx.x) < M::kKvHeads * kSplits;
  const uint64_t policy = evict_first();
  for (uint32_t layer = 0; layer < M::kLayers; ++layer) {
    const size_t at = p.same_layer ? 0 : layer;
    dawdle<kProbe>(p.delay, layer, 50);
    bring<M>(ring, p.qkv + (at * kQkvRows + qkv.first) * M::kD, M::kD, M::kCut, qkv.count, policy, layer);
    if (attends)
      for (int which = 0; which < 2; ++which) {
        ring.claim(kKeys * M::kHead * 2, layer);
        const size_t head_of = (static_cast<size_t>(layer) * 2 + which) * M::kKvHeads + blockIdx.x / kSplits;
        if (threadIdx.x % 32 == 0)
          copy_bulk(ring.bytes_at(0), p.cache + (head_of * p.context + blockIdx.x % kSplits * kKeys) * M::kHead,
                    kKeys * M::kHead * 2, ring.full + ring.slot * 8, policy);
        ring.advance(1);
      }
    dawdle<kProbe>(p.delay, layer, 51);
    bring<M>(ring, p.o + (at * M::kD + model.first) * W::kQ, W::kQ, M::kCutO, model.count, policy, layer);
    bring<M>(ring, p.gate_up + (at * M::kFfn + hidden.first) * 2 * M::kD, M::kD, M::kCut, hidden.count * 2, policy,
             layer);
    dawdle<kProbe>(p.delay, layer, 52);
    bring<M>(ring, p.down + (at * M::kD + model.first) * M::kFfn, M::kFfn, M::kCutDown, model.count, policy, layer);
  }
  // the consumers' chunks of kRows rows begin a tile each, as kRows is a multiple of 8
  bring<M>(ring, p.head + static_cast<size_t>(head.first) * M::kD, M::kD, M::kCut, head.count, policy, M::kLayers);
}

template <class M, bool kProbe>
__global__ void __launch_bounds__(kThreads, 1) decode_step(const __grid_constant__ Step p) {
  using S = Shared<M>;
  extern __shared__ __align__(128) unsigned char shared[];
  static_assert(S::kGroup <= 4 && S::kGroup * M::kHead <= kConsumers && S::kSlotBytes >= kKeys * M::kHead * 2 &&
                S::kSlots >= 8);
  const uint32_t base = shared_at(shared);
  Ring<S::kSlots, S::kSlotBytes> ring{base + S::kRing, base + S::kBarriers, base + S::kBarriers + 256, p.stuck};
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kSlots; ++s) barrier_init(ring.full + s * 8, 1), barrier_init(ring.empty + s * 8, kWarps);
    barriers_ready();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    produce<M, kProbe>(p, ring);
  } else {
    Consumer<M, kProbe> me{p, shared, base, ring};
    me.run();
  }
}

}  // namespace lab
