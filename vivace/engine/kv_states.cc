// States of recurrent layers beside blocks: a beginning is of use only as far as a state was kept of it, since a state
// goes forward alone.
#include <algorithm>
#include <utility>

#include "vivace/engine/kv_blocks.h"

namespace vivace::engine {

int32_t KvBlocks::take_state() {
  if (free_states_.empty()) {
    int32_t oldest = -1;
    for (int32_t i = 0; i < states(); ++i) {
      const State& s = states_[static_cast<size_t>(i)];
      if (s.references == 0 && (oldest < 0 || s.used < use_of(oldest))) oldest = i;
    }
    if (oldest < 0) return -1;
    detach(oldest);
  }
  const int32_t state = free_states_.back();
  free_states_.pop_back();
  hold_state(state);
  return state;
}

void KvBlocks::hold_state(int32_t state) {
  ++states_[static_cast<size_t>(state)].references;
}

void KvBlocks::drop_state(int32_t state) {
  State& s = states_[static_cast<size_t>(state)];
  if (--s.references == 0 && s.block < 0) free_states_.push_back(state);
}

int32_t KvBlocks::put_state(int32_t block, int at, int32_t state) {
  int32_t same = node(block).state;
  while (same >= 0 && states_[static_cast<size_t>(same)].at != at) same = states_[static_cast<size_t>(same)].next;
  if (same >= 0) {
    hold_state(same);
    drop_state(state);
    state = same;
  } else {
    State& s = states_[static_cast<size_t>(state)];
    s.block = block, s.at = at, s.next = std::exchange(node(block).state, state);
  }
  states_[static_cast<size_t>(state)].used = ++clock_;
  return state;
}

void KvBlocks::forget_state(int32_t state, uint64_t use) {
  const State& s = states_[static_cast<size_t>(state)];
  if (s.block >= 0 && s.references == 0 && s.used == use) detach(state);
}

/// The table has it no more; if nobody holds it, its place is free.
void KvBlocks::detach(int32_t state) {
  State& s = states_[static_cast<size_t>(state)];
  int32_t* link = &node(s.block).state;
  while (*link != state) link = &states_[static_cast<size_t>(*link)].next;
  *link = s.next;
  s.block = s.next = -1;
  if (s.references == 0) free_states_.push_back(state);
}

/// Of those of a block's first `most` positions; -1: there is none.
int32_t KvBlocks::latest_state(int32_t block, int most) const {
  int32_t latest = -1;
  for (int32_t i = node(block).state; i >= 0; i = states_[static_cast<size_t>(i)].next) {
    const int at = states_[static_cast<size_t>(i)].at;
    if (at <= most && (latest < 0 || at > states_[static_cast<size_t>(latest)].at)) latest = i;
  }
  return latest;
}

/// Of what was found, as much as ends at a state. In the block that begins behind the whole ones it may be another than
/// the one with most tokens alike.
void KvBlocks::end_at_state(const Hash128& root, std::span<const int32_t> tokens, bool exact,
                            std::vector<int32_t>* blocks, Found* found) {
  const auto at_of = [&](int32_t state) { return state >= 0 ? states_[static_cast<size_t>(state)].at : 0; };
  size_t index = blocks->size();  // of the block that the state is of
  const int from = static_cast<int>(index) * positions_, pure = std::min(found->pure, from);
  const int usable = static_cast<int>(tokens.size()) - from - 1;
  int32_t best = -1, in = -1;
  for (int32_t b = first_child(index > 0 ? blocks->back() : -1, root); b >= 0; b = node(b).next) {
    const Node& n = node(b);
    if (n.state < 0 || n.root != root || (exact && pure < from)) continue;
    const int most = std::min(usable, exact ? n.pure : n.fill);
    int same = 0;
    while (same < most && tokens_of(b)[same] == tokens[static_cast<size_t>(from + same)]) ++same;
    if (const int32_t s = latest_state(b, same); at_of(s) > at_of(best)) best = s, in = b;
  }
  found->pure = in >= 0 && pure == from ? from + std::min(at_of(best), node(in).pure) : pure;
  while (best < 0 && index > 0) best = latest_state(in = (*blocks)[--index], positions_);
  found->positions = static_cast<int>(index) * positions_ + at_of(best);
  found->pure = std::min(found->pure, found->positions);
  if (found->positions < found->known)
    found->miss = Miss::recurrent;
  else if (found->positions + 1 == static_cast<int>(tokens.size()))
    found->miss = Miss::none;

  const int32_t copied = best >= 0 && at_of(best) < positions_ ? in : -1;
  if (copied >= 0) hold(copied);
  if (found->partial >= 0) drop(found->partial);
  found->partial = copied;
  const size_t kept = index + (best >= 0 && at_of(best) == positions_ ? 1 : 0);
  if (kept > blocks->size()) {  // a whole block that no chain of match() led to
    hold(in);
    blocks->push_back(in);
  }
  for (; blocks->size() > kept; blocks->pop_back()) drop(blocks->back());
  if (best < 0) return;
  hold_state(best);
  states_[static_cast<size_t>(best)].used = ++clock_;
  found->state = best;
}

}  // namespace vivace::engine
