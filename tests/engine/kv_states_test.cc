// States beside blocks under random holders: whoever finds one finds that of these very tokens, as many as it is told.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "vivace/engine/kv_blocks.h"

namespace vivace::engine {
namespace {

using Miss = KvBlocks::Miss;
using Tokens = std::vector<int32_t>;
constexpr int kSize = 4;

/// Publishes `tokens`, with states behind `at` of them, and lets go of all. What lies in a place is told to `places`.
void keep(KvBlocks& blocks, const Hash128& root, const Tokens& tokens, const std::vector<int>& at,
          std::map<int32_t, Tokens>* places, int pure = 1000) {
  std::vector<int32_t> mine;
  for (int begin = 0; begin < static_cast<int>(tokens.size()); begin += kSize) {
    mine.push_back(blocks.take());
    const int n = std::min(kSize, static_cast<int>(tokens.size()) - begin);
    const auto put = blocks.put(root, begin > 0 ? mine[mine.size() - 2] : -1, mine.back(),
                                std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(n)),
                                std::clamp(pure - begin, 0, n));
    if (put.same >= 0) blocks.hold(put.same), blocks.drop(mine.back()), mine.back() = put.same;
    for (const int position : at) {
      if (position <= begin || position > begin + n) continue;
      int32_t state = blocks.take_state();
      if (state < 0) continue;
      const Tokens known(tokens.begin(), tokens.begin() + position);
      (*places)[state] = known;
      state = blocks.put_state(mine.back(), position - begin, state);
      EXPECT_EQ((*places)[state], known) << "the same place, or one that has the same";
      blocks.drop_state(state);
    }
  }
  blocks.drop(&mine);
}

KvBlocks::Found ask(KvBlocks& blocks, const Hash128& root, const Tokens& tokens, bool exact = false) {
  std::vector<int32_t> held;
  const KvBlocks::Found found = blocks.match(root, tokens, exact, &held);
  EXPECT_EQ(found.state >= 0, found.positions > 0);
  EXPECT_EQ(static_cast<int>(held.size()), found.positions / kSize);
  EXPECT_EQ(found.partial >= 0, found.positions % kSize > 0);
  if (found.partial >= 0) blocks.drop(found.partial);
  if (found.state >= 0) blocks.drop_state(found.state);
  blocks.drop(&held);
  return found;
}

TEST(KvStates, ABeginningEndsAtAState) {
  KvBlocks blocks(16, kSize, {7, 8}, 4);
  const Hash128 root = blocks.root({});
  std::map<int32_t, Tokens> places;
  Tokens tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  keep(blocks, root, tokens, {}, &places);
  KvBlocks::Found found = ask(blocks, root, tokens);
  EXPECT_EQ(found.positions, 0);
  EXPECT_EQ(found.miss, Miss::recurrent);
  EXPECT_EQ(found.known, 8) << "2 more are too few to copy a block for";
  keep(blocks, root, tokens, {4, 10}, &places, 9);
  tokens.insert(tokens.end(), {12, 13});
  found = ask(blocks, root, tokens);
  EXPECT_EQ(found.positions, 10);
  EXPECT_EQ(found.pure, 9);
  EXPECT_EQ(ask(blocks, root, tokens, true).positions, 4) << "token 9 is of an answer";
  tokens[9] = 99;
  found = ask(blocks, root, tokens);
  EXPECT_EQ(found.positions, 4);
  EXPECT_EQ(found.miss, Miss::recurrent);
  EXPECT_EQ(ask(blocks, root, {1, 2, 3, 4}).positions, 0) << "the last token's draw is wanted";
  EXPECT_EQ(ask(blocks, root, {1, 2, 3, 4, 5}).miss, Miss::none);
}

TEST(KvStates, TheOldestUseGoesFirstAndHeldOnesStay) {
  KvBlocks blocks(16, kSize, {7, 8}, 2);
  const Hash128 root = blocks.root({});
  std::map<int32_t, Tokens> places;
  keep(blocks, root, {1, 1, 1, 1, 1}, {4}, &places);
  keep(blocks, root, {2, 2, 2, 2, 2}, {4}, &places);
  EXPECT_EQ(ask(blocks, root, {1, 1, 1, 1, 1}).positions, 4);
  keep(blocks, root, {3, 3, 3, 3, 3}, {4}, &places);
  EXPECT_EQ(ask(blocks, root, {2, 2, 2, 2, 2}).positions, 0);
  EXPECT_EQ(ask(blocks, root, {1, 1, 1, 1, 1}).positions, 4);

  std::vector<int32_t> held;
  const KvBlocks::Found found = blocks.match(root, Tokens{3, 3, 3, 3, 3}, false, &held);
  const int32_t other = blocks.take_state();
  EXPECT_GE(other, 0);
  EXPECT_EQ(blocks.take_state(), -1) << "both are held";
  const uint64_t use = blocks.use_of(found.state);
  blocks.forget_state(found.state, use);
  blocks.drop_state(found.state);
  blocks.drop(&held);
  blocks.drop_state(other);
  EXPECT_EQ(ask(blocks, root, {3, 3, 3, 3, 3}).positions, 4) << "nobody forgets what is held";
  blocks.forget_state(found.state, use);
  EXPECT_EQ(ask(blocks, root, {3, 3, 3, 3, 3}).positions, 4) << "it was used since";
  blocks.forget_state(found.state, blocks.use_of(found.state));
  EXPECT_EQ(ask(blocks, root, {3, 3, 3, 3, 3}).positions, 0);
  EXPECT_EQ(blocks.free_states(), 2);
  blocks.forget_all();
  EXPECT_EQ(blocks.available(), 16);
}

TEST(KvStates, DrawnHolders) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const int count = 8 + static_cast<int>(random() % 12), most = 1 + static_cast<int>(random() % 6);
    KvBlocks blocks(count, kSize, {seed, 9}, most);
    const Hash128 roots[] = {blocks.root({}), blocks.root(std::as_bytes(std::span("b", 1)))};
    std::map<int32_t, Tokens> places;
    struct Held {
      std::vector<int32_t> blocks;
      int32_t state;
      Tokens tokens;
    };
    std::vector<Held> held;
    int found_states = 0;
    for (int step = 0; step < 400; ++step) {
      Tokens tokens(1 + random() % 22);
      for (int32_t& t : tokens) t = static_cast<int32_t>(random() % 8 == 0);
      const Hash128& root = roots[random() % 2];
      if (random() % 2 == 0 && blocks.available() >= blocks.needed(static_cast<int>(tokens.size()))) {
        std::vector<int> at;
        for (int position = 1; position <= static_cast<int>(tokens.size()); ++position)
          if (random() % 4 == 0) at.push_back(position);
        keep(blocks, root, tokens, at, &places, random() % 2 == 0 ? 1000 : static_cast<int>(random() % 20));
        continue;
      }
      Held h{};
      const bool exact = random() % 3 == 0;
      const KvBlocks::Found found = blocks.match(root, tokens, exact, &h.blocks);
      EXPECT_LT(found.positions, static_cast<int>(tokens.size()));
      if (exact) {
        EXPECT_EQ(found.pure, found.positions);
      }
      if (found.partial >= 0) blocks.drop(found.partial);
      h.state = found.state;
      h.tokens.assign(tokens.begin(), tokens.begin() + found.positions);
      if (found.state >= 0) {
        ++found_states;
        ASSERT_EQ(places[found.state], h.tokens) << "seed " << seed << " step " << step;
      }
      held.push_back(h);
      while (held.size() > 2 || (!held.empty() && random() % 2 == 0)) {
        Held& first = held.front();
        if (first.state >= 0) {
          EXPECT_EQ(places[first.state], first.tokens) << "held, and yet written";
          blocks.drop_state(first.state);
        }
        blocks.drop(&first.blocks);
        held.erase(held.begin());
      }
    }
    for (Held& h : held) {
      if (h.state >= 0) blocks.drop_state(h.state);
      blocks.drop(&h.blocks);
    }
    EXPECT_GT(found_states, 10) << seed;
    blocks.forget_all();
    EXPECT_EQ(blocks.available(), count);
    EXPECT_EQ(blocks.free_states(), most);
  }
}

}  // namespace
}  // namespace vivace::engine
