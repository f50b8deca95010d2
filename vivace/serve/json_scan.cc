#include "vivace/serve/json_scan.h"

#include <utility>

#include "vivace/base/status.h"

namespace vivace::serve {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

JsonScan::Step JsonScan::close() {
  if (open_.empty()) {
    ended_ = true;
    return Step::end;
  }
  at_ = At::after;
  return Step::more;
}

JsonScan::Step JsonScan::begin(char c) {
  if (is_space(c)) return Step::more;
  const bool may_close = std::exchange(first_, false);
  switch (c) {
    case '{':
    case '[':
      if (open_.size() == kMostDepth) return Step::bad;
      open_.push_back(c);
      at_ = c == '{' ? At::first_key : At::value;
      first_ = c == '[';
      return Step::more;
    case ']':
      if (!may_close) return Step::bad;
      open_.pop_back();
      return close();
    case '"': at_ = At::string, of_key_ = false; return Step::more;
    case 't': at_ = At::literal, rest_ = "rue"; return Step::more;
    case 'f': at_ = At::literal, rest_ = "alse"; return Step::more;
    case 'n': at_ = At::literal, rest_ = "ull"; return Step::more;
    case '-': at_ = At::minus; return Step::more;
    default: break;
  }
  if (!is_digit(c)) return Step::bad;
  at_ = c == '0' ? At::zero : At::digits;
  return Step::more;
}

JsonScan::Step JsonScan::number(char c) {
  if (is_digit(c)) {
    if (at_ == At::zero) return Step::bad;
    if (at_ == At::minus) at_ = c == '0' ? At::zero : At::digits;
    if (at_ == At::point) at_ = At::fraction;
    if (at_ == At::exponent || at_ == At::sign) at_ = At::power;
    return Step::more;
  }
  if (c == '.' && (at_ == At::zero || at_ == At::digits)) return at_ = At::point, Step::more;
  if ((c == 'e' || c == 'E') && (at_ == At::zero || at_ == At::digits || at_ == At::fraction))
    return at_ = At::exponent, Step::more;
  if ((c == '+' || c == '-') && at_ == At::exponent) return at_ = At::sign, Step::more;
  if (!number_ends()) return Step::bad;
  if (open_.empty()) {
    ended_ = true;
    return Step::before;
  }
  at_ = At::after;
  return put(c);
}

JsonScan::Step JsonScan::put(char c) {
  switch (at_) {
    case At::value: return begin(c);
    case At::first_key:
      if (c == '}') {
        open_.pop_back();
        return close();
      }
      [[fallthrough]];
    case At::key:
      if (is_space(c)) return Step::more;
      at_ = At::string, of_key_ = true;
      return c == '"' ? Step::more : Step::bad;
    case At::colon:
      if (c == ':') at_ = At::value;
      return c == ':' || is_space(c) ? Step::more : Step::bad;
    case At::after:
      if (is_space(c)) return Step::more;
      if (c == ',') return at_ = open_.back() == '{' ? At::key : At::value, Step::more;
      if (c != (open_.back() == '{' ? '}' : ']')) return Step::bad;
      open_.pop_back();
      return close();
    case At::string:
      if (c == '\\') at_ = At::escape;
      if (c != '"') return static_cast<unsigned char>(c) >= 0x20 ? Step::more : Step::bad;
      if (!of_key_) return close();
      at_ = At::colon;
      return Step::more;
    case At::escape:
      at_ = c == 'u' ? At::hex : At::string;
      digits_ = 4;
      return std::string_view("\"\\/bfnrtu").find(c) != std::string_view::npos ? Step::more : Step::bad;
    case At::hex:
      if (--digits_ == 0) at_ = At::string;
      return is_hex(c) ? Step::more : Step::bad;
    case At::literal:
      if (c != *rest_) return Step::bad;
      return *++rest_ == '\0' ? close() : Step::more;
    default: return number(c);
  }
}

bool is_json(std::string_view text) {
  JsonScan scan;
  JsonScan::Step step = JsonScan::Step::more;
  for (const char c : text) {
    if (step != JsonScan::Step::more) return false;
    step = scan.put(c);
  }
  return (step == JsonScan::Step::more || step == JsonScan::Step::end) && scan.whole();
}

void append_json_escaped(char c, std::string* out) {
  const auto u = static_cast<unsigned char>(c);
  if (c == '"' || c == '\\') out->append({'\\', c});
  else if (c == '\n') out->append("\\n");
  else if (u < 0x20) out->append(strf("\\u%04x", u));
  else out->push_back(c);
}

}  // namespace vivace::serve
