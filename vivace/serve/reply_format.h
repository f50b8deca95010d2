// How families of models write what is no plain text: calls of tools, and reasoning. A row a family.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace vivace::serve {

/// What stands between a call's opening and closing marker.
enum class CallForm : uint8_t {
  json,    // {"name": ..., "arguments": {...}}
  xml,     // <function=NAME> <parameter=KEY> value </parameter> </function>
  braces,  // call:NAME{key:value,...}
};

struct CallFormat {
  const char* name;
  const char* sign;       // what a chat template holds that asks for this form
  CallForm form;
  const char* open;       // before a call
  const char* close;      // behind it; empty: the call's own end
  const char* quote;      // braces: around strings
  const char* arguments;  // json: the key of the arguments, as the family writes it
  bool bare;              // json: an answer that begins with { may be a call without a marker
};

struct ReasoningFormat {
  const char* name;
  const char* open;
  const char* close;
};

/// In order: the first whose sign a template holds.
std::span<const CallFormat> call_formats();
std::span<const ReasoningFormat> reasoning_formats();

/// Of a checkpoint by its chat template; null: it writes none.
struct ReplyFormat {
  const CallFormat* calls = nullptr;
  const ReasoningFormat* reasoning = nullptr;
};
ReplyFormat reply_format(std::string_view chat_template);
/// Rows by name; null: there is none.
const CallFormat* call_format(std::string_view name);
const ReasoningFormat* reasoning_format(std::string_view name);
/// Whether a prompt, as a template rendered it, ends inside reasoning.
bool ends_in_reasoning(std::string_view prompt, const ReasoningFormat& format);

}  // namespace vivace::serve
