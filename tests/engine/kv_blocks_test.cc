// KvBlocks under random holders: whoever finds blocks finds what was computed of these tokens, under this salt, and of
// nothing else.
#include "vivace/engine/kv_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace vivace::engine {
namespace {

using Miss = KvBlocks::Miss;
constexpr int kSize = 4;  // positions of a block

std::span<const std::byte> bytes(const std::string& s) { return std::as_bytes(std::span(s)); }

/// Publishes `tokens` block by block, the last as a part, and lets go of all.
void keep(KvBlocks& blocks, const Hash128& root, const std::vector<int32_t>& tokens, size_t pure = 1000) {
  std::vector<int32_t> mine;
  for (size_t at = 0; at < tokens.size(); at += kSize) {
    mine.push_back(blocks.take());
    const size_t n = std::min<size_t>(kSize, tokens.size() - at);
    const auto put =
        blocks.put(root, at > 0 ? mine[mine.size() - 2] : -1, mine.back(), std::span(tokens).subspan(at, n),
                   static_cast<int>(pure > at ? std::min(n, pure - at) : 0));
    if (put.same >= 0) blocks.hold(put.same), blocks.drop(mine.back()), mine.back() = put.same;
  }
  blocks.drop(&mine);
}

struct Got {
  KvBlocks::Found found;
  size_t whole = 0;
};

Got ask(KvBlocks& blocks, const Hash128& root, const std::vector<int32_t>& tokens, bool exact = false) {
  std::vector<int32_t> held;
  Got got;
  got.found = blocks.match(root, tokens, exact, &held);
  got.whole = held.size();
  if (got.found.partial >= 0) blocks.drop(got.found.partial);
  blocks.drop(&held);
  return got;
}

TEST(KvBlocks, FindsWholeBlocksAndPartsAndSaysWhyNotMore) {
  KvBlocks blocks(16, 16, {7, 8});
  const Hash128 root = blocks.root(bytes("a"));
  std::vector<int32_t> tokens(40);
  for (int32_t i = 0; i < 40; ++i) tokens[static_cast<size_t>(i)] = i;
  EXPECT_EQ(ask(blocks, root, tokens).found.miss, Miss::cold);
  std::vector<int32_t> mine{blocks.take(), blocks.take(), blocks.take()};
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(blocks
                    .put(root, i > 0 ? mine[static_cast<size_t>(i) - 1] : -1, mine[static_cast<size_t>(i)],
                         std::span(tokens).subspan(static_cast<size_t>(i) * 16, i < 2 ? 16 : 8), i == 0 ? 16 : 0)
                    .kept);
  blocks.drop(&mine);
  EXPECT_EQ(blocks.available(), 16);
  EXPECT_EQ(blocks.remembered(), 3);

  Got all = ask(blocks, root, tokens);
  EXPECT_EQ(all.whole, 2u);
  EXPECT_EQ(all.found.positions, 32) << "7 more are too few to copy a block for";
  tokens.push_back(99);
  all = ask(blocks, root, tokens);
  EXPECT_EQ(all.found.positions, 40);
  EXPECT_EQ(all.found.pure, 16);
  EXPECT_EQ(all.found.miss, Miss::none);
  tokens.push_back(99);
  EXPECT_EQ(ask(blocks, root, tokens).found.miss, Miss::none) << "it only goes on";
  const Got exact = ask(blocks, root, tokens, true);
  EXPECT_EQ(exact.found.positions, 16);
  EXPECT_EQ(exact.found.miss, Miss::row_class);
  EXPECT_EQ(ask(blocks, blocks.root(bytes("b")), tokens).found.positions, 0);
  EXPECT_EQ(ask(blocks, blocks.root(bytes("b")), tokens).found.miss, Miss::cold) << "nobody hears of another's";
  EXPECT_EQ(ask(blocks, root, {0, 1, 2}).found.miss, Miss::brief);
  tokens[20] = 5;
  const Got other = ask(blocks, root, tokens);
  EXPECT_EQ(other.found.positions, 16);
  EXPECT_EQ(other.found.miss, Miss::diverged);
  EXPECT_EQ(other.found.at, 20);
  tokens.assign(32, 7);
  for (int32_t i = 0; i < 16; ++i) tokens[static_cast<size_t>(i)] = i;
  std::vector<int32_t> hog;
  for (int i = 0; i < 15; ++i) hog.push_back(blocks.take());
  blocks.drop(&hog);
  EXPECT_EQ(ask(blocks, root, tokens).found.positions, 16) << "what follows a block goes before it";
  for (int i = 0; i < 16; ++i) hog.push_back(blocks.take());
  EXPECT_EQ(blocks.take(), -1);
  EXPECT_EQ(ask(blocks, root, tokens).found.miss, Miss::evicted);
  blocks.drop(&hog);
  EXPECT_EQ(blocks.available(), 16);
}

/// The longest chain wins, wherever rows of answers begin in it.
TEST(KvBlocks, TakesTheLongerOfTwoChains) {
  KvBlocks blocks(16, kSize, {7, 8});
  const Hash128 root = blocks.root({});
  const std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
  keep(blocks, root, {1, 2, 3, 4, 5, 6, 7, 8});                                     // of a prompt
  keep(blocks, root, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 4);   // an answer after four
  Got got = ask(blocks, root, tokens);
  EXPECT_EQ(got.found.positions, 16);
  EXPECT_EQ(got.found.pure, 4);
  EXPECT_EQ(ask(blocks, root, tokens, true).found.positions, 8);
}

/// What a position would hold: everything that its value depends on.
struct Cell {
  std::string salt;
  std::vector<int32_t> tokens;
  bool pure;
};

TEST(KvBlocks, RandomHoldersFindTheirOwn) {
  int hits = 0, partial = 0, evicted = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto one_of = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int count = 6 + one_of(40), size = seed % 2 ? 4 : 16;
    KvBlocks blocks(count, size, {random(), random()});
    std::vector<std::vector<Cell>> content(static_cast<size_t>(count), std::vector<Cell>(static_cast<size_t>(size)));
    struct Holder {
      std::string salt;
      std::vector<int32_t> tokens, blocks;
      int published = 0, pure = 0;
      bool publishes = true;
    };
    std::vector<Holder> holders;
    std::vector<std::vector<int32_t>> known{{}};
    const auto let_go = [&](size_t i) {
      known.push_back(holders[i].tokens);
      blocks.drop(&holders[i].blocks);
      holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(i));
    };
    for (int round = 0; round < 10000; ++round) {
      if (one_of(4) == 0 || holders.empty()) {  // one who comes, with a beginning that somebody had
        Holder h{std::string(1, static_cast<char>('a' + one_of(2))),
                 known[static_cast<size_t>(one_of(static_cast<int>(known.size())))],
                 {}};
        h.tokens.resize(h.tokens.empty() ? 0 : static_cast<size_t>(one_of(static_cast<int>(h.tokens.size())) + 1));
        for (int n = 1 + one_of(3 * size); n > 0; --n) h.tokens.push_back(one_of(3));
        if (static_cast<int>(h.tokens.size()) > 5 * size) continue;
        const bool exact = one_of(2);
        const Hash128 root = blocks.root(bytes(h.salt));
        const auto found = blocks.match(root, h.tokens, exact, &h.blocks);
        ASSERT_LT(found.positions, static_cast<int>(h.tokens.size()));
        const auto hold_to = [&](int32_t block, int pos) {
          const Cell& c = content[static_cast<size_t>(block)][static_cast<size_t>(pos % size)];
          ASSERT_EQ(c.salt, h.salt);
          ASSERT_TRUE(std::equal(c.tokens.begin(), c.tokens.end(), h.tokens.begin(), h.tokens.begin() + pos + 1))
              << "seed " << seed << " round " << round << " position " << pos;
          ASSERT_TRUE(c.pure || !(exact || pos < found.pure));
        };
        const int whole = static_cast<int>(h.blocks.size()) * size;
        for (int pos = 0; pos < found.positions; ++pos) {
          const int32_t block = pos < whole ? h.blocks[static_cast<size_t>(pos / size)] : found.partial;
          ASSERT_GE(block, 0);
          hold_to(block, pos);
        }
        hits += found.positions > 0, partial += found.partial >= 0, evicted += found.miss == Miss::evicted;
        int from = whole;
        if (found.partial >= 0) {
          const int32_t mine = blocks.available() > 0 ? blocks.take() : -1;
          if (mine >= 0)
            content[static_cast<size_t>(mine)] = content[static_cast<size_t>(found.partial)], h.blocks.push_back(mine),
            from = found.positions;
          blocks.drop(found.partial);
        }
        h.published = whole;
        h.pure = std::min(found.pure, from) < from ? std::min(found.pure, from) : static_cast<int>(h.tokens.size()) / 2;
        bool room = true;
        for (int pos = from; pos < static_cast<int>(h.tokens.size()) && room; ++pos) {
          if (pos / size == static_cast<int>(h.blocks.size())) {
            const int32_t b = blocks.take();
            if (b < 0) {
              room = false;
              h.tokens.resize(static_cast<size_t>(pos));
              break;
            }
            h.blocks.push_back(b);
          }
          content[static_cast<size_t>(h.blocks[static_cast<size_t>(pos / size)])][static_cast<size_t>(pos % size)] = {
              h.salt, {h.tokens.begin(), h.tokens.begin() + pos + 1}, pos < h.pure};
        }
        holders.push_back(std::move(h));
      } else if (one_of(2)) {  // one who publishes
        Holder& h = holders[static_cast<size_t>(one_of(static_cast<int>(holders.size())))];
        const Hash128 root = blocks.root(bytes(h.salt));
        while (h.publishes && h.published < static_cast<int>(h.tokens.size())) {
          const int b = h.published / size, begin = b * size,
                    end = std::min(begin + size, static_cast<int>(h.tokens.size()));
          const auto at = static_cast<size_t>(b);
          const auto put =
              blocks.put(root, b > 0 ? h.blocks[at - 1] : -1, h.blocks[at],
                         std::span(h.tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                         std::clamp(h.pure - begin, 0, end - begin));
          if (put.same >= 0 && h.pure >= end) blocks.hold(put.same), blocks.drop(h.blocks[at]), h.blocks[at] = put.same;
          else if (!put.kept) h.publishes = false;
          h.published = end;
        }
      } else {
        let_go(static_cast<size_t>(one_of(static_cast<int>(holders.size()))));
      }
      std::set<int32_t> used;
      for (const Holder& h : holders) used.insert(h.blocks.begin(), h.blocks.end());
      ASSERT_EQ(blocks.available(), count - static_cast<int>(used.size())) << "seed " << seed << " round " << round;
    }
    while (!holders.empty()) let_go(0);
    ASSERT_EQ(blocks.available(), count);
    std::vector<int32_t> all;
    for (int i = 0; i < count; ++i) all.push_back(blocks.take());
    ASSERT_EQ(std::set<int32_t>(all.begin(), all.end()).size(), static_cast<size_t>(count));
    ASSERT_EQ(blocks.take(), -1);
    blocks.drop(&all);
    blocks.forget_all();
    ASSERT_EQ(blocks.remembered(), 0);
  }
  EXPECT_GT(hits, 3000);
  EXPECT_GT(partial, 1000);
  EXPECT_GT(evicted, 100);
}

}  // namespace
}  // namespace vivace::engine
