#include "vivace/serve/engine_loop.h"

#include <pthread.h>

#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/base/forks.h"
#include "vivace/serve/thread.h"

namespace vivace::serve {
namespace {

using std::chrono::microseconds;

/// How long the engine's thread looks for news before it sleeps.
constexpr microseconds kSpin{50};
/// A sleep without news; only a bound, every piece of news rings.
constexpr const char* kUsedDirectly =
    "the model is used directly (a draft model of an answer, or a Batcher of somebody's own); wait until that is over";
constexpr microseconds kSleep{1'000'000};

Status in_parent() {
  return Status(Code::kFailedPrecondition,
                "the model was loaded before fork(), and its threads are in the parent; load it in this process");
}

}  // namespace

/// What callers and the engine's thread share, without a lock: each side rings the other's Notifier.
struct EngineLoop::Channel {
  struct Task {
    std::function<void(engine::TextModel*)> work;  // gets null once the loop is closed
    Task* next = nullptr;
  };
  ~Channel() {
    for (Task* t = tasks.load(std::memory_order_acquire); t != nullptr;) delete std::exchange(t, t->next);
  }
  void push(std::function<void(engine::TextModel*)> work) {
    auto* task = new Task{std::move(work)};
    task->next = tasks.load(std::memory_order_relaxed);
    while (!tasks.compare_exchange_weak(task->next, task, std::memory_order_release, std::memory_order_relaxed)) {
    }
    bell.ring();
  }
  std::atomic<Task*> tasks{nullptr};        // a stack, the newest first
  Notifier bell;                            // news for the engine: requests, cancels, biases, the end
  Notifier idle;                            // rung when nothing is pending any more
  std::atomic<Record*> submitted{nullptr};  // a stack, the newest first; the engine takes all of it
  std::atomic<Record*> dropped{nullptr};    // over, and their handles are gone: freed by callers, not by the engine
  std::atomic<int> pending{0};              // submitted and not over
  std::atomic<int> wanted{0};               // of these, those that nobody has cancelled
  std::atomic<int64_t> tokens{0};           // of their prompts
  std::atomic<int64_t> between_us{0};  // mean time from the end of an answer to that of the next, while there is work
  std::atomic<int64_t> parked{0};
  std::atomic<double> prefill{0}, restore{0};  // seconds a token, a byte
  std::atomic<int> restores{0};
  std::atomic<int64_t> steps{0}, last_step_ns{0};
  std::atomic<int> available{0}, remembered{0};  // blocks
  std::atomic<bool> stop{false};
};

struct RequestHandle::Record : Job {
  Record(Request r, std::shared_ptr<EngineLoop::Channel> c, EngineLoop::Submit how)
      : Job(std::move(r)),
        channel(std::move(c)),
        notifier(how.notifier ? std::move(how.notifier) : std::make_shared<Notifier>()),
        masks(std::move(how.masks)),
        drafter(std::move(how.drafter)),
        parent(how.parent),
        leader(how.leader),
        events(static_cast<size_t>(request.max_tokens) + 1),
        tops(std::make_unique_for_overwrite<TopLogprob[]>(events.size() * static_cast<size_t>(request.top_logprobs))) {
    if (request.stepwise) next_bias.reserve(request.bias.size()), next_mask.reserve(request.mask.size());
  }
  /// The handle's end, or the engine's; true for the last.
  bool drop() { return refs.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  /// Once: whether the request still counted as wanted.
  bool unwanted() {
    if (cancelled.exchange(true, std::memory_order_acq_rel)) return false;
    channel->wanted.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }

  const std::shared_ptr<EngineLoop::Channel> channel;
  const std::shared_ptr<Notifier> notifier;
  const std::shared_ptr<Notifier> masks;  // of its MaskHandle's thread, or null
  std::shared_ptr<Drafter> drafter;
  const int64_t parent, leader;
  int64_t number = 0;
  const int process = forks();
  std::atomic<int> refs{2};
  Record* next = nullptr;              // of the stack it is on

  std::vector<Event> events;  // the whole answer has room: the engine writes up to `written`, the reader reads below it
  const std::unique_ptr<TopLogprob[]> tops;  // room for those of each event
  std::atomic<size_t> written{0};
  std::atomic<bool> cancelled{false};
  std::atomic<int> blocked{0};         // readers that wait
  std::vector<float> next_bias;        // the reader's until bias_given, then the engine's
  std::atomic<bool> bias_given{false};
  std::vector<uint32_t> next_mask;     // the same of masks, whoever gives them
  std::vector<int32_t> forced;
  Status mask_failed;
  std::atomic<bool> mask_given{false};

  size_t read = 0;                     // the reader's
  bool ended = false;                  // the reader's: it read the finish
  bool owes_bias = false;              // the reader's: it read a token and gave no bias or mask since
  bool masked_apart = false;           // its masks come from a MaskHandle
};

namespace {

void push(std::atomic<RequestHandle::Record*>& stack, RequestHandle::Record* record) {
  record->next = stack.load(std::memory_order_relaxed);
  while (!stack.compare_exchange_weak(record->next, record, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

void free_all(std::atomic<RequestHandle::Record*>& stack) {
  for (auto* r = stack.exchange(nullptr, std::memory_order_acquire); r != nullptr;) delete std::exchange(r, r->next);
}

}  // namespace

RequestHandle::~RequestHandle() {
  if (record_ == nullptr) return;
  cancel();
  if (record_->drop()) delete record_;
}

int64_t RequestHandle::number() const { return record_->number; }
bool RequestHandle::over() const { return record_->ended; }
const Status& RequestHandle::status() const { return record_->status; }
Job::Cache RequestHandle::cache() const {
  return {record_->cache.cached, record_->ended ? record_->cache.written : 0, record_->cache.miss,
          record_->cache.diverged};
}
RequestHandle::Drafts RequestHandle::drafts() const { return {record_->steps, record_->drafted, record_->accepted}; }
size_t RequestHandle::unread() const { return record_->written.load(std::memory_order_acquire) - record_->read; }

size_t RequestHandle::read(std::span<Event> out) {
  const size_t count = std::min(unread(), out.size());
  for (size_t i = 0; i < count; ++i) {
    out[i] = record_->events[record_->read++];
    record_->ended = out[i].finish != Finish::none;
    record_->owes_bias = record_->request.stepwise && !record_->ended && !record_->masked_apart;
  }
  return count;
}

bool RequestHandle::wait(microseconds limit) {
  const uint32_t seen = record_->notifier->now();
  return unread() > 0 || wait(limit, seen);
}

bool RequestHandle::wait(microseconds limit, uint32_t seen) {
  Record& r = *record_;
  if (r.ended) return true;
  if (forks() != r.process) {  // the engine's thread is in the parent and will never write here
    r.status = in_parent();
    r.events[r.written++] = {nullptr, r.number, -1, 0, Finish::error};
    return true;
  }
  r.blocked.fetch_add(1, std::memory_order_seq_cst);
  if (r.parent != 0) r.channel->bell.ring();  // whether anybody can go on may have changed: see refuse_a_callback()
  r.notifier->wait(seen, limit);
  r.blocked.fetch_sub(1, std::memory_order_seq_cst);
  return unread() > 0;
}

void RequestHandle::cancel() {
  if (record_->unwanted()) record_->channel->bell.ring();
}

Status RequestHandle::set_bias(std::span<const float> bias) {
  Record& r = *record_;
  if (!r.owes_bias)
    return Status(
        Code::kFailedPrecondition,
        strf("set_bias: request %ld does not wait for a bias: it is not stepwise, over, or its token was not read",
             static_cast<long>(r.number)));
  r.owes_bias = false;
  r.next_bias.assign(bias.begin(), bias.end());
  r.bias_given.store(true, std::memory_order_release);
  r.channel->bell.ring();
  return {};
}

namespace {

void give(RequestHandle::Record& r, std::span<const uint32_t> mask, std::span<const int32_t> forced) {
  r.next_mask.assign(mask.begin(), mask.end());
  r.forced.assign(forced.begin(), forced.end());
  r.mask_given.store(true, std::memory_order_release);
  r.channel->bell.ring();
}

}  // namespace

Status RequestHandle::set_mask(std::span<const uint32_t> mask) {
  Record& r = *record_;
  if (!r.owes_bias)
    return Status(Code::kFailedPrecondition, strf("set_mask: request %ld does not wait for a mask: it is not stepwise, "
                                                  "over, its token was not read, or its masks() were taken",
                                                  static_cast<long>(r.number)));
  r.owes_bias = false;
  give(r, mask, {});
  return {};
}

MaskHandle RequestHandle::masks() {
  record_->masked_apart = true;
  record_->refs.fetch_add(1, std::memory_order_relaxed);
  return MaskHandle(record_);
}

MaskHandle::~MaskHandle() {
  if (record_ == nullptr) return;
  if (!over() && record_->unwanted()) record_->channel->bell.ring();
  if (record_->drop()) delete record_;
}

bool MaskHandle::over() const {
  const size_t written = record_->written.load(std::memory_order_acquire);
  return written > 0 && record_->events[written - 1].finish != Finish::none;
}

size_t MaskHandle::read(std::span<int32_t> out) {
  const size_t written = record_->written.load(std::memory_order_acquire);
  size_t count = 0;
  for (; read_ < written && count < out.size(); ++read_) {
    if (forced_ > 0) --forced_;
    else if (record_->events[read_].token >= 0) out[count++] = record_->events[read_].token;
  }
  owes_ = owes_ || count > 0;
  return count;
}

Status MaskHandle::set_mask(std::span<const uint32_t> mask, std::span<const int32_t> forced) {
  if (over()) return {};
  if (!owes_)
    return Status(Code::kFailedPrecondition,
                  strf("set_mask: request %ld does not wait for a mask: its token was not read",
                       static_cast<long>(record_->number)));
  owes_ = false;
  forced_ += forced.size();
  give(*record_, mask, forced);
  return {};
}

void MaskHandle::fail(Status why) {
  record_->mask_failed = std::move(why);
  record_->mask_given.store(true, std::memory_order_release);
  record_->channel->bell.ring();
}

EngineLoop::EngineLoop(engine::TextModel& model, const EngineOptions& options)
    : model_(model),
      limits_(model.limits()),
      most_(limits_.max_batch + options.max_waiting),
      most_tokens_(options.max_waiting_tokens),
      ageing_(options.ageing),
      account_(options.account),
      process_(forks()),
      channel_(std::make_shared<Channel>()) {
  channel_->available = limits_.pages;
  live_.reserve(static_cast<size_t>(most_));
  events_.reserve(static_cast<size_t>(2 * limits_.max_batch + most_));
}

EngineLoop::~EngineLoop() { close(); }

int64_t EngineLoop::steps() const { return channel_->steps.load(std::memory_order_relaxed); }
int64_t EngineLoop::last_step_ns() const { return channel_->last_step_ns.load(std::memory_order_relaxed); }
int EngineLoop::pending() const { return channel_->pending.load(std::memory_order_acquire); }

microseconds EngineLoop::retry_after() const {
  const int max_in_flight_steps = pending() - limits_.max_batch + 1;
  return microseconds(
      max_in_flight_steps <= 0 ? 0 : max_in_flight_steps * channel_->between_us.load(std::memory_order_relaxed));
}

EngineLoop::Blocks EngineLoop::blocks() const {
  return {limits_.pages, channel_->available.load(std::memory_order_relaxed),
          channel_->remembered.load(std::memory_order_relaxed)};
}

int64_t EngineLoop::parked() const { return channel_->parked.load(std::memory_order_relaxed); }

EngineLoop::Rates EngineLoop::rates() const {
  return {channel_->prefill.load(std::memory_order_relaxed), channel_->restore.load(std::memory_order_relaxed),
          channel_->restores.load(std::memory_order_relaxed)};
}

void EngineLoop::note_restore(int64_t bytes, std::chrono::steady_clock::duration took) {
  if (bytes <= 0) return;
  const double now = std::chrono::duration<double>(took).count() / static_cast<double>(bytes);
  std::atomic<double>& best = channel_->restore;
  const bool first = channel_->restores.fetch_add(1, std::memory_order_relaxed) == 0;
  best.store(first ? now : std::min(best.load(std::memory_order_relaxed), now), std::memory_order_relaxed);
}

/// Its first token was drawn. Of the engine's thread.
void EngineLoop::note_prompt(const Record& r) {
  constexpr int kLeast = 16;  // computed tokens, below which a step costs what it costs
  constexpr double kNew = 0.25;
  const auto computed = static_cast<int>(r.request.prompt.size()) - r.cache.cached;
  if (computed < kLeast) return;
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now() - r.seated).count() / computed;
  std::atomic<double>& mean = channel_->prefill;
  const double before = mean.load(std::memory_order_relaxed);
  mean.store(before == 0 ? now : before + kNew * (now - before), std::memory_order_relaxed);
}

/// An answer is over. Of the engine's thread.
void EngineLoop::note_end() {
  constexpr int64_t kKept = 7;  // of 8 parts: the mean of the last eight or so
  const auto now = std::chrono::steady_clock::now();
  const int64_t took = std::chrono::duration_cast<microseconds>(now - std::exchange(last_end_, now)).count();
  std::atomic<int64_t>& mean = channel_->between_us;
  const int64_t before = mean.load(std::memory_order_relaxed);
  mean.store(before == 0 ? took : (before * kKept + took) / (kKept + 1), std::memory_order_relaxed);
}

/// Before any lock: a thread of the parent may have held it.
Status EngineLoop::check_process() const { return forks() == process_ ? Status() : in_parent(); }

Status EngineLoop::enter() {
  if (closed_) return Status(Code::kClosed, "the model was closed; load it again");
  if (const char* const why = leased_.load(std::memory_order_acquire); why != nullptr)
    return Status(Code::kFailedPrecondition, why);
  return {};
}

Status EngineLoop::check_room(const Request& request, int n) const {
  const Channel& c = *channel_;
  if (const int pending = c.pending.load(std::memory_order_relaxed); pending + n > most_)
    return Status(Code::kLimitExceeded, strf("generate: %d requests answer or wait already, %d at once and %d waiting "
                                             "are the most; wait for one to end, or load with a larger max_waiting",
                                             pending, limits_.max_batch, most_ - limits_.max_batch));
  const auto prompt = n * static_cast<int64_t>(request.prompt.size());
  if (const int64_t tokens = c.tokens.load(std::memory_order_relaxed); tokens > 0 && tokens + prompt > most_tokens_)
    return Status(Code::kLimitExceeded,
                  strf("generate: prompts of %ld tokens answer or wait already, with these %ld it would be more than "
                       "max_waiting_tokens (%ld); wait for one to end, or load with more",
                       static_cast<long>(tokens), static_cast<long>(prompt), static_cast<long>(most_tokens_)));
  if (request.deadline == Request{}.deadline) return {};
  const auto left = std::chrono::duration_cast<microseconds>(request.deadline - std::chrono::steady_clock::now()),
             wait = retry_after();
  if (left.count() > 0 && left >= wait) return {};
  return Status(Code::kLimitExceeded,
                strf("generate: its deadline is in %.1f ms, and a place is free in some %.1f; come later, or with a "
                     "later deadline",
                     static_cast<double>(left.count()) / 1e3, static_cast<double>(wait.count()) / 1e3));
}

/// With door_ held, and room.
RequestHandle EngineLoop::add(Request request, Submit how) {
  Channel& c = *channel_;
  c.tokens.fetch_add(static_cast<int64_t>(request.prompt.size()), std::memory_order_relaxed);
  auto* record = new Record(std::move(request), channel_, std::move(how));
  record->number = next_number_++;
  c.pending.fetch_add(1, std::memory_order_relaxed);
  c.wanted.fetch_add(1, std::memory_order_relaxed);
  push(c.submitted, record);
  return RequestHandle(record);
}

Result<RequestHandle> EngineLoop::submit(Request request, Submit how) {
  request.drafter = how.drafter.get();
  VV_TRY(check(request, limits_));
  VV_TRY(check_process());
  const std::lock_guard hold(door_);
  VV_TRY(enter());
  free_all(channel_->dropped);
  VV_TRY(check_room(request, 1));
  if (thread_ == nullptr) VV_TRY(start_thread("generate", &thread_, [this] { run(); }));
  RequestHandle handle = add(std::move(request), std::move(how));
  channel_->bell.ring();
  return handle;
}

Result<std::vector<RequestHandle>> EngineLoop::submit_n(const Request& request, int n, const Submit& how) {
  Request first = request;
  first.drafter = how.drafter.get();
  if (n < 1 || n > most_)
    return Status(Code::kLimitExceeded, strf("generate: n: wanted 1 to %d answers, got %d", most_, n));
  VV_TRY(check(first, limits_));
  VV_TRY(check_process());
  const std::lock_guard hold(door_);
  VV_TRY(enter());
  free_all(channel_->dropped);
  VV_TRY(check_room(first, n));
  if (thread_ == nullptr) VV_TRY(start_thread("generate", &thread_, [this] { run(); }));
  std::vector<RequestHandle> handles;
  Submit each = how;
  for (int i = 0; i < n; ++i) {
    Request next = first;
    next.sampling.seed = static_cast<int64_t>(static_cast<uint64_t>(first.sampling.seed) + static_cast<uint64_t>(i));
    handles.push_back(add(std::move(next), each));
    if (i == 0) each.leader = handles.front().number();
  }
  channel_->bell.ring();
  return handles;
}

Status EngineLoop::perform(const std::function<Status(engine::TextModel&)>& work) {
  VV_TRY(check_process());
  struct Call {  // of both threads: the engine's still rings when the caller may be gone already
    Notifier done;
    std::atomic<bool> over{false};
    Status status = Status(Code::kClosed, "the model was closed; load it again");
  };
  const auto call = std::make_shared<Call>();
  {
    const std::lock_guard hold(door_);
    VV_TRY(enter());
    if (thread_ == nullptr) VV_TRY(start_thread("generate", &thread_, [this] { run(); }));
    channel_->push([call, &work](engine::TextModel* model) {
      if (model != nullptr) call->status = work(*model);
      call->over.store(true, std::memory_order_release);
      call->done.ring();
    });
  }
  for (uint32_t seen = call->done.now(); !call->over.load(std::memory_order_acquire); seen = call->done.now())
    call->done.wait(seen, kSleep);
  return std::move(call->status);
}

void EngineLoop::post(std::function<void(engine::TextModel&)> work) {
  channel_->push([work = std::move(work)](engine::TextModel* model) {
    if (model != nullptr) work(*model);
  });
}

Status EngineLoop::share(int64_t number) {
  return perform([&](engine::TextModel&) {
    const auto r = std::find_if(live_.begin(), live_.end(), [&](const Record* one) { return one->number == number; });
    return r == live_.end() ? Status() : batcher_->share((*r)->id);
  });
}

/// Of the engine's thread.
void EngineLoop::count_blocks() {
  const engine::KvBlocks* const blocks = model_.blocks();
  if (blocks == nullptr) return;
  channel_->available.store(blocks->available(), std::memory_order_relaxed);
  channel_->remembered.store(blocks->remembered(), std::memory_order_relaxed);
}

void EngineLoop::take_tasks(bool closed) {
  Channel::Task* newest = channel_->tasks.exchange(nullptr, std::memory_order_acquire);
  Channel::Task* oldest = nullptr;
  while (newest != nullptr) {
    Channel::Task* const t = newest;
    newest = t->next;
    t->next = oldest;
    oldest = t;
  }
  const bool any = oldest != nullptr;
  while (oldest != nullptr) {
    oldest->work(closed ? nullptr : &model_);
    delete std::exchange(oldest, oldest->next);
  }
  if (any && !closed) count_blocks();
}

Status EngineLoop::wait_until_idle() {
  VV_TRY(enter());
  Channel& c = *channel_;
  if (const int wanted = c.wanted.load(std::memory_order_relaxed); wanted > 0)
    return Status(Code::kFailedPrecondition, strf("the model is answering (%d requests), and this call needs it to "
                                                  "itself; wait until they are over, or close them",
                                                  wanted));
  // Those that were cancelled end with the step that is on its way.
  for (uint32_t seen = c.idle.now(); c.pending.load(std::memory_order_acquire) > 0; seen = c.idle.now())
    c.idle.wait(seen, kSleep);
  used_directly_ = true;
  return {};
}

Result<std::unique_lock<std::mutex>> EngineLoop::direct() {
  VV_TRY(check_process());
  std::unique_lock hold(door_);
  VV_TRY(wait_until_idle());
  return hold;
}

Result<EngineLoop::Lease> EngineLoop::lease(const char* why) {
  VV_ASSIGN(const auto hold, direct());
  leased_.store(why != nullptr ? why : kUsedDirectly, std::memory_order_release);
  return Lease(&leased_);
}

Result<std::shared_ptr<Drafter>> EngineLoop::drafter_for(const EngineLoop& other, std::shared_ptr<void> keep) {
  struct Leased final : Drafter {
    Leased(std::shared_ptr<void> k, Lease l, engine::TextModel& model)
        : keep(std::move(k)), lease(std::move(l)), draft_model(model) {}
    Result<size_t> draft(std::span<const int32_t> context, std::span<int32_t> out) override {
      return draft_model.draft(context, out);
    }
    std::shared_ptr<void> keep;  // destroyed last
    Lease lease;
    DraftModel draft_model;
  };
  if (this == &other)
    return Status(Code::kInvalidArgument,
                  "speculation: a model cannot draft for itself; give a smaller one, or \"lookup\"");
  VV_TRY(check_process());
  const std::lock_guard hold(door_);
  if (auto shared = drafts_.lock(); shared != nullptr && drafting_for_ == &other) return shared;
  VV_TRY(wait_until_idle());
  leased_.store(kUsedDirectly, std::memory_order_release);
  auto made = std::make_shared<Leased>(std::move(keep), Lease(&leased_), model_);
  drafts_ = made, drafting_for_ = &other;
  return std::shared_ptr<Drafter>(std::move(made));
}

void EngineLoop::close() {
  if (forks() != process_) {
    static_cast<void>(thread_.release());  // it is in the parent: nothing here may join or detach it
    return;
  }
  const std::lock_guard one(closing_);
  {
    const std::lock_guard hold(door_);
    closed_ = true;
  }
  if (thread_ == nullptr) return;
  channel_->stop.store(true, std::memory_order_release);
  channel_->bell.ring();
  thread_->join();
  thread_.reset();
  take_tasks(true);
  free_all(channel_->dropped);
}

void EngineLoop::run() {
  pthread_setname_np(pthread_self(), "vivace-engine");
  batcher_.emplace(model_, static_cast<size_t>(most_), ageing_);
  Channel& c = *channel_;
  uint32_t looked = c.bell.now() - 1;
  bool wanted = false;  // what the account was told
  while (!c.stop.load(std::memory_order_acquire)) {
    const uint32_t now = c.bell.now();
    if (now != looked) {
      take_submitted();
      take_notes();
      take_tasks(false);
      looked = now;
    }
    if (!batcher_->has_work()) {
      if (account_ != nullptr && std::exchange(wanted, false)) account_->want(false);
      if (refuse_a_callback()) continue;
      const auto end = std::chrono::steady_clock::now() + kSpin;
      while (c.bell.now() == looked && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      if (c.bell.now() == looked) c.bell.wait(looked, kSleep);
      continue;
    }
    if (account_ != nullptr && !std::exchange(wanted, true)) account_->want(true);
    const auto began = std::chrono::steady_clock::now();
    if (Status s = batcher_->step(&events_); !s.ok()) batcher_->abort(s, &events_);
    if (account_ != nullptr)
      account_->charge(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count());
    c.parked.store(batcher_->parked(), std::memory_order_relaxed);
    count_blocks();
    deliver();
  }
  if (account_ != nullptr) account_->want(false);
  take_submitted();
  end_all();
  batcher_.reset();
}

void EngineLoop::take_submitted() {
  Record* newest = channel_->submitted.exchange(nullptr, std::memory_order_acquire);
  Record* oldest = nullptr;
  while (newest != nullptr) {
    Record* const r = newest;
    newest = r->next;
    r->next = oldest;
    oldest = r;
  }
  // What direct calls left in slots ends here: they are over, since submit() waits for them.
  if (oldest != nullptr && live_.empty() && used_directly_) {
    for (int slot = 0; slot < limits_.max_batch; ++slot) model_.release(slot);
    used_directly_ = false;
  }
  if (oldest != nullptr && live_.empty()) last_end_ = std::chrono::steady_clock::now();
  for (; oldest != nullptr; oldest = oldest->next) {
    if (oldest->leader != 0)
      for (const Record* r : live_)
        if (r->number == oldest->leader) oldest->request.leader = r->id;
    batcher_->submit(*oldest);
    live_.push_back(oldest);
  }
}

void EngineLoop::take_notes() {
  for (Record* r : live_) {
    if (r->bias_given.exchange(false, std::memory_order_acq_rel))
      if (Status s = batcher_->set_bias(r->id, r->next_bias); !s.ok())
        static_cast<void>(batcher_->fail(r->id, std::move(s)));
    if (r->mask_given.exchange(false, std::memory_order_acq_rel)) {
      Status s = r->mask_failed.ok() ? batcher_->set_mask(r->id, r->next_mask, r->forced) : r->mask_failed;
      if (!s.ok()) static_cast<void>(batcher_->fail(r->id, std::move(s)));
    }
    if (r->cancelled.load(std::memory_order_acquire)) static_cast<void>(batcher_->cancel(r->id));
  }
}

/// Where all who hold a slot wait for callbacks, and each of these callbacks waits for an answer of this model, nobody
/// would ever go on: the first of those that wait for a slot ends with an error.
bool EngineLoop::refuse_a_callback() {
  Record* refused = nullptr;
  for (const Record* holder : live_) {
    if (!batcher_->paused(*holder)) continue;
    const auto child = std::find_if(live_.begin(), live_.end(), [&](const Record* r) {
      return r->parent == holder->number && r->blocked.load(std::memory_order_seq_cst) > 0;
    });
    if (child == live_.end()) return false;
    if (refused == nullptr && batcher_->waits(**child)) refused = *child;
  }
  if (refused == nullptr) return false;
  return batcher_
      ->fail(refused->id, Status(Code::kFailedPrecondition,
                                 strf("generate: called from a mask of this model, and every slot (max_batch = %d) or "
                                      "page is held by answers whose masks wait "
                                      "for such calls; load with a larger max_batch, or answer outside the mask",
                                      limits_.max_batch)))
      .ok();
}

void EngineLoop::deliver() {
  Channel& c = *channel_;
  c.steps.fetch_add(1, std::memory_order_relaxed);
  c.last_step_ns.store(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1),
                       std::memory_order_relaxed);
  for (Event& e : events_) {
    auto* const r = static_cast<Record*>(std::exchange(e.job, nullptr));
    e.request = r->number;
    const size_t at = r->written.load(std::memory_order_relaxed);
    r->events[at] = e;
    if (at == 0 && e.token >= 0) note_prompt(*r);
    if (!e.top.empty()) {
      TopLogprob* const to = &r->tops[at * static_cast<size_t>(r->request.top_logprobs)];
      std::copy(e.top.begin(), e.top.end(), to);
      r->events[at].top = {to, e.top.size()};
    }
    const bool over = e.finish != Finish::none;
    bool last = false;
    if (over) {
      std::erase(live_, r);
      r->drafter.reset();
      r->unwanted();
      if (e.finish == Finish::stop || e.finish == Finish::length) note_end();
      c.tokens.fetch_sub(static_cast<int64_t>(r->request.prompt.size()), std::memory_order_relaxed);
      last = c.pending.fetch_sub(1, std::memory_order_acq_rel) == 1;
    }
    r->written.store(at + 1, std::memory_order_release);
    r->notifier->ring();
    if (r->masks != nullptr) r->masks->ring();
    if (over && r->drop()) push(c.dropped, r);
    if (last) c.idle.ring();
  }
  events_.clear();
}

void EngineLoop::end_all() {
  for (const Record* r : live_)
    static_cast<void>(batcher_->fail(r->id, Status(Code::kClosed, "the model was closed before this answer was over")));
  while (!live_.empty()) {
    if (Status s = batcher_->step(&events_); !s.ok()) batcher_->abort(s, &events_);
    deliver();
  }
}

}  // namespace vivace::serve
