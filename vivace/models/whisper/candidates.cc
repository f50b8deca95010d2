#include "vivace/models/whisper/candidates.h"

#include <algorithm>
#include <cmath>

#include "vivace/base/check.h"

namespace vivace::models::whisper {
namespace {

Status not_finite() {
  return Status(Code::kCorruptData,
                "decode: the network's logits are NaN: the checkpoint is broken, or the sound lies far outside what it "
                "was trained on");
}

}  // namespace

Candidates::Candidates(const engine::SpeechTokens& tokens, const engine::SpeechRequest& request)
    : tokens_(&tokens), request_(&request), random_(request.seed), live_(1) {}

size_t Candidates::wanted() const {
  return std::max<size_t>(1, static_cast<size_t>(std::lround(static_cast<double>(request_->candidates) *
                                                             static_cast<double>(request_->patience))));
}

int32_t Candidates::pick(std::span<const float> logits) {
  const auto most = std::max_element(logits.begin(), logits.end());
  double total = 0;
  const auto weight = [&](float v) {
    return std::exp(static_cast<double>(v - *most) / static_cast<double>(request_->temperature));
  };
  for (const float v : logits) total += weight(v);
  const double at = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  double sum = 0;
  int32_t last = static_cast<int32_t>(most - logits.begin());
  for (size_t i = 0; i < logits.size(); ++i) {
    const double w = weight(logits[i]);
    if (w > 0) last = static_cast<int32_t>(i);
    if ((sum += w) > at && w > 0) return last;
  }
  return last;
}

Status Candidates::step(std::span<const Seen> seen) {
  next_.clear();
  return beams() ? upcast(seen) : draw(seen);
}

Status Candidates::draw(std::span<const Seen> seen) {
  std::vector<Text> live;
  const bool first = live_.size() == 1 && live_.front().tokens.empty() && finished_.empty();
  const size_t n = first ? static_cast<size_t>(request_->candidates) : live_.size();
  for (size_t i = 0; i < n; ++i) {
    const size_t from = first ? 0 : i;
    int32_t token;
    double likely;
    if (listed() > 0) {
      token = seen[from].token[0];
      if (token < 0) return not_finite();
      likely = static_cast<double>(seen[from].logprob[0]);
    } else {
      const std::span<float> row = seen[from].logits;
      if (!first || i == 0) apply_rules(*tokens_, *request_, live_[from].tokens, row);
      const double all = log_sum_exp(row);
      if (!std::isfinite(all)) return not_finite();
      token = pick(row);
      likely = static_cast<double>(row[static_cast<size_t>(token)]) - all;
    }
    Text text = live_[from];
    text.logprob += likely;
    if (token == tokens_->eot) {
      finished_.push_back(std::move(text));
      continue;
    }
    text.tokens.push_back(token);
    text.logprobs.push_back(static_cast<float>(likely));
    next_.push_back({token, static_cast<int>(from)});
    live.push_back(std::move(text));
  }
  live_ = std::move(live);
  return {};
}

Status Candidates::upcast(std::span<const Seen> seen) {
  struct Way {
    double logprob;  // of the whole way
    float own;       // of its token
    int parent, place;
    int32_t token;
  };
  const auto beams = static_cast<size_t>(request_->candidates);
  std::vector<Way> ways;
  for (size_t i = 0; i < live_.size(); ++i) {
    if (seen[i].token[0] < 0) return not_finite();
    for (int k = 0; k < listed() && seen[i].token[k] >= 0; ++k)
      ways.push_back({live_[i].logprob + static_cast<double>(seen[i].logprob[k]), seen[i].logprob[k],
                      static_cast<int>(i), k, seen[i].token[k]});
  }
  std::sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) {
    if (a.logprob != b.logprob) return a.logprob > b.logprob;
    return a.parent != b.parent ? a.parent < b.parent : a.place < b.place;
  });
  std::vector<Text> live;
  for (const Way& w : ways) {
    Text text = live_[static_cast<size_t>(w.parent)];
    text.logprob = w.logprob;
    if (w.token == tokens_->eot) {
      if (finished_.size() < wanted()) finished_.push_back(std::move(text));
      continue;
    }
    text.tokens.push_back(w.token);
    text.logprobs.push_back(w.own);
    next_.push_back({w.token, w.parent});
    live.push_back(std::move(text));
    if (live.size() == beams) break;
  }
  live_ = std::move(live);
  return {};
}

double Candidates::score(const Text& text) const {
  const auto n = static_cast<double>(std::max<size_t>(text.tokens.size(), 1));
  return text.logprob /
         (request_->length_penalty < 0 ? n : std::pow((5 + n) / 6, static_cast<double>(request_->length_penalty)));
}

engine::Transcript Candidates::best() const {
  std::vector<Text> all = finished_;
  if (!beams()) {
    all.insert(all.end(), live_.begin(), live_.end());
  } else {
    std::vector<const Text*> rest;
    for (const Text& text : live_) rest.push_back(&text);
    std::sort(rest.begin(), rest.end(),
              [](const Text* a, const Text* b) { return a->logprob != b->logprob ? a->logprob > b->logprob : a < b; });
    for (size_t i = 0; i < rest.size() && all.size() < static_cast<size_t>(request_->candidates); ++i)
      all.push_back(*rest[i]);
  }
  const auto most =
      std::max_element(all.begin(), all.end(), [&](const Text& a, const Text& b) { return score(a) < score(b); });
  engine::Transcript t;
  if (most == all.end()) return t;
  t.tokens = most->tokens;
  t.logprobs = most->logprobs;
  t.logprob = most->logprob;
  return t;
}

}  // namespace vivace::models::whisper
