// Which tile of gemm_wgmma serves a product, and how K is split.
#pragma once
#include <algorithm>
#include <vector>

#include "vivace/base/arch.h"
#include "vivace/kernels/gemm/gemm.h"

namespace vivace::ops {

/// Tactics of gemm_wgmma. The cut of K comes from the weight's shape and the class alone (up to kFewTokens
/// tokens, or more); tile and sharing may follow T and a table, because they do not change a token's sum.
struct GemmTiles {
  using Wgmma = kernels::GemmWgmma;
  static constexpr int kFewTokens = 64;
  static constexpr int kSmCount = kHopper.sm_count;  // which the constants here were measured on
  /// Of so many, where clusters of four find room on every chip (30 at most, of four).
  static constexpr int in_fours(int sm_count) { return sm_count * 112 / kSmCount; }
  static constexpr int kSmem = kHopper.smem_bytes();
  static constexpr int kHalfSmem = kHopper.smem_bytes(2);

  /// How the work of a tile is laid out: what a table's row chooses.
  struct Layout {
    int32_t rows, tokens, multicast_x, multicast_w;
  };
  // Deep rings where one block an SM has the chip's bandwidth to itself, short ones where two share it
  // or the next product's block starts beside this one's. H200: 24576 x 4096, T = 1: 48.2 us (4.18 TB/s).
  static constexpr Layout kFew[] = {{64, 8, 1, 1},   {64, 16, 1, 1}, {64, 32, 1, 1},
                                    {128, 32, 1, 1}, {64, 64, 1, 1}, {128, 64, 1, 1}};
  static constexpr Layout kMany[] = {
      {64, 64, 1, 1},   {64, 64, 1, 2},   {64, 64, 2, 1},   {64, 64, 2, 2},   {64, 96, 2, 1},   {64, 96, 2, 2},
      {64, 128, 1, 1},  {64, 128, 2, 1},  {64, 128, 2, 2},  {64, 128, 4, 1},  {64, 144, 2, 1},  {64, 144, 4, 1},
      {64, 192, 2, 1},  {64, 192, 4, 1},  {64, 256, 2, 1},  {64, 256, 4, 1},  {128, 64, 1, 1},  {128, 64, 2, 1},
      {128, 64, 1, 2},  {128, 64, 2, 2},  {128, 64, 1, 4},  {128, 64, 4, 1},  {128, 96, 1, 1},  {128, 96, 2, 1},
      {128, 96, 1, 2},  {128, 96, 2, 2},  {128, 128, 1, 1}, {128, 128, 2, 1}, {128, 128, 1, 2}, {128, 128, 2, 2},
      {128, 128, 1, 4}, {128, 128, 4, 1}, {128, 144, 2, 1}, {128, 144, 1, 2}, {128, 144, 2, 2}, {128, 160, 2, 1},
      {128, 160, 1, 2}, {128, 176, 2, 1}, {128, 176, 2, 2}, {128, 192, 2, 1}, {128, 192, 1, 2}, {128, 192, 2, 2},
      {128, 208, 2, 1}, {128, 256, 2, 1}, {128, 256, 1, 2}, {192, 64, 1, 2},  {192, 96, 1, 2},  {192, 128, 2, 1},
      {192, 128, 1, 2}, {192, 128, 1, 4}, {192, 144, 1, 2}, {192, 192, 2, 1}, {192, 192, 1, 2}};
  static constexpr int kMaxPromoted = 192;  // tokens: a stage's sums need registers of their own

  static constexpr int blocks_at_once(const Wgmma& p) { return std::max(1, (kSmem + 1024) / (p.smem_bytes() + 1024)); }
  /// Blocks that a chip holds. Clusters of 4 and 8 find room on 10 of 11 SMs: the others are alone in their groups.
  static constexpr int occupancy(const Wgmma& p, int sm_count) {
    const int all = blocks_at_once(p) * sm_count;
    return std::max(1, (p.cluster() > 2 ? all * 10 / 11 : all) / p.cluster()) * p.cluster();
  }
  /// The ring that fits `smem` bytes.
  static constexpr Wgmma with_stages(Wgmma p, int smem) {
    p.stages = 1;
    p.stages = std::min((smem - p.smem_bytes()) / (p.stage_bytes() + 16) + 1, 12);
    return p;
  }

  /// The ring of a tile whose epilogue is known, in the same share of an SM. Where `p` has a place for outputs beside
  /// the ring, it is for all of them if the ring stays as long or has six stages.
  static constexpr Wgmma fill(Wgmma p) {
    const bool posts = p.staged > 0 && p.epilogue != kernels::kEpilogueAny && !p.direct();
    p.staged = 0;
    const int smem = p.smem_bytes() <= kHalfSmem ? kHalfSmem : kSmem;
    if (!posts) return with_stages(p, smem);
    Wgmma half = p;
    p.staged = p.tokens, half.staged = p.second();
    p = with_stages(p, smem), half = with_stages(half, smem);
    return p.stages >= std::min(half.stages, 6) ? p : half;
  }

  /// Blocks that cut K in the class of few tokens: as many as find room, two steps each at least.
  static constexpr int few_split(int64_t N, int64_t k_bytes) {
    int s = 1;
    while (s < 8 && (N + 63) / 64 * s * 2 <= 192 && k_bytes >= int64_t{s} * 2 * 2 * 128) s *= 2;
    return s;
  }
  /// A block adds two parts itself where a block a part would be more than the chip holds at once (clusters of 4 find
  /// room on 120 SMs: 2048 x 2048, T = 50 4.5 us for 6.3), instead of a cluster of 8 where sums are many (1024 x 2048,
  /// T = 50: 3.9 us for 4.4; one token has so little to do that 8 are better), and where K is so short that a cluster
  /// of 4 is most of the time (2560 x 1024 in e4m3, T = 1: 1.77 us for 1.94).
  static constexpr Wgmma few(const Layout& l, int64_t N, int64_t k_bytes, bool promote, int sm_count = kSmCount) {
    const int split = few_split(N, k_bytes);
    const int64_t blocks = (N + 63) / 64 * split;
    const bool two = l.tokens >= 32 ? split == 8 || blocks > (split == 4 ? in_fours(sm_count) : sm_count) ||
                                          (promote && k_bytes <= 4096)
                                    : split == 4 && k_bytes <= 2048;
    const int splits_per_block = split > 1 && two ? 2 : 1;
    const bool deep =
        l.tokens >= 32 || (l.tokens == 16 && k_bytes >= 4096 && split <= 2 && (split == 1 || blocks <= sm_count));
    return with_stages({l.rows, l.tokens, 0, split, l.multicast_x, l.multicast_w, promote, true, splits_per_block, 0},
                       deep ? kSmem : kHalfSmem);
  }
  /// Parts of K above 64 tokens: two where rows are long and so few that 256 tokens leave the chip half empty, which
  /// these gain by (1024 x 4096: 7.8 us for 8.8) and which costs 4096 tokens their widest tile (52.6 us for 46.2).
  static constexpr int many_split(int64_t N, int64_t k_bytes) { return N <= 1152 && k_bytes >= 8192 ? 2 : 1; }
  static constexpr Wgmma many(const Layout& l, int64_t T, int64_t N, int64_t k_bytes, bool promote,
                              int sm_count = kSmCount) {
    const int split = many_split(N, k_bytes);
    const int64_t tiles = (T + l.tokens - 1) / l.tokens * ((N + l.rows - 1) / l.rows);
    const int splits_per_block =
        tiles * split > sm_count + sm_count / 4 || split * l.multicast_x * l.multicast_w > 4 ? split : 1;
    // Two short rings an SM only where tiles are more than SMs (1024 x 2048, 256 tokens, 64 x 64: 4.9 us with 12
    // stages, 6.3 with 7).
    const bool half = l.rows == 64 && l.tokens <= 96 && tiles * split / splits_per_block > sm_count;
    Wgmma p =
        with_stages({l.rows, l.tokens, 0, split, l.multicast_x, l.multicast_w, promote, true, splits_per_block, 0},
                    half ? kHalfSmem : kSmem);
    // Outputs leave beside the products of tiles that follow: two, or one where sums leave the tensor core at every
    // step (H200: a block's only tile is stored up to 3 % sooner by its own threads; of many tiles, those of K = 1024
    // gain 7 to 10 %).
    const auto up = [](int64_t all, int64_t each, int64_t share) {
      return (all + each * share - 1) / (each * share) * share;
    };
    if (!p.direct() &&
        up(T, l.tokens, l.multicast_w) * up(N, l.rows, l.multicast_x) > (promote ? 1 : 2) * occupancy(p, sm_count))
      p.staged = p.second();
    return p;
  }

  static constexpr Wgmma pick_few(int64_t T, int64_t N, int64_t k_bytes, bool promote, int sm_count = kSmCount) {
    for (const Layout& l : kFew)
      if (l.tokens >= T && l.rows == 64) return few(l, N, k_bytes, promote, sm_count);
    return few(kFew[4], N, k_bytes, promote, sm_count);
  }
  /// Cycles of one block after the other: a step of K, then a tile's epilogue. Constants: the least loss over 80
  /// products of 256 to 968 tokens, where what this picks takes 1.03 x what the best layout takes.
  static constexpr int64_t cycles(const Wgmma& p, int64_t T, int64_t N, int64_t k_bytes, int sm_count = kSmCount) {
    const auto tiles = [](int64_t all, int64_t each, int64_t share) {
      return (all + each * share - 1) / (each * share) * share;
    };
    const int64_t along_t = tiles(T, p.tokens, p.multicast_w),
                  blocks = along_t * tiles(N, p.rows, p.multicast_x) * p.parts(),
                  steps = ((k_bytes + 127) / 128 + p.parts() - 1) / p.parts();
    const int64_t at_once = occupancy(p, sm_count), waves = (blocks + at_once - 1) / at_once;
    const int64_t busy =
        std::min<int64_t>(blocks_at_once(p), (blocks + sm_count - 1) / sm_count);  // blocks that share an SM
    // 64 bytes a cycle into an SM, 36 from L2; a step's way from there takes 2,500, in which the ring's others come
    // too.
    const int64_t products = p.groups() * p.tokens * 2, in = 2 * (p.rows + p.tokens),
                  bytes = 128 * (p.rows / p.multicast_w + p.tokens / p.multicast_x) / 36;
    const int64_t shared = 10 * (p.multicast_x * p.multicast_w - 1) + (p.tokens <= 64 ? 20 : 0);
    const int64_t step =
        std::max<int64_t>({std::max({products, in, bytes}) * busy, 300, 2500 / std::max(p.stages - 1, 1)}) + shared;
    const int64_t all = waves * (steps * step + 1200 + 3 * p.tokens + (p.parts() > 1 ? 1500 + 8 * p.tokens : 0));
    return (along_t - 1) * p.tokens >= T ? all * 3 / 2
                                         : all;  // a tile of no token beside others: seen to take that much longer
  }
  /// Registers, shared memory and the weight's rows allow it: sums of a stage, and of a second part, need places of
  /// their own.
  static constexpr bool serves(const Wgmma& p, int64_t N) {
    const int sums = 1 + p.promote + (p.splits_per_block > 1);
    if (p.rows == 192 && (p.split > 1 || sums * p.tokens > 256))
      return false;  // three warpgroups have 152 registers a thread
    return p.cluster() <= 8 && p.stages >= 3 && N > int64_t{p.rows} * (p.multicast_x - 1) &&
           sums * p.tokens <= (sums == 1 ? 256 : 2 * kMaxPromoted) &&
           (p.parts() == 1 ||
            p.rows * p.tokens * 4 + p.tokens * p.transpose_stride() * 4 <= p.stages * p.stage_bytes());
  }
  static constexpr Wgmma pick_many(int64_t T, int64_t N, int64_t k_bytes, bool promote, int sm_count = kSmCount) {
    Wgmma best = many(kMany[0], T, N, k_bytes, promote, sm_count);
    int64_t least = INT64_MAX;
    for (const Layout& l : kMany) {
      const Wgmma p = many(l, T, N, k_bytes, promote, sm_count);
      if (!serves(p, N)) continue;
      if (const int64_t c = cycles(p, T, N, k_bytes, sm_count);
          c < least || (c == least && p.cluster() > best.cluster()))
        best = p, least = c;
    }
    return best;
  }
  /// A row's layout with the class's cut of K.
  static constexpr Wgmma laid(const Layout& l, int64_t T, int64_t N, int64_t k_bytes, bool promote) {
    return T <= kFewTokens ? few(l, N, k_bytes, promote) : many(l, T, N, k_bytes, promote);
  }
  /// `sm_count`: of the partition that it runs in, or kSmCount. Bits are the same for any.
  static constexpr Wgmma pick(int64_t T, int64_t N, int64_t k_bytes, bool promote, int sm_count = kSmCount) {
    return T <= kFewTokens ? pick_few(T, N, k_bytes, promote, sm_count) : pick_many(T, N, k_bytes, promote, sm_count);
  }
  /// Rows that TMA cannot take: a tile for each class, with its cut of K.
  static constexpr Wgmma odd(int64_t T, int64_t N, int64_t k_bytes, bool promote) {
    return with_stages(
        {64, 64, 0, T <= kFewTokens ? few_split(N, k_bytes) : many_split(N, k_bytes), 1, 1, promote, false, 1, 0},
        kHalfSmem);
  }

  /// The tile of the same bits that serves any product and epilogue.
  static constexpr Wgmma general(const Wgmma& p) {
    return with_stages({64, 64, 0, p.split, 1, 1, p.promote, p.aligned, 1, 0, 0, 0, 0, p.by_column}, kHalfSmem);
  }

  /// The tactics that these give for products of all sizes, each once: what gates and packs compile beside the
  /// table's.
  template <class Visit>
  static void each(bool promote, Visit&& visit) {
    std::vector<Wgmma> seen;
    const auto once = [&](const Wgmma& p) {
      if (std::find(seen.begin(), seen.end(), p) != seen.end()) return;
      seen.push_back(p);
      visit(p);
    };
    for (const int64_t N : {64, 520, 1024, 2056, 4096, 8192, 16384, 32768})
      for (const int64_t k_bytes : {128, 1024, 4096, 16384}) {
        for (const int64_t T : {8, 16, 32, 64, 128, 256, 520, 1100}) once(pick(T, N, k_bytes, promote));
        for (const int64_t T : {64, 256}) once(odd(T, N, k_bytes, promote));
      }
  }
};

}  // namespace vivace::ops
