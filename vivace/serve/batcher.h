// Batcher: several requests on one TextModel. Which rows enter a step is decided here and nowhere else.
#pragma once
#include <deque>
#include <span>
#include <vector>

#include "vivace/engine/model.h"

namespace vivace::serve {

struct Request {
  std::vector<int32_t> prompt;      // at least one token
  int max_tokens = 0;               // >= 1
  engine::Sampling sampling;
  std::vector<int32_t> stop;        // token ids that end the answer; they are not part of it
  std::vector<float> bias = {};     // a value a token, added to its logit, -inf to forbid it; empty: none
  bool stepwise = false;            // no step runs ahead of this request: set_bias() may come between any two
};

/// Errors: InvalidArgument (empty prompt, token out of range, sampling values), LimitExceeded when prompt + max_tokens
/// exceed the context, both numbers named, InvalidShape or FailedPrecondition for a bias.
Status check(const Request& request, const engine::TextLimits& limits);

enum class Finish : uint8_t { none, stop, length, cancelled, nan_logits };
const char* name(Finish f);

/// One thing that happened to a request in a step: a token, its end, or both.
struct Event {
  int64_t request = 0;
  int32_t token = -1;   // -1: no token came with this event
  float logprob = 0;
  Finish finish = Finish::none;
};

/// Not thread-safe: one caller. Requests that find no free slot wait in order.
class Batcher {
 public:
  /// `model` must outlive the batcher and be used by nobody else meanwhile.
  explicit Batcher(engine::TextModel& model);
  ~Batcher();
  Batcher(const Batcher&) = delete;

  /// Queues a request and returns its id. Errors: those of check().
  Result<int64_t> submit(Request request);
  /// Ends a request at once; its Finish::cancelled event comes with the next step. NotFound if it is over.
  Status cancel(int64_t request);
  /// Replaces the bias of a request that answers, from its next draw on. Errors: NotFound if it is over or
  /// still waits; FailedPrecondition if it is not stepwise.
  Status set_bias(int64_t request, std::span<const float> bias);
  bool idle() const;
  /// One model step: every answering request gets one row, the rest of the chunk goes to prompts in
  /// order of arrival; apart, where the model does not mix them. While nobody joins or leaves, further
  /// steps are queued before this one's draws are known (TextLimits::ahead): the answers are the same, and
  /// what a request draws after its stop token is dropped. So are further steps of prompts while nobody answers. Replaces `events`. Does not allocate once
  /// `events` has room for 2 x max_batch. An error concerns the step as a whole; requests fail alone
  /// through their events.
  Status step(std::vector<Event>* events);

 private:
  struct Active {
    int64_t id = -1;       // -1: the slot is free
    Request request;
    int fed = 0;           // tokens of the context that entered the model
    int produced = 0;
    int drawing = 0;       // draws that are queued in the model
    int32_t last = -1;     // drawn but not yet fed
    bool cancelled = false;
  };
  /// One queued step: whose draws it will give, in order.
  struct Queued {
    std::vector<int64_t> requests;  // ids
  };
  Status admit();
  void add_answers();
  void add_prompts();
  Status plan();
  Status issue();
  bool steady() const;
  bool prompts_go_on() const;
  Status repeat();
  Status collect(std::vector<Event>* events);
  void finish_sample(const engine::Sampled& s, std::vector<Event>* events);
  void release(Active* a);

  engine::TextModel& model_;
  engine::TextLimits limits_;
  std::vector<Active> slots_;
  std::deque<Active> waiting_;
  std::vector<int64_t> cancelled_;  // ended while waiting
  std::vector<engine::TokenRow> rows_;
  std::vector<engine::Sampled> sampled_;
  std::vector<Queued> queued_;      // a ring of limits_.ahead
  size_t oldest_ = 0, in_flight_ = 0;
  std::vector<int64_t> answering_;  // requests of the last step of answers
  bool may_repeat_ = false;         // nothing but that step's rows is at work
  int64_t next_id_ = 0;
};

}  // namespace vivace::serve
