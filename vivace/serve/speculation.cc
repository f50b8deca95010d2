#include "vivace/serve/speculation.h"

#include <algorithm>

#include "vivace/base/check.h"

namespace vivace::serve {

using engine::Sampled;

Result<Speculation> Speculation::start(engine::TextModel& model, Drafter& drafter, int drafts, Request request) {
  const engine::TextLimits limits = model.limits();
  if (drafts < 1 || drafts >= limits.max_batch)
    return Status(Code::kLimitExceeded, strf("speculation: wanted 1 to max_batch - 1 = %d drafts a step, got %d", limits.max_batch - 1, drafts));
  VV_TRY(check(request, limits));
  const engine::Sampling& s = request.sampling;
  if (s.temperature != 0 || s.repetition != 1 || s.presence != 0 || s.frequency != 0 || !request.bias.empty())
    return Status(Code::kInvalidArgument, "speculation: it answers greedily without penalties, bias or mask; leave them out, or leave out the drafts");
  Speculation made(model, drafter);
  made.context_ = request.prompt;
  made.context_.reserve(request.prompt.size() + static_cast<size_t>(request.max_tokens));
  made.request_ = std::move(request);
  made.guesses_.resize(static_cast<size_t>(drafts));
  made.rows_.reserve(static_cast<size_t>(std::max(limits.chunk, drafts + 1)));
  made.drawn_.reserve(static_cast<size_t>(drafts) + 1);
  VV_TRY(model.start(0, {}, static_cast<int>(std::min<size_t>(static_cast<size_t>(model.limits().context), request.prompt.size() + static_cast<size_t>(request.max_tokens + drafts)))));
  return made;
}

bool Speculation::take(const Sampled& s, std::vector<Event>* events) {
  Event e{0, s.token, s.logprob, Finish::none};
  ++produced_;
  const auto& stop = request_.stop;
  if (s.token < 0) e.finish = Finish::nan_logits;
  else if (std::find(stop.begin(), stop.end(), s.token) != stop.end()) e.finish = Finish::stop, e.token = -1;
  else if (produced_ == request_.max_tokens) e.finish = Finish::length;
  events->push_back(e);
  context_.push_back(s.token);
  over_ = e.finish != Finish::none;
  return !over_;
}

Status Speculation::prompt(std::vector<Event>* events) {
  const size_t size = context_.size(), chunk = static_cast<size_t>(model_->limits().chunk);
  for (size_t at = 0; at < size;) {
    rows_.clear();
    for (; at < size && rows_.size() < chunk; ++at) rows_.push_back({context_[at], static_cast<int32_t>(at), 0, at + 1 == size});
    drawn_.resize(at == size ? 1 : 0);
    VV_TRY(model_->step(rows_, drawn_));
  }
  take(drawn_.front(), events);
  return {};
}

Status Speculation::step(std::vector<Event>* events) {
  events->clear();
  if (over_) return {};
  if (produced_ == 0) return prompt(events);
  const auto last = static_cast<int32_t>(context_.size()) - 1;  // position of the token that is not fed yet
  const int room = std::min(request_.max_tokens - produced_ - 1, model_->limits().context - 1 - last);
  size_t count = std::min(guesses_.size(), static_cast<size_t>(std::max(room, 0)));
  if (count > 0) {
    VV_ASSIGN(count, drafter_->draft(context_, std::span(guesses_).first(count)));
  }
  rows_.clear();
  rows_.push_back({context_.back(), last, 0, true});
  for (size_t i = 0; i < count; ++i) {
    if (guesses_[i] < 0 || guesses_[i] >= model_->limits().vocab) break;
    rows_.push_back({guesses_[i], last + 1 + static_cast<int32_t>(i), 0, true});
  }
  drawn_.resize(rows_.size());
  VV_TRY(model_->step(rows_, drawn_));
  ++steps_;
  drafted_ += static_cast<int64_t>(rows_.size()) - 1;
  // The draw after row i counts while the rows up to i are what the model itself would have fed.
  for (size_t i = 0; take(drawn_[i], events) && i + 1 < rows_.size() && drawn_[i].token == rows_[i + 1].token; ++i) ++accepted_;
  return {};
}

}  // namespace vivace::serve
