// The tactics that elementwise ops share, see vivace/kernels/tile/stretch.h.
#pragma once
#include "vivace/kernels/tile/stretch.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

inline constexpr kernels::StretchPolicy kAnyStretch = {128, 1, 4};  // rows of odd length or alignment

/// Many elements want blocks of 5 KB or more, since an H200 begins one each 1.24 ns, and beyond that short ones:
/// `moved` bytes a column, in and out. Few want latency. Elements of more than 2 `bytes` go by fours: an access of
/// more than 16 bytes would be split, and the halves of a warp's store would not make whole sectors.
constexpr kernels::StretchPolicy wide_stretch(bool many, int bytes, double moved) {
  using Policy = kernels::StretchPolicy;
  if (bytes > 2) return moved >= 12 ? Policy{128, 4, 1} : moved >= 5 || !many ? Policy{128, 4, 2} : Policy{256, 4, 2};
  if (moved >= 2.5 && moved < 4) return {128, 8, 2};
  return moved >= 6 || !many ? Policy{128, 8, 1} : moved >= 4 ? Policy{256, 8, 1} : Policy{256, 8, 2};
}

/// For T x H elements of at most `bytes`, `wide` where every port allows accesses of 8.
inline kernels::StretchPolicy pick_stretch(int64_t T, int64_t H, bool wide, int bytes, double moved) {
  constexpr int64_t kManyElements = 1 << 20, kShortRow = 1024;
  return wide && H % 8 == 0 ? wide_stretch(T * H >= kManyElements && H > kShortRow, bytes, moved) : kAnyStretch;
}

/// Each one that pick_stretch() gives for `bytes` and `moved`, once.
template <class Visit>
void each_stretch(int bytes, double moved, Visit&& visit) {
  const kernels::StretchPolicy few = wide_stretch(false, bytes, moved), many = wide_stretch(true, bytes, moved);
  visit(few);
  if (many != few) visit(many);
  visit(kAnyStretch);
}

inline void shape_stretch(int64_t T, int64_t H, const kernels::StretchPolicy& p, exec::Launch* launch) {
  launch->grid[0] = static_cast<uint32_t>(T * ((H + p.stretch() - 1) / p.stretch()));
  launch->block[0] = static_cast<uint32_t>(p.threads);
}

/// "op<types, StretchPolicy{...}>".
inline std::string stretch_expression(const char* op, const std::string& types, const kernels::StretchPolicy& p) {
  return kernel_expression("%s<%s, vivace::kernels::StretchPolicy{%d, %d, %d}>", op, types.c_str(), p.threads, p.vec,
                           p.items);
}

}  // namespace vivace::ops
