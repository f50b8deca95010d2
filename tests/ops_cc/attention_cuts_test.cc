// From 264 slots on a decode step's keys are not split, whatever the batch: vivace.compat.flashinfer (UNSPLIT_SLOTS)
// plans with that.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include "vivace/ops/attention_gpu.h"

namespace vivace::ops {
namespace {

using Gpu = AttentionGpu;
constexpr int kUnsplitSlots = 264;

/// What a row's bits depend on, of the kernels that serve decode; the last is true where keys are split.
std::tuple<int, int, int, int, int, bool> cuts(int d, int bytes, int group, int64_t seqlen_k, int64_t slots) {
  const auto split = Gpu::split(Gpu::Role::decode, d, d, bytes, group, seqlen_k, slots);
  const auto swap_ab = Gpu::swap_ab(Gpu::Role::decode, d, d, group, group, seqlen_k, slots);
  const auto tile = Gpu::tile_config(Gpu::Role::decode, d, d, seqlen_k, true, Arch::sm90a, slots),
             next = Gpu::tile_config(Gpu::Role::decode, d, d, seqlen_k, true, Arch::sm100a, slots);
  return {split.keys,   split.teams,  tile.keys,
          tile.warps_n, next.warps_n, split.split > 1 || swap_ab.split > 1 || tile.split > 1 || next.split > 1};
}

TEST(AttentionCuts, ManySlotsSplitNoKeys) {
  std::mt19937 rng(7);
  const auto draw = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(rng); };
  int split = 0;
  for (int i = 0; i < 3000; ++i) {
    const int d = 8 * draw(1, 32), bytes = draw(1, 2), group = draw(1, 32), heads = draw(1, 64);
    const int64_t seqlen_k = int64_t{1} << draw(0, 20);
    const auto one = cuts(d, bytes, group, seqlen_k, int64_t{kUnsplitSlots} * heads);
    EXPECT_FALSE(std::get<5>(one)) << "d " << d << " bytes " << bytes << " group " << group << " heads " << heads
                                   << " places " << seqlen_k;
    EXPECT_EQ(one, cuts(d, bytes, group, 2 * seqlen_k + 5, int64_t{draw(kUnsplitSlots, 5000)} * heads))
        << "d " << d << " bytes " << bytes << " group " << group << " heads " << heads << " places " << seqlen_k;
    split += std::get<5>(cuts(d, bytes, group, seqlen_k, int64_t{draw(1, 16)} * heads));
  }
  EXPECT_GT(split, 1000);  // few slots do split, so that the number above says something
}

TEST(AttentionClusters, EachBlockOfKeysIsOfOneSplitOfOneCluster) {
  for (const int clusters : {1, 2, 4, 8}) {
    const kernels::AttentionClusters c{8, clusters};
    for (int blocks = 0; blocks < 700; ++blocks) {
      std::vector<int> taken(static_cast<size_t>(blocks));
      int used = 0;
      for (int cluster = 0; cluster < clusters; ++cluster)
        for (int of = 0; of < c.split; ++of) {
          const int count = c.block_count(cluster, of, blocks);
          int b = c.first_block(cluster, of);
          for (int i = 0; i < count; ++i, b = c.next_block(b)) {
            ASSERT_LT(b, blocks);
            EXPECT_EQ(b % c.split, of);
            ++taken[static_cast<size_t>(b)];
          }
          ASSERT_GE(b, blocks) << "blocks " << blocks << " cluster " << cluster << " split " << of;
          if (count > 0) used = cluster + 1;
        }
      EXPECT_EQ(taken, std::vector<int>(static_cast<size_t>(blocks), 1));
      EXPECT_EQ(c.used(blocks), std::max(used, 1));
    }
    EXPECT_EQ(c.used(c.turns() * c.split), 1);  // 4096 keys: the bits of one cluster
  }
}

TEST(AttentionClusters, AsManyAsTheChipHasPartsFor) {
  const int wanted[] = {8, 4, 2, 2, 1, 1, 1, 1, 1};
  for (int heads = 1; heads <= 9; ++heads) EXPECT_EQ(Gpu::clusters(heads), wanted[heads - 1]);
  EXPECT_TRUE(Gpu::wants_words(1, 8193, 4, 128));
  EXPECT_FALSE(Gpu::wants_words(2, 8193, 4, 128) || Gpu::wants_words(1, 8192, 4, 128) ||
               Gpu::wants_words(1, 8193, 5, 128) || Gpu::wants_words(1, 8193, 4, 64));
}

TEST(AttentionClusters, WordsHoldEveryCall) {
  for (int group = 1; group <= 32; ++group)
    for (int heads = 1; heads <= 4; ++heads)
      for (int tokens = 1; tokens <= 16; ++tokens)
        for (const int d : {72, 80, 128, 160, 200, 256}) {
          const auto t = Gpu::swap_ab(Gpu::Role::decode, d, d, group, tokens * group, 1 << 18, heads);
          const int64_t height = tokens == 1 ? group : t.rows / group * group,
                        tiles = (int64_t{tokens} * group + height - 1) / height * heads, quads = t.own() * t.rows / 8;
          EXPECT_EQ(t.split, 8);
          EXPECT_LE(quads, 8);
          EXPECT_LE(tiles * t.split * 8, kernels::AttentionArgs::words_ahead());
          EXPECT_LE(kernels::AttentionArgs::words_ahead() + 3 + tiles * Gpu::clusters(heads) * t.split * quads * 256,
                    kernels::AttentionArgs::words_of(tokens, int64_t{heads} * group, heads, d))
              << "group " << group << " heads " << heads << " tokens " << tokens << " d " << d;
        }
}

}  // namespace
}  // namespace vivace::ops
