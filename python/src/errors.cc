#include "errors.h"

#include <string>

#include "vivace/base/printable.h"

namespace vivace::python {
namespace {

PyObject* classes[kCodeCount];  // by Code; index 0 is vivace.Error. Never freed: they outlive the module.

/// The builtin that callers who do not know Vivace would catch, or null.
PyObject* builtin_base(Code c) {
  switch (c) {
    case Code::kInvalidArgument:
    case Code::kInvalidShape:
    case Code::kInvalidLayout:
    case Code::kInvalidDevice:
    case Code::kAliasError:
    case Code::kCorruptData: return PyExc_ValueError;
    case Code::kInvalidDType: return PyExc_TypeError;
    case Code::kNotFound: return PyExc_LookupError;
    case Code::kUnsupported: return PyExc_NotImplementedError;
    case Code::kIoError: return PyExc_OSError;
    case Code::kOutOfMemory: return PyExc_MemoryError;
    default: return nullptr;
  }
}

/// "InvalidShape" -> "InvalidShapeError", "AliasError" as it is.
std::string class_name(Code c) {
  std::string n = name(c);
  return n.ends_with("Error") ? n : n + "Error";
}

}  // namespace

void add_errors(nb::module_& m) {
  const auto make = [&](const std::string& name, nb::handle bases, const char* code, const char* doc) {
    nb::dict members;
    members["code"] = code;
    nb::object c = nb::steal(PyErr_NewExceptionWithDoc(("vivace." + name).c_str(), doc, bases.ptr(), members.ptr()));
    if (!c.is_valid()) throw nb::python_error();
    m.attr(name.c_str()) = c;
    return c.release().ptr();
  };
  classes[0] = make("Error", PyExc_RuntimeError, "",
                    "Base of every error that Vivace raises. `code` is the stable name of its kind.");
  for (int i = 1; i < kCodeCount; ++i) {
    const Code c = static_cast<Code>(i);
    PyObject* builtin = builtin_base(c);
    nb::object bases = builtin ? nb::object(nb::make_tuple(nb::borrow(classes[0]), nb::borrow(builtin)))
                               : nb::object(nb::make_tuple(nb::borrow(classes[0])));
    classes[i] =
        make(class_name(c), bases, name(c), (std::string("Code ") + name(c) + "; see docs/errors.md.").c_str());
  }
}

void set_error(const Status& s) {
  PyErr_SetString(classes[static_cast<int>(s.code())], printable(s.message()).c_str());
}

std::string take_python_error() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  nb::object t = nb::steal(type), v = nb::steal(value), tb = nb::steal(trace);
  nb::object text = nb::steal(v.is_valid() ? PyObject_Str(v.ptr()) : nullptr);
  const char* s = text.is_valid() ? PyUnicode_AsUTF8(text.ptr()) : nullptr;
  PyErr_Clear();
  const char* n = t.is_valid() ? reinterpret_cast<PyTypeObject*>(t.ptr())->tp_name : "error";
  return std::string(n) + ": " + (s ? s : "(no message)");
}

}  // namespace vivace::python
