// A checkpoint as Python sees it: metadata for tokenizers and templates, tensors and names for converters.
#include "model.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "errors.h"
#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/checkpoint/json.h"
#include "vivace/models/decoder/input_scales.h"
#include "vivace/models/decoder/plan.h"
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

/// What `s` takes as a str: a character has the width of the widest.
uint64_t text_bytes(std::string_view s) {
  unsigned char top = 0;
  for (unsigned char c : s) top = std::max(top, c);
  return 64 + s.size() * (top >= 0xf0 ? 4 : top >= 0x80 ? 2 : 1);
}

/// About the bytes of value(e), with its key.
uint64_t object_bytes(const MetaEntry& e) {
  uint64_t bytes = 256 + (e.is_array ? e.count() * 8 : 0);
  if (e.type != MetaType::string) return bytes + e.count() * 32;
  if (!e.is_array) return bytes + text_bytes(e.raw);
  for (const std::string_view s : e.strings) bytes += text_bytes(s);
  return bytes;
}

/// LimitExceeded where `bytes` of objects, the file's own pages and the reader's tables would pass 4 x the files + 64
/// MB.
void check_room(const engine::Checkpoint& c, const char* what, uint64_t bytes) {
  uint64_t files = 0;
  for (const engine::MappedFile& f : c.files()) files += f.stored_bytes();
  const uint64_t room =
      3 * files +
      (36u << 20);  // what is left of 4 x and 64 MB: pages of the files, tables, and what allocators round up
  if (bytes > room)
    check(Status(Code::kLimitExceeded,
                 strf("%s: its %s would take %llu bytes in Python, at most %llu are spent on a checkpoint of %llu",
                      c.files()[0].path().c_str(), what, static_cast<unsigned long long>(bytes),
                      static_cast<unsigned long long>(room), static_cast<unsigned long long>(files))));
}

nb::dict read_metadata(const std::string& path) {
  Result<engine::Checkpoint> c = engine::Checkpoint::open(path);
  check(c.status());
  uint64_t bytes = 0;
  for (const MetaEntry& e : c->metadata().entries())
    bytes += object_bytes(e) + e.strings.size() * sizeof(std::string_view);
  check_room(*c, "metadata", bytes);
  nb::dict d;
  for (const MetaEntry& e : c->metadata().entries()) d[text(e.key)] = value(e);
  return d;
}

/// [(name, dtype, shape, file, offset, bytes)] in file order.
nb::list read_tensors(const std::string& path) {
  Result<engine::Checkpoint> c = engine::Checkpoint::open(path);
  check(c.status());
  check_room(*c, "tensors", c->tensors().size() * 800);  // measured, with the reader's entry
  std::vector<nb::object> files;
  for (const engine::MappedFile& f : c->files()) files.push_back(text(f.path()));
  nb::list all;
  for (const engine::TensorEntry& t : c->tensors()) {
    nb::list shape;
    for (int i = 0; i < t.shape.rank; ++i) shape.append(t.shape[i]);
    all.append(nb::make_tuple(text(t.name), name(t.dtype), nb::tuple(shape), files[static_cast<size_t>(t.file)],
                              t.offset, t.bytes));
  }
  return all;
}

/// Where a document's bytes are: [(key, bytes, members, whether the first member is an array, where they begin)] of the
/// members of the object at `key`, or of the document without one. A member's bytes go from its key's to the next
/// key's, or to the end.
nb::list json_members(nb::bytes data, const std::string& file, const std::string& key) {
  const std::string_view source(data.c_str(), data.size());
  Result<engine::Json> json = engine::Json::parse(source, file);
  check(json.status());
  Result<engine::JsonValue> object = json->root().as_object();
  check(object.status());
  nb::list all;
  if (object->size() == 0) return all;
  // Keys are views into a copy of the source in which nothing moves, and the first quote opens the first key.
  const char* const begin = (*object->begin()).key().data() - source.find('"') - 1;
  const char* end = begin + source.size();
  if (!key.empty()) {
    const std::optional<engine::JsonValue> found = object->find(key);
    if (!found || !found->is_object()) return all;
    for (engine::JsonValue v : *object)
      if (v.key().data() > found->key().data()) end = std::min(end, v.key().data());
    object = *found;
  }
  std::vector<engine::JsonValue> members;
  for (engine::JsonValue v : *object) members.push_back(v);
  for (size_t i = 0; i < members.size(); ++i) {
    const engine::JsonValue v = members[i];
    const char* next = i + 1 < members.size() ? members[i + 1].key().data() : end;
    all.append(nb::make_tuple(text(v.key()), next - v.key().data(), v.size(), v.size() > 0 && (*v.begin()).is_array(),
                              v.key().data() - begin));
  }
  return all;
}

/// The decoder family of a GGUF (`experts` tells two of one name apart) or hub architecture: its names and its
/// weights' [(gguf, hub, hub_transposed)], or None; of a family that sees too, whose tower has no place in one file.
nb::object decoder_family(const std::string& architecture, bool experts) {
  using models::decoder::kExperts;
  for (const models::decoder::Family& f : models::decoder::kFamilies) {
    if (architecture != f.hf_arch && (architecture != f.gguf_arch || f.has(kExperts) != experts)) continue;
    if (f.has(models::decoder::kVision)) continue;
    nb::list weights;
    for (const auto& w : models::decoder::weight_names(f))
      weights.append(nb::make_tuple(w.gguf, w.hf, w.hf_transposed));
    nb::dict d;
    d["name"] = f.name, d["gguf"] = f.gguf_arch, d["hub"] = f.hf_arch, d["weights"] = weights;
    d["interleaved"] = std::string_view(f.gguf_rope) == "interleaved",
    d["plus_one"] = f.has(models::decoder::kHubPlusOne);
    d["recurrent"] = f.has(models::decoder::kRecurrent);
    return d;
  }
  return nb::none();
}

/// What a load would refuse of a decoder's configuration and tensors, in the same words.
void check_decoder(const std::string& path) {
  Result<engine::Checkpoint> c = engine::Checkpoint::open(path);
  check(c.status());
  engine::WeightSource source(std::move(c).value());
  source.keep_fp4();
  Result<models::decoder::DecoderConfig> config = models::decoder::read_config(source.checkpoint());
  check(config.ok() ? Status() : std::move(config).status().with_context(path));
  models::decoder::DecoderWeights weights;
  check(models::decoder::load_weights(source, *config, &weights).with_context(path));
}

/// Whether a load with fixed scales of activations finds them in the checkpoint, by the names of its tensors.
bool has_input_scales(const std::string& path) {
  Result<engine::Checkpoint> c = engine::Checkpoint::open(path);
  check(c.status());
  Result<models::decoder::DecoderConfig> config = models::decoder::read_config(*c);
  check(config.ok() ? Status() : std::move(config).status().with_context(path));
  return models::decoder::has_input_scales(*c, *config);
}

/// The names alone, before anything is opened; a combination that this checkpoint does not take is found by the load.
void check_plan(const std::string& precision, const std::string& head, bool host) {
  check(models::decoder::pick_plan(precision, head, host ? Place::host : Place::device).status());
}

}  // namespace

void add_checkpoint(nb::module_& m) {
  m.def("read_metadata", &read_metadata, nb::arg("path"));
  m.def("json_members", &json_members, nb::arg("data"), nb::arg("file"), nb::arg("key") = "");
  m.def("read_tensors", &read_tensors, nb::arg("path"));
  m.def("check_decoder", &check_decoder, nb::arg("path"));
  m.def("has_input_scales", &has_input_scales, nb::arg("path"));
  m.def("check_plan", &check_plan, nb::arg("precision"), nb::arg("head"), nb::arg("host"));
  m.def("decoder_family", &decoder_family, nb::arg("architecture"), nb::arg("experts") = false);
}

}  // namespace vivace::python
