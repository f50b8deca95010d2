#include <algorithm>
#include <array>

#include "vivace/array/array.h"
#include "vivace/array/gpu.h"
#include "vivace/array/space.h"
#include "vivace/array/work.h"
#include "vivace/base/check.h"
#include "vivace/cpu/map/linear.h"
#include "vivace/cpu/map/map.h"

namespace vivace::array {
namespace {

/// The axis moved behind the others, dense, as type e: rows to work along.
Result<Array> rows_along(const Array& a, int axis, Elem e, const Exec& exec) {
  int axes[kMaxRank], n = 0;
  for (int i = 0; i < a.shape.rank; ++i)
    if (i != axis) axes[n++] = i;
  axes[n++] = axis;
  VV_ASSIGN(const Array moved, permute(a, std::span(axes, static_cast<size_t>(n))));
  return copy(moved, e, exec);
}

/// Back: a view whose last axis stands at `axis` again.
Result<Array> back(const Array& a, int axis) {
  int axes[kMaxRank];
  for (int i = 0, k = 0; i < a.shape.rank; ++i) axes[i] = i == axis ? a.shape.rank - 1 : k++;
  return permute(a, std::span(axes, static_cast<size_t>(a.shape.rank)));
}

Status has_numbers(const Array& a, const char* what) {
  VV_TRY(check_open(a, what));
  if (!kernels::has_arithmetic(a.elem))
    return Status(Code::kInvalidDType,
                  strf("array.%s: %s stores, and has no arithmetic: cast or dequantize it first", what, name(a.elem)));
  return {};
}

/// What runs on the CPU, seen by profiles and counts.
template <class Work>
void on_cpu(const char* what, int64_t bytes, int64_t flops, const Work& work) {
  device::count(device::stream_counts(kHost, nullptr).launches);
  const device::Observed seen(
      [&] { return device::Work{.op = std::string("array.") + what, .bytes = bytes, .flops = flops}; });
  work();
}

Status same_device(const Array& a, const Array& b) {
  if (a.device() == b.device()) return {};
  return Status(Code::kInvalidDevice, strf("array: one is on %s, another on %s; to_device() one of them",
                                           device_name(a.device()).c_str(), device_name(b.device()).c_str()));
}

/// Batches by more than one launch are worth it from this many rows and columns on; smaller ones are folded in one.
constexpr int64_t kGemmEdge = 16;

/// A matrix of each batch entry with its last axis side by side: the view itself where it is so.
Result<Array> rows_dense(const Array& a, const Exec& exec) {
  const int last = a.shape.rank - 1;
  const bool fits = (a.stride[last] == 1 || a.shape.dim[last] == 1) && a.stride[last - 1] >= a.shape.dim[last];
  return fits ? Result<Array>(a) : copy(a, a.elem, exec);
}

/// x [.., m, k] by y [.., k, n] of one type, both of `batch` and two axes more, into `to`.
Status product_on_gpu(const Array& x, const Array& y, const Array& to, const Exec& exec) {
  const int rank = to.shape.rank, row = rank - 2, column = rank - 1;
  const int64_t m = to.shape.dim[row], n = to.shape.dim[column], k = x.shape.dim[column];
  int64_t batches = 1;
  for (int i = 0; i < row; ++i) batches *= to.shape.dim[i];
  const bool real = x.elem == Elem::f32 || x.elem == Elem::f16 || x.elem == Elem::bf16;
  const bool large = batches == 1 || (m >= kGemmEdge && n >= kGemmEdge);
  if (real && large && k > 0 && rank <= 3 && exec.gemm != nullptr && std::max({m, n, k}) <= INT32_MAX) {
    VV_ASSIGN(const Array a, rows_dense(x, exec));
    VV_ASSIGN(Array w, permute(y, rank == 2 ? std::span<const int>(std::array{1, 0})
                                            : std::span<const int>(std::array{0, 2, 1})));
    const bool row_major = rank == 2 && y.stride[column] == 1 && y.stride[row] >= n;  // the op takes w by column
    if (!row_major) {
      VV_ASSIGN(w, rows_dense(w, exec));
    }
    for (const Array* used : {&a, const_cast<const Array*>(&w), &to}) VV_TRY(before_use(*used, exec));
    VV_ASSIGN(Tensor xt, tensor_of(a));
    VV_ASSIGN(Tensor wt, tensor_of(w));
    VV_ASSIGN(Tensor out, tensor_of(to));
    VV_TRY(exec.gemm(xt, wt, out, to.device(), exec.stream));
    for (const Array* used : {&a, const_cast<const Array*>(&w), &to}) VV_TRY(after_use(*used, exec));
    return {};
  }
  const Elem wide = to.elem == Elem::f16 || to.elem == Elem::bf16 ? Elem::f32 : to.elem;
  kernels::MapProgram p;
  const auto reg = [&] { return static_cast<uint8_t>(kernels::kMaxOperands + p.steps - 1); };
  p.operands = 2, p.operand[0] = p.operand[1] = x.elem, p.result = wide;
  uint8_t in[2] = {0, 1};
  if (wide != x.elem)
    for (uint8_t i = 0; i < 2; ++i) {
      p.step[p.steps++] = {Func::cast, wide, x.elem, {i, 0, 0}};
      in[i] = reg();
    }
  p.step[p.steps++] = {Func::multiply, wide, wide, {in[0], in[1], 0}};
  kernels::FoldSpace f;
  kernels::MapSpace& s = f.space;
  s.in[0] = x.data, s.in[1] = y.data, s.out = to.data, f.kept = rank, s.rank = rank + 1;
  for (int i = 0; i < rank; ++i) {
    s.dim[i] = to.shape.dim[i], s.out_stride[i] = to.stride[i];
    s.in_stride[0][i] = i == column ? 0 : x.stride[i];
    s.in_stride[1][i] = i == row ? 0 : y.stride[i];
  }
  s.dim[rank] = k, s.in_stride[0][rank] = x.stride[column], s.in_stride[1][rank] = y.stride[row];
  f.kept = collapse(&s, 2, f.kept);
  for (const Array* used : {&x, &y, &to}) VV_TRY(before_use(*used, exec));
  VV_TRY(gpu_fold({}, p, f, 0, to.elem, to.device(), exec));
  for (const Array* used : {&x, &y, &to}) VV_TRY(after_use(*used, exec));
  return {};
}

}  // namespace

Result<Array> cumulative(bool product, const Array& a, int axis, Elem type, bool initial, const Exec& exec) {
  const char* const called = product ? "cumulative_prod" : "cumulative_sum";
  VV_TRY(has_numbers(a, called));
  const Elem wide = type == Elem::f16 || type == Elem::bf16 ? Elem::f32 : type;
  VV_ASSIGN(Array x, rows_along(a, axis, wide, exec));
  const int64_t n = x.shape.dim[x.shape.rank - 1], rows = n == 0 ? 0 : x.size() / n;
  if (a.device() != kHost) VV_TRY(gpu_scan(product, x, exec));
  else on_cpu(called, 2 * x.nbytes(), 0, [&] { cpu::scan(product, wide, x.data, rows, n, exec.pool); });
  if (initial) {
    Shape longer = x.shape;
    ++longer.dim[x.shape.rank - 1];
    VV_ASSIGN(const Array with, empty(wide, longer, a.device()));
    Operand first, rest;
    first.weak = Weak::integer, first.integer = product ? 1 : 0;
    rest.array = &x;
    Index at[kMaxRank];
    at[x.shape.rank - 1] = {Index::range, 0, 1, 1};
    VV_ASSIGN(const Array head, index(with, std::span(at, static_cast<size_t>(x.shape.rank))));
    at[x.shape.rank - 1] = {Index::range, 1, 1, n};
    VV_ASSIGN(const Array tail, index(with, std::span(at, static_cast<size_t>(x.shape.rank))));
    VV_TRY(assign(head, first, exec));
    VV_TRY(assign(tail, rest, exec));
    x = with;
  }
  VV_ASSIGN(const Array turned, back(x, axis));
  return copy(turned, type, exec);
}

Result<Array> sort(const Array& a, int axis, bool descending, bool order, const Exec& exec) {
  const char* const called = order ? "argsort" : "sort";
  VV_TRY(has_numbers(a, called));
  VV_ASSIGN(const Array x, rows_along(a, axis, a.elem, exec));
  const int64_t n = x.shape.dim[x.shape.rank - 1], rows = n == 0 ? 0 : x.size() / n;
  Array to = x;
  if (a.device() != kHost) {
    VV_ASSIGN(to, gpu_sort(x, descending, order, exec));
  } else {
    if (order) {
      VV_ASSIGN(to, empty(Elem::i64, x.shape, kHost));
    }
    int64_t* const places = order ? reinterpret_cast<int64_t*>(to.data) : nullptr;
    if (rows > 0)
      on_cpu(called, x.nbytes() + to.nbytes(), 0,
             [&] { cpu::sort(a.elem, descending, x.data, places, rows, n, exec.pool); });
  }
  VV_ASSIGN(const Array turned, back(to, axis));
  return turned.is_dense() ? Result<Array>(turned) : copy(turned, turned.elem, exec);
}

Result<Array> searchsorted(const Array& a, const Array& values, bool right, const Array* sorter, const Exec& exec) {
  VV_TRY(has_numbers(a, "searchsorted"));
  VV_TRY(has_numbers(values, "searchsorted"));
  VV_TRY(same_device(a, values));
  if (a.shape.rank != 1)
    return Status(Code::kInvalidShape, "array.searchsorted: x1 is " + to_string(a.shape) + ", wanted one axis");
  VV_ASSIGN(const Elem type, promote(a.elem, values.elem));
  VV_ASSIGN(const Array x, copy(a, type, exec));
  VV_ASSIGN(const Array v, copy(values, type, exec));
  Array s;
  if (sorter != nullptr) {
    VV_TRY(has_numbers(*sorter, "searchsorted"));
    VV_TRY(same_device(a, *sorter));
    if (!(sorter->shape == a.shape) || !kernels::is_integer(sorter->elem))
      return Status(Code::kInvalidShape,
                    strf("array.searchsorted: sorter is %s %s, wanted integers of x1's shape %s", name(sorter->elem),
                         to_string(sorter->shape).c_str(), to_string(a.shape).c_str()));
    VV_ASSIGN(s, copy(*sorter, Elem::i64, exec));
    for (int64_t i = 0; a.device() == kHost && i < s.size(); ++i)
      if (const int64_t at = reinterpret_cast<const int64_t*>(s.data)[i]; at < 0 || at >= s.size())
        return Status(Code::kInvalidArgument, strf("array.searchsorted: sorter holds %ld, x1 has %ld elements",
                                                   static_cast<long>(at), static_cast<long>(s.size())));
  }
  if (a.device() != kHost) return gpu_searchsorted(x, v, right, sorter != nullptr ? &s : nullptr, exec);
  VV_ASSIGN(const Array out, empty(Elem::i64, values.shape, kHost));
  on_cpu("searchsorted", v.nbytes() + out.nbytes(), 0, [&] {
    cpu::searchsorted(type, x.data, x.size(), sorter != nullptr ? reinterpret_cast<const int64_t*>(s.data) : nullptr,
                      v.data, v.size(), right, reinterpret_cast<int64_t*>(out.data), exec.pool);
  });
  return out;
}

namespace {

/// On a GPU an index out of range reads the nearest place, and the next reading on the host tells of it.
Status gather_on_gpu(const Array& from, const Array& at, const Array& to, const cpu::Gather& g, const Exec& exec) {
  if (g.length == 0)
    return Status(Code::kInvalidArgument, "array.take: of an axis without elements, shape " + to_string(from.shape));
  kernels::GatherLaunch launch{};
  launch.total = to.size(), launch.length = g.length, launch.inner = g.inner, launch.count = g.count;
  return gpu_gather(from, at, to, launch, g.bytes, g.along, exec);
}

}  // namespace

Result<Array> take(const Array& a, const Array& indices, int axis, bool along, const Exec& exec) {
  VV_TRY(check_open(a, "take"));
  VV_TRY(check_open(indices, "take"));
  VV_TRY(same_device(a, indices));
  if (!kernels::is_integer(indices.elem))
    return Status(Code::kInvalidDType, strf("array.take: indices are %s, wanted integers", name(indices.elem)));
  if (block_of(a.elem) > 1)
    return Status(Code::kUnsupported, strf("array.take: of %s; dequantize first", name(a.elem)));
  VV_ASSIGN(const Array at, copy(indices, Elem::i64, exec));
  cpu::Gather g{};
  Shape out = a.shape;
  Array from = a;
  if (along) {
    Shape left = a.shape, right = indices.shape;
    left.dim[axis] = right.dim[axis] = 1;
    if (left.rank != right.rank)
      return Status(Code::kInvalidShape,
                    "array.take_along_axis: " + to_string(a.shape) + " and " + to_string(indices.shape));
    const Shape both[] = {left, right};
    VV_ASSIGN(Shape wide, broadcast(both));
    wide.dim[axis] = a.shape.dim[axis];
    VV_ASSIGN(from, broadcast_to(a, wide));
    wide.dim[axis] = indices.shape.dim[axis];
    VV_ASSIGN(const Array spread, broadcast_to(at, wide));
    VV_ASSIGN(const Array dense, copy(spread, Elem::i64, exec));
    VV_ASSIGN(from, copy(from, from.elem, exec));
    VV_ASSIGN(const Array to, empty(a.elem, wide, a.device()));
    g = {unit_bytes(a.elem), from.data, reinterpret_cast<const int64_t*>(dense.data), to.data, 1, a.shape.dim[axis], 1,
         wide.dim[axis],     true};
    for (int i = 0; i < wide.rank; ++i) (i < axis ? g.outer : g.inner) *= i == axis ? 1 : wide.dim[i];
    if (to.size() == 0) return to;
    if (a.device() != kHost) {
      VV_TRY(gather_on_gpu(from, dense, to, g, exec));
      return to;
    }
    int64_t bad = 0;
    bool good = true;
    on_cpu("take_along_axis", dense.nbytes() + 2 * to.nbytes(), 0, [&] { good = cpu::gather(g, &bad, exec.pool); });
    if (!good)
      return Status(Code::kInvalidArgument, strf("array.take_along_axis: index %ld of an axis of %ld",
                                                 static_cast<long>(bad), static_cast<long>(g.length)));
    return to;
  }
  // One axis of indices stands where the axis was; several, in its place, as NumPy does.
  if (a.shape.rank - 1 + indices.shape.rank > kMaxRank)
    return Status(Code::kInvalidShape,
                  strf("array.take: %d axes, at most %d", a.shape.rank - 1 + indices.shape.rank, kMaxRank));
  out.rank = 0;
  g = {unit_bytes(a.elem), nullptr, reinterpret_cast<const int64_t*>(at.data), nullptr, 1, a.shape.dim[axis], 1,
       at.size(),          false};
  for (int i = 0; i < a.shape.rank; ++i) {
    if (i == axis) {
      for (int k = 0; k < indices.shape.rank; ++k) out.dim[out.rank++] = indices.shape.dim[k];
    } else {
      out.dim[out.rank++] = a.shape.dim[i];
      (i < axis ? g.outer : g.inner) *= a.shape.dim[i];
    }
  }
  VV_ASSIGN(const Array to, empty(a.elem, out, a.device()));
  if (to.size() == 0) return to;
  if (!from.is_dense()) {
    VV_ASSIGN(from, copy(a, a.elem, exec));
  }
  if (a.device() != kHost) {
    VV_TRY(gather_on_gpu(from, at, to, g, exec));
    return to;
  }
  g.x = from.data, g.out = to.data;
  int64_t bad = 0;
  bool good = true;
  on_cpu("take", at.nbytes() + 2 * to.nbytes(), 0, [&] { good = cpu::gather(g, &bad, exec.pool); });
  if (!good)
    return Status(Code::kInvalidArgument,
                  strf("array.take: index %ld of an axis of %ld", static_cast<long>(bad), static_cast<long>(g.length)));
  return to;
}

Result<Array> matmul(const Array& a, const Array& b, const Exec& exec) {
  VV_TRY(check_open(a, "matmul"));
  VV_TRY(check_open(b, "matmul"));
  VV_TRY(same_device(a, b));
  VV_ASSIGN(const Elem type, promote(a.elem, b.elem));
  if (type == Elem::boolean)
    return Status(Code::kInvalidDType, "array.matmul: wanted numbers (astype() the bool first), got bool");
  if (a.shape.rank == 0 || b.shape.rank == 0)
    return Status(Code::kInvalidShape, "array.matmul: " + to_string(a.shape) + " @ " + to_string(b.shape) +
                                           ": wanted one axis or more; multiply() scales");
  Array x = a, y = b;
  if (a.elem != type) {
    VV_ASSIGN(x, copy(a, type, exec));
  }
  if (b.elem != type) {
    VV_ASSIGN(y, copy(b, type, exec));
  }
  const int xr = x.shape.rank, yr = y.shape.rank;
  cpu::Matmul m{};
  m.type = type;
  m.m = xr == 1 ? 1 : x.shape.dim[xr - 2], m.x_m = xr == 1 ? 0 : x.stride[xr - 2];
  m.k = x.shape.dim[xr - 1], m.x_k = x.stride[xr - 1];
  const int64_t depth = yr == 1 ? y.shape.dim[0] : y.shape.dim[yr - 2];
  m.n = yr == 1 ? 1 : y.shape.dim[yr - 1], m.y_n = yr == 1 ? 0 : y.stride[yr - 1];
  m.y_k = yr == 1 ? y.stride[0] : y.stride[yr - 2];
  if (depth != m.k)
    return Status(Code::kInvalidShape,
                  strf("array.matmul: %s @ %s: %ld columns meet %ld rows", to_string(a.shape).c_str(),
                       to_string(b.shape).c_str(), static_cast<long>(m.k), static_cast<long>(depth)));
  Shape batches[2];
  batches[0].rank = std::max(0, xr - 2), batches[1].rank = std::max(0, yr - 2);
  for (int i = 0; i < xr - 2; ++i) batches[0].dim[i] = x.shape.dim[i];
  for (int i = 0; i < yr - 2; ++i) batches[1].dim[i] = y.shape.dim[i];
  VV_ASSIGN(Shape out, broadcast(batches));
  m.rank = out.rank;
  for (int i = 0; i < out.rank; ++i) {
    m.batch[i] = out.dim[i];
    const int xi = i - (out.rank - batches[0].rank), yi = i - (out.rank - batches[1].rank);
    m.x_batch[i] = xi < 0 || (x.shape.dim[xi] == 1 && out.dim[i] != 1) ? 0 : x.stride[xi];
    m.y_batch[i] = yi < 0 || (y.shape.dim[yi] == 1 && out.dim[i] != 1) ? 0 : y.stride[yi];
  }
  if (a.device() != kHost) {
    // Both with all batch axes; a fourth of them has no room beside the folded one.
    Shape full = out, left, right;
    full.dim[full.rank++] = m.m, full.dim[full.rank++] = m.n;
    left = right = full;
    left.dim[full.rank - 1] = right.dim[full.rank - 2] = m.k;
    if (xr == 1) {
      const Index at[] = {{Index::added, 0, 1, 1}, {}};
      VV_ASSIGN(x, index(x, at));
    }
    if (yr == 1) {
      const Index at[] = {{}, {Index::added, 0, 1, 1}};
      VV_ASSIGN(y, index(y, at));
    }
    VV_ASSIGN(x, broadcast_to(x, left));
    VV_ASSIGN(y, broadcast_to(y, right));
    VV_ASSIGN(Array to, empty(type, full, a.device()));
    Array into = to;
    if (out.rank == 4) {
      VV_ASSIGN(x, copy(x, type, exec));
      VV_ASSIGN(y, copy(y, type, exec));
      for (Array* t : {&x, &y, &into}) {
        Shape flat(out.elements(), t->shape.dim[4], t->shape.dim[5]);
        *t = *reshape_view(*t, flat);
      }
    }
    if (to.size() > 0) VV_TRY(product_on_gpu(x, y, into, exec));
    Shape shape = out;
    if (xr > 1) shape.dim[shape.rank++] = m.m;
    if (yr > 1) shape.dim[shape.rank++] = m.n;
    return *reshape_view(to, shape);
  }
  if (xr > 1) out.dim[out.rank++] = m.m;
  if (yr > 1) out.dim[out.rank++] = m.n;
  m.out_m = m.n, m.out_batch = m.m * m.n;
  VV_ASSIGN(const Array to, empty(type, out, a.device()));
  if (to.size() == 0) return to;
  m.x = x.data, m.y = y.data, m.out = to.data;
  const int64_t bytes = x.nbytes() + y.nbytes() + to.nbytes(), flops = 2 * m.k * to.size();
  on_cpu("matmul", bytes, flops, [&] { cpu::matmul(m, exec.pool); });
  return to;
}

}  // namespace vivace::array
