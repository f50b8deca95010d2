// KvBlocks: who has which block of the key/value caches, which blocks hold what was computed before, and where states
// of recurrent layers are kept beside them. Host memory alone; the model maps blocks into the tables that steps read,
// and copies states.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "vivace/base/siphash.h"

namespace vivace::engine {

/// Blocks of a model that sequences share, counted by references. One whose content was published stays when its last
/// reference goes, until its place is needed: oldest use first, and what follows a block before the block. Nothing
/// allocates after the constructor. Not thread-safe: who may step the model may use it.
class KvBlocks {
 public:
  static constexpr int kNoState = -1;
  /// `count` blocks of `positions` each; `key`: of the table's hash, secret. `states`: places of states, of a model
  /// whose sequences carry one; kNoState of any other.
  KvBlocks(int count, int positions, const Hash128& key, int states = kNoState);
  int count() const { return static_cast<int>(nodes_.size()); }
  int positions() const { return positions_; }
  int needed(int positions) const { return (positions + positions_ - 1) / positions_; }
  /// Blocks that take() could give: free ones, and those that only the table remembers.
  int available() const { return static_cast<int>(free_.size()) + idle_; }
  /// Blocks that only the table remembers.
  int remembered() const { return idle_; }
  /// References that who keeps beginnings on purpose has, counted by themselves: note_held() says of more, or fewer.
  int held() const { return held_; }
  void note_held(int more) { held_ += more; }
  /// A block with one reference; -1: none is left.
  int32_t take();
  void hold(int32_t block);
  /// One reference less. What queued steps still write to it comes before whatever its next owner queues.
  void drop(int32_t block);
  /// Drops all, the last first, and empties the list.
  void drop(std::vector<int32_t>* blocks);

  // The table: kv_prefix.cc.

  /// Where the sequences of one identity begin. Those of different salts never find each other's blocks.
  Hash128 root(std::span<const std::byte> salt) const;

  /// Why less was found than there could be.
  enum class Miss : uint8_t { none, off, cold, evicted, diverged, brief, row_class, recurrent /* no state as near */ };
  struct Found {
    int positions = 0;     // of the tokens; never the last, whose draw is wanted
    int pure = 0;          // of these, the first that steps of prompts wrote
    int32_t partial = -1;  // where the positions after the whole blocks lie, to be copied; it has a reference more
    Miss miss = Miss::none;
    int at = 0;            // of diverged: the first token that differs
    int known = 0;         // positions that blocks were there for, whether a state was or not
    int32_t state = -1;    // where sequences carry one: that behind `positions`; it has a reference more
  };
  static constexpr int kLeastCopied = 8;  // positions of a block that are worth copying it
  /// The longest known beginning of `tokens`; where sequences carry a state, the longest that one was kept of. Its
  /// whole blocks, each with a reference more, go to `blocks`. `exact`: only what steps of prompts wrote. `least`:
  /// fewer positions of a block behind the whole ones are not taken without a state.
  Found match(const Hash128& root, std::span<const int32_t> tokens, bool exact, std::vector<int32_t>* blocks,
              int least = kLeastCopied);

  struct Put {
    bool kept = false;    // the table has it
    int32_t same = -1;    // another block that has the same
  };
  /// Publishes `block`, which holds `tokens` (whole, or the first of its positions) behind `parent`, a published whole
  /// block of the same root or -1; or publishes more of it. `pure`: how many of them, from the first, steps of prompts
  /// wrote with all before them.
  Put put(const Hash128& root, int32_t parent, int32_t block, std::span<const int32_t> tokens, int pure);
  /// Forgets what nobody holds.
  void forget_all();

  // States of recurrent layers: kv_states.cc. One that the table has is of a position of a published block. It goes
  // when that block is forgotten, or when its place is needed and nobody holds it: oldest use first.

  int states() const { return static_cast<int>(states_.size()); }
  int free_states() const { return static_cast<int>(free_states_.size()); }
  /// As held(), of states.
  int held_states() const { return held_states_; }
  void note_held_states(int more) { held_states_ += more; }
  /// A place with one reference; -1: all are held.
  int32_t take_state();
  void hold_state(int32_t state);
  /// One reference less; a place that the table does not have is free then.
  void drop_state(int32_t state);
  /// The table has the state behind the first `at` positions of `block`, which are published: in `state`, or where it
  /// was already. Returns that place, which has the caller's reference now.
  int32_t put_state(int32_t block, int at, int32_t state);
  /// When a state was used last: another number each time.
  uint64_t use_of(int32_t state) const { return states_[static_cast<size_t>(state)].used; }
  /// Forgets a state that nobody holds, and nobody has used since.
  void forget_state(int32_t state, uint64_t use);

 private:
  struct State {
    int32_t block = -1, next = -1;  // that the table has it for; of that block
    int at = 0;
    int32_t references = 0;
    uint64_t used = 0;
  };
  struct Node {
    Hash128 key, root;      // of whole blocks; of published ones
    int32_t references = 0;
    int32_t parent = -1, child = -1, next = -1, previous = -1;  // published: its tree; children are a list
    int32_t colder = -1, warmer = -1;                           // idle and without children: by last use
    uint64_t used = 0;
    int fill = 0;           // positions that are published; 0: none
    int pure = 0;
    int32_t state = -1;  // first of those of its positions
  };
  bool whole(const Node& n) const { return n.fill == positions_; }
  Node& node(int32_t block) { return nodes_[static_cast<size_t>(block)]; }
  const Node& node(int32_t block) const { return nodes_[static_cast<size_t>(block)]; }
  int32_t* tokens_of(int32_t block) { return &tokens_[static_cast<size_t>(block) * static_cast<size_t>(positions_)]; }
  const int32_t* tokens_of(int32_t block) const {
    return &tokens_[static_cast<size_t>(block) * static_cast<size_t>(positions_)];
  }
  int32_t& first_child(int32_t parent, const Hash128& root) {
    return parent >= 0 ? node(parent).child : roots_[root.lo % roots_.size()];
  }
  Hash128 key_of(const Hash128& before, const int32_t* tokens, bool pure) const;
  int32_t find(const Hash128& key, const Hash128& root, int32_t parent, const int32_t* tokens) const;
  int32_t following(const Hash128& root, int32_t from, const int32_t* tokens, bool pure) const;
  void insert(int32_t block);
  void erase(int32_t block);
  void walk(const Hash128& root, std::span<const int32_t> tokens, bool pure, int32_t from,
            std::vector<int32_t>* path) const;
  void add_partial(const Hash128& root, std::span<const int32_t> tokens, bool exact, int32_t last, int least,
                   Found* found);
  void end_at_state(const Hash128& root, std::span<const int32_t> tokens, bool exact, std::vector<int32_t>* blocks,
                    Found* found);
  int32_t latest_state(int32_t block, int most) const;
  void detach(int32_t state);
  void forget(int32_t block);
  void cool(int32_t block, bool newest);
  void warm(int32_t block);

  const int positions_;
  const Hash128 key_;
  const bool carries_;  // sequences have a state besides
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;      // [blocks, positions] of what is published
  std::vector<int32_t> free_;        // last in, first out
  std::vector<int32_t> table_;       // open addressing by key: whole blocks
  std::vector<int32_t> roots_;       // by root: a list of those without a parent
  std::vector<uint64_t> forgotten_;  // by key: halves of keys whose blocks went lately
  std::vector<int32_t> path_, other_;  // of match()
  int32_t coldest_ = -1, warmest_ = -1;
  std::vector<State> states_;
  std::vector<int32_t> free_states_;  // last in, first out
  int idle_ = 0, held_ = 0, held_states_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace vivace::engine
