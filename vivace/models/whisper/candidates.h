// Candidates of one window's text: greedy, drawn, or beams. They see logits and say which tokens come next; who runs
// the network is not known here.
#pragma once
#include <random>

#include "vivace/models/whisper/rules.h"

namespace vivace::models::whisper {

class Candidates {
 public:
  Candidates(const engine::SpeechTokens& tokens, const engine::SpeechRequest& request);

  /// Takes the logits of each live candidate, in order, which are changed; before the first step there is one. Errors:
  /// CorruptData for NaN.
  Status step(std::span<float* const> logits, int64_t vocab);
  /// Live candidates after a step: the token that came, and which of those before the step it goes on from.
  struct Next {
    int32_t token;
    int parent;
  };
  std::span<const Next> next() const { return next_; }
  /// Whether another step changes nothing.
  bool done() const { return next_.empty() || finished_enough(); }
  /// The best text. `no_speech` is the caller's.
  engine::Transcript best() const;

 private:
  struct Text {
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;  // of each
    double logprob = 0;
  };
  bool beams() const { return request_->temperature == 0 && request_->candidates > 1; }
  size_t wanted() const;
  bool finished_enough() const { return beams() ? finished_.size() >= wanted() : false; }
  Status draw(std::span<float* const> logits, int64_t vocab);
  Status upcast(std::span<float* const> logits, int64_t vocab);
  int32_t pick(std::span<const float> logits);
  double score(const Text& text) const;

  const engine::SpeechTokens* tokens_;
  const engine::SpeechRequest* request_;
  std::mt19937_64 random_;
  std::vector<Text> live_, finished_;
  std::vector<Next> next_;
};

}  // namespace vivace::models::whisper
