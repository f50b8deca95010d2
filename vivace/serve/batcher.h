// Batcher: several requests on one TextModel. Which rows enter a step is decided here and nowhere else.
#pragma once
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vivace/base/siphash.h"
#include "vivace/engine/model.h"
#include "vivace/serve/drafter.h"
#include "vivace/serve/prompt_images.h"

namespace vivace::serve {

/// Who goes first. The next class waits while one before it does, and gives its place and its blocks to it.
enum class Priority : uint8_t { robot, interactive, batch };

/// Who waits for long rises a class, so that nobody waits for ever: see Batcher.
struct Ageing {
  std::chrono::nanoseconds after = std::chrono::seconds(10);  // of waiting, a class; 0: nobody rises
  std::chrono::steady_clock::time_point (*now)() = &std::chrono::steady_clock::now;
};

/// A token that could have come instead.
struct TopLogprob {
  int32_t token = -1;
  float logprob = 0;
};
inline constexpr int kMaxTopLogprobs = 20;

struct Request {
  std::vector<int32_t> prompt;      // at least one token
  int max_tokens = 0;               // >= 1
  engine::Sampling sampling;
  std::vector<int32_t> stop;        // token ids that end the answer; they are not part of it
  std::vector<float> bias = {};     // a value a token, added to its logit, -inf to forbid it; empty: none
  bool stepwise = false;            // after each token it waits for set_bias() or set_mask() before the next is drawn
  std::vector<uint32_t> mask = {};  // bit v % 32 of word v / 32: token v may be drawn; empty: all may
  int top_logprobs =
      0;  // beside each draw, the likeliest of its tokens: up to kMaxTopLogprobs. Steps are then not queued ahead
  int min_tokens = 0;               // tokens before which `stop` ids are not drawn, as long as the mask leaves another
  Drafter* drafter =
      nullptr;  // guesses tokens that a step checks; outlives the request. Answers without penalties and bias
  int num_speculative_tokens = 0;                   // with a drafter: most guesses a step, 1 to max_batch - 1
  bool mtp = true;  // without one, guesses of the model's own draft layer, where it has one and they may be
  Priority priority = Priority::interactive;
  std::string salt = {};            // whose it is: requests of different salts never find each other's keys and values
  bool reuse = true;                // whether what was computed before may be taken, and what it computes be kept
  bool deterministic = false;  // takes only what steps of prompts wrote: the answer has the bits that it has without
  bool resumed = false;  // the prompt is an answer that goes on: its last token is fed as one that was drawn, where all
                         // before it is found
  std::vector<PromptImage> images = {};  // that the prompt shows, in its order
  int64_t leader = -1;              // id of a request with the same prompt: it waits until that one's is computed
  std::chrono::steady_clock::time_point deadline =
      std::chrono::steady_clock::time_point::max();  // by which the answer must be over; it ends then
};

/// Errors: InvalidArgument (empty prompt, token out of range, sampling values, a drafter beside what it cannot serve),
/// LimitExceeded when prompt + max_tokens exceed the context, both numbers named, and for drafts; those of
/// check_bias() and check_images().
Status check(const Request& request, const engine::TextLimits& limits);
/// Errors: InvalidShape, InvalidArgument for a value that is neither finite nor -inf or when no token is left,
/// FailedPrecondition for a model without logit_bias.
Status check_bias(std::span<const float> bias, const engine::TextLimits& limits);
/// Errors: InvalidShape, InvalidArgument when no token is left.
Status check_mask(std::span<const uint32_t> mask, const engine::TextLimits& limits);

enum class Finish : uint8_t { none, stop, length, cancelled, nan_logits, error };
const char* name(Finish f);

/// A request and what the batcher writes while it answers it. Whoever submits it makes it, so that a batcher
/// allocates nothing for a request.
struct Job {
  explicit Job(Request r);
  Request request;
  int64_t id = -1;
  Status status = {};    // why, after Finish::error
  int64_t steps = 0, drafted = 0,
          accepted = 0;  // with a drafter: steps after the prompt, guesses checked, guesses that were right
  /// What of the prompt was found computed, and what of prompt and answer is kept for others.
  struct Cache {
    int cached = 0, written = 0;    // tokens
    engine::KvBlocks::Miss miss = engine::KvBlocks::Miss::off;  // why not more was found
    int diverged = 0;               // with Miss::diverged: the first token that differs
  };
  Cache cache = {};
  std::chrono::steady_clock::time_point seated = {};  // when it got its first slot

 private:
  friend class Batcher;
  Priority class_;                                     // what it has risen to
  std::chrono::steady_clock::time_point queued_ = {};  // since when it waits in it
  int slot_ = -1;        // -1: it waits, or is over
  bool over_ = false;
  int fed_ = 0;          // tokens of the context that entered the model
  int produced_ = 0;
  int drawing_ = 0;      // draws that are queued in the model
  int32_t last_ = -1;    // drawn but not yet fed
  bool paused_ = false;  // stepwise, and neither set_bias() nor set_mask() has come since the last draw
  bool remask_ = false;  // its mask changes before the next draw: min_tokens have come
  std::vector<int32_t> forced_;    // of set_mask(): not told and not fed yet
  bool run_ = false;     // more of context_ than the last token is to be fed
  Finish ending_ = Finish::none;   // asked for from outside; its event comes with the next step
  std::vector<int32_t> context_;   // prompt and answer
  std::vector<int32_t> keys_;      // the same with images' numbers in place of their tokens; empty where none are shown
  std::vector<ShownImage> shown_;  // images of the prompt
  std::vector<TopLogprob> top_;    // of the last draw
  engine::HostBytes parked_;       // its keys and values, while it waits for blocks again
  int parked_blocks_ = 0;
  int bypassed_ = 0;               // later ones that went before it
  Hash128 root_;                   // of its salt
  int committed_ = 0;              // tokens whose keys and values are there for good
  int pure_ = 0;                   // of these, the first that steps of prompts wrote
  int published_ = 0;              // of these, those that the table has
  bool publishes_ = false, begun_ = false;
  int branch_ = 0;            // where others' prompts went on otherwise, at a block's end: its state is kept; 0: none
  int32_t found_state_ = -1;  // that it begins with, until its slot has it
  int32_t passing_ = -1;      // its last kept state that is of use only until a later one is there
  uint64_t passing_use_ = 0;
  bool own_ = false;   // guesses are of the model's draft layer
  int behind_ = 0;     // of a recurrent state: the last of the fed_ tokens, guesses that were right, which it lacks
  int dropped_ = 0;    // draws of the last step behind tokens that it had before
  int drafted_to_ = 0; // positions that the draft layer has
  size_t proposed_ = 0;
  std::vector<int32_t> guesses_;
  size_t guessed_ = 0, checked_ = 0;  // guesses of the last step; draws of it that were taken
};

/// One thing that happened to a request in a step: a token, its end, or both.
struct Event {
  Job* job = nullptr;   // valid until the next step
  int64_t request = 0;
  int32_t token = -1;   // -1: no token came with this event
  float logprob = 0;
  Finish finish = Finish::none;
  std::span<const TopLogprob> top =
      {};  // of a token that was drawn, the likeliest first; where a batcher gives it, valid as `job`
};

/// Not thread-safe: one caller; EngineLoop (engine_loop.h) serves several. Requests that find no free slot wait in
/// order of class, then of arrival. One that has waited for Ageing::after is of the class before its own from then on,
/// to its end; nobody rises to the robots' class. Where sequences share blocks an answer takes them as it grows; when
/// none is left, the youngest of the lowest class moves to host memory, waits, and goes on from there as if nothing had
/// been. One that needs many blocks lets a few smaller ones of its class pass, and no more.
class Batcher {
 public:
  /// `model` must outlive the batcher and be used by nobody else meanwhile. `waiting`: requests that may wait without
  /// an allocation here.
  explicit Batcher(engine::TextModel& model, size_t waiting = 0, const Ageing& ageing = {});
  /// Slots and blocks of requests that are not over are free again.
  ~Batcher();
  Batcher(const Batcher&) = delete;

  /// Queues a request and returns its id. Errors: those of check().
  Result<int64_t> submit(Request request);
  /// The same for a request that check() let pass; `job` stays where it is until its event with a finish came.
  int64_t submit(Job& job);
  /// Ends a request; its Finish::cancelled event comes with the next step. NotFound if it is over.
  Status cancel(int64_t request);
  /// Ends it with Finish::error and this status.
  Status fail(int64_t request, Status why);
  /// Replaces the bias of a request that answers, from its next draw on, which a stepwise one waits for. Errors:
  /// NotFound if it is over or still waits; FailedPrecondition if it is not stepwise; those of check_bias().
  Status set_bias(int64_t request, std::span<const float> bias);
  /// The same for the mask, until the next one. `forced`: tokens that come before the next draw without one, as the
  /// only ones that may; they are fed in one piece. Errors: those of check_mask() besides, InvalidArgument for a forced
  /// token outside the vocabulary.
  Status set_mask(int64_t request, std::span<const uint32_t> mask, std::span<const int32_t> forced = {});
  /// What a request that answers has computed so far is found by others, its last block too. Nothing where it is over
  /// or waits.
  Status share(int64_t request);
  bool idle() const;
  /// Whether step() would do anything: false also while all who answer wait for their set_bias().
  bool has_work() const;
  /// Whether a request holds a slot and waits for its set_bias().
  bool paused(const Job& job) const { return job.slot_ >= 0 && job.paused_; }
  bool waits(const Job& job) const { return job.slot_ < 0; }
  /// Answers that moved to host memory so far.
  int64_t parked() const { return parks_; }
  /// One model step: every answering request gets one row (and rows for guesses of its drafter, as far as max_batch
  /// goes), the rest of the chunk goes to prompts in order of arrival; apart, where the model does not mix them. While
  /// nobody joins or leaves, further steps are queued before this one's draws are known
  /// (TextLimits::max_in_flight_steps): the answers are the same, and what a request draws after its stop token is
  /// dropped. So are further steps of prompts while nobody answers. Replaces `events`. Does not allocate once `events`
  /// has room for 2 x max_batch. An error concerns the step as a whole; abort() then goes on with what waits. Requests
  /// fail alone through their events.
  Status step(std::vector<Event>* events);
  /// After a step's error: ends all who hold a slot, or else the first that waits, with `why`. Adds to `events`.
  void abort(const Status& why, std::vector<Event>* events);

 private:
  /// A state that is kept as a slot had it behind `position` tokens, until the block of these is published.
  struct Kept {
    int position;
    int32_t state;
  };
  /// One queued step: whose draws it will give, in order.
  struct Queued {
    std::vector<int64_t> requests;  // ids
    std::vector<std::pair<int64_t, int>> prompts;  // ids, and how much of their prompts is fed with it
  };
  // batcher.cc
  bool nobody() const;
  bool ranks() const;
  void rank(Job* job, const engine::Sampled& s, std::span<const float> logits) const;
  Status waits_for(const char* call, const Job* job, int64_t request) const;
  Status mask(Job* job);
  void tell_forced(Job* job, std::vector<Event>* events);
  Job* find(int64_t request) const;
  void expire();
  Status add_answers();
  bool answers(const Job* job) const;
  void add_answer(Job* job, size_t* spare);
  Status add_guesses(Job* job, size_t* spare);
  Status propose();
  Status hear_prompts();
  Status add_prompts();
  int stretch(const Job& job) const;
  engine::TokenRow row(const Job& job, int pos, bool sample, bool prompt) const;
  Result<bool> see(Job* job, int pos);
  void leave_places(Job* job, int fed);
  Status plan();
  Status issue();
  bool steady() const;
  bool prompts_go_on() const;
  Status repeat();
  Status collect(std::vector<Event>* events);
  void drain();
  Status take(Job* job, const engine::Sampled& s, std::vector<Event>* events);
  void end(Job* job, Finish finish, std::vector<Event>* events);
  void release(Job* job);

  // states.cc: which states of recurrent layers are kept
  int last_kept(const Job& job) const;
  Status keep_state(Job* job);
  Status keep_at_end_of_block(Job* job);
  Status keep_here(Job* job);
  void put_states(Job* job);
  void drop_states(Job* job);

  bool speculates(const Job& job) const { return job.own_ || job.request.drafter != nullptr; }

  // seats.cc: who has a slot, and blocks
  static bool before(const Job* a, const Job* b);
  void enqueue(Job* job);
  void insert(Job* job);
  void rise();
  int wanted(const Job& job) const;
  bool fits(const Job& job) const;
  bool follows(const Job& job) const;
  Status begin(Job* job);
  int publish(Job* job, bool tail);
  Status share(Job* job, bool tail);
  size_t admissible() const;
  std::vector<int32_t>& held(const Job& job) { return held_[static_cast<size_t>(job.slot_)]; }
  Job* victim(Priority above) const;
  Status make_room(const Job& first);
  Status admit();
  Status seat(Job* job, int slot);
  Status park(Job* job);
  void unseat(Job* job);
  bool number_images(Job* job);
  std::span<const int32_t> known(const Job& job) const { return job.keys_.empty() ? job.context_ : job.keys_; }
  Result<bool> place(Job* job, int position);
  Status grow();
  Result<bool> grow_further();

  engine::TextModel& model_;
  engine::TextLimits limits_;
  engine::KvBlocks* const blocks_;  // null: each slot has its own places
  const Ageing ageing_;
  int64_t parks_ = 0;
  std::vector<Job*> slots_;         // null: free
  std::vector<std::vector<int32_t>> held_;  // a slot: the blocks where its keys and values lie, in order
  std::vector<std::vector<Kept>> kept_;     // a slot: in order
  std::vector<Job*> waiting_;       // in order
  std::vector<std::unique_ptr<Job>> owned_;  // of submit(Request)
  std::vector<engine::TokenRow> rows_;
  std::vector<engine::TokenRow> guess_rows_, draft_rows_;
  std::vector<Job*> asking_;        // for guesses
  std::vector<int32_t> drafts_;     // their guesses, as TextModel::draft() gives them
  std::vector<uint32_t> early_;     // a mask without stop ids
  std::vector<engine::Sampled> sampled_;
  std::vector<Queued> queued_;      // a ring of limits_.max_in_flight_steps
  size_t oldest_ = 0, in_flight_ = 0;
  std::vector<int64_t> answering_;  // requests of the last step of answers
  std::vector<Job*> places_;        // of images that steps read: whose; null: free
  ImageNumbers numbers_;
  bool prompts_turn_ = false;       // where steps of answers and of prompts take turns: see plan()
  bool may_repeat_ = false;         // nothing but that step's rows is at work
  int64_t next_id_ = 0;
};

}  // namespace vivace::serve
