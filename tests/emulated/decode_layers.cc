// decode_layers as the host runs it: a shape at compile time, pointers and numbers of a call in the order of Call.
// See blocks.h.
#include "blocks.h"
// After it: the kernel, with what blocks.h stands in for left out.
#include "vivace/kernels/decode/decode_layers.cuh"

using namespace vivace::kernels;

struct Call {
  LayerMatrix qkv, o, gate_up, down;
  LayerStack attn_norm, mlp_norm, q_norm, k_norm, qkv_bias;
  const void *x, *k_cache, *v_cache, *out;
  const float* inv_freq;
  const int32_t *pos, *slot, *page_table;
  uint32_t* words;
  int64_t N, B, L, S, P;
  int64_t seed, delay, ticks;
  double eps;
};

extern "C" int64_t words_of_call() {
  return kDecodeWordsAhead + 2 * DecodeWords::of(SHAPE.H, SHAPE.q_width(), SHAPE.kv_width(), SHAPE.M).all;
}

extern "C" int run_call(const Call& c) {
  constexpr DecodeLayersPolicy P = SHAPE;
  static_assert(P.fits());
  emulated::seed = static_cast<uint64_t>(c.seed), emulated::most_delay = static_cast<unsigned>(c.delay);
  emulated::most_ticks = static_cast<uint64_t>(c.ticks);
  for (int i = 0; i < 9; ++i) emulated::draw();
  DecodeLayersTmaArgs f{};
  DecodeLayersArgs& a = f.a;
  a.qkv = c.qkv, a.o = c.o, a.gate_up = c.gate_up, a.down = c.down, a.attn_norm = c.attn_norm, a.mlp_norm = c.mlp_norm;
  a.q_norm = c.q_norm, a.k_norm = c.k_norm, a.qkv_bias = c.qkv_bias, a.bias_dtype = vivace::DType::f32;
  a.x = c.x, a.out = const_cast<void*>(c.out), a.k_cache = const_cast<void*>(c.k_cache),
  a.v_cache = const_cast<void*>(c.v_cache);
  a.inv_freq = c.inv_freq, a.pos = c.pos, a.slot = c.slot, a.page_table = c.page_table, a.words = c.words;
  a.N = static_cast<int32_t>(c.N), a.H = P.H, a.Hq = P.Hq, a.Hkv = P.Hkv, a.D = P.D, a.M = P.M,
  a.B = static_cast<int32_t>(c.B), a.L = static_cast<int32_t>(c.L), a.S = static_cast<int32_t>(c.S),
  a.P = static_cast<int32_t>(c.P), a.eps = static_cast<float>(c.eps), a.attn_factor = 1;
  a.k_stride = a.v_stride = c.B * c.L * P.kv_width(), a.table_stride = c.P;
  const auto map = [&](const void* data) {
    const auto row = static_cast<uint64_t>(P.kv_width()) / 2;
    return TensorMap{
        {reinterpret_cast<uint64_t>(data), static_cast<uint64_t>(c.N * c.B * c.L), row, row, P.D / 2u}};
  };
  f.k = map(c.k_cache), f.v = map(c.v_cache), f.k_rows = f.v_rows = static_cast<int32_t>(c.B * c.L);
  return emulated::run(P.blocks, P.kThreads, P.smem(), [&] { decode_layers<P>(f); });
}
