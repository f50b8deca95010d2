// call:NAME{key:value,...} with strings between markers of their own and keys without: Gemma.
#include "vivace/serve/call_reader.h"
#include "vivace/serve/json_scan.h"
#include "vivace/serve/text_search.h"

namespace vivace::serve {
namespace {

constexpr std::string_view kCall = "call:";

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class BracesCall final : public CallReader {
 public:
  explicit BracesCall(const char* quote) : quote_(quote), end_({quote_}) {}

  Step put(char c) override {
    switch (at_) {
      case At::call:
        if (held_.empty() && is_space(c)) return Step::more;
        if (kCall[held_.size()] != c) return Step::bad;
        held_.push_back(c);
        if (held_ == kCall) go(At::name);
        return Step::more;
      case At::name:
        if (c == '{' && !held_.empty()) {
          name_ = held_;
          begun_ = true;
          return open(c);
        }
        if (!may_name(c) || held_.size() == kMostName) return Step::bad;
        held_.push_back(c);
        return Step::more;
      case At::first_key:
      case At::key:
        if (held_.empty() && is_space(c)) return Step::more;
        if (c == '}' && held_.empty() && at_ == At::first_key) return close();
        return key(c);
      case At::colon:
        if (c != ':') return is_space(c) ? Step::more : Step::bad;
        arguments_ += ": ";
        go(At::value);
        return Step::more;
      case At::first_value:
      case At::value:
        if (held_.empty() && is_space(c)) return Step::more;
        if (held_.empty() && (c == '{' || c == '[')) return open(c);
        if (held_.empty() && c == ']' && at_ == At::first_value) return close();
        return value(c);
      case At::json:
        if (scan_.put(c) == JsonScan::Step::bad) return Step::bad;
        arguments_.push_back(c);
        if (scan_.whole()) go(of_key_ ? At::colon : At::after);
        return Step::more;
      case At::string: return string(c);
      case At::after:
        if (is_space(c)) return Step::more;
        if (c != ',') return (c == '}' || c == ']') && c == (open_.back() == '{' ? '}' : ']') ? close() : Step::bad;
        arguments_ += ", ";
        go(open_.back() == '{' ? At::key : At::value);
        return Step::more;
    }
    return Step::bad;
  }

  std::string rest() const override { return held_; }

 private:
  enum class At : uint8_t { call, name, first_key, key, colon, first_value, value, string, json, after };

  void go(At at) {
    at_ = at;
    held_.clear();
    end_.reset();
  }

  Step open(char c) {
    if (open_.size() == JsonScan::kMostDepth) return Step::bad;
    open_.push_back(c);
    arguments_.push_back(c);
    go(c == '{' ? At::first_key : At::first_value);
    return Step::more;
  }

  Step close() {
    arguments_.push_back(open_.back() == '{' ? '}' : ']');
    open_.pop_back();
    go(At::after);
    return open_.empty() ? Step::whole : Step::more;
  }

  /// A string of JSON or between the family's markers, whose first byte is `c`. Whether it begins one.
  bool begins_string(char c, bool of_key) {
    of_key_ = of_key;
    if (held_.empty() && c == '"') {
      go(At::json);
      scan_ = JsonScan();
      scan_.put(c);
      arguments_.push_back(c);
      return true;
    }
    if (held_.size() >= quote_.size() || quote_.compare(0, held_.size(), held_) != 0 || quote_[held_.size()] != c)
      return false;
    held_.push_back(c);
    if (held_ == quote_) {
      arguments_.push_back('"');
      go(At::string);
    }
    return true;
  }

  Step key(char c) {
    if (begins_string(c, true)) return Step::more;
    if (c == ':' && !held_.empty()) {
      put_string(held_);
      arguments_ += ": ";
      go(At::value);
      return Step::more;
    }
    if (!may_name(c) || c == ',' || held_.size() == kMostName) return Step::bad;
    held_.push_back(c);
    return Step::more;
  }

  Step value(char c) {
    if (begins_string(c, false)) return Step::more;
    if (c != ',' && c != '}' && c != ']') {
      held_.push_back(c);
      return Step::more;
    }
    while (!held_.empty() && is_space(held_.back())) held_.pop_back();
    if (held_.empty()) return Step::bad;
    if (is_json(held_)) arguments_ += held_;
    else put_string(held_);
    go(At::after);
    return put(c);
  }

  Step string(char c) {
    held_.push_back(c);
    const bool ends = end_.put(c) != TextSearch::kNone;
    const size_t known = held_.size() - (ends ? quote_.size() : end_.held());
    for (size_t i = 0; i < known; ++i) append_json_escaped(held_[i], &arguments_);
    held_.erase(0, known);
    if (ends) {
      arguments_.push_back('"');
      go(of_key_ ? At::colon : At::after);
    }
    return Step::more;
  }

  void put_string(std::string_view s) {
    arguments_.push_back('"');
    for (const char c : s) append_json_escaped(c, &arguments_);
    arguments_.push_back('"');
  }

  const std::string quote_;
  TextSearch end_;
  At at_ = At::call;
  std::string open_;  // brackets around this place
  std::string held_;
  JsonScan scan_;
  bool of_key_ = false;
};

}  // namespace

std::unique_ptr<CallReader> read_braces_call(const char* quote) { return std::make_unique<BracesCall>(quote); }

}  // namespace vivace::serve
