// Which tokens make a sequence, and where its state lies: shared by the ops that carry state along tokens.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

struct Sequences {
  const int32_t*
      offsets;  // [N + 1] or null: one sequence of T tokens; sequence n is tokens [offsets[n], offsets[n + 1])
  const int32_t* slot;     // [N] or null: n
  const int32_t* fresh;    // [N] or null: state is what is there; nonzero: as if it were zero
  int32_t N, S;

  VV_HD static int32_t clamp(int32_t x, int32_t T) { return x < 0 ? 0 : x < T ? x : T; }
  /// First token of sequence n and the one past its last, of T valid ones; never past < first.
  VV_HD int32_t first(int32_t n, int32_t T) const { return offsets == nullptr ? 0 : clamp(offsets[n], T); }
  VV_HD int32_t past(int32_t n, int32_t T) const {
    if (offsets == nullptr) return T;
    const int32_t begin = clamp(offsets[n], T), end = clamp(offsets[n + 1], T);
    return end < begin ? begin : end;
  }
  /// Row of the state, or -1: the sequence has none, begins at zero and leaves nothing.
  VV_HD int32_t row(int32_t n) const {
    const int32_t s = slot == nullptr ? n : slot[n];
    return s >= 0 && s < S ? s : -1;
  }
  VV_HD bool starts_at_zero(int32_t n) const { return row(n) < 0 || (fresh != nullptr && fresh[n] != 0); }
};

}  // namespace vivace::kernels
