#include "vivace/engine/text/split.h"

#include <string>

#include "vivace/base/check.h"
#include "vivace/engine/text/unicode.h"

namespace vivace::engine::text {
namespace {

constexpr std::string_view kLlama3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kQwen2 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/// A place in the text. Copies are cheap: a rule that fails leaves its caller's where it was.
struct Cursor {
  std::string_view rest;
  char32_t c = 0;
  int size = 0;  // bytes of c; 0 at the end

  explicit Cursor(std::string_view text) : rest(text) { size = read_utf8(rest, &c); }
  bool end() const { return size == 0; }
  void next() {
    rest.remove_prefix(static_cast<size_t>(size));
    size = read_utf8(rest, &c);
  }
  bool letter() const { return !end() && is_letter(c); }
  bool number() const { return !end() && is_number(c); }
  bool space() const { return !end() && is_space(c); }
  bool other() const { return !end() && !is_letter(c) && !is_number(c) && !is_space(c); }
  bool line_end() const { return c == '\r' || c == '\n'; }
};

/// An English contraction at `at`, whose bytes it gives; 0: none.
size_t contraction(std::string_view at, bool any_case) {
  if (at.size() < 2 || at[0] != '\'') return 0;
  if (any_case && at.substr(1, 2) == "\xc5\xbf") return 3;  // a long s is an s to those who ignore case
  const auto lower = [&](size_t i) -> char {
    return i < at.size() ? (any_case && at[i] >= 'A' && at[i] <= 'Z' ? static_cast<char>(at[i] + 32) : at[i]) : '\0';
  };
  const char a = lower(1), b = lower(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/// Where the run of spaces that begins at `at` is cut: before its last character if a word follows, which takes it.
Cursor after_spaces(Cursor at) {
  Cursor last = at;
  int count = 0;
  for (; at.space(); at.next(), ++count) last = at;
  return at.end() || count == 1 ? at : last;
}

Cursor gpt2_piece(Cursor at) {
  if (const size_t n = contraction(at.rest, false); n > 0) return Cursor(at.rest.substr(n));
  Cursor word = at;
  if (at.c == ' ') word.next();
  for (bool (Cursor::*kind)() const : {&Cursor::letter, &Cursor::number, &Cursor::other}) {
    if (!(word.*kind)()) continue;
    while ((word.*kind)()) word.next();
    return word;
  }
  return after_spaces(at);
}

Cursor llama_piece(Cursor at, int most_digits) {
  if (const size_t n = contraction(at.rest, true); n > 0) return Cursor(at.rest.substr(n));
  Cursor word = at;
  if (!at.line_end() && !at.letter() && !at.number()) word.next();
  if (word.letter()) {
    while (word.letter()) word.next();
    return word;
  }
  if (at.number()) {
    for (int i = 0; i < most_digits && at.number(); ++i) at.next();
    return at;
  }
  word = at;
  if (at.c == ' ') word.next();
  if (word.other()) {
    while (word.other()) word.next();
    while (!word.end() && word.line_end()) word.next();
    return word;
  }
  // Spaces up to and with the last end of a line among them, if there is one.
  Cursor after = at, line(std::string_view{});
  bool has_line = false;
  for (Cursor i = at; i.space(); i = after) {
    after.next();
    if (i.line_end()) line = after, has_line = true;
  }
  return has_line ? line : after_spaces(at);
}

}  // namespace

Result<Split> split_of(std::string_view pattern) {
  if (pattern == kLlama3) return Split::llama3;
  if (pattern == kQwen2) return Split::qwen2;
  return Status(Code::kUnsupported,
                strf("pre_tokenizer: the pattern '%.200s' is none of those that are known (Llama 3, Qwen 2)",
                     std::string(pattern).c_str()));
}

void split(std::string_view text, Split how, std::vector<std::string_view>* pieces) {
  pieces->clear();
  const auto words = [&](std::string_view part) {
    for (Cursor at(part); !at.end();) {
      const Cursor end = how == Split::llama3  ? llama_piece(at, 3)
                         : how == Split::qwen2 ? llama_piece(at, 1)
                                               : gpt2_piece(at);
      pieces->push_back(at.rest.substr(0, at.rest.size() - end.rest.size()));
      at = end;
    }
  };
  if (how != Split::digits) return words(text);
  Cursor begin(text), at = begin;
  for (; !at.end(); at.next()) {
    if (!is_digit_or_number(at.c)) continue;
    words(begin.rest.substr(0, begin.rest.size() - at.rest.size()));
    words(at.rest.substr(0, static_cast<size_t>(at.size)));
    begin = at;
    begin.next();
  }
  words(begin.rest);
}

}  // namespace vivace::engine::text
