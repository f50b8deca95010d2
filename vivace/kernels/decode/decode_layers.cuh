// decode_layers on CUDA: formula in vivace/ops/decode_layers.h.
// Chosen when: every call of its op. Launched cooperatively: all blocks stand at once, since they wait for each other.
//
// Warps 0..7 consume, warp 8 produces: it copies the block's weights and cached keys and values into the ring in the
// order of the program and never waits for an activation. Nothing but the sums of a product meets at a barrier of the
// block; activations pass between blocks as words (exchange.cuh), and there is no barrier of the grid.
//
// What a half of the words held is read by everyone before it is written again two layers later: every block has rows
// of every product, each of which needs all of the row before it, so that who sends rows of a layer has read all of
// the layer before, and who has received them knows that everyone has.
#pragma once
#include "vivace/kernels/decode/split_attention.cuh"
#include "vivace/kernels/tile/sincos.cuh"

namespace vivace::kernels {
namespace decode {

/// A layer's part of a stack.
__device__ __forceinline__ const bf16* layer_of(const LayerStack& s, int layer) {
  return static_cast<const bf16*>(s.data) + layer * s.stride;
}

template <DecodeLayersPolicy P>
__device__ __forceinline__ const void* matrix_of(const LayerMatrix& m, int layer) {
  return static_cast<const unsigned char*>(m.w.data) + layer * m.w.stride * P.bytes;
}

template <DecodeLayersPolicy P>
struct Consumer {
  static constexpr DecodeWords kWords = DecodeWords::of(P.H, P.q_width(), P.kv_width(), P.M);
  static constexpr int kD = P.D, kGroup = P.group(), kSplits = P.splits();
  using X = Units<P.H>;

  const DecodeLayersArgs& a;
  const Now now;
  unsigned char* shared;
  uint32_t base;  // its shared address
  Ring<P> ring;
  uint32_t turn;
  int layer = 0;
  uint2 gain[X::kLoads];  // of the next norm, asked for a phase before
  float scale[2];         // of this thread's rows of a product of e4m3
  int parity = 0;
  int finisher;  // thread 0 of the last warp is 0: that warp polls the fewest words

  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(shared + at); }
  __device__ __forceinline__ float* sums() const { return floats(P.sums_at()) + parity * P.kWarps * P.rows(); }
  __device__ __forceinline__ float* squares() const { return floats(P.squares_at()) + parity * P.kWarps; }
  __device__ __forceinline__ uint32_t* words(int at, uint32_t of) const {
    return a.words + kDecodeWordsAhead + (of & 1) * kWords.all + at;
  }
  __device__ __forceinline__ float inverse_root() const {
    const float4 p = reinterpret_cast<const float4*>(squares())[0], q = reinterpret_cast<const float4*>(squares())[1];
    const float s = ((p.x + p.y) + (p.z + p.w)) + ((q.x + q.y) + (q.z + q.w));
    return rsqrtf(s * (1.0f / P.H) + a.eps);
  }
  __device__ __forceinline__ void ask_gain(const bf16* from) {
#pragma unroll
    for (int j = 0; j < X::kLoads; ++j) gain[j] = X::mine(j) ? load_early(from + X::at(j)) : make_uint2(0, 0);
  }

  __device__ __forceinline__ void attend(float4 cosine, float4 sine) {
    constexpr int kKeys = P.kKeys;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32),
              kv = static_cast<int>(blockIdx.x) / kSplits, split = static_cast<int>(blockIdx.x) % kSplits;
    const uint32_t query = base + P.query_at() + warp * kGroup * kD * 2,
                   weights = base + P.weights_at() + warp * 9 * P.lanes() * 4;
    // The stage that the position is in, and in it the warp.
    const bool owner = now.pos / kKeys % kSplits == split && now.pos % kKeys / 8 == warp, low = lane < kD / 4;
    const int column = warp * 8 + lane % 4 * 2;
    WarpSoftmax<P> softmax;
#pragma unroll 1
    for (int first = split * kKeys; first <= now.pos; first += kSplits * kKeys) {
      const bool newest = owner && now.pos - first < kKeys, beginning = first == split * kKeys;
      HeldKeys<P> held;
      ring.wait(0);
      ring.wait(1);
      const int count = static_cast<int>(read_shared_word(base + P.held_at() + ring.slot * 4));
      held.read(ring.bytes_at(0), ring.bytes_at(1), count);
      if (beginning) take_query(cosine, sine, owner, low, kv, query);
      if (newest) {  // its key and value have come as words
        if (warp * 8 + lane / 4 == now.pos % kKeys) held.read_key(base + P.new_key_at());
#pragma unroll
        for (int k = 0; k < 8; ++k)
          if (warp * 8 + k == now.pos % kKeys) held.read_value(k, base + P.new_value_at());
      }
      const auto seen = [&](int key) { return key < count || (newest && key == now.pos % kKeys); };
      softmax.add(held, query, weights, seen(column), seen(column + 1), beginning);
      ring.release(2);
    }
    softmax.leave(floats(P.parts_at()), floats(P.maxima_at()), floats(P.masses_at()));
    consumers_meet();
    between(turn, 40);
    send_parts<P>(floats(P.parts_at()), floats(P.maxima_at()), floats(P.masses_at()), words(kWords.parts, turn),
                  tag_of(turn));
  }
  /// The group's queries, to where this warp reads them; in one warp of the blocks of a kv head the new key and value
  /// too, which go to the caches.
  __device__ __forceinline__ void take_query(float4 cosine, float4 sine, bool owner, bool low, int kv, uint32_t query) {
    constexpr int kQuads = kGroup * kD / 4, kLoads = (kQuads + 31) / 32;
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint2 q_gain = make_uint2(0, 0), k_gain = q_gain;
    if constexpr (P.norms) {
      q_gain = load_early(layer_of(a.q_norm, layer) + lane % (kD / 4) * 4);
      k_gain = load_early(layer_of(a.k_norm, layer) + lane % (kD / 4) * 4);
    }
    uint4 v[kLoads + 2];
    int offset[kLoads + 2];
    uint32_t wanted = owner && low ? 3u << kLoads : 0;
#pragma unroll
    for (int j = 0; j < kLoads; ++j)
      offset[j] = kv * kGroup * kD + (j * 32 + lane) * 4, wanted |= j * 32 + lane < kQuads ? 1u << j : 0;
    offset[kLoads] = P.q_width() + kv * kD + lane * 4, offset[kLoads + 1] = offset[kLoads] + P.kv_width();
    wait_words(v, words(kWords.qkv, turn), offset, wanted, tag_of(turn));
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const float4 r = norm_and_rotate<P>(v[j], q_gain, cosine, sine, a.eps);
      if (j * 32 + lane < kQuads)
        write_left(query, (j * 32 + lane) * 4, ptx::pack<bf16>(r.x, r.y), ptx::pack<bf16>(r.z, r.w));
    }
    if (owner) {
      const float4 k = norm_and_rotate<P>(v[kLoads], k_gain, cosine, sine, a.eps);
      const uint4 w = v[kLoads + 1];
      if (low) {
        const uint2 key = make_uint2(ptx::pack<bf16>(k.x, k.y), ptx::pack<bf16>(k.z, k.w));
        const uint2 value =
            make_uint2(ptx::pack<bf16>(value_of(w.x), value_of(w.y)), ptx::pack<bf16>(value_of(w.z), value_of(w.w)));
        write_shared(base + P.new_key_at() + lane * 8, key.x),
            write_shared(base + P.new_key_at() + lane * 8 + 4, key.y);
        write_shared(base + P.new_value_at() + lane * 8, value.x),
            write_shared(base + P.new_value_at() + lane * 8 + 4, value.y);
        const int64_t to = a.element({now.block, now.at}, kv) + lane * 4;
        *reinterpret_cast<uint2*>(static_cast<bf16*>(a.k_cache) + layer * a.k_stride + to) = key;
        *reinterpret_cast<uint2*>(static_cast<bf16*>(a.v_cache) + layer * a.v_stride + to) = value;
      }
    }
    __syncwarp();
  }

  /// Waits for this warp's words of a row (none: the step's own, in memory) and leaves them as bf16 where products read
  /// them, times the norm's weight. Returns the sum of their squares.
  template <int kK, bool kNorm>
  __device__ __forceinline__ float take_row(const uint32_t* from, uint32_t tag) {
    using U = Units<kK>;
    uint4 v[U::kLoads];
    int offset[U::kLoads];
    uint32_t wanted = 0;
    float squares = 0;
#pragma unroll
    for (int j = 0; j < U::kLoads; ++j) offset[j] = U::at(j), wanted |= U::mine(j) ? 1u << j : 0;
    if (from != nullptr) {
      wait_words(v, from, offset, wanted, tag);
    } else {
#pragma unroll
      for (int j = 0; j < U::kLoads; ++j) {
        const uint2 e = U::mine(j) ? load_early(static_cast<const bf16*>(a.x) + offset[j]) : make_uint2(0, 0);
        v[j] = make_uint4(e.x << 16, e.x & 0xffff0000u, e.y << 16, e.y & 0xffff0000u);
      }
    }
#pragma unroll
    for (int j = 0; j < U::kLoads; ++j) {
      float p = value_of(v[j].x), q = value_of(v[j].y), r = value_of(v[j].z), s = value_of(v[j].w);
      if constexpr (kNorm) {
        squares += p * p + q * q + r * r + s * s;
        p *= low_of(gain[j].x), q *= high_of(gain[j].x), r *= low_of(gain[j].y), s *= high_of(gain[j].y);
      }
      if (U::mine(j)) write_left(base + P.kX, offset[j], ptx::pack<bf16>(p, q), ptx::pack<bf16>(r, s));
    }
    __syncwarp();
    return squares;
  }
  /// A thread's rows' scales of a product whose first row here is `first`; asked for before the row is waited for.
  template <int kRows>
  __device__ __forceinline__ void ask_scale(const LayerMatrix& m, int first, int threads) {
    if constexpr (P.bytes == 1)
      if (finisher < threads) {
        const float* const at =
            static_cast<const float*>(m.scale.data) + layer * m.scale.stride + first + finisher * kRows;
#pragma unroll
        for (int i = 0; i < kRows; ++i) scale[i] = __uint_as_float(load_early_4(at + i));
      }
  }
  /// Row `row` of a product, of this thread's the i-th.
  __device__ __forceinline__ float sum_of(int row, int i = 0) const {
    const float sum = sum_of_warps<P>(sums(), row);
    return P.bytes == 1 ? sum * scale[i] : sum;
  }

  /// A product: waits for the row at `from`, `ask()`s for what a later phase needs, multiplies, and when all warps'
  /// sums have met calls `finish(inverse root)` in the first threads of the last warps.
  template <int kK, int kRowsOfBlock, bool kNorm, class Ask, class Finish>
  __device__ __forceinline__ void product(const uint32_t* from, uint32_t tag, int rows, int threads, uint32_t point,
                                          Ask ask, Finish finish) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    float square = 0;
    between(turn, point);
    multiply<P, Cut<P, kK, kRowsOfBlock>>(ring, base + P.kX, sums() + warp * P.rows(), rows, [&] {
      square = take_row<kK, kNorm>(from, tag);
      ask();
    });
    if constexpr (kNorm) {
      square = sum_of_lanes(square);
      if (threadIdx.x % 32 == 0) squares()[warp] = square;
    }
    consumers_meet();
    between(turn, point + 1);
    if (finisher < threads) finish(kNorm ? inverse_root() : 1.0f);
    parity ^= 1;
  }

  __device__ __forceinline__ void run() {
    constexpr int kQkv = P.q_width() + 2 * P.kv_width();
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    finisher = (P.kWarps - 1 - warp) * 32 + lane;
    const BlockRows qkv(kQkv, P.blocks), model(P.H, P.blocks), hidden(P.M, P.blocks), columns(P.q_width(), P.blocks);
    const bool attends = static_cast<int>(blockIdx.x) < P.Hkv * kSplits;
    float residual = finisher < model.count ? to_float(static_cast<const bf16*>(a.x)[model.first + finisher]) : 0;
    float4 cosine, sine;
    {
      const int pair = lane % (kD / 8) * 4;
      float c[4], s[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sin_cos(static_cast<float>(now.pos) * a.inv_freq[pair + i], &s[i], &c[i]);
        c[i] *= a.attn_factor, s[i] *= a.attn_factor;
      }
      cosine = make_float4(c[0], c[1], c[2], c[3]), sine = make_float4(s[0], s[1], s[2], s[3]);
    }
    ask_gain(layer_of(a.attn_norm, 0));
    turn = now.turn;
    float bias = 0;
    const auto nothing = [] {};
    const auto send = [&](int at, float v) { store_word(words(at, turn) + finisher, word_of(v, tag_of(turn))); };
#pragma unroll 1
    for (layer = 0; layer < a.N; ++layer, ++turn) {
      ask_scale<1>(a.qkv, qkv.first, qkv.count);
      product<P.H, P.share(kQkv), true>(
          layer > 0 ? words(kWords.x, turn - 1) : nullptr, tag_of(turn - 1), qkv.count, qkv.count, 0,
          [&] {
            ask_gain(layer_of(a.mlp_norm, layer));
            if constexpr (P.biased)
              if (finisher < qkv.count) {
                const int64_t at = layer * a.qkv_bias.stride + qkv.first + finisher;
                bias = a.bias_dtype == DType::f32 ? static_cast<const float*>(a.qkv_bias.data)[at]
                                                  : to_float(static_cast<const bf16*>(a.qkv_bias.data)[at]);
              }
          },
          [&](float inv) { send(kWords.qkv + qkv.first, sum_of(finisher) * inv + bias); });
      if (attends) attend(cosine, sine);
      between(turn, 41);
      merge_parts<P>(words(kWords.parts, turn), words(kWords.attended, turn), columns, tag_of(turn));
      ask_scale<1>(a.o, model.first, model.count);
      product<P.q_width(), P.share(P.H), false>(words(kWords.attended, turn), tag_of(turn), model.count, model.count, 9,
                                                nothing, [&](float) {
                                                  residual += sum_of(finisher);
                                                  send(kWords.mid + model.first, residual);
                                                });
      ask_scale<2>(a.gate_up, hidden.first * 2, hidden.count);
      product<P.H, 2 * P.share(P.M), true>(
          words(kWords.mid, turn), tag_of(turn), hidden.count * 2, hidden.count, 13,
          [&] {
            if (layer + 1 < a.N) ask_gain(layer_of(a.attn_norm, layer + 1));
          },
          [&](float inv) {
            const float gate = sum_of(finisher * 2) * inv, up = sum_of(finisher * 2 + 1, 1) * inv;
            send(kWords.hidden + hidden.first, __fdividef(gate, 1.0f + __expf(-gate)) * up);
          });
      ask_scale<1>(a.down, model.first, model.count);
      product<P.M, P.share(P.H), false>(words(kWords.hidden, turn), tag_of(turn), model.count, model.count, 17, nothing,
                                        [&](float) {
                                          residual += sum_of(finisher);
                                          send(kWords.x + model.first, residual);
                                        });
    }
    if (finisher < model.count) static_cast<bf16*>(a.out)[model.first + finisher] = from_float<bf16>(residual);
    // Everyone's words have come, so everyone has read the count.
    if (blockIdx.x == 0 && finisher == 0) a.words[0] = turn;
  }
};

template <DecodeLayersPolicy P>
__device__ __forceinline__ void produce(const DecodeLayersTmaArgs& f, const Now now, Ring<P> ring) {
  const DecodeLayersArgs& a = f.a;
  constexpr int kQkv = P.q_width() + 2 * P.kv_width();
  const BlockRows qkv(kQkv, P.blocks), model(P.H, P.blocks), hidden(P.M, P.blocks);
  const bool attends = static_cast<int>(blockIdx.x) < P.Hkv * P.splits();
  const uint64_t policy = ptx::evict_first();
#pragma unroll 1
  for (int layer = 0; layer < a.N; ++layer) {
    const uint32_t turn = now.turn + layer;
    between(turn, 50);
    bring<P, P.H>(ring, matrix_of<P>(a.qkv, layer), qkv.first, qkv.count, policy);
    if (attends) bring_cache<P>(ring, f, now, layer, policy);
    between(turn, 51);
    bring<P, P.q_width()>(ring, matrix_of<P>(a.o, layer), model.first, model.count, policy);
    bring<P, P.H>(ring, matrix_of<P>(a.gate_up, layer), hidden.first * 2, hidden.count * 2, policy);
    between(turn, 52);
    bring<P, P.M>(ring, matrix_of<P>(a.down, layer), model.first, model.count, policy);
  }
}

}  // namespace decode

/// Grid: P.blocks.
template <DecodeLayersPolicy P>
__global__ void __launch_bounds__(P.kThreads, 1) decode_layers(const __grid_constant__ DecodeLayersTmaArgs f) {
  static_assert(P.fits());
  const DecodeLayersArgs& a = f.a;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t base = ptx::shared_address(shared);
  decode::Now& now = *reinterpret_cast<decode::Now*>(shared + P.kNowAt);
  decode::Ring<P> ring{base};
  if (threadIdx.x == 0) {
    for (int s = 0; s < P.slots(); ++s) {
      ptx::mbarrier_init(base + P.full_at() + s * 8, 1);
      ptx::mbarrier_init(base + P.empty_at() + s * 8, P.kWarps);
    }
    ptx::mbarrier_fence();
    ptx::tensor_fence();
    now.pos = a.pos[0], now.slot = a.slot != nullptr ? a.slot[0] : 0, now.turn = a.words[0];
    const DecodeLayersArgs::Place place = a.place(now.slot, now.pos);
    now.block = place.block, now.at = place.at;
    now.there = place.block >= 0 && valid_rows(a.rows, 1) == 1;
  }
  __syncthreads();
  if (!now.there) return;
  if (threadIdx.x >= P.kWarps * 32) {
    decode::produce<P>(f, now, ring);
  } else {
    decode::Consumer<P> me{a, now, shared, base, ring};
    me.run();
  }
}

}  // namespace vivace::kernels
