// msgpack as openpi's robots speak it: a bounded reader of bytes that anybody may have sent, and a writer.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vivace/base/status.h"
#include "vivace/engine/fields.h"

namespace vivace::serve::wire {

using engine::HostArray;

inline constexpr int kMostDepth = 8;
inline constexpr uint32_t kMostEntries = 256;  // of one map or list
inline constexpr uint32_t kMostValues = 4096;  // of a message, keys among them
inline constexpr size_t kMostMessage = 16 << 20;

/// A value of a message; text, bytes and arrays point into it.
struct Value {
  enum class Kind : uint8_t { nil, flag, whole, number, text, bytes, list, map, array };
  Kind kind = Kind::nil;
  bool flag = false;
  bool above = false;     // of whole: beyond i64; `whole` has the bits of a u64
  int64_t whole = 0;
  double number = 0;
  std::string_view text;  // of text and bytes
  HostArray array;
  uint32_t count = 0;     // entries of a list or map
  uint32_t end = 0;       // index behind the value and what is in it
};

/// A message's values in order: a list is followed by its entries, a map by keys and values in turn.
class Message {
 public:
  /// `bytes` must outlive what is read. A map of b"__ndarray__", b"data", b"dtype", b"shape" is one array, one of
  /// b"__npgeneric__" a number. Allocates only where no message before had as many values. Errors name the byte:
  /// CorruptData (cut short, bytes behind the end, a key that is no text, one that comes twice, text that is no UTF-8),
  /// LimitExceeded, Unsupported (extensions, other arrays).
  Status read(std::span<const std::byte> bytes);
  const Value& operator[](uint32_t i) const { return values_[i]; }
  const Value& root() const { return values_.front(); }
  /// Index of the value of a text key in the map at `map`; 0 where there is none.
  uint32_t find(uint32_t map, std::string_view key) const;

 private:
  Status value(int depth);
  Status entries(uint32_t at, bool map, int depth);
  Status as_array(uint32_t at);
  Status take(uint64_t bytes, const char* what, const std::byte** from);
  Status number_of(int bytes, uint64_t* out);
  Status error(Code code, const std::string& what) const;

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  std::vector<Value> values_;
};

/// Writes behind what is in `out`, every value in its shortest form.
class Writer {
 public:
  explicit Writer(std::vector<std::byte>* out) : out_(out) {}
  void map(uint32_t entries) { head(entries, 0x80, 16, 0xde); }
  void list(uint32_t entries) { head(entries, 0x90, 16, 0xdc); }
  void nil() { byte(0xc0); }
  void flag(bool v) { byte(v ? 0xc3 : 0xc2); }
  void whole(int64_t v);
  void whole_u64(uint64_t v);
  void number(double v);
  void text(std::string_view v);
  void bytes(std::string_view v);
  /// openpi's array: what NumPy's dtype.str says of `dtype`, which must be one that Message reads.
  void array(DType dtype, std::span<const int64_t> shape, const void* data);

 private:
  void byte(uint8_t v) { out_->push_back(static_cast<std::byte>(v)); }
  void big_endian(uint64_t v, int bytes);
  void head(uint32_t count, uint8_t fixed, uint32_t below, uint8_t wide);
  void append(const void* data, size_t bytes);
  std::vector<std::byte>* out_;
};

/// "|u1" of u8; null for a dtype that arrays of a message do not have.
const char* numpy_name(DType dtype);

}  // namespace vivace::serve::wire
