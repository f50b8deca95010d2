#include "vivace/serve/drafter.h"

#include <algorithm>

#include "vivace/base/check.h"

namespace vivace::serve {

Result<size_t> PromptLookup::draft(std::span<const int32_t> context, std::span<int32_t> out) {
  if (context.empty()) return size_t{0};
  for (size_t n = std::min(longest_, context.size() - 1); n >= 1; --n) {
    const auto tail = context.last(n);
    // The latest place counts: near text is more alike.
    for (size_t at = context.size() - n; at-- > 0;) {
      if (!std::equal(tail.begin(), tail.end(), context.begin() + static_cast<std::ptrdiff_t>(at))) continue;
      const auto after = context.subspan(at + n);
      const size_t count = std::min(out.size(), after.size());
      std::copy_n(after.begin(), count, out.begin());
      return count;
    }
  }
  return size_t{0};
}

DraftModel::DraftModel(engine::TextModel& model) : model_(model) {
  fed_.reserve(static_cast<size_t>(model.limits().context));
  rows_.reserve(static_cast<size_t>(model.limits().prefill_chunk));
}

/// Feeds tokens[from..] at their positions; the greedy token after the last goes to `next`.
Status DraftModel::feed(std::span<const int32_t> tokens, size_t from, int32_t* next) {
  const auto prefill_chunk = static_cast<size_t>(model_.limits().prefill_chunk);
  while (from < tokens.size()) {
    rows_.clear();
    for (; from < tokens.size() && rows_.size() < prefill_chunk; ++from)
      rows_.push_back({tokens[from], static_cast<int32_t>(from), 0, from + 1 == tokens.size()});
    engine::Sampled drawn[1];
    VV_TRY(model_.step(rows_, std::span(drawn, rows_.back().sample ? 1 : 0)));
    if (rows_.back().sample) *next = drawn[0].token;
  }
  return {};
}

Result<size_t> DraftModel::draft(std::span<const int32_t> context, std::span<int32_t> out) {
  const engine::TextLimits limits = model_.limits();
  // What was fed stays as far as it agrees; the last token is fed again, for its draw.
  const auto end = fed_.begin() + static_cast<std::ptrdiff_t>(std::min(fed_.size(), context.size()));
  auto same = static_cast<size_t>(std::mismatch(fed_.begin(), end, context.begin()).first - fed_.begin());
  same = std::min(same, context.size() - 1);
  if (fed_.empty()) VV_TRY(model_.start(0, {}));
  fed_.assign(context.begin(), context.end());
  size_t count = 0;
  while (count < out.size() && fed_.size() <= static_cast<size_t>(limits.context)) {
    int32_t next = -1;
    VV_TRY(feed(fed_, same, &next));
    if (next < 0 || next >= limits.vocab) break;
    out[count++] = next;
    same = fed_.size();
    if (count < out.size()) fed_.push_back(next);
  }
  return count;
}

}  // namespace vivace::serve
