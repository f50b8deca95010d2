// Tiles of products in a partition: chosen for its multiprocessors, with the bits of the whole chip.
#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "vivace/ops/gemm_gpu.h"

namespace vivace::ops {
namespace {

using Tiles = GemmTiles;

/// All that a token's sum depends on.
std::tuple<int, bool, bool> sum_of(const Tiles::Wgmma& p) { return {p.split, p.promote, p.aligned}; }

TEST(PartitionTiles, KeepTheBitsAndWinByTheModel) {
  std::mt19937 rng(11);
  const auto draw = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(rng); };
  int other = 0;
  for (int i = 0; i < 4000; ++i) {
    const int64_t T = draw(0, 1) != 0 ? draw(1, 64) : draw(65, 4096), N = 8 * draw(1, 2048),
                  k_bytes = 16 * draw(1, 2048);
    const int sm_count = 8 * draw(1, 16);
    const bool promote = draw(0, 1) != 0;
    const Tiles::Wgmma whole = Tiles::pick(T, N, k_bytes, promote),
                       part = Tiles::pick(T, N, k_bytes, promote, sm_count);
    const std::string at = strf("T %ld N %ld K %ld bytes, promote %d, %d of %d multiprocessors", static_cast<long>(T),
                                static_cast<long>(N), static_cast<long>(k_bytes), promote, sm_count, Tiles::kSmCount);
    EXPECT_EQ(sum_of(whole), sum_of(part)) << at;
    EXPECT_EQ(whole, Tiles::pick(T, N, k_bytes, promote, Tiles::kSmCount)) << at;
    if (T <= Tiles::kFewTokens) continue;
    EXPECT_TRUE(Tiles::serves(part, N)) << at;
    const Tiles::Layout l{whole.rows, whole.tokens, whole.multicast_x, whole.multicast_w};
    const Tiles::Wgmma moved = Tiles::many(l, T, N, k_bytes, promote, sm_count);  // the same tile in the partition
    if (!Tiles::serves(moved, N)) continue;
    EXPECT_LE(Tiles::cycles(part, T, N, k_bytes, sm_count), Tiles::cycles(moved, T, N, k_bytes, sm_count)) << at;
    other += part.rows != whole.rows || part.tokens != whole.tokens;
  }
  EXPECT_GT(other, 500);  // many do change, so that equal bits say something
}

TEST(PartitionTiles, ATargetsMultiprocessorsReachThePick) {
  kernels::GemmArgs a{};
  alignas(16) static const char kData[16] = {};
  a.x = a.w = kData;
  a.x_dtype = a.w_dtype = a.out_dtype = DType::bf16;
  a.T = 968, a.N = 2048, a.K = 2048, a.x_stride = a.w_stride = a.K, a.out_stride = a.N;
  const auto tile = [&](ChipPart where) {
    const Result<GemmGpu::Key> key = GemmGpu::pick(a, where);
    EXPECT_TRUE(key.ok()) << key.status().message();
    return key.ok() ? key->wgmma : Tiles::Wgmma{};
  };
  EXPECT_EQ(tile(Arch::sm90a), tile({Arch::sm90a, 0}));
  int other = 0;
  for (int sm_count = 8; sm_count < Tiles::kSmCount; sm_count += 8) {
    EXPECT_EQ(sum_of(tile({Arch::sm90a, sm_count})), sum_of(tile(Arch::sm90a))) << sm_count;
    other += !(tile({Arch::sm90a, sm_count}) == tile(Arch::sm90a));
  }
  EXPECT_GT(other, 0);
  EXPECT_EQ((Target{nullptr, 72}.sm_count()), 72);
}

}  // namespace
}  // namespace vivace::ops
