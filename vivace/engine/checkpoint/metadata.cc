#include "vivace/engine/checkpoint/metadata.h"

#include <algorithm>
#include <numeric>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/parse.h"

namespace vivace::engine {
namespace {

template <class T>
T load(std::string_view raw, size_t i) {
  return ArrayView<T>(raw)[i];
}

bool is_integer(MetaType t) {
  return (t <= MetaType::i32) || t == MetaType::u64 || t == MetaType::i64;
}
bool is_number(MetaType t) {
  return is_integer(t) || t == MetaType::f32 || t == MetaType::f64;
}

}  // namespace

const char* name(MetaType t) {
  static constexpr const char* kNames[kMetaTypeCount] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                         "i32", "f32", "bool", "string", "array",
                                                         "u64", "i64", "f64"};
  return kNames[static_cast<int>(t)];
}

size_t MetaEntry::count() const {
  if (!is_array) return 1;
  switch (type) {
    case MetaType::u8:
    case MetaType::i8:
    case MetaType::boolean:
      return raw.size();
    case MetaType::u16:
    case MetaType::i16:
      return raw.size() / 2;
    case MetaType::u32:
    case MetaType::i32:
    case MetaType::f32:
      return raw.size() / 4;
    case MetaType::u64:
    case MetaType::i64:
    case MetaType::f64:
      return raw.size() / 8;
    case MetaType::string:
      return strings.size();
    case MetaType::array:
      break;
  }
  return 0;
}

std::string MetaEntry::type_name() const {
  return is_array ? strf("array of %s [%zu]", name(type), count()) : std::string(name(type));
}

int64_t MetaEntry::integer(size_t i) const {
  switch (type) {
    case MetaType::u8:
    case MetaType::boolean:
      return load<uint8_t>(raw, i);
    case MetaType::i8:
      return load<int8_t>(raw, i);
    case MetaType::u16:
      return load<uint16_t>(raw, i);
    case MetaType::i16:
      return load<int16_t>(raw, i);
    case MetaType::u32:
      return load<uint32_t>(raw, i);
    case MetaType::i32:
      return load<int32_t>(raw, i);
    case MetaType::u64:
    case MetaType::i64:
      return load<int64_t>(raw, i);
    default:
      return 0;
  }
}

double MetaEntry::number(size_t i) const {
  if (type == MetaType::f32) return load<float>(raw, i);
  if (type == MetaType::f64) return load<double>(raw, i);
  if (type == MetaType::u64) return static_cast<double>(load<uint64_t>(raw, i));
  return static_cast<double>(integer(i));
}

const MetaEntry* Metadata::find(std::string_view key) const {
  const auto at =
      std::lower_bound(by_key_.begin(), by_key_.end(), key,
                       [this](uint32_t i, std::string_view k) { return entries_[i].key < k; });
  return at != by_key_.end() && entries_[*at].key == key ? &entries_[*at] : nullptr;
}

Result<const MetaEntry*> Metadata::want(std::string_view key, bool array, const char* wanted,
                                        bool (*accepts)(MetaType)) const {
  const MetaEntry* e = find(key);
  if (!e)
    return Status(Code::kNotFound, strf("%s: metadata has no key %s (wanted %s)", file_.c_str(),
                                        quote(key).c_str(), wanted));
  if (e->is_array == array && accepts(e->type)) return e;
  return Status(Code::kCorruptData, strf("%s: metadata key %s: expected %s, got %s", file_.c_str(),
                                          quote(key).c_str(), wanted, e->type_name().c_str()));
}

Result<uint64_t> Metadata::get_u64(std::string_view key) const {
  VV_ASSIGN(const MetaEntry* e, want(key, false, "an integer >= 0", is_integer));
  const int64_t v = e->integer();
  if (v < 0 && e->type != MetaType::u64)
    return Status(Code::kCorruptData,
                  strf("%s: metadata key %s: expected an integer >= 0, got %lld", file_.c_str(),
                       quote(key).c_str(), static_cast<long long>(v)));
  return static_cast<uint64_t>(v);
}

Result<int64_t> Metadata::get_i64(std::string_view key) const {
  VV_ASSIGN(const MetaEntry* e, want(key, false, "an integer", is_integer));
  const int64_t v = e->integer();
  if (v < 0 && e->type == MetaType::u64)
    return Status(Code::kCorruptData,
                  strf("%s: metadata key %s: expected an integer below 2^63, got %llu",
                       file_.c_str(), quote(key).c_str(), static_cast<unsigned long long>(v)));
  return v;
}

Result<double> Metadata::get_f64(std::string_view key) const {
  VV_ASSIGN(const MetaEntry* e, want(key, false, "a number", is_number));
  return e->number();
}

Result<bool> Metadata::get_bool(std::string_view key) const {
  VV_ASSIGN(const MetaEntry* e,
            want(key, false, "bool", [](MetaType t) { return t == MetaType::boolean; }));
  return e->integer() != 0;
}

Result<std::string_view> Metadata::get_string(std::string_view key) const {
  VV_ASSIGN(const MetaEntry* e,
            want(key, false, "string", [](MetaType t) { return t == MetaType::string; }));
  return e->raw;
}

Result<std::span<const std::string_view>> Metadata::get_strings(std::string_view key) const {
  VV_ASSIGN(const MetaEntry* e,
            want(key, true, "array of string", [](MetaType t) { return t == MetaType::string; }));
  return std::span<const std::string_view>(e->strings);
}

Result<ArrayView<int32_t>> Metadata::get_i32s(std::string_view key) const {
  VV_ASSIGN(const MetaEntry* e,
            want(key, true, "array of i32", [](MetaType t) { return t == MetaType::i32; }));
  return ArrayView<int32_t>(e->raw);
}

Result<ArrayView<float>> Metadata::get_f32s(std::string_view key) const {
  VV_ASSIGN(const MetaEntry* e,
            want(key, true, "array of f32", [](MetaType t) { return t == MetaType::f32; }));
  return ArrayView<float>(e->raw);
}

Result<std::vector<int64_t>> Metadata::get_i64s(std::string_view key) const {
  const MetaEntry* scalar = find(key);
  if (scalar && !scalar->is_array) {
    VV_ASSIGN(const int64_t v, get_i64(key));
    return std::vector<int64_t>{v};
  }
  VV_ASSIGN(const MetaEntry* e, want(key, true, "integers", is_integer));
  std::vector<int64_t> v(e->count());
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = e->integer(i);
    if (v[i] < 0 && e->type == MetaType::u64)
      return Status(
          Code::kCorruptData,
          strf("%s: metadata key %s[%zu]: expected an integer below 2^63, got %llu", file_.c_str(),
               quote(key).c_str(), i, static_cast<unsigned long long>(v[i])));
  }
  return v;
}

void Metadata::add_string(std::string key, std::string value) {
  owned_.push_back(std::move(value));
  entries_.push_back({.key = std::move(key),
                      .type = MetaType::string,
                      .is_array = false,
                      .raw = owned_.back(),
                      .strings = {}});
}

Status Metadata::freeze() {
  by_key_.resize(entries_.size());
  std::iota(by_key_.begin(), by_key_.end(), 0u);
  std::sort(by_key_.begin(), by_key_.end(),
            [this](uint32_t a, uint32_t b) { return entries_[a].key < entries_[b].key; });
  for (size_t i = 1; i < by_key_.size(); ++i)
    if (entries_[by_key_[i]].key == entries_[by_key_[i - 1]].key)
      return Status(Code::kCorruptData,
                    file_ + ": duplicate metadata key " + quote(entries_[by_key_[i]].key));
  return Status();
}

}  // namespace vivace::engine
