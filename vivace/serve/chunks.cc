#include "vivace/serve/chunks.h"

#include <algorithm>
#include <cmath>

#include "vivace/base/check.h"

namespace vivace::serve {
namespace {

constexpr int kUsualBlend = 5;      // ticks
constexpr int kQuestionBits = 40;   // of an id; above them is the runner's number

/// Before the id of a new runner's first question: ids of two runners are never the same.
int64_t first_of_a_runner() {
  static std::atomic<uint32_t> runners{0};
  constexpr uint32_t kMostRunners = 1u << 22;  // counted modulo this
  return static_cast<int64_t>(runners.fetch_add(1, std::memory_order_relaxed) % kMostRunners) << kQuestionBits;
}

bool finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

Status wrong_size(const char* call, const char* what, int64_t wanted, size_t got) {
  return Status(Code::kInvalidShape,
                strf("%s: %s: wanted %ld values, got %zu", call, what, static_cast<long>(wanted), got));
}

Status check_time(const char* call, double now) {
  return std::isfinite(now)
             ? Status()
             : Status(Code::kInvalidArgument, strf("%s: now: wanted seconds of a steady clock, got %g", call, now));
}

}  // namespace

Result<std::unique_ptr<ChunkRunner>> ChunkRunner::make(const ChunkOptions& o) {
  constexpr int kMost = ChunkOptions::kMost;
  const auto range = [](const char* what, int value, int least, int most) {
    return value >= least && value <= most
               ? Status()
               : Status(Code::kInvalidArgument, strf("%s: wanted %d to %d, got %d", what, least, most, value));
  };
  VV_TRY(range("horizon", o.horizon, 1, kMost));
  VV_TRY(range("dims", o.dims, 1, kMost));
  VV_TRY(range("network_dims", o.network_dims, o.join == ChunkOptions::Join::prefix ? 1 : 0, kMost));
  for (const auto& [what, dims] : {std::pair{"dims", o.dims}, std::pair{"network_dims", o.network_dims}})
    if (int64_t{o.horizon} * dims > ChunkOptions::kMostValues)
      return Status(Code::kInvalidArgument, strf("horizon x %s: wanted at most %ld values, got %d x %d", what,
                                                 static_cast<long>(ChunkOptions::kMostValues), o.horizon, dims));
  VV_TRY(range("blend", o.blend.value_or(0), 0, o.horizon));
  VV_TRY(range("ask_after", o.ask_after, 0, o.horizon));
  if (!o.max_step.empty() && o.max_step.size() != static_cast<size_t>(o.dims))
    return wrong_size("make", "max_step", o.dims, o.max_step.size());
  for (const float m : o.max_step)
    if (!(m > 0 && std::isfinite(m)))
      return Status(Code::kInvalidArgument, strf("max_step: wanted positive numbers, got %g", static_cast<double>(m)));
  for (const auto& [what, value] : {std::pair{"max_action_age", o.max_action_age}, std::pair{"watchdog", o.watchdog}})
    if (!(value > 0)) return Status(Code::kInvalidArgument, strf("%s: wanted a positive time, got %g", what, value));
  if (!(o.deadline >= 0))
    return Status(Code::kInvalidArgument, strf("deadline: wanted a time, or 0 for the watchdog's, got %g", o.deadline));
  return std::unique_ptr<ChunkRunner>(new ChunkRunner(o));
}

ChunkRunner::ChunkRunner(const ChunkOptions& options)
    : first_(first_of_a_runner()),
      o_(options),
      last_(static_cast<size_t>(options.dims)),
      next_id_(first_ + 1),
      first_id_(next_id_),
      asked_last_(first_) {
  if (!o_.blend) o_.blend = std::min(kUsualBlend, o_.horizon);
  if (o_.deadline == 0) o_.deadline = o_.watchdog;
  if (o_.ask_after == 0) o_.ask_after = (o_.horizon + 1) / 2;
  for (Chunk* c : {&current_, &previous_, &slots_[0], &slots_[1], &slots_[2]}) {
    c->actions.resize(static_cast<size_t>(o_.horizon) * static_cast<size_t>(o_.dims));
    c->normalized.resize(static_cast<size_t>(o_.horizon) * static_cast<size_t>(o_.network_dims));
  }
}

Status ChunkRunner::start(std::span<const float> position, double now) {
  if (position.size() != last_.size()) return wrong_size("start", "position", o_.dims, position.size());
  if (!finite(position)) return Status(Code::kInvalidArgument, "start: position is not finite");
  VV_TRY(check_time("start", now));
  std::copy(position.begin(), position.end(), last_.begin());
  current_.there = previous_.there = false;
  first_id_ = next_id_;  // answers to questions before this one are of another life
  pending_ = 0;
  answers_ = delays_[0] = 0;
  fed_ = now;
  started_ = true;
  return {};
}

const float* ChunkRunner::action_of(const Chunk& chunk, int64_t tick) const {
  const int64_t place = tick - chunk.request.tick;
  return chunk.there && place >= 0 && place < o_.horizon ? chunk.actions.data() + place * o_.dims : nullptr;
}

const ChunkRunner::Chunk& ChunkRunner::chunk_at(int64_t tick) const {
  return tick < current_.request.tick ? previous_ : current_;
}

float ChunkRunner::bounded(float wanted, float before, size_t d, bool* clamped) const {
  if (o_.max_step.empty()) return wanted;
  const float bound = o_.max_step[d], step = wanted - before;
  if (!(std::fabs(step) > bound)) return wanted;
  *clamped = true;
  const float a = before + std::copysign(bound, step);
  return std::fabs(a - before) > bound ? std::nextafterf(a, before) : a;  // the sum was rounded outward
}

void ChunkRunner::pick_up(double now) {
  if (pending_ != 0 && failed_.load(std::memory_order_acquire) >= pending_) pending_ = 0;
  if ((middle_.load(std::memory_order_acquire) & kFresh) == 0) return;
  reading_ = middle_.exchange(reading_, std::memory_order_acq_rel) & ~kFresh;
  Chunk& got = slots_[reading_];
  if (got.request.id < first_id_) return;
  const ChunkRequest& asked = remembered_[got.request.id % kRemembered];
  if (asked.id != got.request.id) return;  // too many questions ago
  got.request = asked;
  if (got.request.id >= pending_) pending_ = 0;
  if (tick_ - got.request.tick >= o_.horizon) return;                   // all of it is past
  if (tick_ >= current_.request.tick) std::swap(previous_, current_);  // else it never began
  std::swap(current_, got);
  current_.there = true;
  joined_ = tick_;
  fed_ = now;
  delays_[answers_++ % kDelays] = static_cast<int>(tick_ - current_.request.tick + current_.request.ahead);
}

Status ChunkRunner::next(double now, std::span<float> action, Tick* tick) {
  if (!started_) return Status(Code::kFailedPrecondition, "next: start() first: where does the robot stand?");
  if (action.size() != last_.size()) return wrong_size("next", "action", o_.dims, action.size());
  VV_TRY(check_time("next", now));
  pick_up(now);
  *tick = Tick{};
  const Chunk& chunk = chunk_at(tick_);
  const float* wanted = action_of(chunk, tick_);
  tick->age = chunk.there ? now - chunk.request.observed : 0;
  if (wanted != nullptr && !(tick->age <= o_.max_action_age)) wanted = nullptr;
  double mixed = 0;  // share of the new chunk; 0: no old one to mix with
  const float* old = nullptr;
  if (wanted != nullptr) {
    tick->source = TickSource::chunk;
    tick->chunk_index = static_cast<int>(tick_ - chunk.request.tick);
    const int64_t since = tick_ - joined_;
    old = o_.join == ChunkOptions::Join::blend && since < *o_.blend ? action_of(previous_, tick_) : nullptr;
    if (old != nullptr && now - previous_.request.observed > o_.max_action_age) old = nullptr;
    if (old != nullptr) {
      tick->source = TickSource::blend;
      mixed = static_cast<double>(since + 1) / (*o_.blend + 1);
    }
  } else {
    tick->source = now - fed_ > o_.watchdog ? TickSource::stopped : TickSource::hold;
  }
  for (size_t d = 0; wanted != nullptr && d < last_.size(); ++d) {
    // In f64, where no difference of two f32 overflows.
    const float a = old != nullptr
                        ? static_cast<float>(static_cast<double>(old[d]) +
                                             (static_cast<double>(wanted[d]) - static_cast<double>(old[d])) * mixed)
                        : wanted[d];
    last_[d] = bounded(a, last_[d], d, &tick->clamped);
  }
  std::copy(last_.begin(), last_.end(), action.begin());
  ++tick_;
  return {};
}

bool ChunkRunner::needs_inference(double now) const {
  if (!started_) return false;
  const bool lost =
      pending_ != 0 && (failed_.load(std::memory_order_acquire) >= pending_ || now - asked_ > o_.deadline);
  if (pending_ != 0 && !lost) return false;
  return !current_.there || tick_ - current_.request.tick >= o_.ask_after ||
         tick_ - current_.request.tick >= o_.horizon;
}

int64_t ChunkRunner::ticks_to_request() const {
  if (!started_ || pending_ != 0) return -1;
  return current_.there ? std::max<int64_t>(0, current_.request.tick + std::min(o_.ask_after, o_.horizon) - tick_) : 0;
}

int ChunkRunner::delay() const {
  return *std::max_element(delays_, delays_ + std::max(1, std::min(answers_, kDelays)));
}

Status ChunkRunner::start_request(double now, ChunkRequest* request, std::span<float> actions) {
  if (!started_) return Status(Code::kFailedPrecondition, "begin: start() first: where does the robot stand?");
  VV_TRY(check_time("start_request", now));
  ChunkRequest asked{next_id_, tick_, now, 0, 0};
  if (o_.join == ChunkOptions::Join::prefix) {
    if (actions.size() != static_cast<size_t>((o_.horizon - 1) * o_.network_dims))
      return wrong_size("start_request", "action_prefix", int64_t{o_.horizon - 1} * o_.network_dims, actions.size());
    const int64_t place = tick_ - current_.request.tick;
    if (current_.there && place < o_.horizon) {
      // One more than the longest wait: the answer may come a tick later than any before.
      asked.prefix_length = static_cast<int>(std::min<int64_t>({delay() + 1, o_.horizon - place, o_.horizon - 1}));
      std::copy_n(current_.normalized.begin() + place * o_.network_dims, int64_t{asked.prefix_length} * o_.network_dims,
                  actions.begin());
    }
  }
  if (o_.join == ChunkOptions::Join::future) {
    if (actions.size() != static_cast<size_t>(o_.horizon) * last_.size())
      return wrong_size("start_request", "future_actions", int64_t{o_.horizon} * o_.dims, actions.size());
    const float* before = last_.data();
    for (const int most = std::min(delay() + 1, o_.horizon); asked.ahead < most; ++asked.ahead) {
      const float* const wanted = action_of(chunk_at(tick_ + asked.ahead), tick_ + asked.ahead);
      if (wanted == nullptr) break;
      float* const to = actions.data() + asked.ahead * o_.dims;
      bool clamped = false;
      for (size_t d = 0; d < last_.size(); ++d) to[d] = bounded(wanted[d], before[d], d, &clamped);
      before = to;
    }
    asked.tick += asked.ahead;
  }
  *request = remembered_[asked.id % kRemembered] = asked;
  pending_ = next_id_++;
  asked_ = now;
  asked_last_.store(asked.id, std::memory_order_release);
  return {};
}

Status ChunkRunner::check_mine(const char* call, const ChunkRequest& request) const {
  if (request.id > first_ && request.id <= asked_last_.load(std::memory_order_acquire)) return {};
  return Status(
      Code::kInvalidArgument,
      strf("%s: the request is not one that this runner's start_request() gave; use each with its own runner", call));
}

Status ChunkRunner::complete(const ChunkRequest& request, std::span<const float> actions,
                             std::span<const float> normalized) {
  VV_TRY(check_mine("complete", request));
  Chunk& slot = slots_[writing_];
  Status bad;
  if (actions.size() != slot.actions.size())
    bad = wrong_size("complete", "actions", static_cast<int64_t>(slot.actions.size()), actions.size());
  else if (o_.join == ChunkOptions::Join::prefix && normalized.size() != slot.normalized.size())
    bad = wrong_size("complete", "normalized", static_cast<int64_t>(slot.normalized.size()), normalized.size());
  else if (!finite(actions) || !finite(normalized))
    bad = Status(Code::kInvalidArgument, "complete: the actions are not finite; they are not used");
  if (!bad.ok()) {
    VV_TRY(cancel(request));
    return bad;
  }
  if (request.id <= delivered_) return {};  // this one, or a newer one, is there already
  delivered_ = request.id;
  slot.request = request;
  std::copy(actions.begin(), actions.end(), slot.actions.begin());
  if (o_.join == ChunkOptions::Join::prefix) std::copy(normalized.begin(), normalized.end(), slot.normalized.begin());
  writing_ = middle_.exchange(writing_ | kFresh, std::memory_order_acq_rel) & ~kFresh;
  return {};
}

Status ChunkRunner::cancel(const ChunkRequest& request) {
  VV_TRY(check_mine("cancel", request));
  int64_t seen = failed_.load(std::memory_order_relaxed);
  while (seen < request.id && !failed_.compare_exchange_weak(seen, request.id, std::memory_order_release)) {
  }
  return {};
}

}  // namespace vivace::serve
