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
  // A chunk: one token, one kv head, up to kHeadsTogether of the heads that read it. Last tokens first:
  // they see most keys, and what ends a run should be short.
  const int64_t chunks = T * a.Hkv * parts;
  const auto body = [&](int64_t c) {
    const int64_t t = T - 1 - c / (a.Hkv * parts);
    const int kv = static_cast<int>(c / parts % a.Hkv), part = static_cast<int>(c % parts);
    const Visible see(a, t);
    heads(a, t, see.slot, see.first, see.end, kv * group + part * kHeadsTogether, std::min(kHeadsTogether, group - part * kHeadsTogether));
  };
  pool.run(chunks, body);
}

}  // namespace vivace::cpu
