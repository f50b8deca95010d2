// Arithmetic of vivace.Array: operators, and the functions that vivace.array gives names and defaults.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "array.h"
#include "vivace/base/check.h"
#include "vivace/base/float_types.h"

namespace vivace::python {
namespace {

using array::Elem;
using array::Exec;
using array::Func;
using array::name;  // beside vivace::name of DType
using array::Operand;
using kernels::Fold;

/// Elements of what the shapes are broadcast to; no check, a guide to how much work there is.
int64_t elements_of(const Operand* o, size_t n) {
  int64_t dims[kMaxRank] = {1, 1, 1, 1, 1, 1}, all = 1;
  for (size_t k = 0; k < n; ++k)
    if (o[k].array != nullptr)
      for (int i = 0; i < o[k].array->shape.rank; ++i)
        dims[i + kMaxRank - o[k].array->shape.rank] =
            std::max(dims[i + kMaxRank - o[k].array->shape.rank], o[k].array->shape.dim[i]);
  for (const int64_t d : dims) all *= d;
  return all;
}

/// Of the first array.
int device_of(const Operand* o, size_t n) {
  for (size_t k = 0; k < n; ++k)
    if (o[k].array != nullptr) return o[k].array->device();
  return array::kHost;
}

Array apply(Func f, const Operand* o, size_t n, const Array* out) {
  refuse_capture(array::name(f));
  return value_of(work(device_of(o, n), elements_of(o, n),
                       [&](const Exec& x) { return array::apply(f, std::span(o, n), out, x); }));
}

/// A call by name: at least one Array among the operands, or one that array.fuse traces, which takes the call itself.
nb::object call(Func f, const nb::handle* given, size_t n, nb::handle out) {
  Operand o[3];
  bool any = false;
  for (size_t k = 0; k < n; ++k)
    if (!operand_of(given[k], &o[k])) {
      for (size_t i = 0; i < n; ++i)
        if (nb::hasattr(given[i], "_fused")) {
          nb::list all;
          for (size_t j = 0; j < n; ++j) all.append(given[j]);
          return given[i].attr("_fused")(static_cast<int>(f), all, out);
        }
      check(Status(Code::kInvalidDType, strf("array.%s: wanted an Array or a Python number, got %s", array::name(f),
                                             Py_TYPE(given[k].ptr())->tp_name)));
    }
  for (size_t k = 0; k < n; ++k) any = any || o[k].array != nullptr;
  if (!any) check(Status(Code::kInvalidDType, strf("array.%s: wanted an Array among the operands", array::name(f))));
  return nb::cast(apply(f, o, n, out.is_none() ? nullptr : &array_of(out, array::name(f))));
}

/// NotImplemented, but for other libraries' arrays, whose own operators would answer in surprising ways.
nb::object not_ours(Func f, nb::handle x, nb::handle y) {
  const nb::handle other = nb::isinstance<Array>(x) ? y : x;
  if (nb::hasattr(other, "__dlpack__") || nb::hasattr(other, "__array__"))
    check(Status(Code::kInvalidDType, strf("array.%s: an Array with %s: asarray() takes it over first", array::name(f),
                                           Py_TYPE(other.ptr())->tp_name)));
  return nb::borrow(Py_NotImplemented);
}

nb::object binary(Func f, nb::handle x, nb::handle y) {
  Operand o[2];
  if (!operand_of(x, &o[0]) || !operand_of(y, &o[1])) return not_ours(f, x, y);
  return nb::cast(apply(f, o, 2, nullptr));
}

/// x op= y: into x, whose shape and dtype stay.
nb::object in_place(Func f, nb::handle x, nb::handle y) {
  Operand o[2];
  if (!operand_of(x, &o[0]) || !operand_of(y, &o[1])) return not_ours(f, x, y);
  apply(f, o, 2, o[0].array);
  return nb::borrow(x);
}

nb::object product(nb::handle x, nb::handle y) {
  if (!nb::isinstance<Array>(x) || !nb::isinstance<Array>(y)) return nb::borrow(Py_NotImplemented);
  refuse_capture("matmul");
  const Array &a = *nb::inst_ptr<Array>(x), &b = *nb::inst_ptr<Array>(y);
  const int64_t n = b.shape.rank > 0 ? b.shape.dim[b.shape.rank - 1] : 1;
  return nb::cast(value_of(
      work(a.device(), a.size() * std::max<int64_t>(n, 1), [&](const Exec& e) { return array::matmul(a, b, e); })));
}

/// The single element, as Python's number.
nb::object item(const Array& a, const char* what) {
  check(array::check_open(a, what));
  refuse_capture(what);
  if (a.size() != 1)
    check(Status(Code::kInvalidShape,
                 strf("array: %s wants one element, the shape is %s", what, to_string(a.shape).c_str())));
  if (!kernels::has_arithmetic(a.elem))
    check(Status(Code::kInvalidDType, strf("array: %s of %s: cast or dequantize it first", what, name(a.elem))));
  array::Scalar v{};
  check(copy_free(a, &v, false));
  switch (a.elem) {
    case Elem::boolean:
      return nb::bool_(v.b);
    case Elem::u8:
    case Elem::u16:
    case Elem::u32:
    case Elem::u64:
      return nb::int_(v.u);
    case Elem::i8:
      return nb::int_(static_cast<int8_t>(v.i));
    case Elem::i16:
      return nb::int_(static_cast<int16_t>(v.i));
    case Elem::i32:
      return nb::int_(static_cast<int32_t>(v.i));
    case Elem::i64:
      return nb::int_(v.i);
    case Elem::f16:
      return nb::float_(static_cast<double>(f32_of_f16(v.h)));
    case Elem::bf16:
      return nb::float_(static_cast<double>(f32_of_bf16(v.h)));
    case Elem::f32:
      return nb::float_(static_cast<double>(v.f));
    default:
      return nb::float_(v.d);
  }
}

Array copied(const Array& a, Elem e) {
  check(array::check_open(a, "copy"));
  refuse_capture("a copy");
  return value_of(work(a.device(), a.size(), [&](const Exec& x) { return array::copy(a, e, x); }));
}

Array reshaped(const Array& a, nb::handle shape, std::optional<bool> copy) {
  check(array::check_open(a, "reshape"));
  std::vector<int64_t> dims = PyLong_Check(shape.ptr()) ? std::vector<int64_t>{nb::cast<int64_t>(shape)}
                                                        : nb::cast<std::vector<int64_t>>(shape);
  int64_t known = 1, open = -1;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == -1 && open < 0)
      open = static_cast<int64_t>(i);
    else if (dims[i] > 0 && known > INT64_MAX / dims[i])
      known = 0, open = -1;
    else
      known *= dims[i];
  }
  if (open >= 0 && known != 0) dims[static_cast<size_t>(open)] = a.size() / known;
  const Shape to = value_of(array::shape_of(dims, a.elem));
  if (to.elements() != a.size())
    check(Status(Code::kInvalidShape, "array.reshape: " + to_string(a.shape) + " has " + std::to_string(a.size()) +
                                          " elements, " + to_string(to) + " has " + std::to_string(to.elements())));
  std::optional<Array> view;
  if (!copy || !*copy) view = array::reshape_view(a, to);
  if (view) return *view;
  if (copy && !*copy)
    check(
        Status(Code::kInvalidArgument, "array.reshape: copy=False: no strides say " + to_string(to) + " of this view"));
  return *array::reshape_view(copied(a, a.elem), to);
}

Array permuted(const Array& a, const std::vector<int64_t>& axes) {
  check(array::check_open(a, "permute_dims"));
  if (axes.size() != static_cast<size_t>(a.shape.rank))
    check(Status(Code::kInvalidArgument,
                 strf("array.permute_dims: %zu axes of an array of %d", axes.size(), a.shape.rank)));
  int order[kMaxRank] = {};
  uint32_t seen = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    order[i] = axis_from(axes[i], a.shape.rank, "permute_dims");
    seen |= 1u << order[i];
  }
  if (seen != (1u << a.shape.rank) - 1)
    check(Status(Code::kInvalidArgument, "array.permute_dims: an axis is named twice"));
  return value_of(array::permute(a, std::span(order, axes.size())));
}

Array transposed(const Array& a, bool matrices) {
  const int n = a.shape.rank;
  if (matrices ? n < 2 : n != 2)
    check(
        Status(Code::kInvalidShape, strf("array: %s of %d axes; permute_dims() names them", matrices ? "mT" : "T", n)));
  std::vector<int64_t> axes(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) axes[static_cast<size_t>(i)] = i;
  std::swap(axes[static_cast<size_t>(n) - 1], axes[static_cast<size_t>(n) - 2]);
  return permuted(a, axes);
}

/// start + step * i as type e; computed in i64 or f64.
Array counted(nb::handle start, nb::handle step, int64_t n, Elem e, int device) {
  refuse_capture("creation");
  const Elem in = kernels::is_real(e) ? Elem::f64 : Elem::i64;
  if (!kernels::has_arithmetic(e)) check(Status(Code::kInvalidDType, strf("array: no counting in %s", name(e))));
  Operand o[2];
  for (int k = 0; k < 2; ++k) {
    const nb::handle h = k == 0 ? start : step;
    o[k].elem = in;
    o[k].value = in == Elem::f64 ? value_of(array::scalar_of(in, nb::cast<double>(nb::float_(h))))
                                 : value_of(array::scalar_of(in, nb::cast<int64_t>(h)));
  }
  kernels::MapProgram p;
  constexpr auto reg = [](int step_number) { return static_cast<uint8_t>(kernels::kMaxOperands + step_number); };
  p.operands = 2, p.index = true, p.operand[0] = p.operand[1] = in, p.result = e;
  p.step[p.steps++] = {Func::cast, in, Elem::i64, {kernels::kIndex, 0, 0}};
  p.step[p.steps++] = {Func::multiply, in, in, {reg(0), 1, 0}};
  p.step[p.steps++] = {Func::add, in, in, {reg(1), 0, 0}};
  p.step[p.steps++] = {Func::cast, e, in, {reg(2), 0, 0}};
  const Shape shape = value_of(array::shape_of(std::span(&n, 1), e));
  return value_of(work(device, n, [&](const Exec& x) { return array::run(p, o, &shape, nullptr, device, x); }));
}

template <Func kFunc>
void two_sided(nb::class_<Array>& c, const char* name) {
  const std::string n = name;
  c.def(("__" + n + "__").c_str(), [](nb::handle x, nb::handle y) { return binary(kFunc, x, y); }, nb::is_operator());
  c.def(("__r" + n + "__").c_str(), [](nb::handle x, nb::handle y) { return binary(kFunc, y, x); }, nb::is_operator());
  c.def(("__i" + n + "__").c_str(), [](nb::handle x, nb::handle y) { return in_place(kFunc, x, y); },
        nb::is_operator());
}
template <Func kFunc>
void compared(nb::class_<Array>& c, const char* name) {
  c.def(name, [](nb::handle x, nb::handle y) { return binary(kFunc, x, y); }, nb::is_operator());
}
template <Func kFunc>
void one_sided(nb::class_<Array>& c, const char* name) {
  c.def(name, [](const Array& a) {
    Operand o;
    o.array = &a;
    return apply(kFunc, &o, 1, nullptr);
  });
}

void add_operators(nb::class_<Array>& c) {
  two_sided<Func::add>(c, "add");
  two_sided<Func::subtract>(c, "sub");
  two_sided<Func::multiply>(c, "mul");
  two_sided<Func::divide>(c, "truediv");
  two_sided<Func::floor_divide>(c, "floordiv");
  two_sided<Func::remainder>(c, "mod");
  two_sided<Func::pow>(c, "pow");
  two_sided<Func::bitwise_and>(c, "and");
  two_sided<Func::bitwise_or>(c, "or");
  two_sided<Func::bitwise_xor>(c, "xor");
  two_sided<Func::bitwise_left_shift>(c, "lshift");
  two_sided<Func::bitwise_right_shift>(c, "rshift");
  compared<Func::equal>(c, "__eq__");
  compared<Func::not_equal>(c, "__ne__");
  compared<Func::less>(c, "__lt__");
  compared<Func::less_equal>(c, "__le__");
  compared<Func::greater>(c, "__gt__");
  compared<Func::greater_equal>(c, "__ge__");
  one_sided<Func::negative>(c, "__neg__");
  one_sided<Func::positive>(c, "__pos__");
  one_sided<Func::abs>(c, "__abs__");
  one_sided<Func::bitwise_invert>(c, "__invert__");
  c.def("__matmul__", &product, nb::is_operator())
      .def(
          "__rmatmul__", [](nb::handle x, nb::handle y) { return product(y, x); }, nb::is_operator())
      .def(
          "__imatmul__",
          [](nb::handle x, nb::handle y) -> nb::object {
            nb::object made = product(x, y);
            if (made.is(nb::borrow(Py_NotImplemented))) return made;
            set_item(*nb::inst_ptr<Array>(x), nb::ellipsis(), made);
            return nb::borrow(x);
          },
          nb::is_operator())
      .def("__bool__", [](const Array& a) { return nb::bool_(nb::handle(item(a, "bool()"))); })
      .def("__float__", [](const Array& a) { return nb::float_(item(a, "float()")); })
      .def("__int__", [](const Array& a) { return nb::int_(item(a, "int()")); })
      .def("__index__",
           [](const Array& a) {
             if (!kernels::is_integer(a.elem))
               check(Status(Code::kInvalidDType, strf("array: %s is no index; wanted an integer", name(a.elem))));
             return item(a, "index()");
           })
      .def("__complex__",
           [](const Array& a) {
             return nb::steal(PyComplex_FromDoubles(nb::cast<double>(nb::float_(item(a, "complex()"))), 0));
           })
      .def("item", [](const Array& a) { return item(a, "item()"); }, "The single element as a Python number. Waits.");
}

}  // namespace

Fold fold_of(const std::string& name) {
  static constexpr const char* kNames[] = {"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"};
  for (int i = 0; i < 8; ++i)
    if (name == kNames[i]) return static_cast<Fold>(i);
  check(Status(Code::kInvalidArgument, "array: no reduction '" + name + "'"));
  return Fold::sum;
}

void add_array_class(nb::module_& m, nb::class_<Array>& c) {
  add_operators(c);
  c.def("__getitem__", &get_item, nb::arg("key").none())
      .def("__setitem__", &set_item, nb::arg("key").none(), nb::arg("value"))
      .def("__len__",
           [](const Array& a) {
             if (a.shape.rank == 0) {
               PyErr_SetString(PyExc_TypeError, "array: len() of 0 axes");
               throw nb::python_error();
             }
             return a.shape.dim[0];
           })
      .def(
          "copy", [](const Array& a) { return copied(a, a.elem); }, "The same elements in new, dense memory.")
      .def(
          "view",
          [](const Array& a, nb::handle dtype) {
            check(array::check_open(a, "view()"));
            return value_of(array::view_as(a, elem_of(dtype)));
          },
          nb::arg("dtype"), "The same bits as another dtype.")
      .def(
          "astype",
          [](const Array& a, nb::handle dtype, bool copy, std::optional<std::string> device) {
            if (device && value_of(array::parse_device(*device)) != a.device())
              check(Status(Code::kUnsupported, "array: astype(device=): use to_device()"));
            const Elem e = elem_of(dtype);
            return e == a.elem && !copy ? a : copied(a, e);
          },
          nb::arg("dtype"), nb::kw_only(), nb::arg("copy") = true, nb::arg("device").none() = nb::none(),
          "The elements as another dtype; floats become integers by truncation, saturating, NaN is 0.")
      .def("reshape", &reshaped, nb::arg("shape"), nb::kw_only(), nb::arg("copy").none() = nb::none(),
           "A view where strides can say it, else a copy.")
      .def_prop_ro("T", [](const Array& a) { return transposed(a, false); })
      .def_prop_ro("mT", [](const Array& a) { return transposed(a, true); });

  nb::dict functions;
  for (int i = 0; i <= static_cast<int>(Func::select); ++i) {
    const Func f = static_cast<Func>(i);
    if (f != Func::cast) functions[array::name(f)] = nb::make_tuple(i, array::arity(f));
  }
  m.attr("array_functions") = functions;
  m.def(
      "array_1", [](int f, nb::handle x, nb::handle out) { return call(static_cast<Func>(f), &x, 1, out); },
      nb::arg("f"), nb::arg("x").none(), nb::arg("out").none());
  m.def(
      "array_2",
      [](int f, nb::handle x, nb::handle y, nb::handle out) {
        const nb::handle given[] = {x, y};
        return call(static_cast<Func>(f), given, 2, out);
      },
      nb::arg("f"), nb::arg("x").none(), nb::arg("y").none(), nb::arg("out").none());
  m.def(
      "array_3",
      [](int f, nb::handle x, nb::handle y, nb::handle w, nb::handle out) {
        const nb::handle given[] = {x, y, w};
        return call(static_cast<Func>(f), given, 3, out);
      },
      nb::arg("f"), nb::arg("x").none(), nb::arg("y").none(), nb::arg("w").none(), nb::arg("out").none());
  m.def(
      "array_own",
      [](const std::string& text, const std::vector<std::string>& names, const nb::list& types,
         const std::string& result, nb::handle result_type, bool index, const nb::list& given, nb::handle out) {
        array::Expression e{text, names, {}, result, elem_of(result_type), index};
        Operand o[kernels::kMaxOperands];
        for (size_t k = 0; k < names.size(); ++k) {
          e.types.push_back(elem_of(types[k]));
          if (!operand_of(given[k], &o[k]))
            check(Status(Code::kInvalidDType, strf("array.elementwise: %s: wanted an Array or a Python number, got %s",
                                                   names[k].c_str(), Py_TYPE(given[k].ptr())->tp_name)));
        }
        refuse_capture("elementwise");
        const Array* to = out.is_none() ? nullptr : &array_of(out, "elementwise");
        return value_of(array::apply(e, std::span(o, names.size()), to, exec_on_gpu()));
      },
      nb::arg("text"), nb::arg("names"), nb::arg("types"), nb::arg("result"), nb::arg("result_type"), nb::arg("index"),
      nb::arg("given"), nb::arg("out").none());
  m.def("array_promote",
        [](nb::handle a, nb::handle b) { return dtype_object(value_of(array::promote(elem_of(a), elem_of(b)))); });
  m.def(
      "array_fold",
      [](const std::string& kind, nb::handle x, nb::handle axis, bool keepdims, nb::handle dtype) -> nb::object {
        if (!nb::isinstance<Array>(x) && nb::hasattr(x, "_fused_fold"))
          return x.attr("_fused_fold")(kind, axis, keepdims, dtype);
        const Array& a = array_of(x, kind.c_str());
        refuse_capture(kind.c_str());
        const uint32_t axes = axes_from(a, axis, kind.c_str());
        const Elem e = dtype.is_none() ? a.elem : elem_of(dtype);
        return nb::cast(value_of(work(
            a.device(), a.size(), [&](const Exec& w) { return array::fold(fold_of(kind), a, axes, keepdims, e, w); })));
      },
      nb::arg("kind"), nb::arg("x").none(), nb::arg("axis").none(), nb::arg("keepdims"), nb::arg("dtype").none());
  m.def("array_cumulative", [](bool prod, const Array& a, int64_t axis, nb::handle dtype, bool initial) {
    const int at = axis_from(axis, a.shape.rank, "cumulative");
    const Elem e = elem_of(dtype);
    return value_of(
        work(a.device(), a.size(), [&](const Exec& x) { return array::cumulative(prod, a, at, e, initial, x); }));
  });
  m.def("array_take", [](const Array& a, const Array& at, int64_t axis, bool along) {
    const int k = axis_from(axis, a.shape.rank, along ? "take_along_axis" : "take");
    return value_of(work(a.device(), a.size(), [&](const Exec& x) { return array::take(a, at, k, along, x); }));
  });
  m.def("array_sort", [](const Array& a, int64_t axis, bool descending, bool order) {
    const int k = axis_from(axis, a.shape.rank, order ? "argsort" : "sort");
    return value_of(work(a.device(), a.size(), [&](const Exec& x) { return array::sort(a, k, descending, order, x); }));
  });
  m.def(
      "array_searchsorted",
      [](const Array& a, const Array& v, bool right, nb::handle sorter) {
        const Array* order = sorter.is_none() ? nullptr : &array_of(sorter, "searchsorted");
        return value_of(
            work(v.device(), v.size(), [&](const Exec& x) { return array::searchsorted(a, v, right, order, x); }));
      },
      nb::arg("a"), nb::arg("v"), nb::arg("right"), nb::arg("sorter").none());
  m.def("array_permute", &permuted);
  m.def(
      "array_flip", [](const Array& a, nb::handle axis) { return array::flip(a, axes_from(a, axis, "flip")); },
      nb::arg("a"), nb::arg("axis").none());
  m.def("array_broadcast_to", [](const Array& a, nb::handle shape) {
    check(array::check_open(a, "broadcast_to"));
    return value_of(array::broadcast_to(a, shape_from(shape, Elem::u8)));
  });
  m.def("array_broadcast_shapes", [](const std::vector<std::vector<int64_t>>& shapes) {
    std::vector<Shape> all;
    for (const auto& s : shapes) all.push_back(value_of(array::shape_of(s, Elem::u8)));
    return shape_tuple(value_of(array::broadcast(all)));
  });
  m.def("array_count", [](nb::handle start, nb::handle step, int64_t n, nb::handle dtype, const std::string& device) {
    return counted(start, step, n, elem_of(dtype), value_of(array::parse_device(device)));
  });
}

}  // namespace vivace::python
