// EngineLoop: one model for many callers. It owns the model's Batcher and the thread that steps it.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "vivace/engine/urgent.h"
#include "vivace/serve/batcher.h"
#include "vivace/serve/notifier.h"

namespace vivace::serve {

struct EngineOptions {
  int max_waiting = 256;  // requests that may wait besides the max_batch that answer
  int64_t max_waiting_tokens = 1 << 22;  // of their prompts, with those that answer
  Ageing ageing = {};
  std::shared_ptr<engine::StepAccount> account = {};  // of the loop's steps; null: nobody schedules them
};

class MaskHandle;

/// A request at the engine, seen from the thread that reads its answer. Every call is for that one thread, but
/// cancel(), which is for any. Its end cancels the request. It may outlive its EngineLoop.
class RequestHandle {
 public:
  struct Record;  // of engine_loop.cc
  RequestHandle() = default;
  explicit RequestHandle(Record* record) : record_(record) {}
  RequestHandle(RequestHandle&& o) noexcept : record_(std::exchange(o.record_, nullptr)) {}
  RequestHandle& operator=(RequestHandle&& o) noexcept {
    std::swap(record_, o.record_);
    return *this;
  }
  ~RequestHandle();

  /// Number of the request, above 0.
  int64_t number() const;
  /// Copies events that were not read yet, in order, and returns how many. The answer's room was made when it was
  /// submitted: a slow reader holds up nobody. Event::job is null; Event::top lives as long as the handle.
  size_t read(std::span<Event> out);
  size_t unread() const;
  /// Whether the event with the request's finish was read.
  bool over() const;
  /// Waits for an event that was not read: true. False after `limit`, or when a signal came to this thread.
  bool wait(std::chrono::microseconds limit);
  /// The same, and returns when any request with the same Notifier had news since its now() gave `seen`.
  bool wait(std::chrono::microseconds limit, uint32_t seen);
  /// Ends the request: its slot and pages are free after the step that is on its way. Nothing where it is over.
  void cancel();
  /// Of a stepwise request, after each token: the bias for its next draw; see Batcher::set_bias(), whose errors end the
  /// request. FailedPrecondition if it does not wait for one.
  Status set_bias(std::span<const float> bias);
  /// The same with a mask; see Batcher::set_mask().
  Status set_mask(std::span<const uint32_t> mask);
  /// The other side of a stepwise request, once: from then on its masks come from there.
  MaskHandle masks();
  /// Why, once an event with Finish::error was read.
  const Status& status() const;
  /// Of a request with a drafter, once it is over: see Job.
  struct Drafts {
    int64_t steps = 0, drafted = 0, accepted = 0;
  };
  Drafts drafts() const;
  /// What of its prompt was found computed, once an event was read; what is kept of it, once it is over.
  Job::Cache cache() const;

 private:
  Record* record_ = nullptr;
};

/// The masks of a stepwise request, for a thread of their own: it reads what was drawn apart from who reads the answer,
/// and says what may come next. One thread at a time. Its end cancels a request that is not over.
class MaskHandle {
 public:
  explicit MaskHandle(RequestHandle::Record* record) : record_(record) {}
  MaskHandle(MaskHandle&& o) noexcept
      : record_(std::exchange(o.record_, nullptr)), read_(o.read_), forced_(o.forced_), owes_(o.owes_) {}
  ~MaskHandle();

  /// Copies tokens that were drawn since, those that set_mask() forced left out, and returns how many.
  size_t read(std::span<int32_t> out);
  /// Whether the request is over: nothing is to be said any more.
  bool over() const;
  /// See Batcher::set_mask(), whose errors end the request. FailedPrecondition if no draw waits for one.
  Status set_mask(std::span<const uint32_t> mask, std::span<const int32_t> forced = {});
  /// Ends the request with Finish::error and this status.
  void fail(Status why);

 private:
  RequestHandle::Record* record_;
  size_t read_ = 0;       // of the record's events
  size_t forced_ = 0;     // events to come that this side knows
  bool owes_ = false;
};

/// Thread-safe. Requests are served side by side, up to max_batch; others wait in order. Each answer is the one that
/// it would be alone. The thread begins with the first request and ends with close().
class EngineLoop {
 public:
  /// `model` must outlive the loop, and only lease(), direct() and the loop use it.
  explicit EngineLoop(engine::TextModel& model, const EngineOptions& options = {});
  /// close().
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;

  struct Submit {
    std::shared_ptr<Notifier> notifier = {};  // that rings when there are events; null: the request's own
    std::shared_ptr<Drafter> drafter =
        {};  // for Request::drafter: kept until the answer is over, used on the engine's thread
    std::shared_ptr<Notifier> masks =
        {};              // that rings when a stepwise request has drawn or is over, for who holds its masks()
    int64_t parent = 0;  // number of the request whose callback (that makes its next bias) submits this one
    int64_t leader = 0;                       // number of a request with the same prompt, which computes it for both
  };
  /// Errors: those of check(); LimitExceeded when too many wait, or the answer would not begin before its deadline:
  /// retry_after() says when to try again; FailedPrecondition while somebody has a lease, and in a process that was
  /// forked; Closed. A request whose parent cannot go on before it, and which itself cannot go on, ends with
  /// FailedPrecondition instead of waiting for ever.
  Result<RequestHandle> submit(Request request, Submit how);
  Result<RequestHandle> submit(Request request) { return submit(std::move(request), Submit()); }
  /// `n` answers to one prompt, with seeds from its own on; the first computes the prompt for all, where sequences
  /// share blocks. All are taken, or none.
  Result<std::vector<RequestHandle>> submit_n(const Request& request, int n, const Submit& how);

  /// The model for direct calls of this thread, while the lock lives: submit() waits. Sequences that were started
  /// directly end when the next request begins. Errors: FailedPrecondition while requests answer or somebody has a
  /// lease; Closed.
  Result<std::unique_lock<std::mutex>> direct();
  /// The same for longer: submit() and direct() are refused until it is gone. Must not outlive the loop.
  class Lease {
   public:
    explicit Lease(std::atomic<const char*>* taken) : taken_(taken) {}
    Lease(Lease&& o) noexcept : taken_(std::exchange(o.taken_, nullptr)) {}
    ~Lease() {
      if (taken_ != nullptr) taken_->store(nullptr, std::memory_order_release);
    }

   private:
    std::atomic<const char*>* taken_;
  };
  /// `why`: what those who are refused are told, a literal; null: that it is used directly.
  Result<Lease> lease(const char* why = nullptr);
  /// Guesses of this model's for requests of `other`, whose engine thread alone may use them; it has this model's lease
  /// as long as any such request lives. `keep` keeps this loop and its model.
  Result<std::shared_ptr<Drafter>> drafter_for(const EngineLoop& other, std::shared_ptr<void> keep);

  /// Requests that were ever submitted: as long as it is the same, directly started sequences stand. For who holds
  /// direct().
  int64_t submitted() const { return next_number_ - 1; }
  /// Requests that answer or wait. At 0 the engine does not touch the model any more until the next submit().
  int pending() const;
  /// How long one that came now would wait for a place, as far as the last answers tell; 0: not at all, or nothing is
  /// known.
  std::chrono::microseconds retry_after() const;
  /// Steps so far, and when the last one's events were given, ns of the steady clock: progress, whatever the steps are
  /// of.
  int64_t steps() const;
  int64_t last_step_ns() const;
  /// Blocks of the caches; `available` are free or only remembered, for prompts that begin alike. Zeros without.
  struct Blocks {
    int count = 0, available = 0, remembered = 0;
  };
  Blocks blocks() const;
  /// Does `work` on the engine's thread, between two steps, and waits for it. Errors: those of submit(), and its own.
  Status perform(const std::function<Status(engine::TextModel&)>& work);
  /// The model's.
  engine::HostPool& host_pool() { return model_.host_pool(); }
  /// perform() without waiting; from any thread, after close() too, which then leaves it undone.
  void post(std::function<void(engine::TextModel&)> work);
  /// See Batcher::share(); `number` of a request's handle.
  Status share(int64_t number);
  /// Answers that moved to host memory so far, for want of blocks.
  int64_t parked() const;
  /// What was measured here, seconds: a token of a prompt from its slot to the first draw, the mean of the last ones; a
  /// byte of keys and values that was brought back, the best so far, and how often that was. 0: not yet.
  struct Rates {
    double prefill = 0, restore = 0;
    int restores = 0;
  };
  Rates rates() const;
  /// Of restore, on the engine's thread.
  void note_restore(int64_t bytes, std::chrono::steady_clock::duration took);
  /// Ends every request with Finish::error (Closed), and the thread. Calls after it are refused. From any thread, twice
  /// is fine.
  void close();

 private:
  struct Channel;
  using Record = RequestHandle::Record;
  friend class RequestHandle;
  friend class MaskHandle;

  Status enter();  // with door_ held: closed, leased
  Status check_room(const Request& request, int n) const;
  RequestHandle add(Request request, Submit how);
  Status check_process() const;
  Status wait_until_idle();  // the same
  void run();
  void take_submitted();
  void take_notes();
  void take_tasks(bool closed);
  void count_blocks();
  bool refuse_a_callback();
  void deliver();
  void end_all();
  void note_end();
  void note_prompt(const Record& r);

  engine::TextModel& model_;
  engine::TextLimits limits_;
  const int most_;                    // requests at once, answering or waiting
  const int64_t most_tokens_;         // of their prompts
  const Ageing ageing_;
  const std::shared_ptr<engine::StepAccount> account_;
  const int process_;                 // number of forks before it was made
  std::shared_ptr<Channel> channel_;  // with handles, which may outlive the loop
  std::mutex door_;                   // among callers; the engine's thread never takes it
  std::mutex closing_;
  bool closed_ = false;
  std::atomic<const char*> leased_{nullptr};  // why
  std::weak_ptr<Drafter> drafts_;     // of drafter_for()
  const EngineLoop* drafting_for_ = nullptr;
  bool used_directly_ = false;        // slots may hold sequences that no request owns
  int64_t next_number_ = 1;
  std::unique_ptr<std::thread> thread_;

  // Of the engine's thread, while it runs.
  std::optional<Batcher> batcher_;
  std::vector<Record*> live_;         // submitted and not over, in order
  std::vector<Event> events_;
  std::chrono::steady_clock::time_point last_end_;  // of an answer, or when there was work again
};

}  // namespace vivace::serve
