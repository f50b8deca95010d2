#include "vivace/kernels/sampling/advance.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void advance(const kernels::AdvanceArgs& a, Pool&) {
  const int64_t T = valid_rows(a.rows, a.T);
  const int32_t at = a.turn[0] % a.N, place = at < 0 ? at + a.N : at;
  a.turn[0] = place + 1 == a.N ? 0 : place + 1;
  for (int64_t t = 0; t < T; ++t) {
    a.ring[place * a.ring_stride + t] = a.token[t];
    if (a.ring_logprob) a.ring_logprob[place * a.logprob_stride + t] = a.logprob[t];
    if (a.fed) a.fed[t] = a.token[t];
    if (a.pos) ++a.pos[t];
    if (a.step) ++a.step[t];
  }
}

}  // namespace vivace::cpu
