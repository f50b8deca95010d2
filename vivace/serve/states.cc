// Which states of recurrent layers are kept beside blocks, and where prompts are cut for that: the part of Batcher for
// models whose sequences carry a state. A copy of a state is queued behind the step that left it so; nobody waits for
// it.
#include <algorithm>
#include <utility>

#include "vivace/base/check.h"
#include "vivace/serve/batcher.h"

namespace vivace::serve {

/// The last end of a block before a prompt's last token: who asks the same again begins there.
int Batcher::last_kept(const Job& job) const {
  const int size = blocks_->positions();
  return (static_cast<int>(job.request.prompt.size()) - 1) / size * size;
}

/// Where the next step's rows of a prompt end. A prompt whose states are kept is cut where one is to be kept, and else
/// at ends of blocks, so that rows have the bits that they have however much of it is found.
int Batcher::stretch(const Job& job) const {
  const int size = static_cast<int>(job.context_.size());
  const int room = limits_.prefill_chunk - static_cast<int>(rows_.size());
  const int most = job.fed_ + std::clamp(size - job.fed_, 0, room);
  if (limits_.states == 0 || job.run_) return most;
  for (const int mark : {job.branch_, last_kept(job)})
    if (mark > job.fed_ && mark <= most) return mark;
  const int block = blocks_->positions(), whole = most / block * block;
  if (most == size || whole > job.fed_) return most == size ? most : whole;
  // Not as far as a block's end: only where it would stand still otherwise.
  return rows_.empty() || limits_.prefill_chunk < block || limits_.mixed ? most : job.fed_;
}

/// Keeps the state of a job's slot as queued steps leave it, behind its first fed_ tokens, if a place is to be had.
Status Batcher::keep_state(Job* job) {
  std::vector<Kept>& kept = kept_[static_cast<size_t>(job->slot_)];
  if (!job->publishes_ || job->behind_ > 0 || kept.size() == kept.capacity()) return {};
  if (!kept.empty() && kept.back().position == job->fed_) return {};
  const int32_t state = blocks_->take_state();
  if (state < 0) return {};
  kept.push_back({job->fed_, state});
  return model_.copy_state(job->slot_, limits_.max_batch + state);
}

Status Batcher::keep_at_end_of_block(Job* job) {
  return limits_.states > 0 && job->fed_ % blocks_->positions() == 0 ? keep_state(job) : Status();
}

/// The state behind the last token whose keys and values are there for good, unless steps that are queued, or are to be
/// dropped, have gone on from it.
Status Batcher::keep_here(Job* job) {
  if (limits_.states == 0 || job->fed_ == 0 || job->fed_ != job->committed_ || job->drawing_ > 0) return {};
  // Prompts' rows have the bits of prompts behind an end of a block alone, where classes differ.
  if (!limits_.one_class && job->pure_ >= job->fed_ && job->fed_ % blocks_->positions() != 0) return {};
  return keep_state(job);
}

/// The table has the states of what is published. Where places are short, of those in the midst of a prompt or an
/// answer only the last of each job stays.
void Batcher::put_states(Job* job) {
  if (limits_.states == 0) return;
  std::vector<Kept>& kept = kept_[static_cast<size_t>(job->slot_)];
  const int size = blocks_->positions();
  size_t done = 0;
  for (; done < kept.size() && kept[done].position <= job->published_; ++done) {
    const int position = kept[done].position, block = (position - 1) / size;
    const int32_t state =
        blocks_->put_state(held(*job)[static_cast<size_t>(block)], position - block * size, kept[done].state);
    blocks_->drop_state(state);
    if (const int32_t before = std::exchange(job->passing_, -1);
        before >= 0 && before != state && 2 * blocks_->free_states() < blocks_->states())
      blocks_->forget_state(before, job->passing_use_);
    if (position % size == 0 && position != job->branch_ && position != last_kept(*job))
      job->passing_ = state, job->passing_use_ = blocks_->use_of(state);
  }
  kept.erase(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(done));
}

/// What it did not come to publish, or to begin with.
void Batcher::drop_states(Job* job) {
  std::vector<Kept>& kept = kept_[static_cast<size_t>(job->slot_)];
  for (const Kept& k : kept) blocks_->drop_state(k.state);
  kept.clear();
  if (job->found_state_ >= 0) blocks_->drop_state(std::exchange(job->found_state_, -1));
}

}  // namespace vivace::serve
