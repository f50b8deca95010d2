#include "vivace/engine/kv_blocks.h"

#include <algorithm>
#include <bit>

namespace vivace::engine {

KvBlocks::KvBlocks(int count, int positions, const Hash128& key, int states)
    : positions_(positions),
      key_(key),
      carries_(states != kNoState),
      nodes_(static_cast<size_t>(count)),
      tokens_(static_cast<size_t>(count) * static_cast<size_t>(positions)),
      table_(std::bit_ceil(static_cast<size_t>(2 * count + 2)), -1),
      roots_(64, -1),
      forgotten_(std::bit_ceil(static_cast<size_t>(4 * count + 4))),
      states_(static_cast<size_t>(std::max(states, 0))) {
  free_.reserve(nodes_.size());
  path_.reserve(nodes_.size());
  other_.reserve(nodes_.size());
  for (int32_t block = count; block-- > 0;) free_.push_back(block);
  free_states_.reserve(states_.size());
  for (int32_t state = this->states(); state-- > 0;) free_states_.push_back(state);
}

int32_t KvBlocks::take() {
  if (free_.empty() && coldest_ >= 0) forget(coldest_);
  if (free_.empty()) return -1;
  const int32_t block = free_.back();
  free_.pop_back();
  hold(block);
  return block;
}

void KvBlocks::hold(int32_t block) {
  Node& n = node(block);
  if (n.references++ > 0 || n.fill == 0) return;
  --idle_;
  warm(block);
}

void KvBlocks::drop(int32_t block) {
  Node& n = node(block);
  if (--n.references > 0) return;
  if (n.fill == 0) return free_.push_back(block);
  ++idle_;
  n.used = ++clock_;
  cool(block, true);
}

void KvBlocks::drop(std::vector<int32_t>* blocks) {
  for (size_t i = blocks->size(); i-- > 0;) drop((*blocks)[i]);
  blocks->clear();
}

/// Into the list of those that may go, if it may; `newest`: its use was the last of all.
void KvBlocks::cool(int32_t block, bool newest) {
  Node& n = node(block);
  if (n.references > 0 || n.child >= 0) return;
  int32_t after = newest ? warmest_ : -1;  // the next colder one
  if (!newest)
    for (int32_t b = coldest_; b >= 0 && node(b).used < n.used; b = node(b).warmer) after = b;
  n.colder = after;
  n.warmer = after >= 0 ? node(after).warmer : coldest_;
  (n.colder >= 0 ? node(n.colder).warmer : coldest_) = block;
  (n.warmer >= 0 ? node(n.warmer).colder : warmest_) = block;
}

/// Out of that list, if it is there.
void KvBlocks::warm(int32_t block) {
  Node& n = node(block);
  if (n.colder < 0 && coldest_ != block) return;
  (n.colder >= 0 ? node(n.colder).warmer : coldest_) = n.warmer;
  (n.warmer >= 0 ? node(n.warmer).colder : warmest_) = n.colder;
  n.colder = n.warmer = -1;
}

}  // namespace vivace::engine
