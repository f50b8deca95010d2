// Candidates of one window's text: greedy, drawn, or beams. They see the likeliest tokens, or logits, and say which
// come next; who runs the network is not known here.
#pragma once
#include <random>

#include "vivace/models/whisper/rules.h"

namespace vivace::models::whisper {

class Candidates {
 public:
  Candidates(const engine::SpeechTokens& tokens, const engine::SpeechRequest& request);

  /// What a step sees of a live candidate: the `listed()` likeliest of the tokens that may follow, -1 behind the last,
  /// and their log-probabilities; or where nothing is listed its logits, which are changed.
  struct Seen {
    const int32_t* token;
    const float* logprob;
    std::span<float> logits;
  };
  int listed() const {
    return request_->temperature > 0 ? 0 : request_->candidates == 1 ? 1 : request_->candidates + 1;
  }
  /// What may follow live candidate `i`; before the first step there is one.
  Spans spans(size_t i, int64_t vocab) const { return spans_after(*tokens_, *request_, live_[i].tokens, vocab); }
  /// Takes what is seen of each live candidate, in order. Errors: CorruptData for NaN.
  Status step(std::span<const Seen> seen);
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
  Status draw(std::span<const Seen> seen);
  Status upcast(std::span<const Seen> seen);
  int32_t pick(std::span<const float> logits);
  double score(const Text& text) const;

  const engine::SpeechTokens* tokens_;
  const engine::SpeechRequest* request_;
  std::mt19937_64 random_;
  std::vector<Text> live_, finished_;
  std::vector<Next> next_;
};

}  // namespace vivace::models::whisper
