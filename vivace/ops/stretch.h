// The tactic rows that elementwise ops share, see vivace/kernels/tile/stretch.h.
#pragma once
#include "vivace/kernels/tile/stretch.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

// Latency on few elements, bytes in flight on many; rows of odd length or alignment. The first pair serves
// elements of up to 2 bytes, the second those of 4: an access of more than 16 bytes would be split, and the
// halves of a warp's store would not make whole sectors.
inline constexpr kernels::StretchPolicy kStretchTactics[] = {{128, 8, 1}, {256, 8, 2}, {128, 4, 2}, {256, 4, 2}, {128, 1, 4}};

/// The row of kStretchTactics for T x H elements of at most `bytes`, `wide` where every port allows accesses of 8.
inline kernels::StretchPolicy pick_stretch(int64_t T, int64_t H, bool wide, int bytes) {
  constexpr int64_t kManyElements = 1 << 20;
  if (!wide || H % 8 != 0) return kStretchTactics[4];
  return kStretchTactics[(bytes > 2 ? 2 : 0) + (T * H >= kManyElements ? 1 : 0)];
}

/// Whether pick_stretch gives `p` for elements of at most `bytes`.
constexpr bool stretch_serves(const kernels::StretchPolicy& p, int bytes) { return p.vec == 1 || (p.vec == 4) == (bytes > 2); }

inline void shape_stretch(int64_t T, int64_t H, const kernels::StretchPolicy& p, exec::Launch* launch) {
  launch->grid[0] = static_cast<uint32_t>(T * ((H + p.stretch() - 1) / p.stretch()));
  launch->block[0] = static_cast<uint32_t>(p.threads);
}

/// "op<types, StretchPolicy{...}>".
inline std::string stretch_expression(const char* op, const std::string& types, const kernels::StretchPolicy& p) {
  return kernel_expression("%s<%s, vivace::kernels::StretchPolicy{%d, %d, %d}>", op, types.c_str(), p.threads, p.vec, p.items);
}

}  // namespace vivace::ops
