#include "vivace/serve/batcher.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "vivace/base/check.h"

namespace vivace::serve {

using engine::Sampled;
using engine::TokenRow;

const char* name(Finish f) {
  static constexpr const char* kNames[] = {"", "stop", "length", "cancelled", "nan_logits", "error"};
  return kNames[static_cast<int>(f)];
}

Job::Job(Request r) : request(std::move(r)), class_(request.priority) {
  const size_t most = request.prompt.size() + static_cast<size_t>(request.max_tokens);
  context_.reserve(most);
  context_ = request.prompt;
  if (!request.images.empty()) keys_.reserve(most);
  top_.reserve(static_cast<size_t>(request.top_logprobs));
  if (request.drafter != nullptr) guesses_.resize(static_cast<size_t>(request.num_speculative_tokens));
  else if (request.mtp) guesses_.resize(engine::LoadOptions::kMostDrafts);
}

Batcher::Batcher(engine::TextModel& model, size_t waiting, const Ageing& ageing)
    : model_(model),
      limits_(model.limits()),
      blocks_(model.blocks()),
      ageing_(ageing),
      slots_(static_cast<size_t>(limits_.max_batch)) {
  rows_.reserve(static_cast<size_t>(std::max(limits_.prefill_chunk, limits_.max_batch)));
  sampled_.reserve(static_cast<size_t>(limits_.max_batch));
  guess_rows_.reserve(slots_.size());
  draft_rows_.reserve(limits_.mtp > 0 ? static_cast<size_t>(limits_.prefill_chunk) : 0);
  asking_.reserve(slots_.size());
  drafts_.reserve(slots_.size() * static_cast<size_t>(limits_.mtp));
  waiting_.reserve(waiting);
  places_.resize(static_cast<size_t>(limits_.images.places));
  held_.resize(slots_.size());
  for (auto& held : held_) held.reserve(blocks_ != nullptr ? static_cast<size_t>(blocks_->needed(limits_.context)) : 0);
  kept_.resize(slots_.size());
  for (auto& kept : kept_) kept.reserve(limits_.states > 0 ? static_cast<size_t>(limits_.max_in_flight_steps) + 2 : 0);
  answering_.reserve(slots_.size());
  queued_.resize(static_cast<size_t>(limits_.max_in_flight_steps));
  for (Queued& q : queued_) q.requests.reserve(slots_.size()), q.prompts.reserve(slots_.size());
}

Batcher::~Batcher() {
  drain();
  for (Job* job : slots_)
    if (job != nullptr) unseat(job);
}

/// The model must not keep steps that nobody will collect.
void Batcher::drain() {
  for (; in_flight_ > 0; --in_flight_, oldest_ = (oldest_ + 1) % queued_.size()) {
    sampled_.resize(queued_[oldest_].requests.size());
    if (!model_.collect(sampled_).ok()) break;  // the device has failed: there is nothing to wait for
  }
  in_flight_ = 0;
}

Status check_bias(std::span<const float> bias, const engine::TextLimits& limits) {
  if (bias.empty()) return {};
  if (!limits.biased)
    return Status(Code::kFailedPrecondition, "generate: a bias or mask of tokens needs a model loaded with logit_bias");
  if (bias.size() != static_cast<size_t>(limits.vocab))
    return Status(Code::kInvalidShape,
                  strf("generate: the bias wants a value for each of %d tokens, got %zu", limits.vocab, bias.size()));
  constexpr float kInf = std::numeric_limits<float>::infinity();
  bool any = false;
  for (size_t i = 0; i < bias.size(); ++i) {
    if (!(bias[i] < kInf))
      return Status(Code::kInvalidArgument,
                    strf("generate: bias of token %zu: wanted a finite f32 value or -inf, got %g", i,
                         static_cast<double>(bias[i])));
    any = any || bias[i] > -kInf;
  }
  return any ? Status()
             : Status(Code::kInvalidArgument, "generate: the bias or mask forbids every token; allow at least one");
}

Status check_mask(std::span<const uint32_t> mask, const engine::TextLimits& limits) {
  const auto words = static_cast<size_t>((limits.vocab + 31) / 32);
  if (mask.empty()) return {};
  if (mask.size() != words)
    return Status(Code::kInvalidShape, strf("generate: the mask wants a bit for each of %d tokens, %zu words, got %zu",
                                            limits.vocab, words, mask.size()));
  const uint32_t last = limits.vocab % 32 == 0 ? ~0u : (1u << (limits.vocab % 32)) - 1;
  for (size_t i = 0; i < words; ++i)
    if ((mask[i] & (i + 1 == words ? last : ~0u)) != 0) return {};
  return Status(Code::kInvalidArgument, "generate: the mask forbids every token; allow at least one");
}

namespace {

/// Whether a token's draw asks nothing but its logits: neither the tokens before it, which guesses would be counted
/// among, nor the host.
bool may_guess(const Request& r) {
  const engine::Sampling& s = r.sampling;
  return s.repetition == 1 && s.presence == 0 && s.frequency == 0 && r.top_logprobs == 0 && r.bias.empty() &&
         r.mask.empty() && r.min_tokens == 0 && !r.stepwise && r.images.empty();
}

Status check_drafts(const Request& request, const engine::TextLimits& limits) {
  if (request.drafter == nullptr) return {};
  if (limits.recurrent && limits.mtp == 0)
    return Status(Code::kUnsupported,
                  "speculation: the model's recurrent state cannot go back over a guess that was wrong; load it with "
                  "mtp, or leave out the drafts");
  if (!request.images.empty())
    return Status(Code::kInvalidArgument,
                  "speculation: guesses are for prompts of text; leave out the images, or the drafts");
  if (request.num_speculative_tokens < 1 || request.num_speculative_tokens >= limits.max_batch)
    return Status(Code::kLimitExceeded, strf("speculation: wanted 1 to max_batch - 1 = %d drafts a step, got %d",
                                             limits.max_batch - 1, request.num_speculative_tokens));
  if (!may_guess(request))
    return Status(Code::kInvalidArgument,
                  "speculation: it answers without penalties, bias, mask, min_tokens or top_logprobs; leave them out, "
                  "or leave out the drafts");
  return {};
}

}  // namespace

Status check(const Request& request, const engine::TextLimits& limits) {
  if (request.prompt.empty())
    return Status(Code::kInvalidArgument, "generate: the prompt is empty; it needs at least one token");
  if (request.max_tokens < 1)
    return Status(Code::kInvalidArgument, strf("generate: max_tokens must be at least 1, got %d", request.max_tokens));
  for (const int32_t t : request.prompt)
    if (t < 0 || t >= limits.vocab)
      return Status(Code::kInvalidArgument,
                    strf("generate: prompt token %d is outside the model's vocabulary [0, %d)", t, limits.vocab));
  // The last token drawn is never fed, so it needs no position.
  const int64_t need = static_cast<int64_t>(request.prompt.size()) + request.max_tokens - 1;
  if (need > limits.context)
    return Status(Code::kLimitExceeded,
                  strf("generate: %zu prompt tokens + %d new ones need %ld positions, the context holds %d; shorten "
                       "the prompt, lower max_tokens or load with a larger context",
                       request.prompt.size(), request.max_tokens, static_cast<long>(need), limits.context));
  if (limits.page > 0 && need > int64_t{limits.pages} * limits.page)
    return Status(Code::kLimitExceeded, strf("generate: %zu prompt tokens + %d new ones need %ld positions, all %d "
                                             "pages of %d together hold %ld; load with more num_kv_blocks",
                                             request.prompt.size(), request.max_tokens, static_cast<long>(need),
                                             limits.pages, limits.page, static_cast<long>(limits.pages) * limits.page));
  VV_TRY(check_images(request.images, request.prompt, limits.images));
  if (request.resumed && !request.images.empty())
    return Status(Code::kInvalidArgument, "generate: an answer to images cannot go on from elsewhere");
  VV_TRY(engine::check(request.sampling));
  VV_TRY(check_bias(request.bias, limits));
  VV_TRY(check_mask(request.mask, limits));
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens)
    return Status(Code::kInvalidArgument, strf("generate: min_tokens: wanted 0 to max_tokens = %d, got %d",
                                               request.max_tokens, request.min_tokens));
  if (request.top_logprobs < 0 || request.top_logprobs > kMaxTopLogprobs)
    return Status(Code::kInvalidArgument,
                  strf("generate: top_logprobs: wanted 0 to %d, got %d", kMaxTopLogprobs, request.top_logprobs));
  return check_drafts(request, limits);
}

Result<int64_t> Batcher::submit(Request request) {
  VV_TRY(check(request, limits_));
  owned_.push_back(std::make_unique<Job>(std::move(request)));
  return submit(*owned_.back());
}

int64_t Batcher::submit(Job& job) {
  job.id = next_id_++;
  job.own_ = limits_.mtp > 0 && job.request.mtp && job.request.drafter == nullptr && may_guess(job.request);
  enqueue(&job);
  return job.id;
}

Job* Batcher::find(int64_t request) const {
  for (const auto* jobs : {&slots_, &waiting_})
    for (Job* job : *jobs)
      if (job != nullptr && job->id == request) return job;
  return nullptr;
}

Status Batcher::cancel(int64_t request) {
  Job* job = find(request);
  if (job == nullptr)
    return Status(Code::kNotFound, strf("cancel: request %ld is not running", static_cast<long>(request)));
  if (job->ending_ == Finish::none) job->ending_ = Finish::cancelled;
  return {};
}

Status Batcher::fail(int64_t request, Status why) {
  Job* job = find(request);
  if (job == nullptr)
    return Status(Code::kNotFound, strf("fail: request %ld is not running", static_cast<long>(request)));
  if (job->ending_ == Finish::none) job->ending_ = Finish::error, job->status = std::move(why);
  return {};
}

/// Whether the call may come now.
Status Batcher::waits_for(const char* call, const Job* job, int64_t request) const {
  if (job == nullptr || (job->slot_ < 0 && !job->paused_))
    return Status(Code::kNotFound, strf("%s: request %ld is not running", call, static_cast<long>(request)));
  return job->request.stepwise ? Status()
                               : Status(Code::kFailedPrecondition,
                                        strf("%s: request %ld is not stepwise, its next draws may be on their way",
                                             call, static_cast<long>(request)));
}

Status Batcher::set_bias(int64_t request, std::span<const float> bias) {
  Job* job = find(request);
  VV_TRY(waits_for("set_bias", job, request));
  VV_TRY(check_bias(bias, limits_));
  if (job->slot_ >= 0) VV_TRY(model_.set_bias(job->slot_, bias));
  if (blocks_ != nullptr)
    job->request.bias.assign(bias.begin(), bias.end());  // for when it comes back from host memory
  job->paused_ = false;
  return {};
}

Status Batcher::set_mask(int64_t request, std::span<const uint32_t> mask, std::span<const int32_t> forced) {
  Job* job = find(request);
  VV_TRY(waits_for("set_mask", job, request));
  VV_TRY(check_mask(mask, limits_));
  for (const int32_t t : forced)
    if (t < 0 || t >= limits_.vocab)
      return Status(Code::kInvalidArgument,
                    strf("set_mask: forced token %d is outside the model's vocabulary [0, %d)", t, limits_.vocab));
  job->request.mask.assign(mask.begin(), mask.end());
  job->forced_.assign(forced.begin(), forced.end());
  if (job->slot_ >= 0) VV_TRY(this->mask(job));
  job->paused_ = false;
  return {};
}

Status Batcher::share(int64_t request) {
  Job* job = find(request);
  if (job == nullptr || job->slot_ < 0) return {};
  VV_TRY(keep_here(job));
  return share(job, true);
}

/// Tells the model what the job's next draw may be.
Status Batcher::mask(Job* job) {
  const Request& r = job->request;
  job->remask_ = false;
  if (job->produced_ + static_cast<int>(job->forced_.size()) >= r.min_tokens)
    return model_.set_mask(job->slot_, r.mask);
  early_.assign(r.mask.begin(), r.mask.end());
  if (early_.empty()) early_.assign(static_cast<size_t>((limits_.vocab + 31) / 32), ~0u);
  for (const int32_t t : r.stop)
    if (t >= 0 && t < limits_.vocab) early_[static_cast<size_t>(t) / 32] &= ~(1u << (t % 32));
  return model_.set_mask(job->slot_, check_mask(early_, limits_).ok() ? early_ : r.mask);
}

bool Batcher::nobody() const {
  return std::all_of(slots_.begin(), slots_.end(), [](const Job* job) { return job == nullptr; });
}

bool Batcher::ranks() const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const Job* job) { return job != nullptr && job->request.top_logprobs > 0; });
}

/// The likeliest tokens of a draw, ties by the lower id. The draw's log-probability says what the logits' exponentials
/// add up to.
void Batcher::rank(Job* job, const Sampled& s, std::span<const float> logits) const {
  const auto most = static_cast<size_t>(job->request.top_logprobs);
  std::vector<TopLogprob>& top = job->top_;
  top.clear();
  if (s.token < 0) return;
  for (int32_t token = 0; token < limits_.vocab; ++token) {
    const float logit = logits[static_cast<size_t>(token)];
    if (!(logit > -std::numeric_limits<float>::infinity()) || (top.size() == most && !(logit > top.back().logprob)))
      continue;
    if (top.size() == most) top.pop_back();
    top.insert(std::find_if(top.begin(), top.end(), [&](const TopLogprob& t) { return t.logprob < logit; }),
               {token, logit});
  }
  const float total = logits[static_cast<size_t>(s.token)] - s.logprob;
  for (TopLogprob& t : top) t.logprob = t.token == s.token ? s.logprob : t.logprob - total;
}

bool Batcher::idle() const { return waiting_.empty() && nobody(); }

bool Batcher::has_work() const {
  bool free = false;
  for (const Job* job : slots_) {
    if (job != nullptr && (!job->paused_ || job->ending_ != Finish::none)) return true;
    free = free || job == nullptr;
  }
  for (const Job* job : waiting_)
    if (job->ending_ != Finish::none) return true;
  return !waiting_.empty() && (nobody() || (free && admissible() < waiting_.size()));
}

void Batcher::release(Job* job) {
  job->over_ = true;
  job->parked_ = {};
  if (job->slot_ < 0) return;
  static_cast<void>(keep_here(job));  // what fails now fails for who steps next
  publish(job, true);
  unseat(job);
}

void Batcher::end(Job* job, Finish finish, std::vector<Event>* events) {
  events->push_back({job, job->id, -1, 0, finish});
  release(job);
}

bool Batcher::answers(const Job* job) const {
  return job != nullptr && job->last_ >= 0 && !job->run_ && !job->paused_ && job->ending_ == Finish::none;
}

Status Batcher::add_answers() {
  auto spare = static_cast<size_t>(
      std::count(slots_.begin(), slots_.end(), nullptr));  // draws that a step has room for besides one a slot
  guess_rows_.clear();
  for (Job* job : slots_)
    if (answers(job)) add_answer(job, &spare);
  for (Job* job : slots_)
    if (answers(job) && speculates(*job) && job->fed_ == static_cast<int>(job->context_.size()))
      VV_TRY(add_guesses(job, &spare));
  rows_.insert(rows_.end(), guess_rows_.begin(), guess_rows_.end());
  return {};
}

/// The row whose draw is the next token. A recurrent state first takes the guesses that were right: it did not go over
/// them when they were none but guesses. Where those leave no room, the token waits for the next step.
void Batcher::add_answer(Job* job, size_t* spare) {
  const int most = static_cast<int>(*spare) + 1, again = std::min(job->behind_, most);
  for (int i = 0; i < again; ++i) rows_.push_back(row(*job, job->fed_ - job->behind_ + i, true, false));
  const bool whole = again == job->behind_ && again < most;
  job->behind_ -= again;
  job->dropped_ = again;
  *spare -= static_cast<size_t>(again - !whole);
  if (!whole) return;
  rows_.push_back(row(*job, job->fed_++, true, false));
  rows_.back().token = job->last_;
}

/// Guesses of the model's own draft layer for all who answer and may have some, as many for each.
Status Batcher::propose() {
  draft_rows_.clear();
  asking_.clear();
  int count = limits_.mtp;
  for (Job* job : slots_) {
    if (!answers(job) || !job->own_) continue;
    job->proposed_ = 0;
    // Position p has a row with the token at p + 1: the last that is known stands behind the one before it.
    const int last = static_cast<int>(job->context_.size()) - 2;
    int most = std::min(limits_.mtp, job->request.max_tokens - job->produced_ - 1);
    const engine::TextModel::Heard heard = model_.heard(job->slot_);
    if (most < 1 || last < heard.first || last >= heard.past) continue;
    const int first = std::max<int>(job->drafted_to_, heard.first);
    const size_t rows = draft_rows_.size() + static_cast<size_t>(last + 1 - first);
    if (rows > static_cast<size_t>(limits_.prefill_chunk)) continue;
    for (bool there = false; most > 0; --most) {
      VV_ASSIGN(there, place(job, last + most));
      if (there) break;
    }
    if (most == 0) continue;
    for (int pos = first; pos <= last; ++pos)
      draft_rows_.push_back({job->context_[static_cast<size_t>(pos) + 1], pos, job->slot_, pos == last});
    job->drafted_to_ = last + 1;
    count = std::min(count, most);
    asking_.push_back(job);
  }
  if (asking_.empty()) return {};
  drafts_.resize(asking_.size() * static_cast<size_t>(count));
  VV_TRY(model_.draft(draft_rows_, count, drafts_));
  for (size_t i = 0; i < asking_.size(); ++i) {
    Job& job = *asking_[i];
    for (; job.proposed_ < static_cast<size_t>(count); ++job.proposed_)
      job.guesses_[job.proposed_] = drafts_[job.proposed_ * asking_.size() + i];
  }
  return {};
}

/// The draft layer's keys and values of the prompts' rows that were just queued, as far as the token behind is known.
Status Batcher::hear_prompts() {
  draft_rows_.clear();
  for (const TokenRow& r : rows_) {
    Job* job = slots_[static_cast<size_t>(r.slot)];
    const auto next = static_cast<size_t>(r.pos) + 1;
    if (!r.prompt || !job->own_ || next >= job->context_.size()) continue;
    draft_rows_.push_back({job->context_[next], r.pos, r.slot, false});
    job->drafted_to_ = r.pos + 1;
  }
  return draft_rows_.empty() ? Status() : model_.draft(draft_rows_, 1, {});
}

/// Rows of guesses behind the job's own: the draw after each counts while all before it were right.
Status Batcher::add_guesses(Job* job, size_t* spare) {
  const Request& r = job->request;
  job->guessed_ = job->checked_ = 0;
  ++job->steps;
  const size_t have = job->own_ ? std::exchange(job->proposed_, 0) : job->guesses_.size();
  size_t count = std::min({*spare, have, static_cast<size_t>(r.max_tokens - job->produced_ - 1)});
  for (bool there = false; count > 0; --count) {
    VV_ASSIGN(there, place(job, job->fed_ + static_cast<int>(count) - 1));
    if (there) break;
  }
  if (count == 0) return {};
  if (!job->own_) {
    Result<size_t> got = r.drafter->draft(job->context_, std::span(job->guesses_).first(count));
    if (!got.ok()) {
      job->ending_ = Finish::error, job->status = std::move(got).status();
      return {};
    }
    count = *got;
  }
  for (; job->guessed_ < count; ++job->guessed_) {
    const int32_t guess = job->guesses_[job->guessed_];
    if (guess < 0 || guess >= limits_.vocab) break;
    guess_rows_.push_back({guess, job->fed_ + static_cast<int32_t>(job->guessed_), job->slot_, true});
    guess_rows_.back().guess = limits_.recurrent;  // elsewhere a row like any other, also beside prompts'
  }
  job->drafted += static_cast<int64_t>(job->guessed_);
  model_.note_drafts(static_cast<int64_t>(job->guessed_), 0);
  *spare -= job->guessed_;
  return {};
}

/// A token of the context as it enters a step.
TokenRow Batcher::row(const Job& job, int pos, bool sample, bool prompt) const {
  const auto at = static_cast<size_t>(pos);
  TokenRow r{at < job.context_.size() ? job.context_[at] : -1, pos, job.slot_, sample, prompt};
  if (job.shown_.empty()) return r;
  r.shift = shift_at(job.shown_, pos);
  if (const size_t i = image_at(job.shown_, pos); i < job.shown_.size())
    r.image = job.shown_[i].place * limits_.images.tokens + pos - job.shown_[i].first;
  return r;
}

/// The image whose token is at `pos`, if there is one, gets a place that the next step reads: false where all are
/// taken.
Result<bool> Batcher::see(Job* job, int pos) {
  const size_t i = image_at(job->shown_, pos);
  if (i == job->shown_.size() || job->shown_[i].place >= 0) return true;
  const auto free = std::find(places_.begin(), places_.end(), nullptr);
  if (free == places_.end()) return false;
  const auto place = static_cast<int32_t>(free - places_.begin());
  const PromptImage& image = job->request.images[i];
  VV_TRY(model_.see(place, {image.pixels->data(), image.height, image.width}));
  *free = job;
  job->shown_[i].place = place;
  return true;
}

/// Images whose tokens are all among the first `fed` need no place any more: steps that are queued read theirs before
/// another comes there.
void Batcher::leave_places(Job* job, int fed) {
  for (ShownImage& s : job->shown_)
    if (s.place >= 0 && s.first + s.tokens <= fed) places_[static_cast<size_t>(std::exchange(s.place, -1))] = nullptr;
}

Status Batcher::add_prompts() {
  for (Job* job : slots_) {
    if (job == nullptr || (job->last_ >= 0 && !job->run_) || job->paused_) continue;
    const auto size = static_cast<int>(job->context_.size());
    for (const int end = stretch(*job); job->fed_ < end;) {
      VV_ASSIGN(const bool sees, see(job, job->fed_));
      if (!sees) break;
      const int pos = job->fed_++;
      rows_.push_back(row(*job, pos, pos == size - 1, true));
    }
    job->run_ = job->run_ && job->fed_ < size;
  }
  return {};
}

/// Queues rows_, if there are any.
Status Batcher::issue() {
  if (rows_.empty()) return {};
  VV_TRY(model_.issue(rows_));
  if (limits_.mtp > 0) VV_TRY(hear_prompts());
  Queued& q = queued_[(oldest_ + in_flight_++) % queued_.size()];
  q.requests.clear();
  q.prompts.clear();
  for (const TokenRow& r : rows_) {
    Job* job = slots_[static_cast<size_t>(r.slot)];
    if (r.image >= 0) leave_places(job, job->fed_);
    if (r.prompt && (q.prompts.empty() || q.prompts.back().first != job->id))
      q.prompts.emplace_back(job->id, job->fed_);
    if (r.sample) {
      ++job->drawing_;
      q.requests.push_back(job->id);
    }
    if (r.pos + 1 == job->fed_) VV_TRY(keep_at_end_of_block(job));
  }
  return {};
}

/// What the next step holds; in flight is nothing, or prompts' rows that draw nothing. Answers first: a long prompt
/// must not stall those who already listen.
Status Batcher::plan() {
  may_repeat_ = false;
  if (in_flight_ == 0) {
    rise();
    VV_TRY(grow());
    VV_TRY(admit());
  }
  for (Job* job : slots_)
    if (job != nullptr && job->remask_) VV_TRY(mask(job));
  rows_.clear();
  // Logits are there of the last step alone: where a step has either answers or prompts, they then take turns.
  const bool turns = !limits_.mixed && ranks();
  const bool feeds = std::any_of(slots_.begin(), slots_.end(), [](const Job* job) {
    return job != nullptr && (job->last_ < 0 || job->run_) && !job->paused_;
  });
  prompts_turn_ = turns && feeds && !prompts_turn_;
  if (!prompts_turn_ && limits_.mtp > 0) VV_TRY(propose());
  if (!prompts_turn_) VV_TRY(add_answers());
  const size_t answers = rows_.size();
  if (!limits_.mixed && answers > 0) {
    VV_TRY(issue());
    rows_.clear();
  }
  if (!turns || answers == 0) VV_TRY(add_prompts());
  may_repeat_ = answers > 0 && rows_.size() == (limits_.mixed ? answers : 0);
  VV_TRY(issue());
  if (may_repeat_) answering_ = queued_[oldest_].requests;
  return {};
}

/// Whether the last step's rows, and nothing else, would make up the next step as well.
bool Batcher::steady() const {
  if (!may_repeat_ || in_flight_ == queued_.size()) return false;
  if (blocks_ != nullptr && !waiting_.empty() && victim(waiting_.front()->class_) != nullptr)
    return false;  // who is to give way
  size_t live = 0;
  for (const Job* job : slots_) {
    if (job == nullptr) {
      if (!waiting_.empty()) return false;
      continue;
    }
    if (job->paused_ && job->ending_ == Finish::none) continue;
    const Request& r = job->request;
    if (job->ending_ != Finish::none || r.stepwise || speculates(*job) || r.top_logprobs > 0 ||
        job->produced_ + job->drawing_ >= r.max_tokens)
      return false;
    if (job->remask_ || (job->produced_ < r.min_tokens && job->produced_ + job->drawing_ >= r.min_tokens)) return false;
    ++live;
  }
  return live == answering_.size();
}

/// Whether the last step was of prompts alone and drew nothing: what follows it needs no token from it.
bool Batcher::prompts_go_on() const {
  if (in_flight_ == 0 || in_flight_ == queued_.size() || rows_.empty()) return false;
  return std::all_of(slots_.begin(), slots_.end(),
                     [](const Job* job) { return job == nullptr || (job->last_ < 0 && job->drawing_ == 0); });
}

Status Batcher::repeat() {
  VV_TRY(model_.repeat());
  Queued& q = queued_[(oldest_ + in_flight_++) % queued_.size()];
  q.requests = answering_;
  q.prompts.clear();
  for (Job* job : slots_) {
    if (job == nullptr || job->paused_) continue;
    ++job->drawing_, ++job->fed_;
    VV_TRY(keep_at_end_of_block(job));
  }
  return {};
}

Status Batcher::collect(std::vector<Event>* events) {
  const Queued& q = queued_[oldest_];
  sampled_.resize(q.requests.size());
  VV_TRY(model_.collect(sampled_));
  oldest_ = (oldest_ + 1) % queued_.size();
  --in_flight_;
  std::span<const float> logits;
  for (size_t i = 0; i < sampled_.size(); ++i) {
    Job* job = slots_[static_cast<size_t>(sampled_[i].slot)];
    if (job == nullptr || job->id != q.requests[i]) continue;  // it ended meanwhile
    if (job->request.top_logprobs > 0) {
      if (logits.empty()) {
        VV_ASSIGN(const Tensor all, model_.logits());
        logits = {static_cast<const float*>(all.data), sampled_.size() * static_cast<size_t>(limits_.vocab)};
      }
      rank(job, sampled_[i],
           logits.subspan(i * static_cast<size_t>(limits_.vocab), static_cast<size_t>(limits_.vocab)));
    }
    VV_TRY(take(job, sampled_[i], events));
  }
  for (const auto& [id, fed] : q.prompts)
    for (Job* job : slots_)
      if (job != nullptr && job->id == id && job->committed_ < fed) {
        job->committed_ = fed;
        VV_TRY(share(job, false));
      }
  return {};
}

Status Batcher::take(Job* job, const Sampled& s, std::vector<Event>* events) {
  const Request& r = job->request;
  --job->drawing_;
  if (job->dropped_ > 0) {  // behind a guess that was right, whose draw has been told
    --job->dropped_;
    return {};
  }
  if (speculates(*job) && job->produced_ > 0) {
    // A draw behind a wrong guess is of a context that is not the answer's.
    if (job->checked_ > 0 && job->guesses_[job->checked_ - 1] != job->last_) return {};
    if (job->checked_++ > 0) ++job->accepted, model_.note_drafts(0, 1);
  }
  Event e{job, job->id, s.token, s.logprob, Finish::none};
  job->last_ = s.token;
  ++job->produced_;
  if (s.token < 0) e.finish = Finish::nan_logits;
  else if (std::find(r.stop.begin(), r.stop.end(), s.token) != r.stop.end()) e.finish = Finish::stop, e.token = -1;
  else if (job->produced_ == r.max_tokens) e.finish = Finish::length;
  if (e.token >= 0) e.top = job->top_;
  events->push_back(e);
  // What lies behind the token that was fed last is of guesses, or of steps queued ahead of a stop: nobody will find
  // that.
  job->committed_ = static_cast<int>(job->context_.size());
  if (e.token >= 0) job->context_.push_back(s.token);
  if (e.token >= 0 && !job->keys_.empty()) job->keys_.push_back(s.token);
  if (e.finish == Finish::nan_logits) job->publishes_ = false;
  if (e.finish != Finish::none) {
    release(job);
    return {};
  }
  VV_TRY(share(job, job->produced_ == 1));
  job->paused_ = r.stepwise;
  job->remask_ = job->produced_ == r.min_tokens;
  if (speculates(*job)) job->fed_ = static_cast<int>(job->context_.size()) - 1;
  if (limits_.recurrent && job->checked_ > 0) job->behind_ = static_cast<int>(job->checked_) - 1;
  return {};
}

/// Tokens that set_mask() said must come: told as if they had been drawn, each with probability 1, and fed with the
/// next step.
void Batcher::tell_forced(Job* job, std::vector<Event>* events) {
  const Request& r = job->request;
  for (const int32_t token : std::exchange(job->forced_, {})) {
    Event e{job, job->id, token, 0, Finish::none};
    ++job->produced_;
    job->context_.push_back(token);
    if (!job->keys_.empty()) job->keys_.push_back(token);
    job->last_ = token;
    job->run_ = true;
    if (std::find(r.stop.begin(), r.stop.end(), token) != r.stop.end()) e.finish = Finish::stop, e.token = -1;
    else if (job->produced_ == r.max_tokens) e.finish = Finish::length;
    events->push_back(e);
    if (e.finish != Finish::none) return release(job);
  }
}

/// Ends those whose time is over.
void Batcher::expire() {
  const bool any =
      std::any_of(slots_.begin(), slots_.end(),
                  [](const Job* j) { return j != nullptr && j->request.deadline != Request{}.deadline; }) ||
      std::any_of(waiting_.begin(), waiting_.end(),
                  [](const Job* j) { return j->request.deadline != Request{}.deadline; });
  if (!any) return;
  const auto now = std::chrono::steady_clock::now();
  for (const auto* jobs : {&slots_, &waiting_})
    for (Job* job : *jobs)
      if (job != nullptr && job->ending_ == Finish::none && job->request.deadline <= now)
        job->ending_ = Finish::error,
        job->status = Status(Code::kLimitExceeded, strf("generate: the deadline passed after %d of at most %d tokens; "
                                                        "ask for fewer, earlier, or with a later deadline",
                                                        job->produced_, job->request.max_tokens));
}

Status Batcher::step(std::vector<Event>* events) {
  events->clear();
  std::erase_if(owned_, [](const auto& job) { return job->over_; });
  expire();
  std::erase_if(waiting_, [&](Job* job) {
    if (job->ending_ != Finish::none) end(job, job->ending_, events);
    return job->ending_ != Finish::none;
  });
  for (Job* job : slots_)
    if (job != nullptr && job->ending_ != Finish::none) end(job, job->ending_, events);
  for (Job* job : slots_)
    if (job != nullptr && !job->forced_.empty()) tell_forced(job, events);
  std::erase_if(waiting_, [&](Job* job) {
    if (!job->forced_.empty()) tell_forced(job, events);
    return job->over_;
  });
  if (in_flight_ == 0) VV_TRY(plan());
  while (in_flight_ > 0 && steady()) {
    VV_ASSIGN(const bool places, grow_further());
    if (!places) break;
    VV_TRY(repeat());
  }
  while (prompts_go_on()) VV_TRY(plan());
  if (in_flight_ == 0 && !waiting_.empty() && nobody())  // it would wait for ever
    return Status(Code::kFailedPrecondition,
                  strf("generate: a request waits for pages, %d of %d are free, and those taken are not this batcher's "
                       "to give back; close what else uses the model",
                       blocks_->available(), limits_.pages));
  if (in_flight_ == 0) return {};
  VV_TRY(collect(events));
  // Steps of answers and of prompts that were planned together end together, and nobody waits for steps
  // whose requests are all over.
  while (in_flight_ > 0 && (!may_repeat_ || nobody())) VV_TRY(collect(events));
  return {};
}

void Batcher::abort(const Status& why, std::vector<Event>* events) {
  drain();
  may_repeat_ = false;
  if (nobody() && !waiting_.empty()) {
    Job* job = waiting_.front();
    waiting_.erase(waiting_.begin());
    job->status = why;
    end(job, Finish::error, events);
  }
  for (Job* job : slots_)
    if (job != nullptr) {
      job->status = why;
      job->publishes_ = false;
      end(job, Finish::error, events);
    }
}

}  // namespace vivace::serve
