#include "bound_op.h"

#include "errors.h"
#include "tensor.h"
#include "vivace/base/check.h"

namespace vivace::python {
namespace {

std::string type_and_repr(PyObject* o) {
  nb::object r = nb::steal(PyObject_Repr(o));
  const char* s = r.is_valid() ? PyUnicode_AsUTF8(r.ptr()) : nullptr;
  PyErr_Clear();
  std::string text = s ? s : "?";
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return std::string(Py_TYPE(o)->tp_name) + " " + text;
}

bool same_name(PyObject* a, PyObject* b) { return a == b || PyUnicode_Compare(a, b) == 0; }

/// Calls f(key, value) for each "key=value" of a comma-separated list; stops at the first error.
template <class F>
Status for_each_setting(std::string_view list, F&& f) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view one = list.substr(0, comma);
    const size_t equals = one.find('=');
    if (equals == std::string_view::npos)
      return Status(Code::kInternal, "alias setting without '=': " + std::string(one));
    VV_TRY(f(one.substr(0, equals), one.substr(equals + 1)));
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
  }
  return {};
}

}  // namespace

Result<BoundOp*> BoundOp::make(const ops::OpRow& row, const ops::Alias* alias) {
  auto b = std::make_unique<BoundOp>();
  const ops::OpSpec& spec = *row.spec;
  b->row = &row;
  b->name = alias ? alias->name : spec.name;
  for (size_t i = 0; i < spec.ports.size(); ++i) b->ports[i] = PyUnicode_InternFromString(spec.ports[i].name);
  for (size_t i = 0; i < spec.attrs.size(); ++i) b->attrs[i] = PyUnicode_InternFromString(spec.attrs[i].name);
  if (alias != nullptr) {
    ops::Call call(spec);  // the core's own rules decide what the alias may set
    Status s = for_each_setting(alias->attrs, [&](std::string_view key, std::string_view value) -> Status {
      size_t i = 0;
      while (i < spec.attrs.size() && key != spec.attrs[i].name) ++i;
      const bool number = i < spec.attrs.size() && spec.attrs[i].kind != ops::AttrKind::choice;
      VV_TRY(number ? call.set(key, std::strtod(std::string(value).c_str(), nullptr)) : call.set(key, value));
      b->fixed[i] = true;
      b->fixed_value[i] = call.attr_at(static_cast<int>(i));
      return {};
    });
    if (!s.ok()) return std::move(s).with_context("alias " + b->name);
  }
  b->doc = op_doc(spec, b->name, b->fixed, alias ? alias->attrs : "");
  return b.release();
}

Status BoundOp::bind(PyObject* const* args, size_t positional, PyObject* keywords, ops::Call* call,
                     Borrowed* from) const {
  const size_t port_count = row->spec->ports.size();
  for (size_t i = 0; i < row->spec->attrs.size(); ++i)
    if (fixed[i]) call->set_at(static_cast<int>(i), fixed_value[i]);
  if (positional > port_count)
    return error(Code::kInvalidArgument,
                 strf("%zu positional arguments for %zu ports; attributes go by name", positional, port_count));
  for (size_t i = 0; i < positional; ++i) VV_TRY(bind_port(static_cast<int>(i), args[i], call, from));
  const Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  for (Py_ssize_t k = 0; k < named; ++k)
    VV_TRY(bind_keyword(PyTuple_GET_ITEM(keywords, k), args[positional + static_cast<size_t>(k)], call, from));
  return {};
}

Status BoundOp::bind_keyword(PyObject* key, PyObject* value, ops::Call* call, Borrowed* from) const {
  const int port_count = static_cast<int>(row->spec->ports.size()),
            attr_count = static_cast<int>(row->spec->attrs.size());
  // Identity first: keywords written at a call site are interned, so this nearly always hits.
  for (int i = 0; i < port_count; ++i)
    if (key == ports[i]) return bind_port(i, value, call, from);
  for (int i = 0; i < attr_count; ++i)
    if (key == attrs[i]) return bind_attr(i, value, call);
  for (int i = 0; i < port_count; ++i)
    if (same_name(key, ports[i])) return bind_port(i, value, call, from);
  for (int i = 0; i < attr_count; ++i)
    if (same_name(key, attrs[i])) return bind_attr(i, value, call);
  std::string names, settings;
  for (const ops::Port& p : row->spec->ports) names += std::string(names.empty() ? "" : ", ") + p.name;
  for (const ops::Attr& a : row->spec->attrs) settings += std::string(settings.empty() ? "" : ", ") + a.name;
  return error(Code::kNotFound, strf("no port or attribute '%s'; ports: %s; attributes: %s", PyUnicode_AsUTF8(key),
                                     names.c_str(), settings.empty() ? "none" : settings.c_str()));
}

Status BoundOp::bind_port(int i, PyObject* value, ops::Call* call, Borrowed* from) const {
  const ops::Port& p = row->spec->ports[static_cast<size_t>(i)];
  if (value == Py_None) return {};
  if (call->port_at(i).present()) return error(Code::kInvalidArgument, strf("port %s is given twice", p.name));
  Tensor t;
  if (Status s = to_tensor(value, p.io != ops::Io::in, &t, from); !s.ok())
    return std::move(s).with_context(strf("%s: port %s", name.c_str(), p.name));
  call->bind_at(i, t);
  return {};
}

Status BoundOp::bind_attr(int i, PyObject* value, ops::Call* call) const {
  const ops::Attr& a = row->spec->attrs[static_cast<size_t>(i)];
  if (fixed[i])
    return error(Code::kNotFound,
                 strf("attribute %s is fixed by this name; call %s to choose it", a.name, row->spec->name));
  if (a.kind == ops::AttrKind::choice) {
    Py_ssize_t n = 0;
    const char* s = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, &n) : nullptr;
    if (s == nullptr) {
      PyErr_Clear();
      return error(Code::kInvalidArgument,
                   strf("attribute %s takes one of %s, got %s", a.name, a.choices, type_and_repr(value).c_str()));
    }
    return call->assign(i, std::string_view(s, static_cast<size_t>(n)));
  }
  const double number = PyUnicode_Check(value) ? (PyErr_SetNone(PyExc_TypeError), -1.0) : PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    const char* want = a.kind == ops::AttrKind::real      ? "a number"
                       : a.kind == ops::AttrKind::integer ? "an integer"
                                                          : "true or false";
    return error(Code::kInvalidArgument,
                 strf("attribute %s takes %s, got %s", a.name, want, type_and_repr(value).c_str()));
  }
  return call->assign(i, number);
}

}  // namespace vivace::python
