#include "vivace/engine/json_text.h"

#include "vivace/base/status.h"
#include "vivace/engine/text/unicode.h"

namespace vivace::engine {

std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    char32_t c = 0xfffd;
    int n = text::read_utf8(text, &c);
    if (n <= 0) n = text::malformed_utf8(text), c = 0xfffd;
    text.remove_prefix(static_cast<size_t>(n));
    if (c == '"' || c == '\\') out += {'\\', static_cast<char>(c)};
    else if (c >= 0x20 && c < 0x7f) out += static_cast<char>(c);
    else if (c < 0x10000) out += strf("\\u%04x", static_cast<unsigned>(c));
    else
      out += strf("\\u%04x\\u%04x", static_cast<unsigned>(0xd7c0 + (c >> 10)),
                  static_cast<unsigned>(0xdc00 + (c & 0x3ff)));
  }
  return out + '"';
}

std::string json_object(const Report& report) {
  std::string out = "{";
  for (const auto& [key, value] : report) out += (out.size() > 1 ? ", " : "") + json_string(key) + ": " + value;
  return out + "}";
}

}  // namespace vivace::engine
