// Programs of several functions in one pass: what array.fuse and array.reduction trace in Python, checked and run.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "array.h"
#include "vivace/base/check.h"

namespace vivace::python {
namespace {

using array::Elem;
using array::Exec;
using array::Func;
using array::name;  // beside vivace::name of DType
using array::Operand;
using array::Weak;
using kernels::kMaxOperands;
using kernels::kMaxSteps;
using kernels::MapProgram;

[[noreturn]] void refuse(const std::string& why) {
  check(Status(Code::kInvalidArgument, "array: a program: " + why));
  __builtin_unreachable();
}

/// `steps`: (function, type, from, register, register, register) each; operand k is register k, step i writes register
/// kMaxOperands + i, kIndex is the element's number.
MapProgram program_of(const nb::list& operands, const nb::list& steps, nb::handle result) {
  MapProgram p;
  if (operands.size() > kMaxOperands || operands.size() == 0 || steps.size() > kMaxSteps)
    refuse(
        strf("%zu operands and %zu steps; at most %d and %d", operands.size(), steps.size(), kMaxOperands, kMaxSteps));
  for (const nb::handle h : operands) p.operand[p.operands++] = elem_of(h);
  for (const nb::handle h : steps) {
    const nb::tuple t = nb::cast<nb::tuple>(h);
    const int f = nb::cast<int>(t[0]);
    if (t.size() != 6 || f < 0 || f > static_cast<int>(Func::select)) refuse("a step that is none");
    kernels::MapStep s{static_cast<Func>(f), elem_of(t[1]), elem_of(t[2]), {}};
    for (size_t k = 0; k < 3; ++k) {
      const int r = nb::cast<int>(t[k + 3]);
      if (r == kernels::kIndex)
        p.index = true;
      else if (r < 0 || (r >= p.operands && (r < kMaxOperands || r >= kMaxOperands + p.steps)))
        refuse("a register not set");
      s.in[k] = static_cast<uint8_t>(r);
    }
    p.step[p.steps++] = s;
  }
  p.result = elem_of(result);
  return p;
}

/// Arrays as they are, of the program's types; Python numbers as values of them.
void operands_of(const MapProgram& p, const nb::list& given, const char* call, Operand* o) {
  if (p.index) refuse("the element's number with operands of any shape");
  if (given.size() != static_cast<size_t>(p.operands)) refuse(strf("%zu operands of %d", given.size(), p.operands));
  for (int k = 0; k < p.operands; ++k) {
    if (!operand_of(given[static_cast<size_t>(k)], &o[k]))
      check(Status(Code::kInvalidDType, strf("array.%s: wanted an Array or a Python number, got %s", call,
                                             Py_TYPE(given[static_cast<size_t>(k)].ptr())->tp_name)));
    if (o[k].array == nullptr) {
      o[k].value = value_of(array::value_as(p.operand[k], o[k])), o[k].elem = p.operand[k];
    } else if (o[k].array->elem != p.operand[k]) {
      check(Status(Code::kInvalidDType, strf("array.%s: operand %d: wanted %s, got %s", call, k, name(p.operand[k]),
                                             name(o[k].array->elem))));
    }
  }
}

/// The first array's device, and how much work there is, at least.
std::pair<int, int64_t> extent(const Operand* o, int n) {
  int device = array::kHost;
  int64_t most = 1;
  for (int k = n - 1; k >= 0; --k)
    if (o[k].array != nullptr) device = o[k].array->device(), most = std::max(most, o[k].array->size());
  return {device, most};
}

Array run_map(const MapProgram& p, const nb::list& given, nb::handle out) {
  Operand o[kMaxOperands];
  operands_of(p, given, "fuse", o);
  refuse_capture("fuse");
  const Array* const to = out.is_none() ? nullptr : &array_of(out, "fuse");
  if (to != nullptr && to->elem != p.result)
    check(Status(Code::kInvalidDType, strf("array.fuse: the result is %s, out is %s", name(p.result), name(to->elem))));
  const auto [device, n] = extent(o, p.operands);
  return value_of(work(device, n, [&](const Exec& x) {
    return array::run(p, std::span(o, static_cast<size_t>(p.operands)), nullptr, to, array::kHost, x);
  }));
}

/// A new array of numbers alone: `given` are the operands' values.
Array run_create(const MapProgram& given_program, const nb::list& given, nb::handle shape, const std::string& device) {
  MapProgram p = given_program;
  Operand o[kMaxOperands];
  p.index = false;
  operands_of(p, given, "random", o);
  for (int k = 0; k < p.operands; ++k)
    if (o[k].array != nullptr) refuse("an Array where a number is wanted");
  p.index = given_program.index;
  refuse_capture("creation");
  const Shape s = shape_from(shape, p.result);
  const int where = value_of(array::parse_device(device));
  return value_of(work(where, s.elements(), [&](const Exec& x) {
    return array::run(p, std::span(o, static_cast<size_t>(p.operands)), &s, nullptr, where, x);
  }));
}

uint32_t mask_of(const std::vector<int>& axes) {
  uint32_t mask = 0;
  for (const int a : axes)
    if (a >= 0 && a < kMaxRank) mask |= 1u << a;
  return mask;
}

/// Folded in the program's result, then cast.
Array run_fold(const kernels::How& how, const MapProgram& p, const nb::list& given, const std::vector<int>& axes,
               bool keepdims, nb::handle dtype, const char* call) {
  Operand o[kMaxOperands];
  operands_of(p, given, call, o);
  refuse_capture(call);
  if (p.result != array::carried(p.result)) refuse(strf("a fold of %s", name(p.result)));
  const auto [device, n] = extent(o, p.operands);
  return value_of(work(device, n, [&](const Exec& x) -> Result<Array> {
    VV_ASSIGN(Array to, array::fold(how, p, std::span(o, static_cast<size_t>(p.operands)), mask_of(axes), keepdims, x));
    if (dtype.is_none() || to.elem == elem_of(dtype)) return to;
    return array::copy(to, elem_of(dtype), x);
  }));
}

}  // namespace

void add_array_program(nb::module_& m) {
  m.attr("array_most_operands") = kMaxOperands;
  m.attr("array_most_steps") = kMaxSteps;
  m.attr("array_index") = kernels::kIndex;
  m.attr("array_cast_function") = static_cast<int>(Func::cast);
  m.def(
      "array_signature",
      [](int f, const nb::list& kinds) {
        std::vector<array::Kind> k;
        for (const nb::handle h : kinds) {
          const bool number = PyType_Check(h.ptr());
          k.push_back(!number                                            ? array::Kind{elem_of(h), Weak::none}
                      : h.is(reinterpret_cast<PyObject*>(&PyBool_Type))  ? array::Kind{{}, Weak::boolean}
                      : h.is(reinterpret_cast<PyObject*>(&PyFloat_Type)) ? array::Kind{{}, Weak::real}
                                                                         : array::Kind{{}, Weak::integer});
        }
        const Func func = static_cast<Func>(f);
        if (f < 0 || f > static_cast<int>(Func::select) || static_cast<size_t>(array::arity(func)) != k.size())
          refuse("no such function");
        const array::Signature s = value_of(array::signature(func, k));
        return nb::make_tuple(dtype_object(s.compute), dtype_object(s.result));
      },
      "What a function computes in and gives, of operands that are dtypes or, of Python numbers, bool, int or float.");
  nb::class_<MapProgram>(m, "ArrayProgram")
      .def(
          "__init__",
          [](MapProgram* p, const nb::list& operands, const nb::list& steps, nb::handle result) {
            new (p) MapProgram(program_of(operands, steps, result));
          },
          nb::arg("operands"), nb::arg("steps"), nb::arg("result"))
      .def("map", &run_map, nb::arg("given"), nb::arg("out").none())
      .def("create", &run_create, nb::arg("given"), nb::arg("shape"), nb::arg("device"))
      .def("fold",
           [](const MapProgram& p, const std::string& kind, const nb::list& given, const std::vector<int>& axes,
              bool keepdims, nb::handle dtype) {
             return run_fold({fold_of(kind), nullptr}, p, given, axes, keepdims, dtype, kind.c_str());
           })
      .def("reduce", [](const MapProgram& p, const MapProgram& combine, const nb::list& constants, nb::handle identity,
                        const nb::list& given, const std::vector<int>& axes, bool keepdims) {
        kernels::Joining own{combine, {}, {}};
        if (combine.operands < 2 || combine.steps == 0 || combine.result != p.result ||
            combine.operand[0] != p.result || combine.operand[1] != p.result ||
            constants.size() != static_cast<size_t>(combine.operands - 2))
          refuse("a combine that does not take and give two values of the map's type");
        Operand value;
        for (int k = 2; k < combine.operands; ++k) {
          value = Operand{};
          if (!operand_of(constants[static_cast<size_t>(k - 2)], &value)) refuse("a constant that is no number");
          own.constant[k] = value_of(array::value_as(combine.operand[k], value));
        }
        value = Operand{};
        if (!operand_of(identity, &value) || value.array != nullptr) refuse("an identity that is no number");
        own.identity = value_of(array::value_as(p.result, value));
        return run_fold({kernels::Fold::sum, &own}, p, given, axes, keepdims, nb::none(), "reduction");
      });
}

}  // namespace vivace::python
