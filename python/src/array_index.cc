// x[key], x[key] = value, and what Python objects mean as operands, axes and indices.
#include <vector>

#include "array.h"
#include "vivace/base/check.h"

namespace vivace::python {
namespace {

using array::Elem;
using array::Index;
using array::name;  // beside vivace::name of DType
using array::Operand;
using array::Weak;

[[noreturn]] void index_error(const std::string& why) {
  PyErr_SetString(PyExc_IndexError, why.c_str());
  throw nb::python_error();
}

bool is_array(nb::handle o, bool truths) {
  return nb::isinstance<Array>(o) && (nb::inst_ptr<Array>(o)->elem == Elem::boolean) == truths;
}

/// A basic key as indices of every axis.
std::vector<Index> indices_of(const Array& a, nb::handle key) {
  nb::tuple keys = PyTuple_Check(key.ptr()) ? nb::borrow<nb::tuple>(key) : nb::make_tuple(nb::borrow(key));
  int taken = 0, dots = 0;
  for (nb::handle k : keys) {
    if (k.is_none()) continue;
    if (k.ptr() == Py_Ellipsis)
      ++dots;
    else
      ++taken;
  }
  if (dots > 1) index_error("array: more than one '...' in an index");
  if (taken > a.shape.rank) index_error(strf("array: %d indices of %d axes", taken, a.shape.rank));
  std::vector<Index> out;
  int axis = 0;
  const auto rest = [&](int n) {
    for (; n > 0; --n, ++axis) out.push_back({});
  };
  for (nb::handle k : keys) {
    if (k.ptr() == Py_Ellipsis) {
      rest(a.shape.rank - taken);
    } else if (k.is_none()) {
      out.push_back({Index::added, 0, 1, 1});
    } else if (PySlice_Check(k.ptr())) {
      Py_ssize_t begin, end, step;
      if (PySlice_Unpack(k.ptr(), &begin, &end, &step) < 0) throw nb::python_error();
      const Py_ssize_t n = PySlice_AdjustIndices(a.shape.dim[axis], &begin, &end, step);
      out.push_back({Index::range, begin, step, n});
      ++axis;
    } else if (PyIndex_Check(k.ptr()) && !PyBool_Check(k.ptr()) && !nb::isinstance<Array>(k)) {
      const Py_ssize_t i = PyNumber_AsSsize_t(k.ptr(), PyExc_IndexError);
      if (i == -1 && PyErr_Occurred()) throw nb::python_error();
      const int64_t n = a.shape.dim[axis];
      if (i < -n || i >= n)
        index_error(strf("array: index %ld of axis %d, which has %ld elements", static_cast<long>(i), axis,
                         static_cast<long>(n)));
      out.push_back({Index::one, i < 0 ? i + n : i, 1, 1});
      ++axis;
    } else if (is_array(k, true) || PyBool_Check(k.ptr())) {
      check(Status(Code::kUnsupported,
                   "array: a boolean index stands alone, x[mask]; where() keeps the shape"));
    } else if (nb::isinstance<Array>(k)) {
      check(Status(Code::kUnsupported,
                   "array: an array beside slices, ... or None; take() and take_along_axis() take one axis at a time"));
    } else {
      index_error(strf("array: an index is %s, wanted integers, slices, ..., None or one Array of integers",
                       Py_TYPE(k.ptr())->tp_name));
    }
  }
  rest(a.shape.rank - axis);
  return out;
}

int kind(Elem e) {
  return e == Elem::boolean ? 0 : kernels::is_integer(e) ? 1 : kernels::is_real(e) ? 2 : 3;
}

}  // namespace

bool operand_of(nb::handle o, Operand* to) {
  if (nb::isinstance<Array>(o)) {
    to->array = nb::inst_ptr<Array>(o);
    return true;
  }
  if (PyBool_Check(o.ptr())) {
    to->weak = Weak::boolean, to->integer = o.ptr() == Py_True;
    return true;
  }
  if (PyFloat_Check(o.ptr())) {
    to->weak = Weak::real, to->real = PyFloat_AS_DOUBLE(o.ptr());
    return true;
  }
  if (!PyLong_Check(o.ptr())) return false;
  int overflow = 0;
  to->weak = Weak::integer;
  to->integer = PyLong_AsLongLongAndOverflow(o.ptr(), &overflow);
  if (overflow != 0) {
    const unsigned long long v = overflow > 0 ? PyLong_AsUnsignedLongLong(o.ptr()) : 0;
    if (overflow < 0 || PyErr_Occurred()) {
      PyErr_Clear();
      check(Status(Code::kInvalidArgument, "array: an integer beyond 64 bits"));
    }
    to->integer = static_cast<int64_t>(v), to->above = true;
  }
  return true;
}

int axis_from(int64_t axis, int rank, const char* call) {
  if (axis < -rank || axis >= rank)
    check(Status(Code::kInvalidArgument,
                 strf("array.%s: axis %ld of an array of %d axes", call, static_cast<long>(axis), rank)));
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

uint32_t axes_from(const Array& a, nb::handle o, const char* call) {
  if (o.is_none()) return (1u << a.shape.rank) - 1;
  uint32_t mask = 0;
  const auto add = [&](nb::handle h) {
    const uint32_t bit = 1u << axis_from(nb::cast<int64_t>(h), a.shape.rank, call);
    if (mask & bit) check(Status(Code::kInvalidArgument, strf("array.%s: an axis is named twice", call)));
    mask |= bit;
  };
  if (PyIndex_Check(o.ptr())) {
    add(o);
  } else {
    for (nb::handle h : nb::borrow<nb::sequence>(o)) add(h);
  }
  return mask;
}

nb::object get_item(const Array& a, nb::handle key) {
  check(array::check_open(a, "indexing"));
  if (is_array(key, false)) {
    refuse_capture("x[indices]");
    const Array& at = *nb::inst_ptr<Array>(key);
    if (a.shape.rank == 0) index_error("array: 1 index of 0 axes");
    return nb::cast(
        value_of(work(a.device(), at.size(), [&](const array::Exec& x) { return array::take(a, at, 0, false, x); })));
  }
  if (is_array(key, true)) {
    refuse_capture("x[mask]");
    return nb::module_::import_("vivace.array.sets").attr("masked")(nb::cast(a), key);
  }
  if (PyTuple_Check(key.ptr())) {  // an Array of integers among integers and such Arrays
    bool some = false, all = true;
    for (nb::handle k : nb::borrow<nb::tuple>(key)) {
      some = some || is_array(k, false);
      all = all && (is_array(k, false) || (PyLong_Check(k.ptr()) && !PyBool_Check(k.ptr())));
    }
    if (some && all) {
      refuse_capture("x[indices]");
      return nb::module_::import_("vivace.array.sets").attr("picked")(nb::cast(a), key);
    }
  }
  const std::vector<Index> at = indices_of(a, key);
  return nb::cast(value_of(array::index(a, at)));
}

void set_item(const Array& a, nb::handle key, nb::handle value) {
  check(array::check_open(a, "assigning"));
  refuse_capture("x[...] = y");
  for (int i = 0; i < a.shape.rank; ++i)
    if (a.shape.dim[i] > 1 && a.stride[i] == 0 && a.size() > 0)
      check(Status(Code::kAliasError,
                   strf("array: writing: axis %d is broadcast, its elements are one; copy() first", i)));
  Operand from;
  if (!operand_of(value, &from))
    check(Status(Code::kInvalidDType,
                 strf("array: x[...] = %s: wanted an Array or a Python number", Py_TYPE(value.ptr())->tp_name)));
  if (from.array != nullptr && kind(from.array->elem) > kind(a.elem))
    check(Status(Code::kInvalidDType,
                 strf("array: %s into %s: astype() says a change of kind", name(from.array->elem), name(a.elem))));
  if (is_array(key, true)) {  // x[mask] = value keeps the shape: a choice, element by element
    Operand three[3];
    three[0].array = nb::inst_ptr<Array>(key), three[1] = from, three[2].array = &a;
    if (!(three[0].array->shape == a.shape) || (from.array != nullptr && from.array->shape.rank != 0))
      check(Status(Code::kUnsupported,
                   "array: x[mask] = y wants a mask of x's shape and a number or 0-d array; where() broadcasts"));
    value_of(work(a.device(), a.size(),
                  [&](const array::Exec& x) { return array::apply(array::Func::select, three, &a, x); }));
    return;
  }
  const Array to = value_of(array::index(a, indices_of(a, key)));
  check(work(to.device(), to.size(), [&](const array::Exec& x) { return array::assign(to, from, x); }));
}

}  // namespace vivace::python
