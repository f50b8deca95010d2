// Metadata: the typed key-value pairs of a checkpoint (GGUF's KV, safetensors' __metadata__).
#pragma once
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::engine {

/// In the order of GGUF's own type ids.
enum class MetaType : uint8_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};
inline constexpr int kMetaTypeCount = 13;
const char* name(MetaType t);

/// A numeric array inside a file: little endian and not aligned, so elements are read by copy.
template <class T>
class ArrayView {
 public:
  ArrayView() = default;
  explicit ArrayView(std::string_view raw) : raw_(raw) {}
  size_t size() const { return raw_.size() / sizeof(T); }
  T operator[](size_t i) const {  // i < size()
    T v;
    std::memcpy(&v, raw_.data() + i * sizeof(T), sizeof(T));
    return v;
  }
  std::vector<T> to_vector() const {
    std::vector<T> v(size());
    if (!v.empty()) std::memcpy(v.data(), raw_.data(), v.size() * sizeof(T));
    return v;
  }

 private:
  std::string_view raw_;
};

/// One pair. `type` is the scalar's type, or the element type when `is_array`.
struct MetaEntry {
  std::string key;
  MetaType type = MetaType::u8;
  bool is_array = false;
  std::string_view raw;  // the scalar's or numeric array's bytes, or the string itself
  std::vector<std::string_view>
      strings;  // an array of strings; elements may be any bytes (vocabularies)

  size_t count() const;  // elements of the array; 1 for a scalar
  /// "u32", "array of string [49152]": for messages.
  std::string type_name() const;
  /// Element `i` of the scalar or array, widened; the caller has looked at `type`.
  int64_t integer(
      size_t i = 0) const;            // any integer type or boolean; u64 above int64's range wraps
  double number(size_t i = 0) const;  // f32, f64 or any integer type
};

/// Getters answer NotFound for an absent key and CorruptData for a value of another type, naming
/// file and key. Views live as long as the Checkpoint they came from.
class Metadata {
 public:
  explicit Metadata(std::string file = {}) : file_(std::move(file)) {}

  const std::vector<MetaEntry>& entries() const { return entries_; }  // in file order
  const MetaEntry* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  Result<uint64_t> get_u64(std::string_view key) const;  // any integer type; negative is an error
  Result<int64_t> get_i64(std::string_view key) const;   // any integer type that fits
  Result<double> get_f64(std::string_view key) const;    // f32, f64 or an integer
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::span<const std::string_view>> get_strings(std::string_view key) const;
  Result<ArrayView<int32_t>> get_i32s(std::string_view key) const;
  Result<ArrayView<float>> get_f32s(std::string_view key) const;
  /// Any integer array, or a scalar as an array of one: GGUF writes per-layer counts in both forms.
  Result<std::vector<int64_t>> get_i64s(std::string_view key) const;

  /// For readers: appends a pair, then freeze() sorts the index and refuses duplicate keys
  /// (CorruptData).
  void add(MetaEntry entry) { entries_.push_back(std::move(entry)); }
  void add_string(std::string key, std::string value);
  Status freeze();

 private:
  Result<const MetaEntry*> want(std::string_view key, bool array, const char* wanted,
                                bool (*accepts)(MetaType)) const;

  std::string file_;
  std::vector<MetaEntry> entries_;
  std::vector<uint32_t> by_key_;
  std::deque<std::string>
      owned_;  // strings that the file holds in escaped form; addresses are stable
};

}  // namespace vivace::engine
