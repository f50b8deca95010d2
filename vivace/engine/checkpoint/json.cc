#include "vivace/engine/checkpoint/json.h"

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/json_parser.h"
#include "vivace/engine/checkpoint/mapped_file.h"
#include "vivace/engine/checkpoint/parse.h"

namespace vivace::engine {
namespace {

const char* name(JsonKind k) {
  static constexpr const char* kNames[] = {"null",   "boolean", "integer", "number",
                                           "string", "array",   "object"};
  return kNames[static_cast<int>(k)];
}

bool is_container(JsonKind k) {
  return k == JsonKind::array || k == JsonKind::object;
}

}  // namespace

Json::Json(std::unique_ptr<JsonDoc> doc) : doc_(std::move(doc)) {}
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;

Result<Json> Json::parse(std::string_view text, std::string name, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    return Status(Code::kLimitExceeded, strf("%s: %zu bytes of JSON, at most %zu are read",
                                             name.c_str(), text.size(), limits.bytes));
  auto doc = std::make_unique<JsonDoc>();
  doc->name = std::move(name);
  doc->text = text;
  VV_TRY(parse_json(doc.get(), limits));
  return Json(std::move(doc));
}

Result<Json> Json::parse_file(const std::string& path, const JsonLimits& limits) {
  VV_ASSIGN(const MappedFile file, MappedFile::open(path));
  const Bytes b = file.bytes();
  return parse({reinterpret_cast<const char*>(b.data()), b.size()}, path, limits);
}

JsonKind JsonValue::kind() const {
  return doc_->nodes[node_].kind;
}

Result<JsonValue> JsonValue::expect(JsonKind wanted_kind, const char* wanted) const {
  if (kind() == wanted_kind) return *this;
  return error(Code::kCorruptData, std::string("expected ") + wanted + ", got " + name(kind()));
}

Result<bool> JsonValue::as_bool() const {
  VV_TRY(expect(JsonKind::boolean, "boolean").status());
  return doc_->nodes[node_].boolean;
}

Result<int64_t> JsonValue::as_int() const {
  VV_TRY(expect(JsonKind::integer, "integer").status());
  return doc_->nodes[node_].integer;
}

Result<double> JsonValue::as_double() const {
  if (kind() == JsonKind::integer) return static_cast<double>(doc_->nodes[node_].integer);
  VV_TRY(expect(JsonKind::number, "number").status());
  return doc_->nodes[node_].number;
}

Result<std::string_view> JsonValue::as_string() const {
  VV_TRY(expect(JsonKind::string, "string").status());
  const auto& s = doc_->nodes[node_].string;
  return std::string_view(doc_->text).substr(s.begin, s.bytes);
}

Result<JsonValue> JsonValue::as_object() const {
  return expect(JsonKind::object, "object");
}
Result<JsonValue> JsonValue::as_array() const {
  return expect(JsonKind::array, "array");
}

size_t JsonValue::size() const {
  return is_container(kind()) ? doc_->nodes[node_].count : 0;
}

std::string_view JsonValue::key() const {
  return doc_->key(doc_->nodes[node_]);
}

JsonValue::Iterator& JsonValue::Iterator::operator++() {
  node_ = doc_->nodes[node_].next;
  return *this;
}
JsonValue::Iterator JsonValue::begin() const {
  return is_container(kind()) ? Iterator(doc_, node_ + 1) : end();
}
JsonValue::Iterator JsonValue::end() const {
  return Iterator(doc_, doc_->nodes[node_].next);
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  if (!is_object()) return std::nullopt;
  for (JsonValue member : *this)
    if (member.key() == key) return member;
  return std::nullopt;
}

Result<JsonValue> JsonValue::at(std::string_view key) const {
  VV_TRY(as_object().status());
  if (auto member = find(key)) return *member;
  return error(Code::kNotFound, "no member " + quote(key));
}

Result<std::optional<JsonValue>> JsonValue::optional_member(std::string_view key) const {
  VV_TRY(as_object().status());
  auto member = find(key);
  return member && member->is_null() ? std::nullopt : member;
}

Result<bool> JsonValue::get_bool(std::string_view key) const {
  VV_ASSIGN(const JsonValue v, at(key));
  return v.as_bool();
}
Result<int64_t> JsonValue::get_int(std::string_view key) const {
  VV_ASSIGN(const JsonValue v, at(key));
  return v.as_int();
}
Result<double> JsonValue::get_double(std::string_view key) const {
  VV_ASSIGN(const JsonValue v, at(key));
  return v.as_double();
}
Result<std::string_view> JsonValue::get_string(std::string_view key) const {
  VV_ASSIGN(const JsonValue v, at(key));
  return v.as_string();
}
Result<bool> JsonValue::get_bool(std::string_view key, bool fallback) const {
  VV_ASSIGN(const auto v, optional_member(key));
  return v ? v->as_bool() : Result<bool>(fallback);
}
Result<int64_t> JsonValue::get_int(std::string_view key, int64_t fallback) const {
  VV_ASSIGN(const auto v, optional_member(key));
  return v ? v->as_int() : Result<int64_t>(fallback);
}
Result<double> JsonValue::get_double(std::string_view key, double fallback) const {
  VV_ASSIGN(const auto v, optional_member(key));
  return v ? v->as_double() : Result<double>(fallback);
}
Result<std::string_view> JsonValue::get_string(std::string_view key,
                                               std::string_view fallback) const {
  VV_ASSIGN(const auto v, optional_member(key));
  return v ? v->as_string() : Result<std::string_view>(fallback);
}

std::string JsonValue::path() const {
  if (node_ == 0) return "the document";
  const uint32_t parent = doc_->nodes[node_].parent;
  const JsonValue holder(doc_, parent);
  const std::string prefix = parent == 0 ? "" : holder.path();
  if (holder.is_object()) {
    const std::string shown =
        is_good_name(key()) && key().size() <= 96 ? std::string(key()) : quote(key());
    return prefix.empty() ? shown : prefix + "." + shown;
  }
  size_t i = 0;
  for (JsonValue v : holder) {
    if (v.node_ == node_) break;
    ++i;
  }
  return prefix + "[" + std::to_string(i) + "]";
}

Status JsonValue::error(Code code, const std::string& what) const {
  return Status(code, doc_->name + ": " + path() + ": " + what);
}

}  // namespace vivace::engine
