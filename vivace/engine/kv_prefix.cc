// The table of KvBlocks: what was computed before, found again by tokens. A node is a published block; whole ones are
// found by a keyed hash of their tokens and of all before them, and what was found is compared token by token.
#include <algorithm>
#include <cstring>

#include "vivace/engine/kv_blocks.h"

namespace vivace::engine {
namespace {

constexpr int kMostCompared = 32; // blocks that part of a block is looked for in, the newest first

}  // namespace

Hash128 KvBlocks::root(std::span<const std::byte> salt) const { return siphash(key_, salt.data(), salt.size()); }

Hash128 KvBlocks::key_of(const Hash128& before, const int32_t* tokens, bool pure) const {
  const Hash128 own = siphash(key_, tokens, static_cast<size_t>(positions_) * sizeof(int32_t));
  const uint64_t all[] = {before.lo, before.hi, own.lo, own.hi, pure};
  return siphash(key_, all, sizeof all);
}

int32_t KvBlocks::find(const Hash128& key, const Hash128& root, int32_t parent, const int32_t* tokens) const {
  for (size_t at = key.lo & (table_.size() - 1); table_[at] >= 0; at = (at + 1) & (table_.size() - 1)) {
    const int32_t block = table_[at];
    const Node& n = node(block);
    if (n.key == key && n.root == root && n.parent == parent &&
        std::equal(tokens, tokens + positions_, tokens_of(block)))
      return block;
  }
  return -1;
}

void KvBlocks::insert(int32_t block) {
  size_t at = node(block).key.lo & (table_.size() - 1);
  while (table_[at] >= 0) at = (at + 1) & (table_.size() - 1);
  table_[at] = block;
}

/// Those behind it that stood aside for it move up.
void KvBlocks::erase(int32_t block) {
  const size_t mask = table_.size() - 1;
  size_t hole = node(block).key.lo & mask;
  while (table_[hole] != block) hole = (hole + 1) & mask;
  for (size_t at = (hole + 1) & mask; table_[at] >= 0; at = (at + 1) & mask) {
    const size_t wanted = node(table_[at]).key.lo & mask;
    if (((at - wanted) & mask) < ((at - hole) & mask)) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = -1;
}

/// The whole block behind `from` (-1: the root) with these tokens, or -1.
int32_t KvBlocks::following(const Hash128& root, int32_t from, const int32_t* tokens, bool pure) const {
  constexpr int kFew = 4;  // that are compared with no hash, which costs more than they do
  if (from >= 0) {
    int seen = 0;
    for (int32_t block = node(from).child; block >= 0 || seen <= kFew; block = node(block).next) {
      if (block < 0) return -1;
      if (++seen > kFew) break;
      const Node& n = node(block);
      if (whole(n) && (n.pure == positions_) == pure && std::equal(tokens, tokens + positions_, tokens_of(block)))
        return block;
    }
  }
  return find(key_of(from >= 0 ? node(from).key : root, tokens, pure), root, from, tokens);
}

/// Adds whole blocks that follow `from` (-1: the root) as far as they are known.
void KvBlocks::walk(const Hash128& root, std::span<const int32_t> tokens, bool pure, int32_t from,
                    std::vector<int32_t>* path) const {
  const auto step = static_cast<size_t>(positions_);
  for (size_t at = path->size() * step; at + step < tokens.size(); at += step) {
    const int32_t next = following(root, from, &tokens[at], pure);
    if (next < 0) return;
    path->push_back(next);
    from = next;
  }
}

KvBlocks::Found KvBlocks::match(const Hash128& root, std::span<const int32_t> tokens, bool exact,
                                std::vector<int32_t>* blocks, int least) {
  path_.clear();
  walk(root, tokens, true, -1, &path_);
  const size_t pure = path_.size();
  size_t best_pure = pure;
  // What steps of answers wrote follows what steps of prompts wrote, never the other way round: it may leave that chain
  // anywhere.
  for (size_t i = pure + 1; !exact && i-- > 0;) {
    if (i > 0) {
      const int32_t child = node(path_[i - 1]).child;
      if (child < 0 || (i < pure && child == path_[i] && node(child).next < 0)) continue;  // nothing leaves it here
    }
    other_.assign(path_.begin(), path_.begin() + static_cast<std::ptrdiff_t>(i));
    walk(root, tokens, false, i > 0 ? other_.back() : -1, &other_);
    if (other_.size() > path_.size()) std::swap(path_, other_), best_pure = i;
  }
  Found found;
  found.positions = static_cast<int>(path_.size()) * positions_;
  found.pure = static_cast<int>(std::min(best_pure, path_.size())) * positions_;
  for (const int32_t block : path_) {
    hold(block);
    blocks->push_back(block);
  }
  add_partial(root, tokens, exact, path_.empty() ? -1 : path_.back(), least, &found);
  found.known = found.positions;
  if (carries_) end_at_state(root, tokens, exact, blocks, &found);
  return found;
}

/// Part of a block behind the whole ones, and why there is not more.
void KvBlocks::add_partial(const Hash128& root, std::span<const int32_t> tokens, bool exact, int32_t last, int least,
                           Found* found) {
  const auto from = static_cast<size_t>(found->positions);
  const int usable = static_cast<int>(tokens.size() - from) - 1;
  const bool all_before_pure = found->pure == found->positions;
  int alike = -1, best = 0, compared = 0;
  bool differs = false;  // of the one that is most alike: it goes on otherwise, not only shorter
  for (int32_t block = first_child(last, root); block >= 0 && compared < kMostCompared; block = node(block).next) {
    const Node& n = node(block);
    if (n.root != root) continue;
    ++compared;
    const int most = std::min(usable, n.fill);
    int same = 0;
    while (same < most && tokens_of(block)[same] == tokens[from + static_cast<size_t>(same)]) ++same;
    if (same > alike) alike = same, differs = same < most;
    const int useful = exact ? std::min(same, n.pure) : same;
    if (useful > best && useful >= least) best = useful, found->partial = block;
  }
  if (found->partial >= 0) {
    hold(found->partial);
    if (all_before_pure) found->pure += std::min(best, node(found->partial).pure);
    found->positions += best;
  }
  if (best >= usable) return;
  if (static_cast<int>(tokens.size()) - 1 < least) return void(found->miss = Miss::brief);
  if (exact && alike > best) return void(found->miss = Miss::row_class);
  if (from + static_cast<size_t>(positions_) <= tokens.size()) {
    for (const bool pure : {true, false}) {
      const Hash128 key = key_of(last >= 0 ? node(last).key : root, &tokens[from], pure);
      if (forgotten_[key.lo & (forgotten_.size() - 1)] == key.hi) return void(found->miss = Miss::evicted);
    }
  }
  if (differs && static_cast<int>(from) + alike > 0)
    found->miss = Miss::diverged, found->at = static_cast<int>(from) + alike;
  else if (found->positions == 0) found->miss = Miss::cold;
}

KvBlocks::Put KvBlocks::put(const Hash128& root, int32_t parent, int32_t block, std::span<const int32_t> tokens,
                            int pure) {
  if (parent >= 0 && (!whole(node(parent)) || node(parent).root != root)) return {};
  Node& n = node(block);
  if (n.fill > 0 && (n.parent != parent || n.root != root)) return {};
  if (whole(n)) return {true, -1};  // published before
  const bool becomes_whole = static_cast<int>(tokens.size()) == positions_;
  if (becomes_whole) {
    const Hash128 key = key_of(parent >= 0 ? node(parent).key : root, tokens.data(), pure == positions_);
    if (const int32_t same = find(key, root, parent, tokens.data()); same >= 0) {
      if (n.fill > 0) forget(block);
      return {false, same};
    }
    n.key = key;
  }
  if (n.fill == 0) {
    int32_t& first = first_child(parent, root);
    n.root = root, n.parent = parent, n.child = n.previous = -1, n.next = first;
    if (first >= 0) node(first).previous = block;
    first = block;
    if (parent >= 0) warm(parent);
  }
  n.fill = static_cast<int>(tokens.size());
  n.pure = pure;
  std::copy(tokens.begin(), tokens.end(), tokens_of(block));
  if (becomes_whole) insert(block);
  return {true, -1};
}

/// The table forgets a block without children; if nobody holds it, it is free.
void KvBlocks::forget(int32_t block) {
  Node& n = node(block);
  if (whole(n)) {
    erase(block);
    forgotten_[n.key.lo & (forgotten_.size() - 1)] = n.key.hi;
  }
  (n.previous >= 0 ? node(n.previous).next : first_child(n.parent, n.root)) = n.next;
  if (n.next >= 0) node(n.next).previous = n.previous;
  n.fill = n.pure = 0;
  while (n.state >= 0) detach(n.state);
  if (n.references == 0) {
    warm(block);
    --idle_;
    free_.push_back(block);
  }
  const int32_t parent = std::exchange(n.parent, -1);
  if (parent >= 0 && node(parent).references == 0) cool(parent, false);
}

void KvBlocks::forget_all() {
  while (coldest_ >= 0) forget(coldest_);
}

}  // namespace vivace::engine
