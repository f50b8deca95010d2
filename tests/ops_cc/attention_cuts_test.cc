// From 264 slots on a decode step's keys are not split, whatever the batch: vivace.compat.flashinfer (UNSPLIT_SLOTS)
// plans with that.
#include <gtest/gtest.h>

#include <random>
#include <tuple>

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

}  // namespace
}  // namespace vivace::ops
