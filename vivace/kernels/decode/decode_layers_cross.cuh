// decode_layers_cross on CUDA: formula in vivace/ops/decode_layers_cross.h.
// Chosen when: every call of its op. Launched cooperatively: all blocks stand at once, since they wait for each other.
//
// As decode_layers.cuh: warps 0..7 consume, warp 8 produces, activations pass between blocks as words. What differs:
// a layer norm needs its row's mean before the product, so that the warps meet once more in front of it; and the keys
// of cross-attention come through the ring, those of self-attention, which pages of one position may hold, come from
// memory to the registers of the warp that reads them, asked for while its query is on the way.
#pragma once
#include "vivace/kernels/decode/decode_layers_cross.h"
#include "vivace/kernels/decode/split_attention.cuh"
#include "vivace/kernels/gate/activation.h"

namespace vivace::kernels {
namespace decode {

/// What a step is of: read once a block, before anyone waits, so that all its warps mean the same.
struct CrossNow {
  int32_t pos, slot, window;
  int32_t row;    // where the position lies in the caches
  uint32_t turn;  // of the first layer
  int32_t there;  // whether there is a row
};

/// A layer's part of a stack of T.
template <class T>
__device__ __forceinline__ const T* part_of(const LayerStack& s, int layer) {
  return static_cast<const T*>(s.data) + layer * s.stride;
}

template <DecodeCrossPolicy P>
struct CrossConsumer {
  static constexpr DecodeCrossWords kWords = DecodeCrossWords::of(P.H, P.M);
  static constexpr int kD = P.D, kSplits = P.splits(), kWarps = P.kWarps;
  using X = Units<P.H>;
  using Norm = DecodeLayersCrossArgs::Norm;

  const DecodeLayersCrossArgs& a;
  const CrossNow now;
  unsigned char* shared;
  uint32_t base;  // its shared address
  Ring<P> ring;
  uint32_t turn;
  int layer = 0;
  uint4 gain[X::kLoads], shift[X::kLoads];  // of the next norm, asked for a phase before
  uint32_t bias = 0, next_bias = 0;         // of this product and the next, bf16
  int parity = 0;
  int finisher;  // thread 0 of the last warp is 0: that warp polls the fewest words

  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x / 32); }
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ __forceinline__ static int head() { return static_cast<int>(blockIdx.x) / kSplits; }
  __device__ __forceinline__ static int split() { return static_cast<int>(blockIdx.x) % kSplits; }
  __device__ __forceinline__ uint32_t query() const { return base + P.query_at() + warp() * kD * 2; }
  __device__ __forceinline__ uint32_t weights() const { return base + P.weights_at() + warp() * 9 * P.lanes() * 4; }
  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(shared + at); }
  __device__ __forceinline__ float* sums() const { return floats(P.sums_at()) + parity * kWarps * P.rows(); }
  __device__ __forceinline__ uint32_t* words(int at, uint32_t of) const {
    return a.words + kDecodeWordsAhead + (of & 1) * kWords.all + at;
  }
  __device__ __forceinline__ void ask_norm(const Norm& n, int of) {
#pragma unroll
    for (int j = 0; j < X::kLoads; ++j) {
      const bool mine = X::mine(j);
      gain[j] = mine ? load_early_16(part_of<float>(n.weight, of) + X::at(j)) : make_uint4(0, 0, 0, 0);
      shift[j] = mine ? load_early_16(part_of<float>(n.bias, of) + X::at(j)) : make_uint4(0, 0, 0, 0);
    }
  }
  /// Of the next product, in which the block has `rows`.
  __device__ __forceinline__ void ask_bias(const LayerStack& s, BlockRows rows, int of) {
    if (finisher < rows.count) next_bias = load_early_2(part_of<bf16>(s, of) + rows.first + finisher);
  }
  __device__ __forceinline__ float finished() const {
    return sum_of_warps<P>(sums(), finisher) + __uint_as_float(bias << 16);
  }

  /// The row whose words v of this warp are becomes its layer norm. A warp's words give a mean and squares around it;
  /// those of the warps together are the row's.
  __device__ __forceinline__ void normalize(uint4 (&v)[X::kLoads]) {
    constexpr int kEach = X::kCount / kWarps, kMore = X::kCount % kWarps;  // units of a warp; warps with one more
    const auto count_of = [](int w) { return static_cast<float>((w < kMore ? kEach + 1 : kEach) * 64); };
    float4 r[X::kLoads];
    float sum = 0, squares = 0;
#pragma unroll
    for (int j = 0; j < X::kLoads; ++j) {
      r[j] = make_float4(value_of(v[j].x), value_of(v[j].y), value_of(v[j].z), value_of(v[j].w));
      sum += (r[j].x + r[j].y) + (r[j].z + r[j].w);  // what is not the warp's is 0
    }
    sum = sum_of_lanes(sum);
    const float count = count_of(warp()), own = count > 0 ? __fdividef(sum, count) : 0;
#pragma unroll
    for (int j = 0; j < X::kLoads; ++j) {
      const float x = r[j].x - own, y = r[j].y - own, z = r[j].z - own, w = r[j].w - own;
      if (X::mine(j)) squares += (x * x + y * y) + (z * z + w * w);
    }
    squares = sum_of_lanes(squares);
    if (lane() == 0) *reinterpret_cast<float2*>(shared + P.moments_at() + warp() * 8) = make_float2(sum, squares);
    consumers_meet();
    float total[kWarps], mean = 0, all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w += 2) {
      const float4 two = *reinterpret_cast<const float4*>(shared + P.moments_at() + w * 8);
      total[w] = two.x, total[w + 1] = two.z, mean += two.x + two.z, all += two.y + two.w;
    }
    mean *= 1.0f / P.H;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float n = count_of(w);
      const float away = n > 0 ? total[w] * (1.0f / n) - mean : 0;
      all += n * away * away;
    }
    const float inv = rsqrtf(all * (1.0f / P.H) + a.eps);
    const auto normed = [&](float x, uint32_t g, uint32_t s) {
      return __float_as_uint((x - mean) * inv * __uint_as_float(g) + __uint_as_float(s));
    };
#pragma unroll
    for (int j = 0; j < X::kLoads; ++j)
      v[j] = make_uint4(normed(r[j].x, gain[j].x, shift[j].x), normed(r[j].y, gain[j].y, shift[j].y),
                        normed(r[j].z, gain[j].z, shift[j].z), normed(r[j].w, gain[j].w, shift[j].w));
  }
  /// Waits for this warp's words of a row (none: the step's own, in memory) and leaves them as bf16 where products read
  /// them, normed or not.
  template <int kK, bool kNorm>
  __device__ __forceinline__ void take_row(const uint32_t* from, uint32_t tag) {
    using U = Units<kK>;
    uint4 v[U::kLoads];
    int offset[U::kLoads];
    uint32_t wanted = 0;
#pragma unroll
    for (int j = 0; j < U::kLoads; ++j) offset[j] = U::at(j), wanted |= U::mine(j) ? 1u << j : 0;
    if (from != nullptr) {
      wait_words(v, from, offset, wanted, tag);
    } else {
#pragma unroll
      for (int j = 0; j < U::kLoads; ++j) {
        const auto four = [&](const void* row) {
          return row != nullptr && U::mine(j) ? load_early(static_cast<const bf16*>(row) + offset[j])
                                              : make_uint2(0, 0);
        };
        const uint2 e = four(a.x), more = four(a.add);
        const auto sum = [](float p, float q) { return word_of(p + q, 0); };
        v[j] = make_uint4(sum(low_of(e.x), low_of(more.x)), sum(high_of(e.x), high_of(more.x)),
                          sum(low_of(e.y), low_of(more.y)), sum(high_of(e.y), high_of(more.y)));
      }
    }
    if constexpr (kNorm) normalize(v);
#pragma unroll
    for (int j = 0; j < U::kLoads; ++j) {
      const auto value = [](uint32_t w) { return kNorm ? __uint_as_float(w) : value_of(w); };
      if (U::mine(j))
        write_left(base + P.kX, offset[j], ptx::pack<bf16>(value(v[j].x), value(v[j].y)),
                   ptx::pack<bf16>(value(v[j].z), value(v[j].w)));
    }
    __syncwarp();
  }
  /// A product: waits for the row at `from`, `ask()`s for what a later phase needs, multiplies, and when all warps'
  /// sums have met calls `finish(row with its bias)` in a thread for each of the block's rows.
  template <int kK, int kRowsOfBlock, bool kNorm, class Ask, class Finish>
  __device__ __forceinline__ void product(const uint32_t* from, uint32_t tag, int rows, uint32_t point, Ask ask,
                                          Finish finish) {
    between(turn, point);
    multiply<P, Cut<P, kK, kRowsOfBlock>>(ring, base + P.kX, sums() + warp() * P.rows(), rows, [&] {
      take_row<kK, kNorm>(from, tag);
      ask();
    });
    consumers_meet();
    between(turn, point + 1);
    if (finisher < rows) finish(finished());
    parity ^= 1;
    bias = next_bias;
  }

  /// Words that say a query, to where this warp reads it: D / 4 lanes have four each.
  __device__ __forceinline__ void leave_query(uint4 v) {
    if (lane() < kD / 4)
      write_left(query(), lane() * 4, ptx::pack<bf16>(value_of(v.x), value_of(v.y)),
                 ptx::pack<bf16>(value_of(v.z), value_of(v.w)));
  }
  __device__ __forceinline__ static uint2 packed(uint4 v) {
    return make_uint2(ptx::pack<bf16>(value_of(v.x), value_of(v.y)), ptx::pack<bf16>(value_of(v.z), value_of(v.w)));
  }
  /// The query of self-attention; in the one warp that owns the position the new key and value too, which go to the
  /// caches.
  __device__ __forceinline__ void take_own_query(bool owner) {
    uint4 v[3];
    int offset[3];
#pragma unroll
    for (int j = 0; j < 3; ++j) offset[j] = j * P.H + head() * kD + lane() * 4;
    const bool low = lane() < kD / 4;
    wait_words(v, words(kWords.qkv, turn), offset, !low ? 0u : owner ? 7u : 1u, tag_of(turn));
    leave_query(v[0]);
    if (owner && low) {
      const uint2 key = packed(v[1]), value = packed(v[2]);
      write_shared(base + P.new_key_at() + lane() * 8, key.x);
      write_shared(base + P.new_key_at() + lane() * 8 + 4, key.y);
      write_shared(base + P.new_value_at() + lane() * 8, value.x);
      write_shared(base + P.new_value_at() + lane() * 8 + 4, value.y);
      const int64_t to = int64_t{now.row} * P.H + head() * kD + lane() * 4;
      *reinterpret_cast<uint2*>(static_cast<bf16*>(a.k_cache) + layer * a.k_stride + to) = key;
      *reinterpret_cast<uint2*>(static_cast<bf16*>(a.v_cache) + layer * a.v_stride + to) = value;
    }
    __syncwarp();
  }
  /// What the warps have of a head becomes the block's words of it.
  __device__ __forceinline__ void send(const WarpSoftmax<P>& softmax, int at, uint32_t point) {
    softmax.leave(floats(P.parts_at()), floats(P.maxima_at()), floats(P.masses_at()));
    consumers_meet();
    between(turn, point);
    send_parts<P>(floats(P.parts_at()), floats(P.maxima_at()), floats(P.masses_at()), words(at, turn), tag_of(turn));
  }

  /// Eights of positions go round the splits first, then the warps, so that few of them keep many warps busy.
  __device__ __forceinline__ void attend_own() {
    const int newest = now.pos / 8, column = lane() % 4 * 2;
    const bf16* const keys = static_cast<const bf16*>(a.k_cache) + layer * a.k_stride + head() * kD + lane() % 4 * 8;
    const bf16* const values = static_cast<const bf16*>(a.v_cache) + layer * a.v_stride + head() * kD + lane() * 2;
    WarpSoftmax<P> softmax;
    bool beginning = true;
#pragma unroll 1
    for (int eight = split() + kSplits * warp(); eight <= newest; eight += kSplits * kWarps) {
      const int at = eight * 8 + lane() / 4;
      const int row = at < now.pos ? a.row_of(now.slot, at) : -1;
      const uint32_t there = __ballot_sync(0xffffffffu, row >= 0);
      HeldKeys<P> held;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        held.keys[0][i] =
            row >= 0 ? load_early_16(keys + static_cast<int64_t>(row) * P.H + i * 32) : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int of = __shfl_sync(0xffffffffu, row, k * 4);
        held.values[k][0] = of >= 0 ? load_early_4(values + static_cast<int64_t>(of) * P.H) : 0;
      }
      // Every eighth is in one warp of one block of the head: the last one's warp has the position.
      const bool owner = eight == newest;
      if (beginning) take_own_query(newest % kSplits == split() && newest / kSplits % kWarps == warp());
      if (owner) {  // its key and value have come as words
        if (lane() / 4 == now.pos % 8) held.read_key(base + P.new_key_at());
        const uint32_t value = read_shared_word(base + P.new_value_at() + lane() * 4);
#pragma unroll
        for (int k = 0; k < 8; ++k) held.values[k][0] = k == now.pos % 8 ? value : held.values[k][0];
      }
      const auto seen = [&](int key) { return (there >> key * 4 & 1) != 0 || (owner && key == now.pos % 8); };
      softmax.add(held, query(), weights(), seen(column), seen(column + 1), beginning);
      beginning = false;
      __syncwarp();
    }
    send(softmax, kWords.parts, 40);
  }
  /// Every splits-th stage of 64 positions, which come through the ring.
  __device__ __forceinline__ void attend_cross() {
    const int column = warp() * 8 + lane() % 4 * 2;
    WarpSoftmax<P> softmax;
#pragma unroll 1
    for (int first = split() * P.kKeys; first < a.F; first += kSplits * P.kKeys) {
      const int count = min(P.kKeys, a.F - first);
      const bool beginning = first == split() * P.kKeys;
      HeldKeys<P> held;
      ring.wait(0);
      held.read(ring.bytes_at(0), ring.bytes_at(0) + P.kKeys * kD * 2, count);
      if (beginning) {
        uint4 v[1];
        const int offset[1] = {head() * kD + lane() * 4};
        wait_words(v, words(kWords.query, turn), offset, lane() < kD / 4 ? 1u : 0u, tag_of(turn));
        leave_query(v[0]);
        __syncwarp();
      }
      softmax.add(held, query(), weights(), column < count, column + 1 < count, beginning);
      ring.release(1);
    }
    send(softmax, kWords.heard_parts, 42);
  }

  __device__ __forceinline__ void run() {
    finisher = (kWarps - 1 - warp()) * 32 + lane();
    const BlockRows qkv(3 * P.H, P.blocks), model(P.H, P.blocks), hidden(P.M, P.blocks);
    const bool attends = static_cast<int>(blockIdx.x) < P.heads * kSplits;
    float residual = 0;
    if (finisher < model.count) {
      residual = to_float(static_cast<const bf16*>(a.x)[model.first + finisher]);
      if (a.add != nullptr) residual += to_float(static_cast<const bf16*>(a.add)[model.first + finisher]);
    }
    turn = now.turn;
    ask_norm(a.attn_norm, 0);
    ask_bias(a.qkv.bias, qkv, 0);
    bias = next_bias;
    const auto send_row = [&](int at, float v) { store_word(words(at, turn) + finisher, word_of(v, tag_of(turn))); };
#pragma unroll 1
    for (layer = 0; layer < a.N; ++layer, ++turn) {
      product<P.H, P.share(3 * P.H), true>(
          layer > 0 ? words(kWords.x, turn - 1) : nullptr, tag_of(turn - 1), qkv.count, 0,
          [&] { ask_norm(a.cross_norm, layer), ask_bias(a.o.bias, model, layer); },
          [&](float v) { send_row(kWords.qkv + qkv.first, v); });
      if (attends) attend_own();
      between(turn, 41);
      merge_parts<P>(words(kWords.parts, turn), words(kWords.attended, turn), model, tag_of(turn));
      product<P.H, P.share(P.H), false>(
          words(kWords.attended, turn), tag_of(turn), model.count, 2, [&] { ask_bias(a.cross_q.bias, model, layer); },
          [&](float v) { residual += v, send_row(kWords.mid + model.first, residual); });
      product<P.H, P.share(P.H), true>(
          words(kWords.mid, turn), tag_of(turn), model.count, 4,
          [&] { ask_norm(a.mlp_norm, layer), ask_bias(a.cross_o.bias, model, layer); },
          [&](float v) {
            const uint32_t word = word_of(v, tag_of(turn));
            store_word(words(kWords.query, turn) + model.first + finisher, word);
            if (a.queries != nullptr)
              static_cast<bf16*>(a.queries)[layer * a.queries_stride + model.first + finisher] =
                  from_float<bf16>(value_of(word));
          });
      if (attends) attend_cross();
      between(turn, 43);
      merge_parts<P>(words(kWords.heard_parts, turn), words(kWords.heard, turn), model, tag_of(turn));
      product<P.H, P.share(P.H), false>(
          words(kWords.heard, turn), tag_of(turn), model.count, 6, [&] { ask_bias(a.up.bias, hidden, layer); },
          [&](float v) { residual += v, send_row(kWords.late + model.first, residual); });
      product<P.H, P.share(P.M), true>(
          words(kWords.late, turn), tag_of(turn), hidden.count, 8,
          [&] {
            if (layer + 1 < a.N) ask_norm(a.attn_norm, layer + 1);
            ask_bias(a.down.bias, model, layer);
          },
          [&](float v) { send_row(kWords.hidden + hidden.first, activate_as<Activation::gelu_erf>(v)); });
      product<P.M, P.share(P.H), false>(
          words(kWords.hidden, turn), tag_of(turn), model.count, 10,
          [&] {
            if (layer + 1 < a.N) ask_bias(a.qkv.bias, qkv, layer + 1);
          },
          [&](float v) { residual += v, send_row(kWords.x + model.first, residual); });
    }
    if (finisher < model.count) static_cast<bf16*>(a.out)[model.first + finisher] = from_float<bf16>(residual);
    // Everyone's words have come, so everyone has read the count.
    if (blockIdx.x == 0 && finisher == 0) a.words[0] = turn;
  }
};

/// Every splits-th stage of what cross-attention sees: a box of keys, and one of their values behind it.
template <DecodeCrossPolicy P>
__device__ __forceinline__ void bring_heard(Ring<P>& ring, const DecodeLayersCrossTmaArgs& f, const CrossNow& now,
                                            int layer, uint64_t policy) {
  constexpr int kSplits = P.splits(), kKeys = P.kKeys, kBytes = kKeys * P.D * 2;
  const int lane = static_cast<int>(threadIdx.x % 32), column = static_cast<int>(blockIdx.x) / kSplits * (P.D / 2);
#pragma unroll 1
  for (int first = static_cast<int>(blockIdx.x) % kSplits * kKeys; first < f.a.F; first += kSplits * kKeys) {
    ring.claim();
    ring.expect(2 * kBytes);
    const int row = now.window * f.a.F + first;
    if (lane == 0) {
      ptx::tma_load(ring.bytes_at(0), f.k, ring.full(0), column, layer * f.k_rows + row, policy);
      ptx::tma_load(ring.bytes_at(0) + kBytes, f.v, ring.full(0), column, layer * f.v_rows + row, policy);
    }
    ring.advance(1);
  }
}

template <DecodeCrossPolicy P>
__device__ __forceinline__ void produce(const DecodeLayersCrossTmaArgs& f, const CrossNow now, Ring<P> ring) {
  const DecodeLayersCrossArgs& a = f.a;
  const BlockRows qkv(3 * P.H, P.blocks), model(P.H, P.blocks), hidden(P.M, P.blocks);
  const bool attends = static_cast<int>(blockIdx.x) < P.heads * P.splits();
  const uint64_t policy = ptx::evict_first();
  const auto of = [](const DecodeLayersCrossArgs::Matrix& m, int layer) { return part_of<bf16>(m.w, layer); };
#pragma unroll 1
  for (int layer = 0; layer < a.N; ++layer) {
    const uint32_t turn = now.turn + layer;
    between(turn, 50);
    bring<P, P.H>(ring, of(a.qkv, layer), qkv.first, qkv.count, policy);
    bring<P, P.H>(ring, of(a.o, layer), model.first, model.count, policy);
    between(turn, 51);
    bring<P, P.H>(ring, of(a.cross_q, layer), model.first, model.count, policy);
    if (attends) bring_heard<P>(ring, f, now, layer, policy);
    bring<P, P.H>(ring, of(a.cross_o, layer), model.first, model.count, policy);
    between(turn, 52);
    bring<P, P.H>(ring, of(a.up, layer), hidden.first, hidden.count, policy);
    bring<P, P.M>(ring, of(a.down, layer), model.first, model.count, policy);
  }
}

}  // namespace decode

/// Grid: P.blocks.
template <DecodeCrossPolicy P>
__global__ void __launch_bounds__(P.kThreads, 1)
    decode_layers_cross(const __grid_constant__ DecodeLayersCrossTmaArgs f) {
  static_assert(P.fits());
  const DecodeLayersCrossArgs& a = f.a;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t base = ptx::shared_address(shared);
  decode::CrossNow& now = *reinterpret_cast<decode::CrossNow*>(shared + P.kNowAt);
  decode::Ring<P> ring{base};
  if (threadIdx.x == 0) {
    for (int s = 0; s < P.slots(); ++s) {
      ptx::mbarrier_init(base + P.full_at() + s * 8, 1);
      ptx::mbarrier_init(base + P.empty_at() + s * 8, P.kWarps);
    }
    ptx::mbarrier_fence();
    ptx::tensor_fence();
    now.pos = a.pos[0], now.slot = a.slot != nullptr ? a.slot[0] : 0, now.turn = a.words[0];
    now.window = a.window != nullptr ? a.window[0] : 0, now.row = a.row_of(now.slot, now.pos);
    now.there = now.row >= 0 && now.window >= 0 && now.window < a.C && valid_rows(a.rows, 1) == 1;
  }
  __syncthreads();
  if (!now.there) return;
  if (threadIdx.x >= P.kWarps * 32) {
    decode::produce<P>(f, now, ring);
  } else {
    decode::CrossConsumer<P> me{a, now, shared, base, ring};
    me.run();
  }
}

}  // namespace vivace::kernels
