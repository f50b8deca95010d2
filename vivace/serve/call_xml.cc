// <function=NAME> <parameter=KEY> value </parameter> </function>: Qwen3-Coder and what came after it.
#include <algorithm>

#include "vivace/serve/call_reader.h"
#include "vivace/serve/json_scan.h"
#include "vivace/serve/text_search.h"

namespace vivace::serve {
namespace {

constexpr std::string_view kFunction = "<function=", kParameter = "<parameter=", kEndFunction = "</function>",
                           kEndParameter = "</parameter>";

std::string_view trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t\r\n"), last = s.find_last_not_of(" \t\r\n");
  return first == std::string_view::npos ? std::string_view() : s.substr(first, last - first + 1);
}

std::string lower(std::string_view s) {
  std::string out(s);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

std::string quoted(std::string_view s) {
  std::string out = "\"";
  for (const char c : s) append_json_escaped(c, &out);
  return out + '"';
}

class XmlCall final : public CallReader {
 public:
  XmlCall(const std::vector<Tool>& tools, bool named)
      : tools_(tools), at_(named ? At::name : At::open), end_({std::string(kEndParameter)}) {}

  Step put(char c) override {
    switch (at_) {
      case At::open:
        if (tag_.empty() && (c == ' ' || c == '\n' || c == '\t' || c == '\r')) return Step::more;
        if (!fits(kFunction, c)) return Step::bad;
        if (tag_ == kFunction) go(At::name);
        return Step::more;
      case At::name:
        if (c != '>') return collect(c);
        if (tag_.empty()) return Step::bad;
        name_ = tag_;
        begun_ = true;
        go(At::between);
        return Step::more;
      case At::between:
        if (tag_.empty() && (c == ' ' || c == '\n' || c == '\t' || c == '\r')) return Step::more;
        if (!fits(kParameter, c) && !fits(kEndFunction, c)) return Step::bad;
        if (tag_ == kParameter) go(At::key);
        if (tag_ != kEndFunction) return Step::more;
        arguments_ += any_ ? "}" : "{}";
        tag_.clear();
        return Step::whole;
      case At::key:
        if (c != '>') return collect(c);
        if (tag_.empty()) return Step::bad;
        arguments_ += (any_ ? ", " : "{") + quoted(tag_) + ": ";
        any_ = true;
        kind_ = kind_of(tag_);
        if (kind_ == ValueKind::string) arguments_.push_back('"');
        go(At::value);
        return Step::more;
      case At::value: return value(c);
    }
    return Step::bad;
  }

  std::string rest() const override { return tag_ + value_; }

 private:
  enum class At : uint8_t { open, name, between, key, value };

  void go(At at) {
    at_ = at;
    tag_.clear();
    value_.clear();
    end_.reset();
    first_ = true;
  }

  /// Takes a byte of a tag, if it is one.
  bool fits(std::string_view tag, char c) {
    if (tag_.size() >= tag.size() || tag.substr(0, tag_.size()) != tag_ || tag[tag_.size()] != c) return false;
    tag_.push_back(c);
    return true;
  }

  Step collect(char c) {
    if (!may_name(c) || tag_.size() == kMostName) return Step::bad;
    tag_.push_back(c);
    return Step::more;
  }

  ValueKind kind_of(std::string_view key) const {
    for (const Tool& t : tools_)
      if (t.name == name_)
        for (const auto& [name, kind] : t.parameters)
          if (name == key) return kind;
    return ValueKind::string;
  }

  /// The line end behind <parameter=...> and the one before </parameter> are no part of it.
  Step value(char c) {
    value_.push_back(c);
    if (end_.put(c) != TextSearch::kNone) {
      value_.resize(value_.size() - kEndParameter.size());
      if (first_ && value_.starts_with('\n')) value_.erase(0, 1);
      if (value_.ends_with('\n')) value_.pop_back();
      if (kind_ == ValueKind::string) {
        for (const char v : value_) append_json_escaped(v, &arguments_);
        arguments_.push_back('"');
      } else {
        arguments_ += literal(value_);
      }
      go(At::between);
      return Step::more;
    }
    if (kind_ != ValueKind::string) return Step::more;
    size_t known = value_.size() - end_.held();
    if (known > 0 && first_) {
      first_ = false;
      if (value_[0] == '\n') value_.erase(0, 1), --known;
    }
    if (known > 0 && value_[known - 1] == '\n') --known;
    for (size_t i = 0; i < known; ++i) append_json_escaped(value_[i], &arguments_);
    value_.erase(0, known);
    return Step::more;
  }

  std::string literal(std::string_view value) const {
    const std::string_view word = trimmed(value);
    const std::string small = lower(word);  // templates write what Python calls True and None
    if (small == "null" || small == "none") return "null";
    if (kind_ == ValueKind::either) return quoted(value);
    if (small == "true" || small == "false") return small;
    return is_json(word) ? std::string(word) : quoted(value);
  }

  const std::vector<Tool>& tools_;
  At at_;
  TextSearch end_;
  std::string tag_, value_;
  ValueKind kind_ = ValueKind::string;
  bool any_ = false;   // a parameter came
  bool first_ = true;  // nothing of this value is known yet
};

}  // namespace

std::unique_ptr<CallReader> read_xml_call(const std::vector<Tool>& tools, bool named) {
  return std::make_unique<XmlCall>(tools, named);
}

}  // namespace vivace::serve
