#include "vivace/models/whisper/rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vivace::models::whisper {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void forbid(std::span<float> logits, int64_t begin, int64_t end) {
  const auto n = static_cast<int64_t>(logits.size());
  for (int64_t i = std::clamp<int64_t>(begin, 0, n); i < std::clamp<int64_t>(end, 0, n); ++i)
    logits[static_cast<size_t>(i)] = kNever;
}

}  // namespace

double log_sum_exp(std::span<const float> x) {
  if (x.empty()) return -std::numeric_limits<double>::infinity();
  const float most = *std::max_element(x.begin(), x.end());
  if (most == kNever)
    return std::any_of(x.begin(), x.end(), [](float v) { return std::isnan(v); })
               ? std::numeric_limits<double>::quiet_NaN()
               : -std::numeric_limits<double>::infinity();
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(std::exp(v - most));
  return static_cast<double>(most) + std::log(sum);
}

/// Timestamps come in pairs, but before the end; do not go back; and come where together they are likelier than any
/// text.
Spans spans_after(const engine::SpeechTokens& t, const engine::SpeechRequest& r, std::span<const int32_t> text,
                  int64_t vocab) {
  Spans s = every_token(vocab);
  if (!r.timestamps) return s;
  const int32_t first = t.first_timestamp, all = s.split;
  const bool last = !text.empty() && text.back() >= first, before = text.size() < 2 || text[text.size() - 2] >= first,
             opens = last && !before;  // a timestamp that ends text: its twin or the end follows
  s = {0, first, first, all, 1};
  if (opens) s.first = t.eot;
  const auto latest = std::find_if(text.rbegin(), text.rend(), [&](int32_t id) { return id >= first; });
  if (latest != text.rend()) s.from = opens ? *latest : *latest + 1;  // no segment of no length
  if (last && before) s.from = all;
  if (text.empty()) {
    s.first = first;
    if (r.max_first_timestamp >= 0)
      s.until = static_cast<int32_t>(std::min<int64_t>(all, first + int64_t{r.max_first_timestamp} + 1));
  }
  return s;
}

void write_mask(const engine::SpeechTokens& t, const engine::SpeechRequest& r, bool first, std::span<int32_t> words) {
  std::fill(words.begin(), words.end(), -1);
  const auto clear = [&](int32_t id) {
    int32_t& word = words[static_cast<size_t>(id / 32)];
    word = static_cast<int32_t>(static_cast<uint32_t>(word) & ~(uint32_t{1} << (id % 32)));
  };
  for (const int32_t id : r.suppress) clear(id);
  if (first)
    for (const int32_t id : r.suppress_first) clear(id);
  if (r.timestamps) clear(t.no_timestamps);
}

void apply_rules(const engine::SpeechTokens& tokens, const engine::SpeechRequest& request,
                 std::span<const int32_t> text, std::span<float> logits) {
  const auto each = [&](const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) forbid(logits, id, id + 1);
  };
  if (text.empty()) each(request.suppress_first);
  each(request.suppress);
  if (!request.timestamps) return;
  forbid(logits, tokens.no_timestamps, tokens.no_timestamps + 1);
  const Spans s = spans_after(tokens, request, text, static_cast<int64_t>(logits.size()));
  forbid(logits, 0, s.first);
  forbid(logits, s.split, s.from);
  forbid(logits, s.until, static_cast<int64_t>(logits.size()));
  const double together = log_sum_exp(logits.subspan(static_cast<size_t>(s.split)));
  const float likeliest = *std::max_element(logits.begin(), logits.begin() + s.split);
  if (together > static_cast<double>(likeliest)) forbid(logits, 0, s.split);
}

}  // namespace vivace::models::whisper
