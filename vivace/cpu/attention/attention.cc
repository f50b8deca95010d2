#include "vivace/kernels/attention/attention.h"

#include <algorithm>

#include "vivace/cpu/attention/level.h"
#include "vivace/cpu/convert.h"
#include "vivace/cpu/pool.h"
#include "vivace/cpu/simd/isa.h"

namespace vivace::cpu {
namespace {

using kernels::AttentionArgs;
using kernels::AttentionSpan;

AttentionHeads heads_of_level() {
  switch (isa()) {
    case Isa::avx512: return attention_avx512();
    case Isa::avx2: return attention_avx2();
    case Isa::portable: break;
  }
  return attention_portable();
}

}  // namespace

void attention(const AttentionArgs& a, Pool& pool) {
  const int64_t T = valid_rows(a.rows, a.T);
  const AttentionHeads heads = heads_of_level();
  const int group = a.Hq / a.Hkv, parts = (group + kHeadsTogether - 1) / kHeadsTogether;
  // A chunk: a few tokens, one kv head, up to kHeadsTogether of the heads that read it. Chunks of a kv head follow each
  // other, so that its keys and values stay in the cache; last tokens first: they see most keys, and what ends a run
  // should be short. Few tokens are spread over the threads instead.
  const int64_t most = queries_together(a.D, a.Dv) / std::min(group, kHeadsTogether),
                wide = std::clamp<int64_t>(T * a.Hkv * parts / (4 * pool.threads()), 1, most);
  const int64_t tiles = (T + wide - 1) / wide, chunks = tiles * a.Hkv * parts;
  const auto body = [&](int64_t c) {
    const int64_t t0 = (tiles - 1 - c / parts % tiles) * wide, t1 = std::min(T, t0 + wide);
    const int kv = static_cast<int>(c / parts / tiles), part = static_cast<int>(c % parts);
    AttentionTile tile{};
    tile.h0 = kv * group + part * kHeadsTogether;
    tile.heads = std::min(kHeadsTogether, group - part * kHeadsTogether);
    for (int64_t t = t0; t < t1; ++t) {
      const AttentionSpan see(a, t);
      if (tile.tokens > 0 && see.slot != tile.slot) heads(a, tile), tile.tokens = 0;
      if (tile.tokens == 0) tile.t = t, tile.slot = see.slot;
      tile.first[tile.tokens] = see.first;
      tile.end[tile.tokens++] = see.end;
    }
    heads(a, tile);
  };
  pool.run(chunks, body);
}

}  // namespace vivace::cpu
