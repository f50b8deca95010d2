#include "vivace/array/space.h"

#include <algorithm>
#include <cstdlib>

namespace vivace::array {
namespace {

using kernels::kMapRank;
using kernels::kMaxOperands;
using kernels::MapSpace;

void move_axis(MapSpace* s, int operands, int to, const MapSpace& from, int axis) {
  s->dim[to] = from.dim[axis];
  s->out_stride[to] = from.out_stride[axis];
  for (int k = 0; k < operands; ++k) s->in_stride[k][to] = from.in_stride[k][axis];
}

std::pair<const char*, const char*> extent(const Array& a) {
  const char *low = a.data, *high = a.data;
  for (int i = 0; i < a.shape.rank; ++i) {
    const int64_t d = row_bytes(a.elem, (a.shape.dim[i] - 1) * a.stride[i]);
    (d < 0 ? low : high) += d;
  }
  return {low, high + unit_bytes(a.elem)};
}

}  // namespace

int collapse(MapSpace* s, int operands, int kept) {
  const MapSpace old = *s;
  int order[kMapRank], n = 0, stay = 0;
  for (int i = 0; i < old.rank; ++i)
    if (old.dim[i] != 1) {
      order[n++] = i;
      if (i < kept) stay = n;
    }
  // Kept axes by how far the output moves, then the first operand.
  for (int i = 1; i < stay; ++i)
    for (int k = i; k > 0 && std::abs(old.out_stride[order[k]]) > std::abs(old.out_stride[order[k - 1]]); --k)
      std::swap(order[k], order[k - 1]);
  s->rank = 0;
  int new_kept = 0;
  for (int i = 0; i < n; ++i) {
    const int axis = order[i];
    const bool folded = i >= stay;
    const int last = s->rank - 1;
    bool joins = s->rank > 0 && (folded ? s->rank > new_kept : true);
    if (joins) {
      joins = folded || s->out_stride[last] == old.dim[axis] * old.out_stride[axis];
      for (int k = 0; k < operands && joins; ++k)
        joins = s->in_stride[k][last] == old.dim[axis] * old.in_stride[k][axis];
    }
    if (joins) {
      s->dim[last] *= old.dim[axis];
      s->out_stride[last] = old.out_stride[axis];
      for (int k = 0; k < operands; ++k) s->in_stride[k][last] = old.in_stride[k][axis];
      continue;
    }
    move_axis(s, operands, s->rank++, old, axis);
    if (!folded) new_kept = s->rank;
  }
  return new_kept;
}

bool may_overlap(const Array& a, const Array& b) {
  if (a.storage != b.storage && a.device() != b.device()) return false;
  if (a.size() == 0 || b.size() == 0) return false;
  const auto [al, ah] = extent(a);
  const auto [bl, bh] = extent(b);
  return al < bh && bl < ah;
}

bool same_view(const Array& a, const Array& b) {
  if (a.data != b.data || unit_bytes(a.elem) != unit_bytes(b.elem) || !(a.shape == b.shape)) return false;
  for (int i = 0; i < a.shape.rank; ++i)
    if (a.shape.dim[i] != 1 && a.stride[i] != b.stride[i]) return false;
  return true;
}

}  // namespace vivace::array
