// Who has a slot and blocks, and who gives them up: the part of Batcher between waiting and steps. All of it happens
// while no step is in flight, but for place() and grow_further(), which only add.
#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "vivace/base/check.h"
#include "vivace/serve/batcher.h"

namespace vivace::serve {
namespace {

/// Later ones that may go before one that finds too few blocks.
constexpr int kMostBypasses = 16;

}  // namespace

/// Whether a is to go before b.
bool Batcher::before(const Job* a, const Job* b) {
  return std::pair(a->class_, a->id) < std::pair(b->class_, b->id);
}

void Batcher::enqueue(Job* job) {
  if (ageing_.after.count() > 0) job->queued_ = ageing_.now();
  insert(job);
}

/// Those that have waited for long go on in a class before.
void Batcher::rise() {
  constexpr Priority kHighest = Priority::interactive;  // what robots wait for is theirs alone
  if (ageing_.after.count() <= 0 || waiting_.empty() || waiting_.back()->class_ <= kHighest) return;
  const auto now = ageing_.now();
  for (size_t i = 0; i < waiting_.size(); ++i) {
    Job* job = waiting_[i];
    if (job->class_ <= kHighest || now - job->queued_ < ageing_.after) continue;
    job->class_ = static_cast<Priority>(static_cast<int>(job->class_) - 1);
    job->queued_ += ageing_.after;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    insert(job);  // before this place, or at it
  }
}

void Batcher::insert(Job* job) {
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), job, before), job);
}

/// Blocks that it begins, or goes on, with.
int Batcher::wanted(const Job& job) const {
  return blocks_->needed(static_cast<int>(job.context_.size()));
}

/// Whether there are blocks for it, and one more for each whose answer may yet grow into one.
bool Batcher::fits(const Job& job) const {
  if (blocks_ == nullptr) return true;
  const auto growing = std::count_if(slots_.begin(), slots_.end(), [&](const Job* j) {
    return j != nullptr && static_cast<int>(held_[static_cast<size_t>(j->slot_)].size()) <
                               blocks_->needed(static_cast<int>(j->request.prompt.size()) + j->request.max_tokens - 1);
  });
  return wanted(job) + growing <= blocks_->available();
}

/// Which of the waiting goes next, given a slot; their number: none.
size_t Batcher::admissible() const {
  for (size_t i = 0; i < waiting_.size() && waiting_[i]->class_ == waiting_.front()->class_; ++i) {
    if (follows(*waiting_[i])) continue;
    if (fits(*waiting_[i])) return i;
    if (waiting_[i]->bypassed_ >= kMostBypasses) break;
  }
  return waiting_.size();
}

/// The youngest of the lowest class that holds a slot, if its class is below `above`.
Job* Batcher::victim(Priority above) const {
  Job* last = nullptr;
  for (Job* job : slots_)
    if (job != nullptr && job->class_ > above && (last == nullptr || before(last, job))) last = job;
  return last;
}

/// Those of a lower class give way, if that is enough.
Status Batcher::make_room(const Job& first) {
  if (blocks_ == nullptr) return {};
  const auto seated = [&] { return std::find(slots_.begin(), slots_.end(), nullptr) != slots_.end() && fits(first); };
  int64_t gained = blocks_->available() - wanted(first);
  for (const Job* job : slots_)
    if (job != nullptr) gained += job->class_ > first.class_ ? static_cast<int64_t>(held(*job).size()) : -1;
  while (!seated() && gained >= 0) {
    Job* job = victim(first.class_);
    if (job == nullptr) return {};
    VV_TRY(park(job));
  }
  return {};
}

Status Batcher::admit() {
  while (!waiting_.empty()) {
    VV_TRY(make_room(*waiting_.front()));
    const auto slot = std::find(slots_.begin(), slots_.end(), nullptr);
    const size_t next = admissible();
    if (slot == slots_.end() || next == waiting_.size()) return {};
    Job* job = waiting_[next];
    for (size_t i = 0; i < next; ++i) waiting_[i]->bypassed_ += !follows(*waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(next));
    VV_TRY(seat(job, static_cast<int>(slot - slots_.begin())));
  }
  return {};
}

Status Batcher::seat(Job* job, int slot) {
  const Request& r = job->request;
  slots_[static_cast<size_t>(slot)] = job;
  job->slot_ = slot;
  job->bypassed_ = 0;
  if (job->seated == std::chrono::steady_clock::time_point{}) job->seated = std::chrono::steady_clock::now();
  if (job->shown_.empty()) job->shown_ = shown(r.images, limits_.images.side);
  if (blocks_ == nullptr) {
    VV_TRY(model_.start(slot, r.sampling, static_cast<int>(r.prompt.size()) + r.max_tokens - 1));
  } else {
    if (job->parked_.size() == 0) VV_TRY(begin(job));
    while (static_cast<int>(held(*job).size()) < wanted(*job)) {
      const int32_t block = blocks_->take();
      if (block < 0)
        return Status(Code::kInternal, strf("generate: %d blocks were to be free, and are not", wanted(*job)));
      held(*job).push_back(block);
    }
    VV_TRY(model_.resume(slot, r.sampling, std::span(job->context_).first(static_cast<size_t>(job->fed_))));
    VV_TRY(model_.map(slot, 0, held(*job)));
    if (job->found_state_ >= 0) {
      VV_TRY(model_.copy_state(limits_.max_batch + job->found_state_, slot));
      blocks_->drop_state(std::exchange(job->found_state_, -1));
    }
    if (job->parked_.size() > 0) {
      const auto count = static_cast<size_t>(job->parked_blocks_);
      const std::span<const std::byte> parked = job->parked_;
      const size_t bytes = count * static_cast<size_t>(model_.block_bytes());
      VV_TRY(model_.write_blocks(std::span(held(*job)).first(count), parked.first(bytes)));
      if (limits_.recurrent) VV_TRY(model_.write_state(slot, job->fed_ - job->behind_, parked.subspan(bytes)));
      job->parked_ = {};
    }
  }
  if (!r.bias.empty()) VV_TRY(model_.set_bias(slot, r.bias));
  return r.mask.empty() && job->produced_ >= r.min_tokens ? Status() : mask(job);
}

/// The beginning of a prompt, as far as it was computed before.
Status Batcher::begin(Job* job) {
  const Request& r = job->request;
  job->committed_ = job->published_ = job->branch_ = 0;
  job->passing_ = -1;
  job->pure_ = limits_.one_class ? std::numeric_limits<int>::max() : static_cast<int>(r.prompt.size());
  job->publishes_ = r.reuse;
  if (!r.reuse || !number_images(job)) {
    job->publishes_ = false;
    return {};
  }
  job->root_ = blocks_->root(std::as_bytes(std::span(r.salt)));
  std::vector<int32_t>& mine = held(*job);
  engine::KvBlocks::Found found = blocks_->match(job->root_, known(*job).first(r.prompt.size()), r.deterministic, &mine,
                                                 r.resumed ? 1 : engine::KvBlocks::kLeastCopied);
  job->published_ = static_cast<int>(mine.size()) * blocks_->positions();
  if (found.partial >= 0) {
    // The copy needs a block while its source is held.
    if (blocks_->available() < wanted(*job) - static_cast<int>(mine.size())) {
      if (found.state >= 0) {  // without the copy there are no positions up to the state
        blocks_->drop_state(std::exchange(found.state, -1));
        blocks_->drop(&mine);
        job->published_ = 0;
      }
      found.positions = job->published_;
      found.pure = std::min(found.pure, found.positions);
    } else {
      mine.push_back(blocks_->take());
      VV_TRY(model_.copy_block(found.partial, mine.back()));
    }
    blocks_->drop(found.partial);
  }
  job->fed_ = job->committed_ = found.positions;
  job->found_state_ = found.state;
  if (limits_.states > 0) job->branch_ = found.known / blocks_->positions() * blocks_->positions();
  if (r.resumed && found.positions + 1 == static_cast<int>(r.prompt.size())) job->last_ = r.prompt.back();
  const bool inside = found.state >= 0 && found.positions % blocks_->positions() != 0;  // rows behind round otherwise
  if (!limits_.one_class && (found.pure < found.positions || inside || job->last_ >= 0)) job->pure_ = found.pure;
  if (!std::exchange(job->begun_, true)) job->cache = {found.positions, 0, found.miss, found.at};
  return {};
}

/// What stands for the prompt where computed tokens are found again: of images their numbers. False where there are
/// none left.
bool Batcher::number_images(Job* job) {
  if (job->request.images.empty() || !job->keys_.empty()) return true;
  std::vector<int32_t>& keys = job->keys_;
  keys = job->request.prompt;
  for (size_t i = 0; i < job->shown_.size(); ++i) {
    const int32_t number = numbers_.of(job->request.images[i].content);
    if (number == 0) {
      keys.clear();
      return false;
    }
    std::fill_n(keys.begin() + job->shown_[i].first, job->shown_[i].tokens, number);
  }
  return true;
}

/// Others find what it has computed: whole blocks, with `tail` the rest too. Where another block has the same bits
/// already, that one takes its place: the first such, or -1.
int Batcher::publish(Job* job, bool tail) {
  if (blocks_ == nullptr || !job->publishes_) return -1;
  const int size = blocks_->positions();
  int first = -1;
  std::vector<int32_t>& mine = held(*job);
  while (job->published_ < job->committed_) {
    const int block = job->published_ / size, begin = block * size, end = std::min(begin + size, job->committed_);
    if (end < begin + size && !tail) break;
    const auto at = static_cast<size_t>(block);
    const auto put = blocks_->put(job->root_, block > 0 ? mine[at - 1] : -1, mine[at],
                                  known(*job).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                                  std::clamp(job->pure_ - begin, 0, end - begin));
    if (put.same >= 0 && job->pure_ >= end) {  // both are of steps of prompts, so the same bit for bit
      blocks_->hold(put.same);
      blocks_->drop(mine[at]);
      mine[at] = put.same;
      if (first < 0) first = block;
    } else if (!put.kept) {
      job->publishes_ = false;
      break;
    } else {
      job->cache.written = std::max(job->cache.written, end - job->cache.cached);
    }
    job->published_ = end;
  }
  put_states(job);
  return first;
}

/// publish() of one that goes on.
Status Batcher::share(Job* job, bool tail) {
  const int first = publish(job, tail);
  return first < 0 ? Status()
                   : model_.map(job->slot_, first, std::span(held(*job)).subspan(static_cast<size_t>(first)));
}

/// Whether one with the same prompt is computing it.
bool Batcher::follows(const Job& job) const {
  if (blocks_ == nullptr || job.request.leader < 0 || !job.request.reuse) return false;
  if (limits_.recurrent && limits_.states == 0) return false;  // nothing of it would be found
  const Job* leader = find(job.request.leader);
  return leader != nullptr && leader->produced_ == 0;
}

/// Moves one who holds a slot to host memory, to wait again. A prompt that is on its way begins anew: its bits will be
/// the same.
Status Batcher::park(Job* job) {
  if (job->last_ < 0) {
    job->fed_ = 0;
    job->drafted_to_ = 0;
  } else {
    job->parked_blocks_ = blocks_->needed(job->fed_);
    const auto count = static_cast<size_t>(job->parked_blocks_);
    const size_t bytes = count * static_cast<size_t>(model_.block_bytes());
    VV_ASSIGN(job->parked_, model_.host_pool().take(bytes + static_cast<size_t>(model_.state_bytes())));
    const std::span<std::byte> parked = job->parked_;
    VV_TRY(model_.read_blocks(std::span(held(*job)).first(count), parked.first(bytes)));
    if (limits_.recurrent) VV_TRY(model_.read_state(job->slot_, parked.subspan(bytes)));
  }
  ++parks_;
  job->published_ = 0;  // what it comes back with is not in the table
  unseat(job);
  enqueue(job);
  return {};
}

void Batcher::unseat(Job* job) {
  leave_places(job, std::numeric_limits<int>::max());
  model_.release(job->slot_);
  if (limits_.states > 0) drop_states(job);
  if (blocks_ != nullptr) blocks_->drop(&held(*job));
  slots_[static_cast<size_t>(job->slot_)] = nullptr;
  job->slot_ = -1;
}

/// A block for `position`, if there is one.
Result<bool> Batcher::place(Job* job, int position) {
  if (blocks_ == nullptr) return true;
  std::vector<int32_t>& mine = held(*job);
  while (static_cast<int>(mine.size()) * blocks_->positions() <= position) {
    const int32_t block = blocks_->take();
    if (block < 0) return false;
    mine.push_back(block);
    VV_TRY(model_.map(job->slot_, static_cast<int>(mine.size()) - 1, {&mine.back(), 1}));
  }
  return true;
}

/// A place for the next row of each who answers, or fewer who answer.
Status Batcher::grow() {
  if (blocks_ == nullptr) return {};
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    while (Job* job = slots_[slot]) {
      if (job->last_ < 0 || job->paused_ || job->ending_ != Finish::none) break;
      VV_ASSIGN(const bool there, place(job, job->run_ ? static_cast<int>(job->context_.size()) - 1 : job->fed_));
      if (there) break;
      Job* last = job;
      for (Job* other : slots_)
        if (other != nullptr && before(last, other)) last = other;
      VV_TRY(park(last));
    }
  }
  return {};
}

/// The same for one repeated step more, without anybody giving way: false where that is not enough.
Result<bool> Batcher::grow_further() {
  if (blocks_ == nullptr) return true;
  for (Job* job : slots_) {
    if (job == nullptr || job->paused_) continue;
    VV_ASSIGN(const bool there, place(job, job->fed_));
    if (!there) return false;
  }
  return true;
}

}  // namespace vivace::serve
