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

/// Timestamps come in pairs, but before the end; do not go back; and come where together they are likelier than any
/// text.
void timestamps(const engine::SpeechTokens& t, const engine::SpeechRequest& r, std::span<const int32_t> text,
                std::span<float> logits) {
  const auto vocab = static_cast<int64_t>(logits.size());
  const int32_t first = t.first_timestamp;
  const bool last = !text.empty() && text.back() >= first, before = text.size() < 2 || text[text.size() - 2] >= first;
  forbid(logits, t.no_timestamps, t.no_timestamps + 1);
  if (last && before) forbid(logits, first, vocab);
  if (last && !before) forbid(logits, 0, t.eot);
  const auto latest = std::find_if(text.rbegin(), text.rend(), [&](int32_t id) { return id >= first; });
  if (latest != text.rend()) forbid(logits, first, last && !before ? *latest : *latest + 1);  // no segment of no length
  if (text.empty()) {
    forbid(logits, 0, first);
    if (r.max_first_timestamp >= 0) forbid(logits, first + int64_t{r.max_first_timestamp} + 1, vocab);
  }
  const double together = log_sum_exp(logits.subspan(static_cast<size_t>(first)));
  const float likeliest = *std::max_element(logits.begin(), logits.begin() + first);
  if (together > static_cast<double>(likeliest)) forbid(logits, 0, first);
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

void apply_rules(const engine::SpeechTokens& tokens, const engine::SpeechRequest& request,
                 std::span<const int32_t> text, std::span<float> logits) {
  const auto each = [&](const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) forbid(logits, id, id + 1);
  };
  if (text.empty()) each(request.suppress_first);
  each(request.suppress);
  if (request.timestamps) timestamps(tokens, request, text, logits);
}

}  // namespace vivace::models::whisper
