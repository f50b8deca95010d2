#include "ops.h"

#include <nanobind/stl/string.h>

#include <new>

#include "bound_op.h"
#include "errors.h"
#include "runtime.h"
#include "vivace/base/check.h"
#include "vivace/ops/checked.h"
#include "vivace/ops/tactic.h"

namespace vivace::python {
namespace {

/// The body of every op function. Arguments live in the caller's frame until it returns; a capture
/// keeps them longer itself.
PyObject* call_op(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* keywords) {
  const auto* op = static_cast<const BoundOp*>(PyCapsule_GetPointer(self, nullptr));
  try {
    ops::Call call(*op->row->spec);
    Borrowed from;
    Status s = op->bind(args, static_cast<size_t>(positional), keywords, &call, &from);
    if (s.ok()) s = issue(*op->row, call, from);
    if (!s.ok()) {
      set_error(s);
      return nullptr;
    }
    if (nb::list* list = capture_keep()) {
      const Py_ssize_t n = positional + (keywords ? PyTuple_GET_SIZE(keywords) : 0);
      for (Py_ssize_t i = 0; i < n; ++i) list->append(nb::handle(args[i]));
      if (from.capsules.is_valid()) list->append(from.capsules);
    }
    Py_RETURN_NONE;
  } catch (const nb::python_error& e) {
    const_cast<nb::python_error&>(e).restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    set_error(Status(Code::kInternal, op->name + ": " + e.what()));
  }
  return nullptr;
}

/// Function object of one row; lives as long as the process.
nb::object make_function(const ops::OpRow& row, const ops::Alias* alias) {
  Result<BoundOp*> made = BoundOp::make(row, alias);
  check(made.status());
  BoundOp* op = made.value();
  op->def = {op->name.c_str(), reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_op)),
             METH_FASTCALL | METH_KEYWORDS, op->doc.c_str()};
  nb::object self = nb::steal(PyCapsule_New(op, nullptr, nullptr));
  nb::object module = nb::str("vivace.ops");
  nb::object f = nb::steal(PyCFunction_NewEx(&op->def, self.ptr(), module.ptr()));
  if (!f.is_valid()) throw nb::python_error();
  return f;
}

const ops::OpRow& row_of(const char* who, const std::string& name) {
  const ops::OpRow* row = ops::find(name);
  if (row == nullptr) check(Status(Code::kNotFound, std::string(who) + ": no op '" + name + "'"));
  return *row;
}

/// A call that is bound and checked, not issued.
struct CheckedCall {
  CheckedCall(const ops::OpRow& row, const nb::kwargs& kwargs) : call(*row.spec) {
    Result<BoundOp*> made = BoundOp::make(row, nullptr);
    check(made.status());
    const std::unique_ptr<BoundOp> op(made.value());
    for (auto [key, value] : kwargs) check(op->bind_keyword(key.ptr(), value.ptr(), &call, &from));
    check(call.check());
  }
  ops::Call call;
  Borrowed from;
};

}  // namespace

void add_ops(nb::module_& m) {
  m.def("op_functions", [] {
    nb::dict functions;
    for (const ops::OpRow* row : ops::table()) functions[row->spec->name] = make_function(*row, nullptr);
    for (const ops::Alias& a : ops::aliases()) functions[a.name] = make_function(*a.op, &a);
    return functions;
  }, "name -> function for every op and alias. Called once, by vivace.ops.");
  m.def(
      "cost",
      [](const std::string& name, nb::kwargs kwargs) -> nb::object {
        const ops::OpRow& row = row_of("cost", name);
        if (row.cost == nullptr) return nb::none();
        const ops::Cost c = row.cost(CheckedCall(row, kwargs).call);
        return nb::make_tuple(c.bytes, c.flops);
      },
      nb::arg("op"), nb::arg("arguments"),
      "(bytes, flops) that one call cannot do without; None for a composite op. Nothing runs.");
  m.def(
      "workspace_size",
      [](const std::string& name, int capability, nb::kwargs kwargs) {
        const ops::OpRow& row = row_of("workspace_size", name);
        if (row.workspace == nullptr)
          check(Status(Code::kUnsupported,
                       "workspace_size: " + name + " is a composite: what it works in are its ports"));
        const Result<int64_t> bytes = row.workspace(CheckedCall(row, kwargs).call, static_cast<Arch>(capability));
        check(bytes.status());
        return bytes.value();
      },
      nb::arg("op"), nb::arg("capability"), nb::arg("arguments"),
      "Bytes of device memory of the library's that a call works in on a chip of this compute capability. Nothing "
      "runs.");
  m.def("checked", [] { return ops::checked(); }, "Whether checked mode is on.");
  m.def(
      "set_checked", &ops::set_checked, nb::arg("on"),
      "Checked mode, for the whole process: contents that ops trust are held against their limits before each launch.");
  m.def(
      "picked_kernel",
      [](const std::string& name, int capability, nb::kwargs kwargs) {
        const ops::OpRow& row = row_of("picked_kernel", name);
        const Result<std::string> picked =
            ops::picked_kernel(row, CheckedCall(row, kwargs).call, static_cast<Arch>(capability));
        check(picked.status());
        return picked.value();
      },
      nb::arg("op"), nb::arg("capability"), nb::arg("arguments"),
      "The kernel that a call would run on a chip of this compute capability, 90 for 9.0. Nothing is compiled or run.");
  m.def(
      "row_class",
      [](const std::string& name, nb::kwargs kwargs) -> nb::object {
        const ops::OpRow& row = row_of("row_class", name);
        return row.row_class == nullptr ? nb::none()
                                        : nb::object(nb::int_(row.row_class(CheckedCall(row, kwargs).call)));
      },
      nb::arg("op"), nb::arg("arguments"),
      "Invariance class of a call's rows on a GPU: calls of one class give a row the same bits, whatever rows are "
      "beside it. None for a composite op.");
}

}  // namespace vivace::python
