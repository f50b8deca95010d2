#include "vivace/serve/reply_wire.h"

#include <algorithm>
#include <charconv>

#include "vivace/engine/text/unicode.h"
#include "vivace/serve/json_scan.h"

namespace vivace::serve {
namespace {

void quote(std::string_view s, std::string* out) {
  *out += '"';
  for (const char c : s) append_json_escaped(c, out);
  *out += '"';
}

std::string valid(std::string_view s) {
  std::string out;
  engine::text::append_valid_utf8(s, &out);
  return out;
}

template <class Number>
void number(Number value, std::string* out) {
  char text[32];
  *out += std::string_view(text, static_cast<size_t>(std::to_chars(text, text + sizeof(text), value).ptr - text));
}

}  // namespace

void ReplyWire::begin(int choice, std::string_view echo, std::string* out) const {
  if (form_ == WireForm::chat) event(choice, R"({"role":"assistant","content":"","refusal":null})", {}, {}, out);
  if (echo.empty() || form_ == WireForm::chat) return;
  ReplyDelta text;
  text.text = echo;
  say(choice, text, {}, out);
}

void ReplyWire::say(int choice, const ReplyDelta& d, std::span<const DrawnToken> drawn, std::string* out) const {
  using Kind = ReplyDelta::Kind;
  if (form_ == WireForm::records) {
    static constexpr const char* kNames[] = {"text", "reasoning", "call", "arguments"};
    return record(choice, kNames[static_cast<int>(d.kind)], d.index, d.id, d.text, drawn, 0, out);
  }
  std::string content;
  if (form_ == WireForm::completion) {
    quote(d.text, &content);
  } else if (d.kind == Kind::text || d.kind == Kind::reasoning) {
    content = d.kind == Kind::text ? R"({"content":)" : R"({"reasoning_content":)";
    quote(d.text, &content);
    content += '}';
  } else {
    content = R"({"tool_calls":[{"index":)";
    number(d.index, &content);
    if (d.kind == Kind::call) {
      content += R"(,"id":)";
      quote(d.id, &content);
      content += R"(,"type":"function","function":{"name":)";
      quote(d.text, &content);
      content += R"(,"arguments":""}}]})";
    } else {
      content += R"(,"function":{"arguments":)";
      quote(d.text, &content);
      content += "}}]}";
    }
  }
  event(choice, content, drawn, {}, out);
}

void ReplyWire::end(int choice, std::string_view finish, int stop, int tokens, std::string* out) const {
  if (form_ == WireForm::records) return record(choice, "finish", stop, {}, finish, {}, tokens, out);
  event(choice, form_ == WireForm::chat ? "{}" : R"("")", {}, finish, out);
}

/// A token, its object still open.
void ReplyWire::token(int32_t id, float logprob, std::string* out) const {
  const std::string_view bytes = tokens_.of(id);
  *out += R"({"token":)";
  quote(valid(bytes), out);
  *out += R"(,"logprob":)";
  number(static_cast<double>(logprob), out);
  *out += R"(,"bytes":[)";
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) *out += ',';
    number(static_cast<int>(static_cast<unsigned char>(bytes[i])), out);
  }
  *out += ']';
}

void ReplyWire::event(int choice, std::string_view content, std::span<const DrawnToken> drawn, std::string_view finish,
                      std::string* out) const {
  const bool chat = form_ == WireForm::chat;
  *out += head_;
  *out += R"({"index":)";
  number(choice, out);
  *out += chat ? R"(,"delta":)" : R"(,"text":)";
  *out += content;
  *out += R"(,"logprobs":)";
  if (!wants(drawn)) {
    *out += "null";
  } else if (chat) {
    *out += R"({"content":[)";
    for (const DrawnToken& t : drawn) {
      if (&t != drawn.data()) *out += ',';
      token(t.id, t.logprob, out);
      *out += R"(,"top_logprobs":[)";
      for (const TopLogprob& other : t.top) {
        if (&other != t.top.data()) *out += ',';
        token(other.token, other.logprob, out);
        *out += '}';
      }
      *out += "]}";
    }
    *out += R"(],"refusal":null})";
  } else {
    std::string names, values, top, offsets;
    for (const DrawnToken& t : drawn) {
      if (&t != drawn.data()) names += ',', values += ',', top += ',', offsets += ',';
      const std::string text = valid(tokens_.of(t.id));
      quote(text, &names);
      number(static_cast<double>(t.logprob), &values);
      top += '{';
      std::vector<std::string> said;  // tokens of the same text are one member, the likeliest
      const TopLogprob own{t.id, t.logprob};
      const auto add = [&](const TopLogprob& one) {
        std::string name = valid(tokens_.of(one.token));
        if (std::find(said.begin(), said.end(), name) != said.end()) return;
        if (!said.empty()) top += ',';
        quote(name, &top);
        top += ':';
        number(static_cast<double>(one.logprob), &top);
        said.push_back(std::move(name));
      };
      for (const TopLogprob& one : t.top) add(one);
      add(own);
      top += '}';
      number(t.offset, &offsets);
    }
    *out += R"({"tokens":[)" + names + R"(],"token_logprobs":[)" + values + R"(],"top_logprobs":[)" + top +
            R"(],"text_offset":[)" + offsets + "]}";
  }
  *out += R"(,"finish_reason":)";
  if (finish.empty()) {
    *out += "null";
  } else {
    quote(finish, out);
  }
  *out += '}';
  *out += tail_;
}

void ReplyWire::record(int choice, const char* kind, int index, std::string_view id, std::string_view text,
                       std::span<const DrawnToken> drawn, int tokens, std::string* out) const {
  *out += R"({"i":)";
  number(choice, out);
  *out += R"(,"k":")";
  *out += kind;
  *out += R"(","x":)";
  number(index, out);
  *out += R"(,"d":)";
  quote(id, out);
  *out += R"(,"t":)";
  quote(text, out);
  *out += R"(,"n":)";
  number(tokens, out);
  *out += R"(,"p":[)";
  for (size_t i = 0; logprobs_ && i < drawn.size(); ++i) {
    *out += i > 0 ? ",[" : "[";
    number(drawn[i].id, out);
    *out += ',';
    number(static_cast<double>(drawn[i].logprob), out);
    *out += ",[";
    for (const TopLogprob& t : drawn[i].top) {
      *out += &t != drawn[i].top.data() ? ",[" : "[";
      number(t.token, out);
      *out += ',';
      number(static_cast<double>(t.logprob), out);
      *out += ']';
    }
    *out += "]]";
  }
  *out += "]}\n";
}

}  // namespace vivace::serve
