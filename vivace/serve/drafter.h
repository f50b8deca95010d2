// Drafters: cheap guesses of what comes next, for Speculation to check several tokens in one step.
#pragma once
#include <span>
#include <vector>

#include "vivace/engine/model.h"

namespace vivace::serve {

class Drafter {
 public:
  virtual ~Drafter() = default;
  /// Guesses what follows `context`, all tokens of the sequence so far, at most out.size() of them; answers how
  /// many. A guess may be anything: it changes how fast an answer comes, never the answer.
  virtual Result<size_t> draft(std::span<const int32_t> context, std::span<int32_t> out) = 0;
};

/// Looks for the last tokens earlier in the context and guesses what followed them there.
class PromptLookup final : public Drafter {
 public:
  /// `longest` >= 1: most tokens to look for; fewer where those have not come up before.
  explicit PromptLookup(int longest = 3) : longest_(static_cast<size_t>(longest)) {}
  Result<size_t> draft(std::span<const int32_t> context, std::span<int32_t> out) override;

 private:
  size_t longest_;
};

/// Greedy tokens of a smaller model with the same vocabulary.
class DraftModel final : public Drafter {
 public:
  /// `model` must outlive this and be used by nobody else meanwhile.
  explicit DraftModel(engine::TextModel& model);
  Result<size_t> draft(std::span<const int32_t> context, std::span<int32_t> out) override;

 private:
  Status feed(std::span<const int32_t> tokens, size_t from, int32_t* next);
  engine::TextModel& model_;
  std::vector<int32_t> fed_;  // what stands in the model's slot
  std::vector<engine::TokenRow> rows_;
};

}  // namespace vivace::serve
