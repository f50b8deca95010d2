// ReplyParser: a model's reply, bytes in, deltas out: text, reasoning and calls of tools, each apart.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vivace/base/status.h"
#include "vivace/serve/call_reader.h"
#include "vivace/serve/reply_format.h"
#include "vivace/serve/text_search.h"

namespace vivace::serve {

/// A stretch of a reply. Of a call the first has its id and name; the arguments follow as pieces of one JSON text.
struct ReplyDelta {
  enum class Kind : uint8_t { text, reasoning, call, arguments };
  Kind kind = Kind::text;
  int index = -1;  // of a call, from 0
  std::string id;
  std::string text;  // of a call: its name
};

struct ReplyOptions {
  const CallFormat* calls = nullptr;          // null: calls are text
  const ReasoningFormat* reasoning = nullptr;  // null: reasoning is text
  bool in_reasoning = false;                  // the prompt ended inside reasoning
  bool one_call = false;                      // after one whole call the reply is over
  std::vector<Tool> tools = {};
  std::vector<std::string> stop = {};         // strings that end the reply and are no part of it
  std::string id_prefix = "call_";            // ids of calls: this and the index
};

/// Every byte is judged by those before it, so deltas of the same kind joined are the same however the bytes were cut.
/// Text that only looks like a call is text; what breaks within a call, after its name and the beginning of its
/// arguments were given out, ends up in these as it came. White space around reasoning and calls is dropped.
class ReplyParser {
 public:
  /// Errors: InvalidArgument for a stop string that is empty or no UTF-8, and for what cannot be in this reply.
  static Result<std::unique_ptr<ReplyParser>> make(ReplyOptions options);
  ReplyParser(const ReplyParser&) = delete;

  /// Appends what the bytes make known; whole characters, U+FFFD for what is none. Nothing once over().
  void feed(std::string_view bytes, std::vector<ReplyDelta>* deltas);
  /// Whether a stop string was met, or the one call is whole: the rest need not be made.
  bool over() const { return stops_.met() || enough_; }
  /// Which of the stop strings was met; -1: none.
  int stop() const { return stops_.met() ? static_cast<int>(stops_.which()) : -1; }
  /// The reply ended for `why` (a Finish's name): appends what was held back, and gives the finish as clients are told:
  /// "tool_calls" where it ended by itself after calls that are all whole, "stop" too where `named` says that a call
  /// was forced by its tool's name.
  std::string finish(std::string_view why, bool named, std::vector<ReplyDelta>* deltas);
  /// Bytes of the reply, as UTF-8, whose part in it is known: those held back, and those from a stop string on, are not
  /// counted.
  size_t given() const { return passed_ - held_.size() - raw_.size(); }
  /// Calls that began, and those of them that are whole.
  int calls() const { return calls_; }
  int whole_calls() const { return whole_; }

 private:
  explicit ReplyParser(ReplyOptions options);
  enum class At : uint8_t { begin, reasoning, text, call, closing, broken };

  void put(char c);
  void put_all(std::string_view s);
  void at_begin(char c);
  void in_text(char c);
  void in_call(char c);
  void in_closing(char c);
  void to(At at);
  void open_call(std::unique_ptr<CallReader> reader, std::string raw);
  void take_call();
  void end_call(bool whole);
  void say(ReplyDelta::Kind kind, std::string_view s);
  void add(ReplyDelta::Kind kind, int index, std::string_view s);

  const ReplyOptions o_;
  std::string bytes_;   // of a character that is not whole
  StopStrings stops_;
  size_t passed_ = 0;   // bytes before any stop string
  At at_;
  TextSearch search_;   // in this place: what ends it
  std::string held_;    // bytes of it that may belong to what ends it
  std::string space_;   // white space that is text only if more text follows
  std::unique_ptr<CallReader> reader_;
  std::string raw_;     // of a call that has not begun
  bool fresh_ = true;   // nothing but white space of this text came: a bare call may begin
  bool trim_ = false;   // white space here is dropped
  bool enough_ = false;
  int calls_ = 0, whole_ = 0;
  std::vector<ReplyDelta>* out_ = nullptr;
};

}  // namespace vivace::serve
