// A checkpoint as Python sees it: metadata for tokenizers and templates, tensors and names for converters.
#include "model.h"

#include <nanobind/stl/string.h>

#include "errors.h"
#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/models/decoder/weights.h"

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

/// [(name, dtype, shape, file, offset, bytes)] in file order.
nb::list read_tensors(const std::string& path) {
  Result<engine::Checkpoint> c = engine::Checkpoint::open(path);
  check(c.status());
  nb::list all;
  for (const engine::TensorEntry& t : c->tensors()) {
    nb::list shape;
    for (int i = 0; i < t.shape.rank; ++i) shape.append(t.shape[i]);
    all.append(nb::make_tuple(text(t.name), name(t.dtype), nb::tuple(shape), text(c->files()[static_cast<size_t>(t.file)].path()), t.offset, t.bytes));
  }
  return all;
}

/// The decoder family of a GGUF (`experts` tells two of one name apart) or hub architecture: its names and its
/// weights' [(gguf, hub, hub_transposed)], or None.
nb::object decoder_family(const std::string& architecture, bool experts) {
  using models::decoder::kExperts;
  for (const models::decoder::Family& f : models::decoder::kFamilies) {
    if (architecture != f.hf_arch && (architecture != f.gguf_arch || f.has(kExperts) != experts)) continue;
    nb::list weights;
    for (const auto& w : models::decoder::weight_names(f)) weights.append(nb::make_tuple(w.gguf, w.hf, w.hf_transposed));
    nb::dict d;
    d["name"] = f.name, d["gguf"] = f.gguf_arch, d["hub"] = f.hf_arch, d["weights"] = weights;
    d["interleaved"] = std::string_view(f.gguf_rope) == "interleaved", d["plus_one"] = f.has(models::decoder::kHubPlusOne);
    return d;
  }
  return nb::none();
}

}  // namespace

void add_checkpoint(nb::module_& m) {
  m.def("read_metadata", &read_metadata, nb::arg("path"));
  m.def("read_tensors", &read_tensors, nb::arg("path"));
  m.def("decoder_family", &decoder_family, nb::arg("architecture"), nb::arg("experts") = false);
}

}  // namespace vivace::python
