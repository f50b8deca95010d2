// BoundOp: one Python function of the table: an op, or an alias with some attributes fixed.
#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "tensor.h"
#include "vivace/ops/registry.h"

namespace vivace::python {

namespace nb = nanobind;

struct BoundOp {
  const ops::OpRow* row;
  std::string name;
  std::string doc;  // "name(signature)\n--\n\ntext": inspect reads the first line
  PyObject* ports[ops::kMaxPorts];  // interned names: keywords of a call site are the same objects
  PyObject* attrs[ops::kMaxAttrs];
  bool fixed[ops::kMaxAttrs] = {};  // set by the alias
  double fixed_value[ops::kMaxAttrs] = {};
  PyMethodDef def;

  /// `alias` may be null. Errors: an alias that names an attribute or a value that is not there.
  static Result<BoundOp*> make(const ops::OpRow& row, const ops::Alias* alias);

  /// Binds Python arguments in the vectorcall form. `from` receives what came with the tensors.
  Status bind(PyObject* const* args, size_t positional, PyObject* keywords, ops::Call* call, Borrowed* from) const;
  Status bind_keyword(PyObject* name, PyObject* value, ops::Call* call, Borrowed* from) const;

 private:
  Status bind_port(int i, PyObject* value, ops::Call* call, Borrowed* from) const;
  Status bind_attr(int i, PyObject* value, ops::Call* call) const;
  Status error(Code code, const std::string& message) const { return Status(code, name + ": " + message); }
};

/// Text of BoundOp::doc.
std::string op_doc(const ops::OpSpec& spec, const std::string& name, const bool* fixed, const char* fixed_attrs);

}  // namespace vivace::python
