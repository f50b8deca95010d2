#include "vivace/serve/reply_format.h"

namespace vivace::serve {
namespace {

constexpr CallFormat kCalls[] = {
    {"qwen_xml", "<function=", CallForm::xml, "<tool_call>", "</tool_call>", "", "", false},
    {"gemma", "<|tool_call>", CallForm::braces, "<|tool_call>", "<tool_call|>", "<|\"|>", "", false},
    {"functiongemma", "<start_function_call>", CallForm::braces, "<start_function_call>", "<end_function_call>",
     "<escape>", "", false},
    {"hermes", "<tool_call>", CallForm::json, "<tool_call>", "</tool_call>", "", "arguments", false},
    {"llama", "<|python_tag|>", CallForm::json, "<|python_tag|>", "", "", "parameters", true},
    {"llama", "Environment: ipython", CallForm::json, "<|python_tag|>", "", "", "parameters", true},
};

constexpr ReasoningFormat kReasoning[] = {
    {"think", "<think>", "</think>"},
    {"gemma", "<|channel>thought", "<channel|>"},
};

template <class Row>
const Row* named(std::span<const Row> rows, std::string_view name) {
  for (const Row& row : rows)
    if (name == row.name) return &row;
  return nullptr;
}

bool holds(std::string_view text, const char* part) { return text.find(part) != std::string_view::npos; }

}  // namespace

std::span<const CallFormat> call_formats() { return kCalls; }
std::span<const ReasoningFormat> reasoning_formats() { return kReasoning; }
const CallFormat* call_format(std::string_view name) { return named(call_formats(), name); }
const ReasoningFormat* reasoning_format(std::string_view name) { return named(reasoning_formats(), name); }

ReplyFormat reply_format(std::string_view chat_template) {
  ReplyFormat format;
  for (const CallFormat& row : kCalls)
    if (format.calls == nullptr && holds(chat_template, row.sign)) format.calls = &row;
  for (const ReasoningFormat& row : kReasoning)
    if (format.reasoning == nullptr && (holds(chat_template, row.open) || holds(chat_template, row.close)))
      format.reasoning = &row;
  return format;
}

bool ends_in_reasoning(std::string_view prompt, const ReasoningFormat& format) {
  // Of words before the last turn it says nothing: an answer goes on with what stands at the very end.
  const size_t open = prompt.rfind(format.open);
  if (open == std::string_view::npos) return false;
  const std::string_view behind = prompt.substr(open + std::string_view(format.open).size());
  return behind.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace vivace::serve
