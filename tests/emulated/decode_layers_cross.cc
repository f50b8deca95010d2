// decode_layers_cross as the host runs it: a shape at compile time, pointers and numbers of a call in the order of
// Call. See blocks.h.
#include "blocks.h"
// After it: the kernel, with what blocks.h stands in for left out.
#include "vivace/kernels/decode/decode_layers_cross.cuh"

using namespace vivace::kernels;

struct Call {
  DecodeLayersCrossArgs::Norm norms[3];
  DecodeLayersCrossArgs::Matrix matrices[6];
  const void *x, *add, *k_cache, *v_cache, *cross_k, *cross_v, *queries, *out;
  const int32_t *pos, *slot, *window, *rows, *page_table;
  uint32_t* words;
  int64_t N, B, L, S, P, C, F;
  int64_t seed, delay, ticks;
  double eps;
};

extern "C" int64_t words_of_call() {
  return kDecodeWordsAhead + 2 * DecodeCrossWords::of(SHAPE.H, SHAPE.M).all;
}

extern "C" int run_call(const Call& c) {
  constexpr DecodeCrossPolicy P = SHAPE;
  static_assert(P.fits());
  emulated::seed = static_cast<uint64_t>(c.seed), emulated::most_delay = static_cast<unsigned>(c.delay);
  emulated::most_ticks = static_cast<uint64_t>(c.ticks);
  for (int i = 0; i < 9; ++i) emulated::draw();
  DecodeLayersCrossTmaArgs f{};
  DecodeLayersCrossArgs& a = f.a;
  a.attn_norm = c.norms[0], a.cross_norm = c.norms[1], a.mlp_norm = c.norms[2];
  a.qkv = c.matrices[0], a.o = c.matrices[1], a.cross_q = c.matrices[2], a.cross_o = c.matrices[3],
  a.up = c.matrices[4], a.down = c.matrices[5];
  a.x = c.x, a.add = c.add, a.out = const_cast<void*>(c.out), a.queries = const_cast<void*>(c.queries);
  a.k_cache = const_cast<void*>(c.k_cache), a.v_cache = const_cast<void*>(c.v_cache);
  a.cross_k = c.cross_k, a.cross_v = c.cross_v, a.pos = c.pos, a.slot = c.slot, a.window = c.window, a.rows = c.rows;
  a.page_table = c.page_table, a.words = c.words;
  a.N = static_cast<int32_t>(c.N), a.H = P.H, a.heads = P.heads, a.M = P.M, a.B = static_cast<int32_t>(c.B),
  a.L = static_cast<int32_t>(c.L), a.S = static_cast<int32_t>(c.S), a.P = static_cast<int32_t>(c.P),
  a.C = static_cast<int32_t>(c.C), a.F = static_cast<int32_t>(c.F), a.eps = static_cast<float>(c.eps);
  a.k_stride = a.v_stride = c.B * c.L * P.H, a.cross_k_stride = a.cross_v_stride = c.C * c.F * P.H;
  a.queries_stride = P.H, a.table_stride = c.P;
  const auto map = [&](const void* data) {
    return TensorMap{
        {reinterpret_cast<uint64_t>(data), static_cast<uint64_t>(c.N * c.C * c.F), P.H / 2u, P.H / 2u, P.D / 2u}};
  };
  f.k = map(c.cross_k), f.v = map(c.cross_v), f.k_rows = f.v_rows = static_cast<int32_t>(c.C * c.F);
  return emulated::run(P.blocks, P.kThreads, P.smem(), [&] { decode_layers_cross<P>(f); });
}
