// Json: a strict reader for untrusted JSON (RFC 8259) with getters that name the field they refuse.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::engine {

/// Bounds of one document. Values are also bounded by max(2^20, bytes / 12), which keeps the tree's
/// memory below 3 x the text plus 32 MB.
struct JsonLimits {
  size_t bytes = 64 << 20;
  int depth = 64;
};

enum class JsonKind : uint8_t { null, boolean, integer, number, string, array, object };

struct JsonDoc;  // the parsed text and tree, in json.cc

/// Handle to one value; valid while its Json lives. Copying it is free.
/// Getters answer CorruptData for another type and NotFound for an absent member, as in
/// "config.json: rope_scaling.factor: expected number, got string".
class JsonValue {
 public:
  JsonKind kind() const;
  bool is_null() const { return kind() == JsonKind::null; }
  bool is_object() const { return kind() == JsonKind::object; }
  bool is_array() const { return kind() == JsonKind::array; }
  bool is_string() const { return kind() == JsonKind::string; }

  Result<bool> as_bool() const;
  Result<int64_t> as_int() const;    // a literal without fraction or exponent, inside int64
  Result<double> as_double() const;  // any number; an integer above 2^53 rounds
  Result<std::string_view> as_string() const;
  Result<JsonValue> as_object() const;
  Result<JsonValue> as_array() const;

  /// Members or elements; 0 for a scalar.
  size_t size() const;
  /// This value's key in the object that holds it; empty in an array.
  std::string_view key() const;
  /// Linear in size(): iterate over large objects instead.
  std::optional<JsonValue> find(std::string_view key) const;
  Result<JsonValue> at(std::string_view key) const;

  Result<bool> get_bool(std::string_view key) const;
  Result<int64_t> get_int(std::string_view key) const;
  Result<double> get_double(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;
  /// An absent or null member gives `fallback`; one of another type is still an error.
  Result<bool> get_bool(std::string_view key, bool fallback) const;
  Result<int64_t> get_int(std::string_view key, int64_t fallback) const;
  Result<double> get_double(std::string_view key, double fallback) const;
  Result<std::string_view> get_string(std::string_view key, std::string_view fallback) const;

  /// "rope_scaling.factor", "layers[3]"; "the document" for the root.
  std::string path() const;
  /// "<file>: <path>: <what>", for the caller's own checks of this value.
  Status error(Code code, const std::string& what) const;

  class Iterator {
   public:
    JsonValue operator*() const { return JsonValue(doc_, node_); }
    Iterator& operator++();
    bool operator!=(const Iterator& o) const { return node_ != o.node_; }

   private:
    friend class JsonValue;
    Iterator(const JsonDoc* doc, uint32_t node) : doc_(doc), node_(node) {}
    const JsonDoc* doc_;
    uint32_t node_;
  };
  Iterator begin() const;  // members or elements in file order; empty for a scalar
  Iterator end() const;

 private:
  friend class Json;
  JsonValue(const JsonDoc* doc, uint32_t node) : doc_(doc), node_(node) {}
  Result<JsonValue> expect(JsonKind kind, const char* wanted) const;
  /// Member `key` unless absent or null.
  Result<std::optional<JsonValue>> optional_member(std::string_view key) const;

  const JsonDoc* doc_;
  uint32_t node_;
};

/// Owns a parsed document. Move-only; moving keeps every JsonValue valid.
class Json {
 public:
  /// Errors: CorruptData with byte offset (syntax, UTF-8, duplicate key, number outside double's
  /// range, NaN and Infinity), LimitExceeded (bytes, depth, values). `name` stands in messages.
  static Result<Json> parse(std::string_view text, std::string name, const JsonLimits& limits = {});
  /// Reads and parses a regular file.
  static Result<Json> parse_file(const std::string& path, const JsonLimits& limits = {});

  JsonValue root() const { return JsonValue(doc_.get(), 0); }
  Json(Json&&) noexcept;
  Json& operator=(Json&&) noexcept;
  ~Json();

 private:
  explicit Json(std::unique_ptr<JsonDoc> doc);
  std::unique_ptr<JsonDoc> doc_;
};

}  // namespace vivace::engine
