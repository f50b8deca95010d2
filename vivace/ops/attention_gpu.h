// How attention runs on a GPU: which kernel, with which tile config.
#pragma once
#include <algorithm>
#include <cstring>
#include <tuple>

#include "vivace/device/tensor_map.h"
#include "vivace/kernels/attention/attention.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

struct AttentionGpu {
  static constexpr const char* kHeader = "vivace/kernels/attention/attention.cuh";
  using Args = kernels::AttentionArgs;
  using Tile = kernels::AttentionTile;
  using Stream = kernels::AttentionStream;
  using Split = kernels::AttentionSplitKV;
  using SwapAB = kernels::AttentionSwapAB;
  using Plain = kernels::AttentionPlain;
  /// One a kernel; which is chosen when: kernels/attention/README.md.
  enum class Kind : uint8_t { plain, tile, prefill_wgmma, prefill_tma, prefill_tall, stream, split_kv, swap_ab };
  struct Key {
    Kind kind;
    DType q, kv;
    Plain plain = {};
    Tile tile = {};  // of tile, prefill_wgmma, prefill_tma and prefill_tall
    Stream stream = {};
    Split split = {};
    SwapAB swap_ab = {};
    int clusters = 1;      // of swap_ab: that share a KV head's keys
    bool terms = false;    // per-head scales, slopes or bits
    bool fp8_out = false;  // out is e4m3, else q's type
    bool operator==(const Key&) const = default;

    /// Another tile config, and the kernel that it is of.
    void set(const Tile& t) {
      tile = t;
      kind = t.tall()             ? Kind::prefill_tall
             : t.warp_specialized ? Kind::prefill_tma
             : t.wgmma            ? Kind::prefill_wgmma
                                  : Kind::tile;
    }
  };
  static Key key(DType q, DType kv, const Plain& p) { return {.kind = Kind::plain, .q = q, .kv = kv, .plain = p}; }
  static Key key(DType q, DType kv, const Tile& t) {
    Key k{.kind = Kind::tile, .q = q, .kv = kv};
    k.set(t);
    return k;
  }
  static Key key(DType q, DType kv, const Stream& s) { return {.kind = Kind::stream, .q = q, .kv = kv, .stream = s}; }
  static Key key(DType q, DType kv, const Split& s) { return {.kind = Kind::split_kv, .q = q, .kv = kv, .split = s}; }
  static Key key(DType q, const SwapAB& s) { return {.kind = Kind::swap_ab, .q = q, .kv = q, .swap_ab = s}; }
  /// Roles of a call. A row's bits depend on its role, never on its neighbours.
  enum class Role { decode, short_query, prefill };
  static constexpr int kMaxTileDim = 256;

  /// Decode: tokens with slots of their own, or few; one row of mma tiles and all streams along the keys.
  /// Short query: some tens of queries of one sequence, such as an action chunk.
  static Role role(const Args& a) {
    if (a.by_token() || a.T <= 16 || (a.slot != nullptr && a.S > 1 && a.T <= 64))
      return Role::decode;  // of one slot they are one sequence's
    return a.T <= 64 ? Role::short_query : Role::prefill;
  }
  /// Roles of calls whose rows lie at multiples of 16 bytes, then of all others, which some kernels cannot read.
  /// Positions that lie apart keep them from `stream`, which has no register for a pitch: other classes.
  static int row_class(const Args& a) { return static_cast<int>(role(a)) + (fine(a) ? 0 : 3) + (dense(a) ? 0 : 6); }
  /// Whether a block's positions lie side by side.
  static bool dense(const Args& a) {
    return a.k_pitch == int64_t{a.position_rows()} * a.D && a.v_pitch == int64_t{a.position_rows()} * a.Dv;
  }
  /// Blocks of threads that share a tile's keys: what a slot may hold, but no more than the tiles of all `slots` (slots
  /// * kv heads) leave room for. H200, us, in 8, in 1: 64 slots of 8 heads x 4096: 316, 260; x 1024: 140, 71.
  static constexpr int blocks(int64_t seqlen_k, int64_t slots, Arch arch) {
    if (!chip(arch).tma) return 1;
    int b = seqlen_k <= 128 ? 1 : seqlen_k <= 512 ? 4 : 8;
    while (b > 1 && slots * b > 512) b /= 2;
    return b;
  }
  /// The tile config for a role: fixed by head sizes, the cache's shape and chip.
  static constexpr Tile tile_config(Role role, int d, int dv, int64_t seqlen_k, bool wide, Arch arch,
                                    int64_t slots = 1) {
    const int largest = d > dv ? d : dv, blocks = AttentionGpu::blocks(seqlen_k, slots, arch);
    Tile t{d, dv, 1, 4, 16, 3, blocks, wide, false};
    if (role == Role::short_query) t = {d, dv, 4, 2, 32, 2, blocks, wide, false};
    if (role == Role::prefill) t = {d, dv, 4, 1, largest > 128 ? 32 : 64, 2, 1, wide, false};
    if (role == Role::prefill && chip(arch).wgmma && d == dv && (d == 64 || d == 128 || d == 256))
      return {d, dv, 8, 1, d > 128 ? 64 : 128, 2, 1, wide, true};
    while (t.smem() > chip(arch).smem_bytes()) {
      if (t.warps_n > 1) t.warps_n /= 2;
      else if (t.stages > 2) --t.stages;
      else t.warps_m /= 2;
    }
    return t;
  }
  static constexpr Plain plain(int largest, bool wide) {
    if (largest <= 64) return {256, 8, 8, wide};
    if (largest <= 128) return {256, 8, 16, wide};
    if (largest <= 256) return {256, 16, 16, wide};
    return {256, 32, 32, wide};
  }

  static bool aligned(const Args& a, int n) {
    return a.D % n == 0 && a.Dv % n == 0 && vectorizable(a.q, a.q_stride, a.dtype, n) &&
           vectorizable(a.k, a.k_stride, a.kv_dtype, n) && vectorizable(a.v, a.v_stride, a.kv_dtype, n) &&
           vectorizable(a.k, a.k_pitch, a.kv_dtype, n) && vectorizable(a.v, a.v_pitch, a.kv_dtype, n) &&
           vectorizable(a.out, a.out_stride, a.out_dtype(), 2);
  }
  /// Whether all rows lie at multiples of 16 bytes, of keys and values at least.
  static bool fine(const Args& a) {
    return aligned(a, 16 / info(a.kv_dtype).bytes) && vectorizable(a.out, a.out_stride, a.out_dtype(), 4);
  }
  /// Tile configs of `prefill_tma`, which a row's bits do not depend on but in `keys`: 128 rows a tile, or 64 where
  /// those are few enough to run at once. `page`: places of one, or 0. Heads of 256 over 8192 places, 2 x 16 causal, in
  /// blocks of 64 keys, of 80: 2002 us, 1832.
  static constexpr Tile prefill_tma(int d, int dv, bool small, int page) {
    const int largest = d > dv ? d : dv;
    const bool eighty = dv > 128 && (page == 0 || 80 % page == 0 || page % 80 == 0);  // a box is a page or a block
    return {d, dv, small ? 4 : 8, 1, eighty ? 80 : largest > 128 ? 64 : 128, largest > 64 ? 2 : 3, 1, true, true, true};
  }
  static Tile prefill_tma(const Args& a) {
    Tile t = prefill_tma(a.D, a.Dv, tiles(a, 64) <= kAtOnce, a.page_table != nullptr ? a.L : 0);
    t.one_span = one_span(a);
    return t;
  }
  /// Whether tokens that share a slot see the same places, whatever their positions: kernels then look at one of them
  /// and ask for keys earlier. H200, us: 1500 x 20 heads of 64 41.6 to 39.7, 3 x 256 x 16 of 72 10.2 to 9.3, 576 x 8 of
  /// 256 15.9 to 15.2.
  static bool one_span(const Args& a) { return a.mask == kernels::AttentionMask::full && a.window == 0; }
  static constexpr Tile prefill_tall() { return {64, 64, 16, 1, 128, 3, 1, true, true, true, true}; }
  /// Whether a call of prefill_tma goes to prefill_tall, with the same bits: where a turn of the chip's SMs on tiles of
  /// 256 rows, which takes as long as 1.8 on tiles of 128, saves enough turns. H200, us: 1500 x 20 heads, 1 turn for 2:
  /// 35.6, 39.7; 8 windows of it, 8 for 15: 292, 298. Slots of at least 1024 queries and places: shorter ones were not
  /// timed, and each run of a tile takes all warpgroups.
  static bool tall(const Args& a) {
    const auto turns = [&](int rows) { return (tiles(a, rows) + kAtOnce - 1) / kAtOnce; };
    return a.D == 64 && a.Dv == 64 && one_span(a) && a.page_table == nullptr && a.T / 1024 >= a.S && a.L >= 1024 &&
           15 * turns(256) <= 8 * turns(128);
  }
  static int64_t tiles(const Args& a, int rows) { return (int64_t{a.T} * a.group() + rows - 1) / rows * a.Hkv; }
  static constexpr int kAtOnce = kHopper.sm_count;  // thread blocks, one an SM
  /// Whether TMA can bring k and v: a row of boxes of 64 elements, a block of keys in whole pages or a page in whole
  /// blocks.
  static bool can_use_tma(const Args& a, int keys, Arch arch) {
    if (!chip(arch).wgmma || a.dtype == DType::f32 || !fine(a) || a.L < 1 || a.B < 1) return false;
    return a.page_table == nullptr || (a.L >= 8 && (keys % a.L == 0 || a.L % keys == 0));
  }
  /// Whether wgmma has the width of a row of values.
  static bool has_width(const Args& a) {
    const int wide = (a.Dv + 15) / 16 * 16;
    return a.kv_dtype == a.dtype && (wide == 64 || wide == 80 || wide == 128 || wide == 256);
  }
  static bool can_prefill_tma(const Args& a, Arch arch) {
    return has_width(a) && can_use_tma(a, prefill_tma(a).keys, arch);
  }
  /// Tile configs of streams, which a row's bits do not depend on. `rows`: of a kv head that see the same keys;
  /// `tiles`: of all.
  static constexpr Stream stream(int d, int dv, int kv_bytes, int rows, int64_t tiles, int64_t seqlen_k) {
    Stream s{d, dv, rows > 16 ? 2 : 1, 4, 1, 1, rows > 16 ? 1 : 2};
    while (s.split < 16 && tiles * s.split <= kAtOnce && seqlen_k > int64_t{s.kKeys} * s.split) s.split *= 2;
    const int height = rows < s.rows() ? rows : s.rows(), most = kHopper.smem_bytes(s.occupancy());
    while (s.stages < 8 && seqlen_k > int64_t{s.kKeys} * s.split * s.stages) {
      Stream more = s;
      ++more.stages;
      if (more.smem(kv_bytes, height) > most) break;
      s = more;
    }
    return s;
  }
  static Stream stream(const Args& a) {
    const int64_t rows = a.by_token() ? a.group() : int64_t{a.T} * a.group(), runs = a.by_token() ? a.T : 1;
    const int most = rows > 32 ? 32 : static_cast<int>(rows), height = most > 16 ? 32 : 16;
    return stream(a.D, a.Dv, info(a.kv_dtype).bytes, most, (rows + height - 1) / height * runs * a.Hkv,
                  a.slot_capacity());
  }
  /// Tile configs of `split_kv`: fixed by role, head sizes and the cache's shape. `slots`: times kv heads; `group`:
  /// query heads of one. H200, us: 1 x 1024, 8192, 32768 (8 slots) in 8 blocks 6.2, 15.4, 47.5 (cold 16.1, 47.5), in
  /// 16 7.0, 13.7, 53.3 (18.2, 53.3), in 8 of two teams 6.8, 14.0, 54.5; 16 x 4096 (128) in 1, 2: 71.4, 70.2, in pages
  /// of 16 79.7, 74.3; 64 x 4096 (512) in 1, 2: 263, 271; 64 x 1024: 71.9, 76.8. e4m3, blocks of 64 against 128 keys:
  /// 64 x 4096: 146, 139; 64 x 1024: 46.8, 45.3; 16 x 4096 in 2: 39.0; 1 x 32768 in 8, one team, two: 53.1, 37.0.
  /// Clusters of 4 and 8 two an SM lose: 8 x 1024 (64) in 1, 2, 4: 17.9, 14.6, 22.2, one row there: 17.0, 11.4, 9.1; 16
  /// x 1024 (128) in 1, 2: 23.5, 23.6. Short queries, 50 x 8 heads of 256 over 1000: keys 64, 128: 10.9, 10.5.
  static constexpr Split split(Role role, int d, int dv, int bytes, int group, int64_t seqlen_k, int64_t slots) {
    const bool short_query = role == Role::short_query;
    const int64_t tiles = slots * (short_query ? (64 * group + 31) / 32 : (group + 15) / 16);
    const int largest = d > dv ? d : dv;
    Split s{d, dv, bytes, short_query ? 2 : 1, 64, largest * bytes > 256 ? 2 : largest * bytes > 128 ? 3 : 6, 1, 1};
    while (s.split < 8 &&
           tiles * s.split * 2 <= (s.occupancy() == 2 && (short_query || s.split == 1) ? 2 : 1) * kAtOnce &&
           seqlen_k > int64_t{s.keys} * s.split)
      s.split *= 2;
    if (bytes == 1 && !short_query) {  // more arithmetic a byte
      if (s.split == 1) s.keys = 128;
      if (s.split == 8) s.teams = 2;
      else s.stages = 3;
    }
    if (short_query && largest > 128 && bytes == 2 && seqlen_k <= int64_t{128} * s.split)
      s.keys = 128, s.stages = 1;  // one block of keys each
    const int height = short_query || group > s.rows()
                           ? s.rows()
                           : group;  // of a step's tiles; those of several tokens may find one block an SM
    while (s.stages > 1 &&
           (s.smem(height) > kHopper.smem_bytes(s.occupancy()) || s.smem(s.rows()) > kHopper.smem_bytes()))
      --s.stages;
    s.teams = s.stages < s.teams ? 1 : s.teams;
    s.stages -= s.stages % s.teams;
    return s;
  }
  static Split split(const Args& a) {
    return split(role(a), a.D, a.Dv, info(a.kv_dtype).bytes, a.group(), a.slot_capacity(), int64_t{a.S} * a.Hkv);
  }
  /// Tile configs of `swap_ab`. `split` is fixed by role, head sizes and the cache's shape (`slots`: times kv heads;
  /// `group`: query heads of one); rows of a tile and stages follow from `together`, the rows of a kv head that see the
  /// same keys, and no bit changes.
  static constexpr SwapAB swap_ab(Role role, int d, int dv, int group, int64_t together, int64_t seqlen_k,
                                  int64_t slots) {
    const auto tile_config = [&](int64_t most) {
      SwapAB t{d, dv, most <= 8 ? 8 : most <= 16 ? 16 : 32, 2, 1};
      const int limit = kHopper.smem_bytes(t.rows <= 8 && t.panels(d > dv ? d : dv) <= 2 ? 2 : 1);
      while (t.stages < 6 &&
             (t.stages + 1) * t.stage_bytes() + t.smem() - t.queries_at() + t.sums_bytes() + 8 * t.rows * 8 + 64 <=
                 limit)
        ++t.stages;
      return t;
    };
    const SwapAB fixed = tile_config(role == Role::short_query ? 64 * group : group);
    const int64_t tiles = slots * (role == Role::short_query ? (64 * group + fixed.rows - 1) / fixed.rows : 1);
    int split = 1;
    while (split < 8 && tiles * split * 2 <= (split == 1 && fixed.occupancy() == 2 ? 2 : 1) * kAtOnce &&
           seqlen_k > int64_t{SwapAB::kKeys} * split)
      split *= 2;
    SwapAB t = tile_config(together < group ? group : together);
    t.split = split;
    return t;
  }
  static SwapAB swap_ab(const Args& a) {
    return swap_ab(role(a), a.D, a.Dv, a.group(), a.by_token() ? a.group() : int64_t{a.T} * a.group(),
                   a.slot_capacity(), int64_t{a.S} * a.Hkv);
  }
  /// Long caches of one sequence and few KV heads: a cluster lies in one GPC, which takes in 0.84 TB/s at most, so that
  /// two KV heads read 1.7. Whoever wants more clusters brings the words that they exchange. Up to turns() * split
  /// blocks of keys (4096) the first cluster has all of them and the bits of one. Heads of 64 do not reach a GPC's
  /// rate.
  static bool far(const Args& a) {
    return a.words() != nullptr && role(a) == Role::decode && a.window == 0 && a.k_offsets == nullptr &&
           wants_words(a.S, a.slot_capacity(), a.Hkv, a.D);
  }
  static constexpr bool wants_words(int64_t slots, int64_t places, int64_t kv_heads, int64_t d) {
    return slots == 1 && places > kFar && d > 64 && clusters(kv_heads) > 1;
  }
  static constexpr int64_t kFar = 8192;
  static constexpr int kMostClusters = 8;  // of all KV heads: as many as the chip has GPCs
  static constexpr int clusters(int64_t kv_heads) {
    int n = 1;
    while (kv_heads * n * 2 <= kMostClusters) n *= 2;
    return n;
  }
  /// Whether it serves the call. A row's kernel follows from the cache and the role.
  static bool can_swap_ab(const Args& a, Arch arch) {
    return role(a) != Role::prefill && !a.has_terms() && a.softcap == 0 && a.kv_dtype == a.dtype &&
           a.D <= kMaxTileDim && a.Dv <= kMaxTileDim && a.group() <= 32 && can_use_tma(a, SwapAB::kBox, arch);
  }
  /// Whether it serves the call. A row's kernel follows from the cache and the role.
  static bool can_split_kv(const Args& a, Arch arch) {
    if (role(a) == Role::prefill || a.has_terms() || a.softcap > 0 || !can_use_tma(a, split(a).keys, arch))
      return false;
    return a.kv_dtype == a.dtype || (a.kv_dtype == DType::e4m3 && a.D % 64 == 0);
  }
  /// Whether a stream serves the call that `split_kv` does not: pages too small for TMA. H200, us, stream against the
  /// best tile: pages of 16, 16 x 4096: 79.6, 245; e4m3 64 x 4096: 211, 1224. A row's kernel follows from the cache,
  /// not from T.
  static bool can_stream(const Args& a, Arch arch) {
    if (!chip(arch).wgmma || a.has_terms() || a.softcap > 0 || !fine(a) || !dense(a)) return false;
    return a.kv_dtype == DType::e4m3 ? a.D % 64 == 0 : a.page_table != nullptr;
  }
  static Result<Key> pick(const Args& a, Arch arch) {
    Result<Key> found = general(a, arch);
    if (!found.ok() || found->kind == Kind::plain) return found;
    Key special{.kind = found->kind, .q = a.dtype, .kv = a.kv_dtype, .terms = found->terms, .fp8_out = found->fp8_out};
    if (can_swap_ab(a, arch)) {
      special.kind = Kind::swap_ab, special.swap_ab = swap_ab(a);
      if (far(a) && special.swap_ab.split == 8) special.clusters = clusters(a.Hkv);
      return special;
    }
    if (can_split_kv(a, arch)) {
      special.kind = Kind::split_kv, special.split = split(a);
      return special;
    }
    if (role(a) != Role::prefill && can_stream(a, arch)) {
      special.kind = Kind::stream, special.stream = stream(a);
      return special;
    }
    if (role(a) != Role::prefill || found->terms || a.softcap > 0 || !(a.scale > 0) || !can_prefill_tma(a, arch))
      return found;
    found->set(tall(a) ? prefill_tall() : prefill_tma(a));
    return found;
  }
  /// What also serves variants of users: every hook, every layout.
  static Result<Key> general(const Args& a, Arch arch) {
    const int largest = a.D > a.Dv ? a.D : a.Dv;
    if (int64_t{a.T} * a.Hq > INT32_MAX / 2)
      return Status(Code::kUnsupported,
                    strf("T * Hq = %ld queries are above 2^30; cut the call", static_cast<long>(int64_t{a.T} * a.Hq)));
    const bool tensor_cores =
        a.dtype != DType::f32 && (a.kv_dtype == a.dtype || a.kv_dtype == DType::e4m3) && largest <= kMaxTileDim;
    Key k = tensor_cores
                ? key(a.dtype, a.kv_dtype,
                      tile_config(role(a), a.D, a.Dv, a.slot_capacity(), aligned(a, 8), arch, int64_t{a.S} * a.Hkv))
                : key(a.dtype, a.kv_dtype, plain(largest, aligned(a, 4)));
    k.terms = a.has_terms();
    k.fp8_out = a.out_scale != nullptr;
    return k;
  }
  static std::string instance(const Key& k) {
    return instance(k, k.terms ? "vivace::kernels::Terms" : "vivace::kernels::Standard");
  }
  /// The same kernel for a variant, the C++ name of a struct (kernels/attention/variant.cuh).
  static std::string instance(const Key& k, const std::string& variant) {
    const char* const out = k.fp8_out ? ", vivace::kernels::e4m3" : "";
    const Tile& t = k.tile;
    switch (k.kind) {
      case Kind::plain:
        return kernel_expression("attention_plain<%s, %s, vivace::kernels::AttentionPlain{%d, %d, %d, %s}, %s%s>",
                                 type_name(k.q), type_name(k.kv), k.plain.threads, k.plain.lanes, k.plain.items,
                                 k.plain.wide ? "true" : "false", variant.c_str(), out);
      case Kind::stream:
        return kernel_expression(
            "attention_stream<%s, %s, vivace::kernels::AttentionStream{%d, %d, %d, %d, %d, %d, %d}%s>", type_name(k.q),
            type_name(k.kv), k.stream.d, k.stream.dv, k.stream.warps_m, k.stream.warps_d, k.stream.stages,
            k.stream.split, k.stream.slots, out);
      case Kind::split_kv:
        return kernel_expression(
            "attention_split_kv<%s, %s, vivace::kernels::AttentionSplitKV{%d, %d, %d, %d, %d, %d, %d, %d}%s>",
            type_name(k.q), type_name(k.kv), k.split.d, k.split.dv, k.split.bytes, k.split.warps_m, k.split.keys,
            k.split.stages, k.split.split, k.split.teams, out);
      case Kind::swap_ab: {
        const std::string several = strf(", %s, %d", type_name(k.fp8_out ? DType::e4m3 : k.q), k.clusters);
        return kernel_expression("attention_swap_ab<%s, vivace::kernels::AttentionSwapAB{%d, %d, %d, %d, %d}%s>",
                                 type_name(k.q), k.swap_ab.d, k.swap_ab.dv, k.swap_ab.rows, k.swap_ab.stages,
                                 k.swap_ab.split, k.clusters > 1 ? several.c_str() : out);
      }
      case Kind::prefill_tma:
        return kernel_expression(
            "attention_prefill_tma<%s, vivace::kernels::AttentionTile{%d, %d, %d, %d, %d, %d, %d, true, true, true%s}, "
            "%s%s>",
            type_name(k.q), t.d, t.dv, t.warps_m, t.warps_n, t.keys, t.stages, t.split, t.one_span ? ", true" : "",
            variant.c_str(), out);
      case Kind::prefill_tall:
        return kernel_expression(
            "attention_prefill_tall<%s, vivace::kernels::AttentionTile{%d, %d, %d, %d, %d, %d, %d, true, true, true, "
            "true}%s>",
            type_name(k.q), t.d, t.dv, t.warps_m, t.warps_n, t.keys, t.stages, t.split, out);
      case Kind::prefill_wgmma:
      case Kind::tile:
        break;
    }
    return kernel_expression("%s<%s, %s, vivace::kernels::AttentionTile{%d, %d, %d, %d, %d, %d, %d, %s, %s}, %s%s>",
                             t.wgmma ? "attention_prefill_wgmma" : "attention_tile", type_name(k.q), type_name(k.kv),
                             t.d, t.dv, t.warps_m, t.warps_n, t.keys, t.stages, t.split, t.wide ? "true" : "false",
                             t.wgmma ? "true" : "false", variant.c_str(), out);
  }
  static void shape(const Args& a, const Key& k, exec::Launch* launch) {
    if (k.kind == Kind::plain) {
      launch->grid[0] = static_cast<uint32_t>(a.T * a.Hq);
      launch->block[0] = static_cast<uint32_t>(k.plain.threads);
      const int streams = k.plain.threads / k.plain.lanes;
      launch->smem_bytes = static_cast<uint32_t>(streams * (k.plain.lanes * k.plain.items + 2) * 4);
      return;
    }
    if (k.kind == Kind::stream) {
      const int height = k.stream.height(a);
      launch->grid[0] =
          static_cast<uint32_t>((int64_t{a.T} * a.group() + height - 1) / height * a.Hkv * k.stream.split);
      launch->block[0] = static_cast<uint32_t>(k.stream.threads());
      launch->cluster = static_cast<uint32_t>(k.stream.split);
      launch->smem_bytes = static_cast<uint32_t>(k.stream.smem(info(a.kv_dtype).bytes, height));
      return;
    }
    if (k.kind == Kind::split_kv) {
      const int height = k.split.height(a);
      launch->grid[0] = static_cast<uint32_t>((int64_t{a.T} * a.group() + height - 1) / height * a.Hkv * k.split.split);
      launch->block[0] = static_cast<uint32_t>(k.split.threads());
      launch->cluster = static_cast<uint32_t>(k.split.split);
      launch->smem_bytes = static_cast<uint32_t>(k.split.smem(height));
      return;
    }
    if (k.kind == Kind::swap_ab) {
      const int height = k.swap_ab.height(a);
      launch->grid[0] =
          static_cast<uint32_t>((int64_t{a.T} * a.group() + height - 1) / height * a.Hkv * k.clusters *
                                k.swap_ab.split);
      launch->block[0] = static_cast<uint32_t>(k.swap_ab.threads());
      launch->cluster = static_cast<uint32_t>(k.swap_ab.split);
      launch->smem_bytes = static_cast<uint32_t>(k.swap_ab.smem());
      return;
    }
    const int group = a.group(), height = a.by_token() && group < k.tile.rows() ? group : k.tile.rows();
    const int64_t tiles = (int64_t{a.T} * group + height - 1) / height;
    launch->grid[0] = static_cast<uint32_t>(tiles * a.Hkv * k.tile.split);
    launch->block[0] = static_cast<uint32_t>(k.tile.threads());
    launch->cluster = static_cast<uint32_t>(k.tile.split);
    launch->smem_bytes = static_cast<uint32_t>(k.tile.smem());
  }
  /// A box of a map of four dimensions: `rows` of the second by 64 elements of the first.
  static Status encode_map(const void* data, const int64_t (&dim)[4], const int64_t (&pitch)[3], int rows,
                           kernels::TensorMap* to) {
    return device::encode_map(device::BoxShape{.data = data,
                                               .axes = 4,
                                               .dim = {dim[0], dim[1], dim[2], dim[3], 1},
                                               .pitch = {pitch[0], pitch[1], pitch[2], 0},
                                               .box_rows = rows},
                              to);
  }
  /// Arguments of kernels whose keys and values TMA brings.
  static Status map_cache(const Args& a, const Key& k, kernels::AttentionTmaArgs* f) {
    const int keys = k.kind == Kind::split_kv ? k.split.keys : k.kind == Kind::swap_ab ? k.swap_ab.kBox : k.tile.keys;
    const auto cache = [&](const void* data, int dim, int64_t pitch, int64_t stride, kernels::TensorMap* to) {
      const int64_t e = info(a.kv_dtype).bytes, head = a.head_rows() * e * dim,
                    block = a.heads_first ? head * a.Hkv : pitch * e * a.L;
      return encode_map(data, {dim * e / 2, a.L, a.Hkv, a.B}, {pitch * e, head, a.B > 1 ? stride * e : block},
                        a.page_table != nullptr ? std::min(a.L, keys) : keys, to);
    };
    std::memcpy(f->args, &a, sizeof(a));
    VV_TRY(cache(a.k, a.D, a.k_pitch, a.k_stride, &f->k));
    return cache(a.v, a.Dv, a.v_pitch, a.v_stride, &f->v);
  }
  /// prefill_tma, prefill_tall, swap_ab and split_kv: tensor maps; prefill_tma: persistent blocks where the tiles are
  /// more than the chip holds at once.
  static Status complete(const Args& a, const Key& k, const Target& target, exec::Launch* launch) {
    if (k.kind != Kind::prefill_tma && k.kind != Kind::prefill_tall && k.kind != Kind::split_kv &&
        k.kind != Kind::swap_ab)
      return {};
    kernels::AttentionTmaArgs f{};
    VV_TRY(map_cache(a, k, &f));
    if (k.kind == Kind::swap_ab) {
      kernels::AttentionSwapABArgs c{f, {}};
      const auto [box, joined] = c.queries(a, k.swap_ab.rows);
      if (box > 0)
        VV_TRY(encode_map(a.q, {a.D, joined ? int64_t{a.T} * a.Hq : a.group(), a.Hkv, joined ? 1 : a.T},
                          {int64_t{a.D} * 2, int64_t{a.group()} * a.D * 2, a.q_stride * 2}, box, &c.q));
      launch->set_args(c);
      return {};
    }
    launch->set_args(f);
    if (k.kind == Kind::prefill_tma)
      launch->grid[0] = std::min(launch->grid[0], static_cast<uint32_t>(target.sm_count()));
    return {};
  }
  /// Head sizes that models have; others compile when they come.
  template <class Visit>
  static void instances(Arch arch, Visit&& visit) {
    const bool split_serves = chip(arch).wgmma;  // there tiles decode with a soft cap only
    for (const Role r : {Role::decode, Role::short_query, Role::prefill})
      for (const int d : {64, 72, 128, 256})
        if (d == 128 || r == Role::prefill || !split_serves)
          visit(key(DType::bf16, DType::bf16, tile_config(r, d, d, 4096, true, arch)));
    for (const int64_t slots : {128, 256, 512})
      if (chip(arch).tma && !chip(arch).wgmma)
        visit(key(DType::bf16, DType::bf16, tile_config(Role::decode, 128, 128, 4096, true, arch, slots)));
    for (const Role r : {Role::decode, Role::prefill}) {
      visit(key(DType::f16, DType::f16, tile_config(r, 128, 128, 4096, true, arch)));
      visit(key(DType::bf16, DType::e4m3, tile_config(r, 128, 128, 4096, true, arch)));
      visit(key(DType::bf16, DType::bf16, tile_config(r, 64, 64, 128, false, arch)));
    }
    for (const int d : {64, 128, 256, 1024})
      for (const bool wide : {true, false}) visit(key(DType::f32, DType::bf16, plain(d, wide)));
    visit(key(DType::f32, DType::f32, plain(64, true)));
    for (const Role r : {Role::decode, Role::short_query, Role::prefill}) {
      Key k = key(DType::bf16, DType::bf16, tile_config(r, 128, 128, 4096, true, arch));
      k.terms = true;
      visit(k);
    }
    const auto with_fp8_out = [&](Key k) {
      k.fp8_out = true;
      visit(k);
    };
    with_fp8_out(key(DType::f32, DType::f32, plain(64, true)));
    for (const Role r : {Role::decode, Role::prefill})
      with_fp8_out(key(DType::bf16, DType::bf16, tile_config(r, 128, 128, 4096, true, arch)));
    if (!chip(arch).wgmma) return;
    const auto swap_ab_key = [&](DType q, Role r, int d, int group, int64_t together, int64_t slots,
                                 bool fp8_out = false) {
      Key k = key(q, swap_ab(r, d, d, group, together, 4096, slots));
      k.fp8_out = fp8_out;
      visit(k);
    };
    for (const int d : {64, 72, 128, 256})
      for (const Role r : {Role::decode, Role::short_query})
        swap_ab_key(DType::bf16, r, d, 4, r == Role::decode ? 4 : 200, 8);
    swap_ab_key(DType::bf16, Role::short_query, 256, 8, 400, 1);
    for (const int64_t slots : {32, 64, 128, 512}) swap_ab_key(DType::bf16, Role::decode, 128, 4, 4, slots);
    swap_ab_key(DType::f16, Role::decode, 128, 4, 4, 8);
    for (const int64_t slots : {8, 512}) swap_ab_key(DType::bf16, Role::decode, 128, 4, 4, slots, true);
    for (const auto& [d, group, kv_heads] : {std::tuple{256, 8, 2}, {256, 6, 4}, {128, 8, 1}, {128, 16, 2}}) {
      Key k = key(DType::bf16, swap_ab(Role::decode, d, d, group, group, 4096, kv_heads));
      k.clusters = clusters(kv_heads);
      visit(k);
    }
    const auto split_kv_key = [](int64_t slots) {
      return key(DType::bf16, DType::e4m3, split(Role::decode, 128, 128, info(DType::e4m3).bytes, 4, 4096, slots));
    };
    for (const int64_t slots : {8, 512}) visit(split_kv_key(slots));
    for (const int64_t tiles : {8, 128}) visit(key(DType::bf16, DType::bf16, stream(128, 128, 2, 4, tiles, 4096)));
    for (const int64_t tiles : {8, 128}) visit(key(DType::bf16, DType::e4m3, stream(128, 128, 1, 4, tiles, 4096)));
    for (const bool one_span : {false, true})
      for (const bool small : {false, true})
        for (const int d : {64, 72, 128, 256}) {
          Tile t = prefill_tma(d, d, small, 0);
          t.one_span = one_span;
          visit(key(DType::bf16, DType::bf16, t));
        }
    for (const DType q : {DType::bf16, DType::f16}) visit(key(q, q, prefill_tall()));
    with_fp8_out(key(DType::bf16, DType::bf16, prefill_tall()));
    visit(key(DType::bf16, DType::bf16, prefill_tma(256, 256, false, 64)));
    visit(key(DType::f16, DType::f16, prefill_tma(128, 128, false, 0)));
    with_fp8_out(key(DType::bf16, DType::bf16, prefill_tma(128, 128, false, 0)));
    with_fp8_out(split_kv_key(8));
    with_fp8_out(key(DType::bf16, DType::bf16, stream(128, 128, 2, 4, 8, 4096)));
  }
};
// kernels/ does not know the table of chips: its idea of half an SM is the table's.
static_assert(AttentionGpu::swap_ab(AttentionGpu::Role::decode, 128, 128, 8, 8, 4096, 64).occupancy() == 2);

}  // namespace vivace::ops
