// JsonScan: one JSON value, byte by byte. Says where it ends, and that it is one (RFC 8259), keeping nothing of it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace vivace::serve {

class JsonScan {
 public:
  static constexpr size_t kMostDepth = 64;
  enum class Step : uint8_t {
    more,
    end,     // the value ended with this byte
    before,  // the value, a number, ended before this byte, which is none of it
    bad,     // no JSON, or nested deeper than kMostDepth
  };
  /// A byte; none after the end.
  Step put(char c);
  /// Whether all bytes so far are one value.
  bool whole() const { return ended_ || (open_.empty() && number_ends()); }

 private:
  enum class At : uint8_t {
    value,
    first_key,
    key,
    colon,
    after,
    string,
    escape,
    hex,
    literal,
    minus,
    zero,
    digits,
    point,
    fraction,
    exponent,
    sign,
    power
  };
  Step begin(char c);
  Step number(char c);
  Step close();
  bool number_ends() const { return at_ == At::zero || at_ == At::digits || at_ == At::fraction || at_ == At::power; }

  std::string open_;            // brackets around this place
  const char* rest_ = nullptr;  // of a literal
  At at_ = At::value;
  bool first_ = false;          // an array that may close at once
  bool of_key_ = false, ended_ = false;
  int digits_ = 0;              // of \u that are missing
};

/// Whether the text is one JSON value and nothing behind it.
bool is_json(std::string_view text);
/// Appends the bytes as they stand inside a JSON string.
void append_json_escaped(char c, std::string* out);

}  // namespace vivace::serve
