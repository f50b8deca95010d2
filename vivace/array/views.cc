#include <algorithm>
#include <cstdlib>

#include "vivace/array/array.h"
#include "vivace/base/check.h"

namespace vivace::array {
namespace {

Status bad_shape(const std::string& why) {
  return Status(Code::kInvalidShape, "array: " + why);
}

/// Two shapes under one another, right-aligned, as broadcasting reads them.
std::string aligned(std::span<const Shape> shapes) {
  int rank = 0;
  size_t width = 1;
  for (const Shape& s : shapes) {
    rank = std::max(rank, s.rank);
    for (int i = 0; i < s.rank; ++i) width = std::max(width, std::to_string(s.dim[i]).size());
  }
  std::string text;
  for (const Shape& s : shapes) {
    text += "\n   ";
    for (int i = 0; i < rank; ++i) {
      const int at = i - (rank - s.rank);
      const std::string d = at < 0 ? "" : std::to_string(s.dim[at]);
      text.append(width + 1 - d.size(), ' ');
      text += d;
    }
  }
  return text;
}

}  // namespace

bool Array::is_dense() const {
  if (size() == 0) return true;
  int64_t want = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    if (shape.dim[i] != 1 && stride[i] != want) return false;
    want *= shape.dim[i];
  }
  return true;
}

Result<Array> index(const Array& a, std::span<const Index> indices) {
  Array r = a;
  r.shape.rank = 0;
  int axis = 0;
  for (const Index& i : indices) {
    if (i.kind == Index::one) {
      r.data += row_bytes(a.elem, i.begin * a.stride[axis++]);
      continue;
    }
    if (r.shape.rank == kMaxRank) return bad_shape(strf("more than %d axes; reshape first", kMaxRank));
    const int to = r.shape.rank++;
    if (i.kind == Index::added) {
      r.shape.dim[to] = 1, r.stride[to] = 0;
    } else if (i.kind == Index::all) {
      r.shape.dim[to] = a.shape.dim[axis], r.stride[to] = a.stride[axis];
      ++axis;
    } else {
      if (block_of(a.elem) > 1 && axis + 1 == a.shape.rank)
        return Status(Code::kUnsupported,
                      strf("array: slices of %s along its packed axis; dequantize first", name(a.elem)));
      r.shape.dim[to] = i.count, r.stride[to] = a.stride[axis] * i.step;
      if (i.count > 0) r.data += row_bytes(a.elem, i.begin * a.stride[axis]);
      ++axis;
    }
  }
  return r;
}

Result<Array> permute(const Array& a, std::span<const int> axes) {
  Array r = a;
  for (size_t i = 0; i < axes.size(); ++i) {
    r.shape.dim[i] = a.shape.dim[axes[i]];
    r.stride[i] = a.stride[axes[i]];
  }
  if (block_of(a.elem) > 1 && !axes.empty() && axes.back() != a.shape.rank - 1)
    return Status(Code::kUnsupported, strf("array: %s is packed along its last axis; dequantize first", name(a.elem)));
  return r;
}

Result<Array> broadcast_to(const Array& a, const Shape& shape) {
  const Shape both[] = {a.shape, shape};
  if (shape.rank < a.shape.rank) return bad_shape("cannot be broadcast:" + aligned(both));
  Array r = a;
  r.shape = shape;
  for (int i = 0; i < shape.rank; ++i) {
    const int from = i - (shape.rank - a.shape.rank);
    if (from >= 0 && a.shape.dim[from] != shape.dim[i] && a.shape.dim[from] != 1)
      return bad_shape("cannot be broadcast:" + aligned(both));
    r.stride[i] = from < 0 || (a.shape.dim[from] == 1 && shape.dim[i] != 1) ? 0 : a.stride[from];
  }
  return r;
}

Result<Shape> broadcast(std::span<const Shape> shapes) {
  Shape r;
  for (const Shape& s : shapes) r.rank = std::max(r.rank, s.rank);
  for (int i = 0; i < r.rank; ++i) {
    r.dim[i] = 1;
    for (const Shape& s : shapes) {
      const int from = i - (r.rank - s.rank);
      if (from < 0 || s.dim[from] == 1) continue;
      if (r.dim[i] != 1 && r.dim[i] != s.dim[from]) return bad_shape("shapes do not fit:" + aligned(shapes));
      r.dim[i] = s.dim[from];
    }
  }
  if (r.elements() < 0) return bad_shape(to_string(r) + " overflows");
  return r;
}

std::optional<Array> reshape_view(const Array& a, const Shape& shape) {
  Array r = a;
  r.shape = shape;
  int64_t dense = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    r.stride[i] = dense;
    dense *= std::max<int64_t>(shape.dim[i], 1);
  }
  if (a.is_dense()) return r;  // empty arrays too
  if (block_of(a.elem) > 1) return {};
  // Axes of more than one element, outermost first; each group of new axes must lie in one run of old ones.
  int64_t dim[kMaxRank], stride[kMaxRank];
  int n = 0;
  for (int i = 0; i < a.shape.rank; ++i)
    if (a.shape.dim[i] != 1) dim[n] = a.shape.dim[i], stride[n++] = a.stride[i];
  int o = 0, s = 0;
  while (o < n && s < shape.rank) {
    int64_t old = dim[o], now = shape.dim[s];
    int oe = o + 1, se = s + 1;
    while (old != now) {
      if (old < now)
        old *= dim[oe++];
      else
        now *= shape.dim[se++];
    }
    for (int i = o; i + 1 < oe; ++i)
      if (stride[i] != dim[i + 1] * stride[i + 1]) return {};
    int64_t step = stride[oe - 1];
    for (int i = se - 1; i >= s; --i) r.stride[i] = step, step *= shape.dim[i];
    o = oe, s = se;
  }
  for (; s < shape.rank; ++s) r.stride[s] = 1;  // ones behind
  return r;
}

Array flip(const Array& a, uint32_t axes) {
  Array r = a;
  for (int i = 0; i < a.shape.rank; ++i) {
    if (!(axes >> i & 1) || a.size() == 0) continue;
    r.data += row_bytes(a.elem, (a.shape.dim[i] - 1) * a.stride[i]);
    r.stride[i] = -a.stride[i];
  }
  return r;
}

Result<Array> view_as(const Array& a, Elem e) {
  const int64_t from = unit_bytes(a.elem), to = unit_bytes(e);
  Array r = a;
  r.elem = e;
  if (from == to && block_of(a.elem) == block_of(e)) return r;
  if (a.shape.rank == 0 || (a.shape.dim[a.shape.rank - 1] != 1 && a.stride[a.shape.rank - 1] != block_of(a.elem) &&
                            a.stride[a.shape.rank - 1] != 1))
    return Status(Code::kInvalidLayout, "array: view(dtype) of another size wants a dense last axis; copy() first");
  const int last = a.shape.rank - 1;
  const int64_t bytes = row_bytes(a.elem, a.shape.dim[last]);
  if (bytes % to != 0)
    return bad_shape(strf("a last axis of %ld bytes is no multiple of %s's %ld", static_cast<long>(bytes), name(e),
                          static_cast<long>(to)));
  r.shape.dim[last] = bytes / to * block_of(e);
  r.stride[last] = 1;
  for (int i = 0; i < last; ++i) {
    const int64_t pitch = row_bytes(a.elem, a.stride[i]);
    if (pitch % to != 0)
      return Status(Code::kInvalidLayout,
                    strf("array: axis %d's stride is no multiple of %s; copy() first", i, name(e)));
    r.stride[i] = pitch / to * block_of(e);
  }
  return r;
}

Result<Shape> shape_of(std::span<const int64_t> dims, Elem e) {
  if (dims.size() > static_cast<size_t>(kMaxRank))
    return bad_shape(strf("%zu axes, at most %d", dims.size(), kMaxRank));
  Shape s;
  s.rank = static_cast<int>(dims.size());
  for (int i = 0; i < s.rank; ++i) {
    const int64_t d = dims[static_cast<size_t>(i)];
    if (d < 0) return bad_shape(strf("axis %d is %ld", i, static_cast<long>(d)));
    s.dim[i] = d;
  }
  if (s.elements() < 0 || s.elements() > INT64_MAX / 16) return bad_shape(to_string(s) + " overflows");
  if (block_of(e) > 1 && (s.rank == 0 || s.dim[s.rank - 1] % block_of(e) != 0))
    return bad_shape(strf("the last axis of %s must be a multiple of %d", name(e), block_of(e)));
  return s;
}

}  // namespace vivace::array
