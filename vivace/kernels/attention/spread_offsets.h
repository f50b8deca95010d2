// Arguments of `spread_offsets`, shared by the CPU and CUDA kernels. POD; see vivace/ops/spread_offsets.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct SpreadOffsetsArgs {
  const int32_t* offsets;    // [S + 1], not falling
  const int32_t* k_offsets;  // [S + 1] or null
  const int32_t* length;     // [S] or null
  int32_t* slot;             // [T]
  int32_t* pos;              // [T]
  int32_t* count;            // [1] or null
  const int32_t* rows;       // [1] device-side T, or null
  int32_t T, S;

  /// Slot and position of token t.
  VV_HD void find(int32_t t, int32_t* slot_of, int32_t* pos_of) const {
    int32_t below = 0, above = S + 1;  // of the first offset beyond t
    while (below < above) {
      const int32_t middle = below + (above - below) / 2;
      if (offsets[middle] <= t) below = middle + 1;
      else above = middle;
    }
    const int32_t s = below - 1;
    *slot_of = -1, *pos_of = 0;
    if (s < 0 || s >= S) return;
    const int64_t first = offsets[s], past = offsets[s + 1];
    int64_t ahead = 0;  // keys before this call's first token
    if (k_offsets != nullptr) ahead = int64_t{k_offsets[s + 1]} - k_offsets[s] - (past - first);
    if (length != nullptr) ahead = length[s] - (past - first);
    *slot_of = s, *pos_of = static_cast<int32_t>(t - first + ahead);
  }
};

struct SpreadOffsetsPolicy {
  int32_t threads;
  constexpr bool operator==(const SpreadOffsetsPolicy&) const = default;
};

}  // namespace vivace::kernels
