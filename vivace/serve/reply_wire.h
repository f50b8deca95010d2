// ReplyWire: what became known of a reply, as the bytes that a client gets.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vivace/serve/batcher.h"
#include "vivace/serve/reply_parser.h"
#include "vivace/serve/token_bytes.h"

namespace vivace::serve {

/// How a reply is written.
enum class WireForm : uint8_t {
  chat,        // events of chat.completion.chunk
  completion,  // events of text_completion
  records,  // a line of JSON each: {"i": choice, "k": kind, "x": call or stop string, "d": id, "t": text, "p": [[token,
            // logprob, [[token, logprob], ...]], ...], "n": tokens so far}
};

struct DrawnToken {
  size_t at = 0;      // its first byte in the reply
  size_t offset = 0;  // characters of the tokens before it, each by itself
  int32_t id = -1;
  float logprob = 0;
  std::span<const TopLogprob> top = {};
};

class ReplyWire {
 public:
  /// `head`, `tail`: what stands before and behind a choice in each event. `logprobs`: of drawn tokens, in events.
  ReplyWire(WireForm form, std::string head, std::string tail, bool logprobs, const TokenBytes& tokens)
      : form_(form), head_(std::move(head)), tail_(std::move(tail)), logprobs_(logprobs), tokens_(tokens) {}

  /// What a choice begins with: the role of a chat, the prompt of a completion that is echoed.
  void begin(int choice, std::string_view echo, std::string* out) const;
  /// One thing that a choice says, with the tokens it came from.
  void say(int choice, const ReplyDelta& delta, std::span<const DrawnToken> drawn, std::string* out) const;
  /// `stop`: which stop string was met, -1: none.
  void end(int choice, std::string_view finish, int stop, int tokens, std::string* out) const;
  bool logprobs() const { return logprobs_; }
  bool wants(std::span<const DrawnToken> drawn) const { return logprobs_ && !drawn.empty(); }

 private:
  void token(int32_t id, float logprob, std::string* out) const;
  void event(int choice, std::string_view content, std::span<const DrawnToken> drawn, std::string_view finish,
             std::string* out) const;
  void record(int choice, const char* kind, int index, std::string_view id, std::string_view text,
              std::span<const DrawnToken> drawn, int tokens, std::string* out) const;

  const WireForm form_;
  const std::string head_, tail_;
  const bool logprobs_;
  const TokenBytes& tokens_;
};

}  // namespace vivace::serve
