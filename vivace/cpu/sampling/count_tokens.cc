#include "vivace/kernels/sampling/count_tokens.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

// On the caller's thread: a token may come twice, and there are too few to share out.
void count_tokens(const kernels::CountTokensArgs& a, Pool&) {
  const int64_t T = valid_rows(a.rows, a.T);
  for (int64_t t = 0; t < T; ++t) {
    const int64_t slot = a.slot ? a.slot[t] : 0, id = a.ids[t];
    if (slot >= 0 && slot < a.S && id >= 0 && id < a.V) ++a.counts[slot * a.counts_stride + id];
  }
}

}  // namespace vivace::cpu
