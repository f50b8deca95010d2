#include "vivace/kernels/attention/attention.h"

#include <algorithm>

#include "vivace/cpu/attention/level.h"
#include "vivace/cpu/convert.h"
#include "vivace/cpu/pool.h"
#include "vivace/cpu/simd/isa.h"

namespace vivace::cpu {
namespace {

using kernels::AttentionArgs;
using kernels::AttentionMask;

AttentionHeads heads_of_level() {
  switch (isa()) {
    case Isa::avx512: return attention_avx512();
    case Isa::avx2: return attention_avx2();
    case Isa::portable: break;
  }
  return attention_portable();
}

/// Every mask leaves one run of keys.
struct Visible {
  int64_t slot, first = 0, end = 0;

  Visible(const AttentionArgs& a, int64_t t) : slot(a.slot ? a.slot[t] : 0) {
    if (slot < 0 || slot >= a.S) {
      slot = 0;
      return;
    }
    const int64_t pos = a.pos ? a.pos[t] : t;
    end = a.length ? std::clamp<int64_t>(a.length[slot], 0, a.L) : a.L;
    if (a.mask != AttentionMask::full) {
      const int64_t seen = a.mask == AttentionMask::prefix ? std::max<int64_t>(a.prefix[slot], pos + 1) : pos + 1;
      end = std::min(end, std::max<int64_t>(seen, 0));
    }
    if (a.window > 0) first = std::max<int64_t>(0, pos - a.window + 1);
    end = std::max(first, end);
  }
};

}  // namespace

void attention(const AttentionArgs& a, Pool& pool) {
  const int64_t T = valid_rows(a.rows, a.T);
  const AttentionHeads heads = heads_of_level();
  const int group = a.Hq / a.Hkv, parts = (group + kHeadsTogether - 1) / kHeadsTogether;
  // A chunk: a few tokens, one kv head, up to kHeadsTogether of the heads that read it. Last tokens first: they
  // see most keys, and what ends a run should be short. Few tokens are spread over the threads instead.
  const int64_t wide = std::clamp<int64_t>(T * a.Hkv * parts / (4 * pool.threads()), 1, kTokensTogether);
  const int64_t tiles = (T + wide - 1) / wide, chunks = tiles * a.Hkv * parts;
  const auto body = [&](int64_t c) {
    const int64_t t0 = (tiles - 1 - c / (a.Hkv * parts)) * wide, t1 = std::min(T, t0 + wide);
    const int kv = static_cast<int>(c / parts % a.Hkv), part = static_cast<int>(c % parts);
    AttentionTile tile{};
    tile.h0 = kv * group + part * kHeadsTogether;
    tile.heads = std::min(kHeadsTogether, group - part * kHeadsTogether);
    for (int64_t t = t0; t < t1; ++t) {
      const Visible see(a, t);
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
