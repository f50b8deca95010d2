// A checkpoint's metadata as a dict, for tokenizers and templates.
#include "model.h"

#include <nanobind/stl/string.h>

#include "errors.h"
#include "vivace/engine/checkpoint/checkpoint.h"

namespace vivace::python {
namespace {

namespace nb = nanobind;
using engine::MetaEntry;
using engine::MetaType;

nb::object text(std::string_view s) {
  // Vocabularies may hold bytes that are no UTF-8; those stay distinguishable and round-trip.
  PyObject* o = PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "surrogateescape");
  if (o == nullptr) throw nb::python_error();
  return nb::steal(o);
}

nb::object element(const MetaEntry& e, size_t i) {
  switch (e.type) {
    case MetaType::boolean: return nb::bool_(e.integer(i) != 0);
    case MetaType::f32:
    case MetaType::f64: return nb::float_(e.number(i));
    case MetaType::u64: return nb::int_(static_cast<uint64_t>(e.integer(i)));
    default: return nb::int_(e.integer(i));
  }
}

nb::object value(const MetaEntry& e) {
  if (!e.is_array) return e.type == MetaType::string ? text(e.raw) : element(e, 0);
  nb::list items;
  if (e.type == MetaType::string)
    for (const std::string_view s : e.strings) items.append(text(s));
  else
    for (size_t i = 0; i < e.count(); ++i) items.append(element(e, i));
  return items;
}

nb::dict read_metadata(const std::string& path) {
  Result<engine::Checkpoint> c = engine::Checkpoint::open(path);
  check(c.status());
  nb::dict d;
  for (const MetaEntry& e : c->metadata().entries()) d[text(e.key)] = value(e);
  return d;
}

}  // namespace

void add_checkpoint(nb::module_& m) { m.def("read_metadata", &read_metadata, nb::arg("path")); }

}  // namespace vivace::python
