// {"name": "f", "arguments": {...}}: Hermes, Qwen, Llama 3.
#include <algorithm>
#include <optional>

#include "vivace/engine/checkpoint/json.h"
#include "vivace/serve/call_reader.h"
#include "vivace/serve/json_scan.h"

namespace vivace::serve {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// What a JSON string says; nothing where it is none.
std::optional<std::string> text_of(const std::string& json) {
  const auto doc = engine::Json::parse(json, "call");
  if (!doc.ok() || !doc->root().is_string()) return std::nullopt;
  return std::string(*doc->root().as_string());
}

class JsonCall final : public CallReader {
 public:
  JsonCall(const std::vector<Tool>& tools, bool bare) : tools_(tools), bare_(bare) {}

  Step put(char c) override {
    switch (at_) {
      case At::open: return expect(c, '{', At::first_key);
      case At::first_key:
        if (c == '}') return end();
        [[fallthrough]];
      case At::key:
        if (is_space(c)) return Step::more;
        if (c != '"') return Step::bad;
        start(At::in_key);
        break;
      case At::colon: return expect(c, ':', At::before);
      case At::before:
        if (is_space(c)) return Step::more;
        start(At::value);
        streams_ = (c == '{' || c == '[') && what_ == What::arguments;
        if (streams_ && !name_.empty()) begun_ = true;
        break;
      case At::after:
        if (c == ',') return at_ = At::key, Step::more;
        return c == '}' ? end() : is_space(c) ? Step::more : Step::bad;
      case At::in_key:
      case At::value: break;
    }
    const JsonScan::Step step = scan_.put(c);
    if (step == JsonScan::Step::bad) return Step::bad;
    if (step != JsonScan::Step::before) (streams_ ? arguments_ : raw_).push_back(c);
    if (step == JsonScan::Step::more) return Step::more;
    if (!(at_ == At::in_key ? key_ends() : value_ends())) {
      raw_.pop_back();
      return Step::bad;
    }
    raw_.clear();
    return step == JsonScan::Step::before ? put(c) : Step::more;
  }

  bool complete() const override { return begun_ && has_arguments_; }
  std::string rest() const override { return raw_; }

 private:
  enum class At : uint8_t { open, first_key, key, in_key, colon, before, value, after };
  enum class What : uint8_t { name, arguments, other };

  Step expect(char c, char wanted, At next) {
    if (c == wanted) at_ = next;
    return c == wanted || is_space(c) ? Step::more : Step::bad;
  }

  void start(At at) {
    at_ = at;
    scan_ = JsonScan();
    raw_.clear();
    streams_ = false;
  }

  bool key_ends() {
    const std::optional<std::string> key = text_of(raw_);
    at_ = At::colon;
    if (!key) return false;
    what_ = *key == "name" && name_.empty()                                    ? What::name
            : (*key == "arguments" || *key == "parameters") && !has_arguments_ ? What::arguments
                                                                               : What::other;
    return !bare_ || what_ != What::other || *key == "type";
  }

  bool value_ends() {
    at_ = At::after;
    if (what_ == What::name) {
      std::optional<std::string> name = text_of(raw_);
      if (!name || name->empty() || name->size() > kMostName || !std::all_of(name->begin(), name->end(), may_name))
        return false;
      if (bare_ && std::none_of(tools_.begin(), tools_.end(), [&](const Tool& t) { return t.name == *name; }))
        return false;
      name_ = std::move(*name);
    } else if (what_ == What::arguments) {
      has_arguments_ = true;
      // Some write the object into a string, or null for none.
      if (!streams_) {
        const std::optional<std::string> inner = text_of(raw_);
        arguments_ = raw_ == "null" ? "{}" : inner && is_json(*inner) ? *inner : raw_;
      }
    }
    begun_ = begun_ || (has_arguments_ && !name_.empty());
    return true;
  }

  Step end() {
    if (name_.empty()) return Step::bad;
    if (!has_arguments_) arguments_ = "{}";
    begun_ = true;
    return Step::whole;
  }

  const std::vector<Tool>& tools_;
  const bool bare_;
  At at_ = At::open;
  What what_ = What::other;
  JsonScan scan_;
  std::string raw_;       // of a key or value that is read whole
  bool streams_ = false;  // the value goes to arguments_ as it comes
  bool has_arguments_ = false;
};

}  // namespace

bool may_name(char c) {
  return static_cast<unsigned char>(c) > 0x20 && c != 0x7f && c != '<' && c != '>' && c != '{' && c != '}' && c != '"';
}

std::unique_ptr<CallReader> read_json_call(const std::vector<Tool>& tools, bool bare) {
  return std::make_unique<JsonCall>(tools, bare);
}

}  // namespace vivace::serve
