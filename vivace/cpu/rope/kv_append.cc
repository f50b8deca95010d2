#include "vivace/kernels/rope/kv_append.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void kv_append(const kernels::KvAppendArgs& a, Pool& pool) {
  const int64_t row = int64_t{a.Hkv} * a.D;
  for_rows(pool, valid_rows(a.rows, a.T), 2 * row, [&](int64_t t) {
    const kernels::KvCache::Place place = a.cache.place(a.cache.slot ? a.cache.slot[t] : 0, a.pos[t]);
    if (place.block < 0) return;
    const int64_t k_first = a.cache.element(place, a.cache.k_stride),
                  v_first = a.cache.element(place, a.cache.v_stride);
    const int64_t runs = a.cache.heads_first ? a.Hkv : 1,
                  run = row / (runs > 0 ? runs : 1);  // elements that lie side by side in the cache
    for (int64_t i = 0; i < runs; ++i)
      for_chunks(run, [&](int64_t first, int64_t n) {
        const int64_t from = i * run + first, to = i * a.cache.head_pitch() + first;
        float h[kChunk];
        load_f32(a.k, a.dtype, t * a.k_stride + from, n, h);
        store_f32(a.cache.k, a.cache.dtype, k_first + to, n, h);
        load_f32(a.v, a.dtype, t * a.v_stride + from, n, h);
        store_f32(a.cache.v, a.cache.dtype, v_first + to, n, h);
      });
  });
}

}  // namespace vivace::cpu
