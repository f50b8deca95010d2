#include "vivace/engine/checkpoint/json_parser.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/parse.h"

namespace vivace::engine {
namespace {

/// Values that the text can hold at most: commas and opening brackets outside strings, plus one.
/// Exact for valid JSON up to empty containers, so that the tree is allocated once.
size_t count_values(std::string_view text) {
  size_t n = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == ',' || c == '[' || c == '{') {
      ++n;
    }
  }
  return n;
}

void put_utf8(uint32_t c, char** out) {
  char* o = *out;
  if (c < 0x80) {
    *o++ = static_cast<char>(c);
  } else if (c < 0x800) {
    *o++ = static_cast<char>(0xc0 | c >> 6);
    *o++ = static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    *o++ = static_cast<char>(0xe0 | c >> 12);
    *o++ = static_cast<char>(0x80 | (c >> 6 & 0x3f));
    *o++ = static_cast<char>(0x80 | (c & 0x3f));
  } else {
    *o++ = static_cast<char>(0xf0 | c >> 18);
    *o++ = static_cast<char>(0x80 | (c >> 12 & 0x3f));
    *o++ = static_cast<char>(0x80 | (c >> 6 & 0x3f));
    *o++ = static_cast<char>(0x80 | (c & 0x3f));
  }
  *out = o;
}

class Parser {
 public:
  Parser(JsonDoc* doc, const JsonLimits& limits)
      : doc_(*doc),
        limits_(limits),
        begin_(doc->text.data()),
        p_(begin_),
        end_(begin_ + doc->text.size()) {}

  Status run() {
    skip_space();
    VV_TRY(value(0, 0));
    skip_space();
    return p_ == end_ ? Status() : fail("expected the end of the document");
  }

 private:
  Status fail(const std::string& what) const {
    return Status(Code::kCorruptData,
                  strf("%s: byte %td: %s", doc_.name.c_str(), p_ - begin_, what.c_str()));
  }
  void skip_space() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
  }
  bool eat(char c) {
    if (p_ == end_ || *p_ != c) return false;
    ++p_;
    return true;
  }
  bool eat_word(std::string_view word) {
    if (static_cast<size_t>(end_ - p_) < word.size() ||
        std::memcmp(p_, word.data(), word.size()) != 0)
      return false;
    p_ += word.size();
    return true;
  }
  uint32_t offset(const char* p) const { return static_cast<uint32_t>(p - begin_); }

  /// Appends the value at p_. Recursion is bounded by limits_.depth.
  Status value(uint32_t parent, int depth, uint32_t key_begin = 0, uint32_t key_bytes = 0) {
    const uint32_t at = static_cast<uint32_t>(doc_.nodes.size());
    // count_values() follows the text's own quotes, so only broken text can get here.
    if (at == doc_.nodes.capacity()) return fail("unbalanced quotes or brackets");
    JsonNode node;
    node.parent = parent;
    node.key_begin = key_begin;
    node.key_bytes = key_bytes;
    if (p_ == end_) return fail("expected a value, got the end of the document");
    const char c = *p_;
    if (c == '{' || c == '[') {
      if (depth >= limits_.depth)
        return Status(Code::kLimitExceeded, strf("%s: byte %td: nested deeper than %d",
                                                 doc_.name.c_str(), p_ - begin_, limits_.depth));
      node.kind = c == '{' ? JsonKind::object : JsonKind::array;
      node.count = 0;
      doc_.nodes.push_back(node);
      ++p_;
      VV_TRY(c == '{' ? members(at, depth + 1) : elements(at, depth + 1));
      doc_.nodes[at].next = static_cast<uint32_t>(doc_.nodes.size());
      return Status();
    }
    if (c == '"') {
      node.kind = JsonKind::string;
      uint32_t begin = 0, bytes = 0;
      VV_TRY(string(&begin, &bytes));
      node.string = {begin, bytes};
    } else if (c == '-' || (c >= '0' && c <= '9')) {
      VV_TRY(number(&node));
    } else if (eat_word("true") || eat_word("false")) {
      node.kind = JsonKind::boolean;
      node.boolean = p_[-2] == 'u';
    } else if (!eat_word("null")) {
      return fail("expected a value, got " + quote(std::string_view(p_, 1)));
    }
    node.next = at + 1;
    doc_.nodes.push_back(node);
    return Status();
  }

  Status elements(uint32_t self, int depth) {
    skip_space();
    if (eat(']')) return Status();
    do {
      skip_space();
      VV_TRY(value(self, depth));
      ++doc_.nodes[self].count;
      skip_space();
    } while (eat(','));
    return eat(']') ? Status() : fail("expected ',' or ']' in an array");
  }

  Status members(uint32_t self, int depth) {
    skip_space();
    if (eat('}')) return Status();
    do {
      skip_space();
      uint32_t key_begin = 0, key_bytes = 0;
      if (p_ == end_ || *p_ != '"') return fail("expected a key in double quotes");
      VV_TRY(string(&key_begin, &key_bytes));
      skip_space();
      if (!eat(':')) return fail("expected ':' after a key");
      skip_space();
      VV_TRY(value(self, depth, key_begin, key_bytes));
      ++doc_.nodes[self].count;
      skip_space();
    } while (eat(','));
    if (!eat('}')) return fail("expected ',' or '}' in an object");
    return check_keys(self);
  }

  /// A duplicate key means different things to different readers, so it is no document at all.
  Status check_keys(uint32_t self) {
    std::vector<uint32_t> members;
    members.reserve(doc_.nodes[self].count);
    for (uint32_t i = self + 1; i < doc_.nodes.size(); i = doc_.nodes[i].next) members.push_back(i);
    const auto key = [this](uint32_t i) { return doc_.key(doc_.nodes[i]); };
    std::sort(members.begin(), members.end(),
              [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
    const auto twice = std::adjacent_find(members.begin(), members.end(),
                                          [&](uint32_t a, uint32_t b) { return key(a) == key(b); });
    return twice == members.end()
               ? Status()
               : fail("duplicate key " + quote(key(*twice)) + " in the object that ends here");
  }

  /// At an opening quote. Unescapes in place: `out` never passes p_.
  Status string(uint32_t* begin, uint32_t* bytes) {
    ++p_;
    const char* const first = p_;
    char* out = begin_ + (p_ - begin_);
    while (p_ < end_ && *p_ != '"') {
      if (static_cast<unsigned char>(*p_) < 0x20) return fail("control character in a string");
      if (*p_ == '\\') {
        VV_TRY(escape(&out));
      } else {
        *out++ = *p_++;
      }
    }
    if (p_ == end_) return fail("string without its closing quote");
    ++p_;
    *begin = offset(first);
    *bytes = static_cast<uint32_t>(out - first);
    return Status();
  }

  Status escape(char** out) {
    static constexpr char kFrom[] = "\"\\/bfnrt", kTo[] = "\"\\/\b\f\n\r\t";
    if (end_ - p_ < 2) return fail("escape without its character");
    const char c = p_[1];
    if (const char* found = c ? std::strchr(kFrom, c) : nullptr) {
      *(*out)++ = kTo[found - kFrom];
      p_ += 2;
      return Status();
    }
    uint32_t code = 0, low = 0;
    if (c != 'u' || !hex4(p_ + 2, &code)) return fail("unknown escape");
    if (code >= 0xd800 && code < 0xe000) {  // UTF-16 surrogates come in pairs, high first
      if (code >= 0xdc00 || end_ - p_ < 8 || p_[6] != '\\' || p_[7] != 'u' || !hex4(p_ + 8, &low) ||
          low < 0xdc00 || low >= 0xe000)
        return fail("lone UTF-16 surrogate");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      p_ += 6;
    }
    p_ += 6;
    put_utf8(code, out);
    return Status();
  }

  bool hex4(const char* p, uint32_t* code) const {
    if (end_ - p < 4) return false;
    const auto r = std::from_chars(p, p + 4, *code, 16);  // takes no sign for an unsigned type
    return r.ec == std::errc() && r.ptr == p + 4;
  }

  Status number(JsonNode* node) {
    const char* const first = p_;
    const auto digits = [this] {
      const char* const start = p_;
      while (p_ < end_ && *p_ >= '0' && *p_ <= '9') ++p_;
      return p_ > start;
    };
    eat('-');
    if (eat('0')) {
      if (p_ < end_ && *p_ >= '0' && *p_ <= '9') return fail("number with a leading zero");
    } else if (!digits()) {
      return fail("expected a digit");
    }
    bool integer = true;
    if (eat('.')) {
      integer = false;
      if (!digits()) return fail("expected a digit after '.'");
    }
    if (p_ < end_ && (*p_ == 'e' || *p_ == 'E')) {
      integer = false;
      ++p_;
      if (!eat('+')) eat('-');
      if (!digits()) return fail("expected a digit in an exponent");
    }
    node->kind = JsonKind::integer;
    if (integer && std::from_chars(first, p_, node->integer).ec == std::errc()) return Status();
    node->kind = JsonKind::number;
    const auto r = std::from_chars(first, p_, node->number);
    return r.ec == std::errc() && r.ptr == p_ ? Status()
                                              : fail("number outside the range of a double");
  }

  JsonDoc& doc_;
  const JsonLimits& limits_;
  char* const begin_;
  const char* p_;
  const char* const end_;
};

}  // namespace

Status parse_json(JsonDoc* doc, const JsonLimits& limits) {
  const char* const name = doc->name.c_str();
  const size_t bytes = doc->text.size(), values = count_values(doc->text);
  const size_t cap = std::max<size_t>(1u << 20, bytes / 12);
  if (bytes > std::min<size_t>(limits.bytes, UINT32_MAX - 1))
    return Status(Code::kLimitExceeded,
                  strf("%s: %zu bytes of JSON, at most %zu are read", name, bytes, limits.bytes));
  if (values > cap)
    return Status(Code::kLimitExceeded,
                  strf("%s: about %zu JSON values, at most %zu are read", name, values, cap));
  if (!is_utf8(doc->text)) return Status(Code::kCorruptData, strf("%s: not valid UTF-8", name));
  doc->nodes.reserve(values);
  return Parser(doc, limits).run();
}

}  // namespace vivace::engine
