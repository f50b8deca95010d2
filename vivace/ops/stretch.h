// The tactic rows that elementwise ops share, see vivace/kernels/tile/stretch.h.
#pragma once
#include "vivace/kernels/tile/stretch.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

// Latency on few elements; bytes in flight on many; rows of odd length or alignment.
inline constexpr kernels::StretchPolicy kStretchTactics[] = {{128, 8, 1}, {256, 8, 2}, {128, 1, 4}};

/// The row of kStretchTactics for T x H elements, `wide` where every port allows accesses of 8.
inline kernels::StretchPolicy pick_stretch(int64_t T, int64_t H, bool wide) {
  constexpr int64_t kManyElements = 1 << 20;
  return kStretchTactics[!wide || H % 8 != 0 ? 2 : T * H >= kManyElements ? 1 : 0];
}

inline void shape_stretch(int64_t T, int64_t H, const kernels::StretchPolicy& p, exec::Launch* launch) {
  launch->grid[0] = static_cast<uint32_t>(T * ((H + p.stretch() - 1) / p.stretch()));
  launch->block[0] = static_cast<uint32_t>(p.threads);
}

/// "op<types, StretchPolicy{...}>".
inline std::string stretch_expression(const char* op, const std::string& types, const kernels::StretchPolicy& p) {
  return kernel_expression("%s<%s, vivace::kernels::StretchPolicy{%d, %d, %d}>", op, types.c_str(), p.threads, p.vec, p.items);
}

}  // namespace vivace::ops
