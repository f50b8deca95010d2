#include "vivace/kernels/attention/spread_offsets.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void spread_offsets(const kernels::SpreadOffsetsArgs& a, Pool&) {
  const int64_t T = valid_rows(a.rows, a.T);
  if (a.count != nullptr) a.count[0] = a.offsets[a.S];
  for (int64_t t = 0; t < T; ++t) a.find(static_cast<int32_t>(t), &a.slot[t], &a.pos[t]);
}

}  // namespace vivace::cpu
