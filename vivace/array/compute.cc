#include <algorithm>

#include "vivace/array/array.h"
#include "vivace/array/gpu.h"
#include "vivace/array/space.h"
#include "vivace/array/work.h"
#include "vivace/base/check.h"
#include "vivace/cpu/map/map.h"

namespace vivace::array {
namespace {

using kernels::Fold;
using kernels::FoldSpace;
using kernels::How;
using kernels::kMaxOperands;
using kernels::kMaxSteps;
using kernels::MapProgram;
using kernels::MapSpace;

/// Below this many elements work stays on the calling thread.
constexpr int64_t kSmall = 32768;

/// `scalars`: bit k is set where in[k] is the address of a value, not of an array.
Status run_space(const MapProgram& p, MapSpace* s, uint32_t scalars, int device, const Exec& exec,
                 const Expression* own = nullptr) {
  int64_t n = 1;
  for (int i = 0; i < s->rank; ++i) n *= s->dim[i];
  if (n == 0) return {};
  collapse(s, p.operands, s->rank);
  if (device != kHost) return gpu_map(p, *s, scalars, device, exec, own);
  device::count(device::stream_counts(kHost, nullptr).launches);
  const device::Observed seen([&] { return work_of(p, *s, scalars); });
  cpu::map(p, *s, n < kSmall ? nullptr : exec.pool);
  return {};
}

/// Folded axes in an order that the GPU reads well, where the order does not count: the last one moves least.
void sort_folded(FoldSpace* f, int operands) {
  MapSpace& s = f->space;
  const auto moves = [&](int axis) {  // in memory, at most
    int64_t most = 0;
    for (int k = 0; k < operands; ++k) most = std::max(most, std::abs(s.in_stride[k][axis]));
    return most;
  };
  for (int i = f->kept + 1; i < s.rank; ++i)
    for (int k = i; k > f->kept && moves(k) > moves(k - 1); --k) {
      std::swap(s.dim[k], s.dim[k - 1]);
      for (auto& stride : s.in_stride) std::swap(stride[k], stride[k - 1]);
    }
}

/// Into `to`, which has elements, where the arrays are. `scalars` as in run_space.
Status run_fold(const How& how, const MapProgram& p, FoldSpace* f, uint32_t scalars, const Array& to, int64_t elements,
                std::span<const Operand> operands, const Exec& exec) {
  const bool on_gpu = to.device() != kHost;
  if (on_gpu && how.kind != Fold::argmax && how.kind != Fold::argmin) sort_folded(f, p.operands);
  f->kept = collapse(&f->space, p.operands, f->kept);
  if (!on_gpu) {
    device::count(device::stream_counts(kHost, nullptr).launches);
    const device::Observed seen([&] { return work_of(how, p, *f, scalars); });
    cpu::fold(how, p, *f, elements < kSmall ? nullptr : exec.pool);
    return {};
  }
  VV_TRY(before_use(to, exec));
  for (const Operand& o : operands)
    if (o.array != nullptr) VV_TRY(before_use(*o.array, exec));
  VV_TRY(gpu_fold(how, p, *f, scalars, to.elem, to.device(), exec));
  VV_TRY(after_use(to, exec));
  for (const Operand& o : operands)
    if (o.array != nullptr) VV_TRY(after_use(*o.array, exec));
  return {};
}

/// A program that gives operand 0 as type e.
MapProgram cast_program(Elem from, Elem to) {
  MapProgram p;
  p.operands = 1, p.operand[0] = from, p.result = to;
  if (from != to) p.step[p.steps++] = {Func::cast, to, from, {0, 0, 0}};
  return p;
}

Status writable(const Array& a, const char* what) {
  VV_TRY(check_open(a, what));
  if (a.storage->read_only)
    return Status(Code::kInvalidArgument, strf("array: %s: the memory is read-only; copy() it", what));
  for (int i = 0; i < a.shape.rank; ++i)
    if (a.shape.dim[i] > 1 && a.stride[i] == 0 && a.size() > 0)
      return Status(Code::kAliasError,
                    strf("array: %s: axis %d is broadcast, its elements are one; copy() first", what, i));
  return {};
}

/// The device of all arrays among operands and out; `fallback` without any.
Result<int> common_device(std::span<const Operand> operands, const Array* out, int fallback) {
  const Array* first = out;
  for (const Operand& o : operands) {
    if (o.array == nullptr) continue;
    VV_TRY(check_open(*o.array, "use"));
    if (first == nullptr) first = o.array;
    if (o.array->device() != first->device())
      return Status(Code::kInvalidDevice,
                    strf("array: one is on %s, another on %s; to_device() one of them",
                         device_name(first->device()).c_str(), device_name(o.array->device()).c_str()));
  }
  return first != nullptr ? first->device() : fallback;
}

}  // namespace

namespace {

Result<Array> run_all(const MapProgram& p, std::span<const Operand> operands, const Shape* shape, const Array* out,
                      int device, const Exec& exec, const Expression* own) {
  VV_ASSIGN(device, common_device(operands, out, device));
  Shape shapes[kMaxOperands + 2], all;
  int n = 0;
  for (const Operand& o : operands)
    if (o.array != nullptr) shapes[n++] = o.array->shape;
  if (shape != nullptr) shapes[n++] = *shape;
  VV_ASSIGN(all, broadcast(std::span(shapes, static_cast<size_t>(n))));
  if (shape != nullptr && !(all == *shape)) return broadcast_to(*operands[0].array, *shape).status();
  Array to;
  bool through = false;  // a temporary, as out lies over an operand or is of another type
  if (out != nullptr) {
    VV_TRY(writable(*out, "out"));
    if (!(out->shape == all))
      return Status(Code::kInvalidShape, "array: out is " + to_string(out->shape) + ", the result " + to_string(all));
    through = out->elem != p.result || (p.index && !out->is_dense());
    for (const Operand& o : operands)
      if (o.array != nullptr && may_overlap(*o.array, *out) && !same_view(*o.array, *out)) through = true;
  }
  if (out != nullptr && !through)
    to = *out;
  else {
    VV_ASSIGN(to, empty(p.result, all, device));
  }
  MapSpace s;
  uint32_t scalars = 0;
  VV_TRY(before_use(to, exec));
  s.rank = all.rank, s.out = to.data;
  for (int i = 0; i < all.rank; ++i) s.dim[i] = all.dim[i], s.out_stride[i] = to.stride[i];
  for (size_t k = 0; k < operands.size(); ++k) {
    if (operands[k].array == nullptr) {
      s.in[k] = &operands[k].value;
      scalars |= 1u << k;
      continue;
    }
    VV_TRY(before_use(*operands[k].array, exec));
    VV_ASSIGN(const Array a, broadcast_to(*operands[k].array, all));
    s.in[k] = a.data;
    for (int i = 0; i < all.rank; ++i) s.in_stride[k][i] = a.stride[i];
  }
  VV_TRY(run_space(p, &s, scalars, device, exec, own));
  VV_TRY(after_use(to, exec));
  for (const Operand& o : operands)
    if (o.array != nullptr) VV_TRY(after_use(*o.array, exec));
  if (!through) return to;
  Operand from;
  from.array = &to;
  VV_TRY(assign(*out, from, exec));
  return *out;
}

}  // namespace

Result<Scalar> value_as(Elem e, const Operand& o) {
  return o.weak == Weak::real ? scalar_of(e, o.real)
         : o.above            ? scalar_of_unsigned(e, static_cast<uint64_t>(o.integer))
                              : scalar_of(e, o.integer);
}

Result<Array> run(const MapProgram& p, std::span<const Operand> operands, const Shape* shape, const Array* out,
                  int device, const Exec& exec) {
  return run_all(p, operands, shape, out, device, exec, nullptr);
}

Result<Array> apply(const Expression& e, std::span<const Operand> given, const Array* out, const Exec& exec) {
  Operand operands[kMaxOperands];
  std::copy(given.begin(), given.end(), operands);
  VV_ASSIGN(const int device, common_device(given, out, kHost));
  if (device == kHost)
    return Status(Code::kUnsupported,
                  "array.elementwise: of CUDA arrays alone, these are on cpu; write it with the functions of "
                  "vivace.array, or to_device(\"cuda\")");
  MapProgram p;
  p.operands = static_cast<int>(given.size()), p.result = e.result_type, p.index = e.index;
  // One step that the expression stands for: a program without any only moves bits.
  p.step[p.steps++] = {Func::positive, e.result_type, e.result_type, {0, 0, 0}};
  for (size_t k = 0; k < given.size(); ++k) {
    Operand& o = operands[k];
    const Elem want = p.operand[k] = e.types[k];
    if (o.array != nullptr && o.array->elem != want)
      return Status(Code::kInvalidDType, strf("array.elementwise: %s is declared %s, got %s; astype() it first",
                                              e.names[k].c_str(), name(want), name(o.array->elem)));
    if (o.array != nullptr) continue;
    if (o.weak == Weak::real && !kernels::is_real(want))
      return Status(Code::kInvalidDType,
                    strf("array.elementwise: %s is declared %s, got a Python float", e.names[k].c_str(), name(want)));
    Result<Scalar> v = value_as(want, o);
    if (!v.ok()) return std::move(v).status().with_context("elementwise");
    o.value = *v, o.elem = want;
  }
  if (out != nullptr && out->elem != e.result_type)
    return Status(Code::kInvalidDType, strf("array.elementwise: %s is declared %s, out is %s", e.result.c_str(),
                                            name(e.result_type), name(out->elem)));
  return run_all(p, std::span(operands, given.size()), nullptr, out, device, exec, &e);
}

Result<Array> apply(Func f, std::span<const Operand> given, const Array* out, const Exec& exec) {
  const size_t n = given.size();
  Operand operands[3];
  std::copy(given.begin(), given.end(), operands);
  const size_t first = f == Func::select ? 1 : 0;  // behind the condition, which is a truth of its own
  Kind kinds[3];
  for (size_t k = 0; k < n; ++k)
    kinds[k] = operands[k].array != nullptr ? Kind{operands[k].array->elem, Weak::none} : Kind{{}, operands[k].weak};
  VV_ASSIGN(const Signature sig, signature(f, std::span(kinds, n)));
  MapProgram p;
  p.operands = static_cast<int>(n);
  uint8_t reg[3] = {};
  for (size_t k = 0; k < n; ++k) {
    const Elem want = k < first ? Elem::boolean : sig.compute;
    reg[k] = static_cast<uint8_t>(k);
    Operand& o = operands[k];
    if (o.array == nullptr) {
      Result<Scalar> v = value_as(want, o);
      if (!v.ok()) return std::move(v).status().with_context(strf("%s", name(f)));
      o.value = *v, o.elem = want;
      p.operand[k] = want;
    } else {
      p.operand[k] = o.array->elem;
      if (o.array->elem != want) {
        p.step[p.steps] = {Func::cast, want, o.array->elem, {static_cast<uint8_t>(k), 0, 0}};
        reg[k] = static_cast<uint8_t>(kMaxOperands + p.steps++);
      }
    }
  }
  p.step[p.steps++] = {f, sig.compute, sig.compute, {reg[0], reg[1], reg[2]}};
  p.result = sig.result;
  if (out != nullptr && out->elem != sig.result) {
    const auto kind = [](Elem e) {
      return e == Elem::boolean ? 0 : kernels::is_integer(e) ? 1 : kernels::is_real(e) ? 2 : 3;
    };
    if (kind(out->elem) != kind(sig.result))
      return Status(Code::kInvalidDType, strf("array.%s: the result is %s, out is %s; astype() says a change of kind",
                                              name(f), name(sig.result), name(out->elem)));
  }
  return run(p, std::span(operands, n), nullptr, out, kHost, exec);
}

Status assign(const Array& to, const Operand& from, const Exec& exec) {
  VV_TRY(writable(to, "writing"));
  if (from.array == nullptr) {
    if (from.weak == Weak::real && kernels::is_integer(to.elem))
      return Status(Code::kInvalidDType,
                    strf("array: a Python float into %s: astype() the array, or give an integer", name(to.elem)));
    if (!kernels::has_arithmetic(to.elem))
      return Status(Code::kInvalidDType, strf("array: %s stores, and is not filled with numbers", name(to.elem)));
    VV_ASSIGN(const Scalar v, value_as(to.elem, from));
    Operand o;
    o.value = v, o.elem = to.elem;
    VV_ASSIGN(const Array done,
              run(cast_program(to.elem, to.elem), std::span(&o, 1), &to.shape, &to, to.device(), exec));
    (void)done;
    return {};
  }
  VV_TRY(check_open(*from.array, "use"));
  Array a = *from.array;
  if (a.device() != to.device())
    return Status(Code::kInvalidDevice, strf("array: one is on %s, another on %s; to_device() one of them",
                                             device_name(to.device()).c_str(), device_name(a.device()).c_str()));
  VV_ASSIGN(a, broadcast_to(a, to.shape));
  if (a.elem != to.elem && !(kernels::has_arithmetic(a.elem) && kernels::has_arithmetic(to.elem)))
    return Status(Code::kInvalidDType,
                  strf("array: %s into %s: vivace.ops.cast converts storage types", name(a.elem), name(to.elem)));
  if (may_overlap(a, to)) {
    if (same_view(a, to) && a.elem == to.elem) return {};
    VV_ASSIGN(a, copy(a, a.elem, exec));
  }
  VV_TRY(before_use(a, exec));
  VV_TRY(before_use(to, exec));
  const auto used = [&](Status done) -> Status {
    VV_TRY(std::move(done));
    VV_TRY(after_use(a, exec));
    return after_use(to, exec);
  };
  MapSpace s;
  s.rank = to.shape.rank, s.in[0] = a.data, s.out = to.data;
  for (int i = 0; i < s.rank; ++i)
    s.dim[i] = to.shape.dim[i], s.in_stride[0][i] = a.stride[i], s.out_stride[i] = to.stride[i];
  if (a.elem != to.elem) return used(run_space(cast_program(a.elem, to.elem), &s, 0, to.device(), exec));
  if (block_of(a.elem) > 1) {  // packed along the last axis: whole units
    const int last = s.rank - 1, block = block_of(a.elem);
    s.dim[last] /= block;
    for (int i = 0; i < last; ++i) s.in_stride[0][i] /= block, s.out_stride[i] /= block;
  }
  int64_t n = 1;
  for (int i = 0; i < s.rank; ++i) n *= s.dim[i];
  if (n == 0) return {};
  int bytes = unit_bytes(a.elem);
  if (bytes > 8 || bytes == 3 || (bytes & (bytes - 1)) != 0) {  // block formats: bytes as an axis more
    if (s.rank == kernels::kMapRank)
      return Status(Code::kUnsupported, strf("array: copies of %s with %d axes", name(a.elem), s.rank));
    for (int i = 0; i < s.rank; ++i) s.in_stride[0][i] *= bytes, s.out_stride[i] *= bytes;
    s.dim[s.rank] = bytes, s.in_stride[0][s.rank] = s.out_stride[s.rank] = 1;
    ++s.rank;
    bytes = 1;
  }
  if (to.device() != kHost) {
    constexpr Elem kBits[] = {Elem::u8, Elem::u16, Elem::u32, Elem::u32, Elem::u64};  // by half the bytes
    return used(run_space(cast_program(kBits[bytes / 2], kBits[bytes / 2]), &s, 0, to.device(), exec));
  }
  collapse(&s, 1, s.rank);
  device::count(device::stream_counts(kHost, nullptr).launches);
  const device::Observed seen([&] { return device::Work{.op = "array.copy", .bytes = 2 * n * bytes}; });
  cpu::copy(bytes, s, n < kSmall ? nullptr : exec.pool);
  return {};
}

Result<Array> copy(const Array& a, Elem e, const Exec& exec) {
  VV_TRY(check_open(a, "copy"));
  VV_ASSIGN(const Array to, empty(e, a.shape, a.device()));
  Operand from;
  from.array = &a;
  VV_TRY(assign(to, from, exec));
  return to;
}

Result<Array> fold(Fold kind, const Array& a, uint32_t axes, bool keepdims, Elem type, const Exec& exec) {
  VV_TRY(check_open(a, "use"));
  if (!kernels::has_arithmetic(a.elem))
    return Status(Code::kInvalidDType,
                  strf("array: %s stores, and has no arithmetic: cast or dequantize it first", name(a.elem)));
  const bool arg = kind == Fold::argmax || kind == Fold::argmin;
  Operand o;
  o.array = &a;
  VV_ASSIGN(Array to,
            fold({kind, nullptr}, cast_program(a.elem, carried(type)), std::span(&o, 1), axes, keepdims, exec));
  return arg || type == to.elem ? Result<Array>(to) : copy(to, type, exec);
}

Result<Array> fold(const How& how, const MapProgram& p, std::span<const Operand> operands, uint32_t axes, bool keepdims,
                   const Exec& exec) {
  VV_ASSIGN(const int device, common_device(operands, nullptr, kHost));
  Shape shapes[kMaxOperands], all;
  size_t arrays = 0;
  for (const Operand& o : operands)
    if (o.array != nullptr) shapes[arrays++] = o.array->shape;
  VV_ASSIGN(all, broadcast(std::span(shapes, arrays)));
  const bool arg = how.kind == Fold::argmax || how.kind == Fold::argmin;
  FoldSpace f;
  MapSpace& s = f.space;
  Shape kept, out_shape;
  int64_t n = 1;
  for (int i = 0; i < all.rank; ++i) {
    const bool folded = axes >> i & 1;
    if (folded)
      n *= all.dim[i];
    else
      kept.dim[kept.rank++] = all.dim[i];
    if (!folded || keepdims) out_shape.dim[out_shape.rank++] = folded ? 1 : all.dim[i];
  }
  if (n == 0 && (how.kind == Fold::max || how.kind == Fold::min || arg) && kept.elements() > 0)
    return Status(Code::kInvalidShape, "array: the extreme of no elements, shape " + to_string(all));
  VV_ASSIGN(Array to, empty(arg ? Elem::i64 : p.result, kept, device));
  int order[kernels::kMapRank];
  for (const bool folded : {false, true})
    for (int i = 0, k = 0; i < all.rank; ++i) {
      if (static_cast<bool>(axes >> i & 1) != folded) continue;
      order[s.rank] = i, s.dim[s.rank] = all.dim[i];
      s.out_stride[s.rank] = folded ? 0 : to.stride[k++];
      ++s.rank;
      if (!folded) f.kept = s.rank;
    }
  s.out = to.data;
  uint32_t scalars = 0;
  for (size_t k = 0; k < operands.size(); ++k) {
    if (operands[k].array == nullptr) {
      s.in[k] = &operands[k].value;
      scalars |= 1u << k;
      continue;
    }
    VV_ASSIGN(const Array a, broadcast_to(*operands[k].array, all));
    s.in[k] = a.data;
    for (int i = 0; i < s.rank; ++i) s.in_stride[k][i] = a.stride[order[i]];
  }
  if (to.size() > 0) VV_TRY(run_fold(how, p, &f, scalars, to, all.elements(), operands, exec));
  to.shape = out_shape;
  int64_t stride = 1;
  for (int i = out_shape.rank - 1; i >= 0; --i) to.stride[i] = stride, stride *= out_shape.dim[i];
  return to;
}

}  // namespace vivace::array
