#include "vivace/base/printable.h"

#include "vivace/base/status.h"

namespace vivace {
namespace {

/// Bytes of the well-formed UTF-8 character at `at`, 0 if there is none.
size_t character(std::string_view s, size_t at) {
  const auto byte = [&](size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u; };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const size_t n = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (size_t i = 1; i < n; ++i)
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
  const unsigned second = byte(at + 1);
  const bool bad = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                   (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return bad ? 0 : n;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const size_t n = character(text, i);
    const bool control = (n == 1 && (c < 0x20 || c == 0x7f) && c != '\n' && c != '\t') ||
                         (n == 2 && c == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0);
    if (n == 0 || control) {
      out += strf("\\x%02x", n == 2 ? static_cast<unsigned char>(text[i + 1]) : c);
      i += n == 2 ? 2 : 1;
    } else {
      out += text.substr(i, n);
      i += n;
    }
  }
  return out;
}

}  // namespace vivace
