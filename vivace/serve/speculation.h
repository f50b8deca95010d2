// Speculation: one greedy answer, several tokens a step where a drafter guesses well.
#pragma once
#include <vector>

#include "vivace/serve/batcher.h"
#include "vivace/serve/drafter.h"

namespace vivace::serve {

/// The tokens are those of plain greedy decoding: each is the model's own draw, and rows of one step have
/// the bits that they have alone. Not thread-safe.
class Speculation {
 public:
  /// Checks `drafts` >= 1 guesses a step. Both must outlive this; the model has max_batch of drafts + 1 or more and
  /// is used by nobody else meanwhile. Errors: LimitExceeded, and those of Batcher::submit; InvalidArgument for a
  /// request that is not greedy without penalties.
  static Result<Speculation> start(engine::TextModel& model, Drafter& drafter, int drafts, Request request);
  bool idle() const { return over_; }
  /// One model step: an event a token, the last with the answer's finish. Replaces `events`.
  Status step(std::vector<Event>* events);
  /// Model steps after the prompt, guesses checked, guesses that were right.
  int64_t steps() const { return steps_; }
  int64_t drafted() const { return drafted_; }
  int64_t accepted() const { return accepted_; }

 private:
  Speculation(engine::TextModel& model, Drafter& drafter) : model_(&model), drafter_(&drafter) {}
  Status prompt(std::vector<Event>* events);
  /// Takes one draw into the answer; false when that ends it.
  bool take(const engine::Sampled& s, std::vector<Event>* events);

  engine::TextModel* model_;
  Drafter* drafter_;
  Request request_;
  std::vector<int32_t> context_;  // prompt and answer; all but the last token stand in the model's slot
  std::vector<int32_t> guesses_;
  std::vector<engine::TokenRow> rows_;
  std::vector<engine::Sampled> drawn_;
  int produced_ = 0;
  bool over_ = false;
  int64_t steps_ = 0, drafted_ = 0, accepted_ = 0;
};

}  // namespace vivace::serve
