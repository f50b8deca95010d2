#include "vivace/serve/batcher.h"

#include <algorithm>

#include "vivace/base/check.h"

namespace vivace::serve {

using engine::Sampled;
using engine::TokenRow;

const char* name(Finish f) {
  static constexpr const char* kNames[] = {"", "stop", "length", "cancelled", "nan_logits"};
  return kNames[static_cast<int>(f)];
}

Batcher::Batcher(engine::TextModel& model) : model_(model), limits_(model.limits()), slots_(static_cast<size_t>(limits_.max_batch)) {
  rows_.reserve(static_cast<size_t>(limits_.chunk));
  sampled_.reserve(static_cast<size_t>(limits_.max_batch));
  cancelled_.reserve(slots_.size());
  answering_.reserve(slots_.size());
  queued_.resize(static_cast<size_t>(limits_.ahead));
  for (Queued& q : queued_) q.requests.reserve(slots_.size());
}

Batcher::~Batcher() {
  // The model must not keep steps that nobody will collect.
  for (; in_flight_ > 0; --in_flight_, oldest_ = (oldest_ + 1) % queued_.size()) {
    sampled_.resize(queued_[oldest_].requests.size());
    if (!model_.collect(sampled_).ok()) return;
  }
}

Status check(const Request& request, const engine::TextLimits& limits) {
  if (request.prompt.empty()) return Status(Code::kInvalidArgument, "generate: the prompt is empty; it needs at least one token");
  if (request.max_tokens < 1) return Status(Code::kInvalidArgument, strf("generate: max_tokens must be at least 1, got %d", request.max_tokens));
  for (const int32_t t : request.prompt)
    if (t < 0 || t >= limits.vocab) return Status(Code::kInvalidArgument, strf("generate: prompt token %d is outside the model's vocabulary [0, %d)", t, limits.vocab));
  // The last token drawn is never fed, so it needs no position.
  const int64_t need = static_cast<int64_t>(request.prompt.size()) + request.max_tokens - 1;
  if (need > limits.context)
    return Status(Code::kLimitExceeded, strf("generate: %zu prompt tokens + %d new ones need %ld positions, the context holds %d; shorten the prompt, lower max_tokens or load with a larger context",
                                             request.prompt.size(), request.max_tokens, static_cast<long>(need), limits.context));
  if (limits.page > 0 && need > int64_t{limits.pages} * limits.page)
    return Status(Code::kLimitExceeded, strf("generate: %zu prompt tokens + %d new ones need %ld positions, all %d pages of %d together hold %ld; load with more kv_pages",
                                             request.prompt.size(), request.max_tokens, static_cast<long>(need), limits.pages, limits.page, static_cast<long>(limits.pages) * limits.page));
  VV_TRY(engine::check(request.sampling));
  if (!request.bias.empty() && request.bias.size() != static_cast<size_t>(limits.vocab))
    return Status(Code::kInvalidShape, strf("generate: the bias wants a value for each of %d tokens, got %zu", limits.vocab, request.bias.size()));
  if (!request.bias.empty() && !limits.biased) return Status(Code::kFailedPrecondition, "generate: a bias or mask of tokens needs a model loaded with logit_bias");
  return {};
}

Result<int64_t> Batcher::submit(Request request) {
  VV_TRY(check(request, limits_));
  Active a;
  a.id = next_id_++;
  a.request = std::move(request);
  waiting_.push_back(std::move(a));
  return waiting_.back().id;
}

Status Batcher::cancel(int64_t request) {
  for (Active& a : slots_)
    if (a.id == request) {
      a.cancelled = true;
      return {};
    }
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it)
    if (it->id == request) {
      waiting_.erase(it);
      cancelled_.push_back(request);
      return {};
    }
  return Status(Code::kNotFound, strf("cancel: request %ld is not running", static_cast<long>(request)));
}

Status Batcher::set_bias(int64_t request, std::span<const float> bias) {
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const Active& a = slots_[slot];
    if (a.id != request) continue;
    if (!a.request.stepwise) return Status(Code::kFailedPrecondition, strf("set_bias: request %ld is not stepwise, its next draws may be on their way", static_cast<long>(request)));
    return model_.set_bias(static_cast<int>(slot), bias);
  }
  return Status(Code::kNotFound, strf("set_bias: request %ld is not running", static_cast<long>(request)));
}

bool Batcher::idle() const {
  return waiting_.empty() && cancelled_.empty() && std::all_of(slots_.begin(), slots_.end(), [](const Active& a) { return a.id < 0; });
}

void Batcher::release(Active* a) {
  model_.release(static_cast<int>(a - slots_.data()));
  *a = Active{};
}

Status Batcher::admit() {
  for (size_t slot = 0; slot < slots_.size() && !waiting_.empty(); ++slot) {
    if (slots_[slot].id >= 0) continue;
    const Request& next = waiting_.front().request;
    const int positions = static_cast<int>(next.prompt.size()) + next.max_tokens - 1;
    // In order of arrival: whoever needs more pages than are free holds up those behind.
    if (limits_.page > 0 && (positions + limits_.page - 1) / limits_.page > model_.free_pages()) return {};
    slots_[slot] = std::move(waiting_.front());
    waiting_.pop_front();
    const Request& request = slots_[slot].request;
    VV_TRY(model_.start(static_cast<int>(slot), request.sampling, positions));
    if (!request.bias.empty()) VV_TRY(model_.set_bias(static_cast<int>(slot), request.bias));
  }
  return {};
}

void Batcher::add_answers() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    Active& a = slots_[i];
    if (a.id >= 0 && a.last >= 0) rows_.push_back(TokenRow{a.last, a.fed++, static_cast<int32_t>(i), true});
  }
}

void Batcher::add_prompts() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    Active& a = slots_[i];
    if (a.id < 0 || a.last >= 0) continue;
    const int size = static_cast<int>(a.request.prompt.size());
    while (a.fed < size && rows_.size() < static_cast<size_t>(limits_.chunk)) {
      const int pos = a.fed++;
      rows_.push_back(TokenRow{a.request.prompt[static_cast<size_t>(pos)], pos, static_cast<int32_t>(i), pos == size - 1});
    }
  }
}

/// Queues rows_, if there are any.
Status Batcher::issue() {
  if (rows_.empty()) return {};
  VV_TRY(model_.issue(rows_));
  Queued& q = queued_[(oldest_ + in_flight_++) % queued_.size()];
  q.requests.clear();
  for (const TokenRow& r : rows_)
    if (r.sample) {
      Active& a = slots_[static_cast<size_t>(r.slot)];
      ++a.drawing;
      q.requests.push_back(a.id);
    }
  return {};
}

/// What the next step holds; in flight is nothing, or prompts' rows that draw nothing. Answers first: a long prompt
/// must not stall those who already listen.
Status Batcher::plan() {
  may_repeat_ = false;
  if (in_flight_ == 0) VV_TRY(admit());
  rows_.clear();
  add_answers();
  const size_t answers = rows_.size();
  if (!limits_.mixed && answers > 0) {
    VV_TRY(issue());
    rows_.clear();
  }
  add_prompts();
  may_repeat_ = answers > 0 && rows_.size() == (limits_.mixed ? answers : 0);
  VV_TRY(issue());
  if (may_repeat_) answering_ = queued_[oldest_].requests;
  return {};
}

/// Whether the last step's rows, and nothing else, would make up the next step as well.
bool Batcher::steady() const {
  if (!may_repeat_ || in_flight_ == queued_.size()) return false;
  size_t live = 0;
  for (const Active& a : slots_) {
    if (a.id < 0) {
      if (!waiting_.empty()) return false;
      continue;
    }
    if (a.cancelled || a.request.stepwise || a.produced + a.drawing >= a.request.max_tokens) return false;
    ++live;
  }
  return live == answering_.size();
}

/// Whether the last step was of prompts alone and drew nothing: what follows it needs no token from it.
bool Batcher::prompts_go_on() const {
  if (in_flight_ == 0 || in_flight_ == queued_.size() || rows_.empty()) return false;
  return std::all_of(slots_.begin(), slots_.end(), [](const Active& a) { return a.last < 0 && a.drawing == 0; });
}

Status Batcher::repeat() {
  VV_TRY(model_.repeat());
  queued_[(oldest_ + in_flight_++) % queued_.size()].requests = answering_;
  for (Active& a : slots_)
    if (a.id >= 0) ++a.drawing, ++a.fed;
  return {};
}

Status Batcher::collect(std::vector<Event>* events) {
  const Queued& q = queued_[oldest_];
  sampled_.resize(q.requests.size());
  VV_TRY(model_.collect(sampled_));
  oldest_ = (oldest_ + 1) % queued_.size();
  --in_flight_;
  for (size_t i = 0; i < sampled_.size(); ++i)
    if (slots_[static_cast<size_t>(sampled_[i].slot)].id == q.requests[i]) finish_sample(sampled_[i], events);  // else it ended meanwhile
  return {};
}

void Batcher::finish_sample(const Sampled& s, std::vector<Event>* events) {
  Active& a = slots_[static_cast<size_t>(s.slot)];
  Event e{a.id, s.token, s.logprob, Finish::none};
  a.last = s.token;
  ++a.produced;
  --a.drawing;
  const auto& stop = a.request.stop;
  if (s.token < 0) e.finish = Finish::nan_logits;
  else if (std::find(stop.begin(), stop.end(), s.token) != stop.end()) e.finish = Finish::stop, e.token = -1;
  else if (a.produced == a.request.max_tokens) e.finish = Finish::length;
  events->push_back(e);
  if (e.finish != Finish::none) release(&a);
}

Status Batcher::step(std::vector<Event>* events) {
  events->clear();
  for (const int64_t id : cancelled_) events->push_back({id, -1, 0, Finish::cancelled});
  cancelled_.clear();
  for (Active& a : slots_)
    if (a.cancelled) {
      events->push_back({a.id, -1, 0, Finish::cancelled});
      release(&a);
    }
  const auto nobody = [this] { return std::all_of(slots_.begin(), slots_.end(), [](const Active& a) { return a.id < 0; }); };
  if (in_flight_ == 0) VV_TRY(plan());
  while (in_flight_ > 0 && steady()) VV_TRY(repeat());
  while (prompts_go_on()) VV_TRY(plan());
  if (in_flight_ == 0 && !waiting_.empty() && nobody())  // it would wait for ever
    return Status(Code::kFailedPrecondition, strf("generate: a request waits for pages, %d of %d are free, and those taken are not this batcher's to give back; close what else uses the model",
                                                  model_.free_pages(), limits_.pages));
  if (in_flight_ == 0) return {};
  VV_TRY(collect(events));
  // Steps of answers and of prompts that were planned together end together, and nobody waits for steps
  // whose requests are all over.
  while (in_flight_ > 0 && (!may_repeat_ || nobody())) VV_TRY(collect(events));
  return {};
}

}  // namespace vivace::serve
