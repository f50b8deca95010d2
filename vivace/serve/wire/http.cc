#include "vivace/serve/wire/http.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/base/sha256.h"

namespace vivace::serve::wire {
namespace {

Status broken(const char* what) { return Status(Code::kCorruptData, std::string("http: ") + what); }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
bool same(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}
bool is_token(std::string_view s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) {
    return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9') ||
           std::strchr("!#$%&'*+-.^_`|~", c) != nullptr;
  }) && s.find('\0') == std::string_view::npos;
}
std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

/// The next line without its end; what is left stays in `rest`.
std::string_view line_of(std::string_view* rest) {
  const size_t end = rest->find("\r\n");
  const std::string_view line = rest->substr(0, end);
  rest->remove_prefix(end == std::string_view::npos ? rest->size() : end + 2);
  return line;
}

Status read_headers(std::string_view rest, Head* head) {
  while (true) {
    const std::string_view line = line_of(&rest);
    if (line.empty()) return {};
    if (head->headers.size() == kMostHeaders) return Status(Code::kLimitExceeded, "http: more than 64 headers");
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) return broken("a header has no name");
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (std::any_of(value.begin(), value.end(),
                    [](char c) { return (static_cast<uint8_t>(c) < 0x20 && c != '\t') || c == 0x7f; }))
      return broken("a header's value has control characters");
    head->headers.emplace_back(line.substr(0, colon), value);
  }
}

/// SHA-1 (FIPS 180-4), which the websocket handshake asks for and nothing here relies on.
std::array<uint8_t, 20> sha1(std::string_view text) {
  std::string all(text);
  all.push_back(static_cast<char>(0x80));
  while (all.size() % 64 != 56) all.push_back('\0');
  for (int i = 7; i >= 0; --i) all.push_back(static_cast<char>(static_cast<uint64_t>(text.size()) * 8 >> (8 * i)));
  std::array<uint32_t, 5> h{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  for (size_t block = 0; block < all.size(); block += 64) {
    uint32_t w[80];
    for (size_t i = 0; i < 16; ++i) {
      w[i] = 0;
      for (size_t b = 0; b < 4; ++b) w[i] = w[i] << 8 | static_cast<uint8_t>(all[block + 4 * i + b]);
    }
    for (size_t i = 16; i < 80; ++i) w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    auto [a, b, c, d, e] = h;
    for (size_t i = 0; i < 80; ++i) {
      const uint32_t f = i < 20 ? (b & c) | (~b & d) : i < 40 || i >= 60 ? b ^ c ^ d : (b & c) | (b & d) | (c & d);
      constexpr uint32_t kAdd[] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
      const uint32_t next = std::rotl(a, 5) + f + e + kAdd[i / 20] + w[i];
      e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
  }
  std::array<uint8_t, 20> out;
  for (size_t i = 0; i < 20; ++i) out[i] = static_cast<uint8_t>(h[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

const std::string_view* Head::find(std::string_view name) const {
  for (const auto& [n, v] : headers)
    if (same(n, name)) return &v;
  return nullptr;
}

bool Head::lists(std::string_view name, std::string_view word) const {
  for (const auto& [n, v] : headers) {
    if (!same(n, name)) continue;
    for (std::string_view rest = v; !rest.empty();) {
      const size_t comma = rest.find(',');
      if (same(trimmed(rest.substr(0, comma)), word)) return true;
      rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
    }
  }
  return false;
}

Result<size_t> head_length(std::string_view bytes) {
  const size_t end = bytes.substr(0, kMostHead).find("\r\n\r\n");
  if (end != std::string_view::npos) return end + 4;
  if (bytes.size() >= kMostHead)
    return Status(Code::kLimitExceeded, strf("http: a head of more than %zu bytes", kMostHead));
  return size_t{0};
}

Result<Head> read_request(std::string_view head) {
  Head h;
  const std::string_view line = line_of(&head);
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return broken("the first line is no request");
  h.method = line.substr(0, first);
  h.target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_token(h.method) || h.target.empty() ||
      std::any_of(h.target.begin(), h.target.end(), [](char c) { return c <= 0x20 || c == 0x7f; }))
    return broken("the first line is no request");
  if (version != "HTTP/1.1") return Status(Code::kUnsupported, "http: wanted HTTP/1.1");
  VV_TRY(read_headers(head, &h));
  return h;
}

Result<Head> read_response(std::string_view head) {
  Head h;
  const std::string_view line = line_of(&head);
  const auto digit = [&](size_t i) { return line[i] >= '0' && line[i] <= '9'; };
  if (line.size() < 12 || line.substr(0, 9) != "HTTP/1.1 " || !digit(9) || !digit(10) || !digit(11) ||
      (line.size() > 12 && line[12] != ' '))
    return broken("the first line is no response of HTTP/1.1");
  h.status = (line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0');
  VV_TRY(read_headers(head, &h));
  return h;
}

bool same_secret(std::string_view a, std::string_view b) {
  const Digest x = sha256(a),
               y = sha256(b);  // of equal length whatever came, and no prefix of the secret shows in them
  uint8_t differ = 0;
  for (size_t i = 0; i < x.size(); ++i) differ = static_cast<uint8_t>(differ | (x[i] ^ y[i]));
  return differ == 0;
}

std::string base64(std::span<const uint8_t> bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    const uint32_t v = static_cast<uint32_t>(bytes[i]) << 16 | (n > 1 ? static_cast<uint32_t>(bytes[i + 1]) << 8 : 0) |
                       (n > 2 ? bytes[i + 2] : 0u);
    for (size_t k = 0; k < 4; ++k) out += k <= n ? kLetters[v >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

std::string accept_of(std::string_view key) {
  return base64(sha1(std::string(key) + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
}

bool is_websocket_key(std::string_view key) {
  return key.size() == 24 && key.ends_with("==") && key.find_first_not_of(kLetters) == 22 &&
         key.substr(0, 22).find('\0') == std::string_view::npos;
}

}  // namespace vivace::serve::wire
