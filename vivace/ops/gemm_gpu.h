// How gemm runs on a GPU: which kernel, which tile, how K is split.
#pragma once
#include "vivace/device/tensor_map.h"
#include "vivace/kernels/gemm/gemm.h"
#include "vivace/kernels/gemm/mixed_input.h"
#include "vivace/ops/gemm_weight_only_gpu.h"
#include "vivace/ops/gemm_epilogue.h"
#include "vivace/ops/gemm_table.h"
#include "vivace/ops/gemm_tiles.h"

namespace vivace::ops {

struct GemmGpu {
  static constexpr const char* kHeader = "vivace/kernels/gemm/gemm.cuh";
  using Args = kernels::GemmArgs;
  using Stream = kernels::GemmStream;
  using Tile = kernels::GemmTile;
  using WeightOnly = GemmWeightOnlyGpu;
  using Wgmma = kernels::GemmWgmma;
  using MixedInput = kernels::GemmMixedInput;
  enum class Kind : uint8_t { simple, stream, tile, weight_only, wgmma, mixed_input };
  struct Key {
    Kind kind;
    DType x, w, out;
    Stream stream;
    Tile tile;
    WeightOnly::Key weight_only;
    Wgmma wgmma = {};
    MixedInput mixed_input = {};
    bool by_column = false;  // of simple
    bool operator==(const Key&) const = default;
  };

  static constexpr int kStreamTokens = 64;  // one invariance class: up to here a token's bits do not depend on T

  // warps n, k; row tiles; token tiles; stages; cluster (set by split()); shared x; aligned. The first row that
  // holds T and the chip's shared memory serves; all rows of a table agree in warps_k.
  static constexpr Stream kStreams[] = {
      {4, 2, 1, 1, 4, 1, false, true}, {4, 2, 1, 1, 2, 1, false, true}, {4, 2, 1, 2, 4, 1, false, true},
      {4, 2, 1, 2, 2, 1, false, true}, {4, 2, 1, 4, 4, 1, true, true},  {4, 2, 1, 4, 2, 1, true, true},
      {2, 2, 2, 8, 3, 1, true, true},  {2, 2, 1, 8, 2, 1, true, true},
  };
  static constexpr Stream kWideStream = {4, 2, 2, 8, 3, 1, true, true};  // of many rows: x is read half as often
  static constexpr Tile kTiles[] = {{128, 128, 2, 4, 3, true}, {64, 64, 2, 2, 3, true}, {64, 64, 2, 2, 3, false}};


  /// Blocks that share a tile's K, from the weight's shape alone: enough to fill the chip, two steps a part at least.
  static constexpr int split(int64_t N, int64_t k_bytes, Arch arch) {
    if (!chip(arch).tma) return 1;
    int s = 1;
    while (s < 8 && (N + 63) / 64 * s < 256 && k_bytes >= int64_t{s} * 2 * 2 * 2 * 128) s *= 2;
    return s;
  }

  static bool is_weight_only(const Args& a) { return a.x_dtype != a.w_dtype || a.w_block_scale != nullptr; }
  static bool weights_by_tma(const Args& a, Arch arch) {
    return is_weight_only(a) && a.T <= WeightOnly::kFewTokens &&
           WeightOnly::has_tma(a.w, row_bytes(a.w_dtype, a.w_stride), a.K, a.w_dtype, arch);
  }

  /// Whether W is dequantized to bf16 on its way to the tensor core: bf16 tokens of prefill, W in rows of whole 16
  /// bytes.
  static bool has_mixed_input(const Args& a, Arch arch) {
    const bool plain = !is_block(a.w_dtype) && a.w_dtype != DType::i8 && a.w_dtype != DType::i4 &&
                       a.w_dtype != DType::e2m1 && a.w_dtype != DType::e4m3;
    return has_wgmma(arch) && a.T > kStreamTokens && a.x_dtype == DType::bf16 && !plain &&
           a.act == kernels::GemmAct::f32 &&
           (MixedInput::holds(a.w_dtype) || MixedInput::bytes(a.w_dtype) % 16 == 0) &&
           WeightOnly::has_tma(a.w, row_bytes(a.w_dtype, a.w_stride), a.K, a.w_dtype, arch) &&
           vectorizable(a.x, a.x_stride, a.x_dtype, 8);
  }
  /// The ring that fits beside the copies of W.
  static Wgmma ringed(const Wgmma& p, const MixedInput& q, DType w) {
    return GemmTiles::with_stages(p, GemmTiles::kSmem - (q.smem_bytes(p, w) - p.smem_bytes()));
  }
  /// Cycles that a step of 64 elements of K costs the producer warps and shared memory (H200, 128 rows: 1170 to 1310 by
  /// format beside 128 tokens, 1490 to 1710 beside 256).
  static constexpr int mixed_input_step(const Wgmma& p) {
    if (p.rows == 128) return 850 + 5 * p.tokens / 2;
    return MixedInput::groups(p) > 1 ? 670 : 750 + p.tokens;
  }
  /// Tiles of gemm_mixed_held: rows and tokens, and the cycles of a step and of a tile beside its steps.
  struct HeldTile {
    int rows, tokens;
    int64_t step, tile;
  };
  static constexpr HeldTile kHeldTiles[] = {
      {64, 128, 511, 500}, {128, 128, 810, 2300}, {192, 128, 1114, 6000}, {64, 256, 711, 3300}, {128, 256, 1180, 9500}};
  static bool holds(const Args& a) {
    if (a.w_dtype == DType::e2m1)
      return a.block_group == 16 && a.scale_dtype == DType::e4m3 && a.block_rows == 1 && a.w_block_zero == nullptr &&
             a.K % 256 == 0 && vectorizable(a.w_block_scale, a.block_stride, a.scale_dtype, 16);
    return MixedInput::holds(a.w_dtype) && a.block_group == 0 && a.w_block_zero == nullptr;
  }
  /// Copies of W in flight: what leaves the ring of x three stages at least.
  static constexpr int held_copies(DType w, int rows) {
    const int bytes = MixedInput::held_row_bytes(w);
    return bytes > 272 ? 2 : rows == 64 ? 4 : bytes > 144 ? 2 : 3;
  }
  /// The tile of gemm_mixed_held that takes the fewest cycles.
  static Status pick_mixed_held(const Args& a, int sm_count, Key* k) {
    k->kind = Kind::mixed_input;
    int64_t least = INT64_MAX;
    for (const HeldTile& t : kHeldTiles) {
      Wgmma p{t.rows, t.tokens, 0, 1, 1, 1, false, true, 1, 0};
      p.held = true, p.epilogue = gemm_epilogue(a, p);
      const MixedInput q{held_copies(a.w_dtype, t.rows), a.block_group, a.scale_dtype, false, true};
      const int64_t tiles_t = (a.T + t.tokens - 1) / t.tokens, tiles = tiles_t * ((a.N + t.rows - 1) / t.rows),
                    waves = (tiles + sm_count - 1) / sm_count;
      // Outputs leave beside the products of the tile that follows.
      if (waves > 1 && p.epilogue != kernels::kEpilogueAny && p.groups() <= 2) p.staged = p.second();
      p = ringed(p, q, a.w_dtype);
      if (p.stages < 3) p.staged = 0, p = ringed(p, q, a.w_dtype);
      if (p.stages < 3) continue;  // q6_k beside 192 rows
      // Tokens that are not there take TMA longer than those that are: 384 in tiles of 256 46 us, 512 26.
      const int64_t step = t.step + (tiles_t * t.tokens - a.T) * (t.tokens == 256 ? 5 : 1);
      const int64_t cycles = waves * ((a.K + 63) / 64 * step + t.tile);
      if (cycles < least) least = cycles, k->wgmma = p, k->mixed_input = q;
    }
    return {};
  }
  /// The tile of gemm_mixed_input that takes the fewest cycles: bits are the same in all. q4_0, 4096 x 12288, tiles of
  /// 128 rows and of 64: T = 128 124 us and 71, 256 125 and 72, 512 127 and 106.
  static Status pick_mixed_input(const Args& a, int sm_count, Key* k) {
    k->kind = Kind::mixed_input;
    int64_t least = INT64_MAX;
    for (const int rows : {128, 64})
      for (const int tokens : {128, 192, 256}) {
        Wgmma p{rows, tokens, 0, 1, 1, 1, false, true, 1, 0};
        p.epilogue = gemm_epilogue(a, p);
        MixedInput q{2, a.block_group, a.scale_dtype,
                     a.w_block_zero != nullptr};  // four, with a shorter ring: 24576 x 4096, T = 96 163 us for 126
        p = ringed(p, q, a.w_dtype);
        if (p.stages < MixedInput::least_stages(p))
          q.raw = 1,
          p = ringed(p, q,
                     a.w_dtype);  // q8_0, 24576 x 4096, T = 512: 187 us for 222 with two stages, 268 with 128 tokens
        const int64_t tiles = (a.T + tokens - 1) / tokens * ((a.N + rows - 1) / rows),
                      waves = (tiles + sm_count - 1) / sm_count;
        const int64_t cycles = waves * ((a.K + 63) / 64 * mixed_input_step(p) + 1200 + 3 * tokens);
        if (p.stages >= MixedInput::least_stages(p) && cycles < least) least = cycles, k->wgmma = p, k->mixed_input = q;
      }
    return least < INT64_MAX
               ? Status()
               : Status(Code::kInternal, "no tile of gemm_mixed_input fits");  // the first does in every format
  }

  /// Decode steps, and all that is larger; decode with dequantized weights that TMA takes, and prefill with them; both
  /// of weights by column, which other kernels multiply where TMA is not there or cannot take them.
  static int row_class(const Args& a) {
    if (a.w_by_column) return 4 + (a.T > kStreamTokens);
    return weights_by_tma(a, Arch::sm90a) ? 2 : has_mixed_input(a, Arch::sm90a) ? 3 : a.T > kStreamTokens;
  }

  static bool has_wgmma(Arch arch) { return chip(arch).wgmma && !portable_only(); }
  static constexpr bool has_mma(const Args& a) {
    return a.x_dtype == a.w_dtype && (a.x_dtype == DType::bf16 || a.x_dtype == DType::f16 || a.x_dtype == DType::e4m3 ||
                                      (a.x_dtype == DType::f32 && a.tf32));
  }

  /// Sums of e4m3 products leave the tensor core every 128 values.
  static constexpr bool promotes(const Args& a) { return a.x_dtype == DType::e4m3 && !a.fast_accum; }

  /// The tile of gemm_wgmma; `aligned`: TMA can take both operands. Rows of a table are the whole chip's.
  static Result<Wgmma> wgmma_of(const Args& a, bool aligned, int sm_count) {
    const int64_t k_bytes = int64_t{a.K} * info(a.w_dtype).bytes;
    VV_ASSIGN(const std::span<const GemmRow> rows, gemm_rows());
    // f16 goes as bf16 does; rows of e4m3 are of sums that leave the tensor core.
    const GemmRow* row = a.fast_accum || a.tf32 || sm_count != GemmTiles::kSmCount
                             ? nullptr
                             : find_gemm_row(rows, a.w_dtype == DType::f16 ? DType::bf16 : a.w_dtype, a.N, a.K, a.T);
    const bool promote = promotes(a);
    Wgmma p = !aligned ? GemmTiles::odd(a.T, a.N, k_bytes, promote)
                        : GemmTiles::pick(a.T, a.N, k_bytes, promote, sm_count);
    if (aligned && row != nullptr) {
      const Wgmma measured =
          GemmTiles::laid({row->rows, row->tokens, row->multicast_x, row->multicast_w}, a.T, a.N, k_bytes, promote);
      if (GemmTiles::serves(measured, a.N)) p = measured;
    }
    p.by_column = a.w_by_column;
    p.epilogue = gemm_epilogue(a, p);
    return aligned ? GemmTiles::fill(p) : p;
  }
  /// The tile of gemm_tile.
  static Tile tile_of(const Args& a, bool aligned) {
    Tile p = !aligned ? kTiles[2] : a.T > 256 ? kTiles[0] : kTiles[1];
    p.by_column = a.w_by_column;
    return p;
  }

  static Result<Key> pick(const Args& a, ChipPart arch) {
    const int sm_count = arch.multiprocessors > 0 ? arch.multiprocessors : GemmTiles::kSmCount;
    Key k{Kind::simple, a.x_dtype, a.w_dtype, a.out_dtype, {}, {}, {}};
    if (has_mixed_input(a, arch)) {
      VV_TRY(holds(a) ? pick_mixed_held(a, sm_count, &k) : pick_mixed_input(a, sm_count, &k));
      return k;
    }
    if (is_weight_only(a)) {
      const int64_t pitch = row_bytes(a.w_dtype, a.w_stride);
      const bool bulk = weights_by_tma(a, arch);
      WeightOnly::Policy form = WeightOnly::form(
          WeightOnly::split(a.N, a.K, a.w_dtype, arch, bulk), bulk || WeightOnly::aligned(a.w, pitch, a.w_dtype),
          a.block_group, a.scale_dtype, a.w_block_zero != nullptr, a.x_block_scale != nullptr, bulk,
          bulk && WeightOnly::ring(a.x, a.x_stride, a.x_dtype, a.w_dtype, a.act, a.T, a.x_block_scale != nullptr));
      form.straight = WeightOnly::straight(a, form);
      Result<WeightOnly::Key> weight_only =
          WeightOnly::pick(a.x_dtype, a.w_dtype, a.out_dtype, a.act, a.T, a.T, a.N, a.K, form, arch);
      if (!weight_only.ok()) return std::move(weight_only).status();
      k.kind = Kind::weight_only;
      k.weight_only = *weight_only;
      return k;
    }
    k.by_column = a.w_by_column && !has_mma(a);
    if (!has_mma(a)) return k;
    const int vec = 16 / info(a.x_dtype).bytes;
    const bool aligned = a.K % vec == 0 && (!a.w_by_column || a.N % vec == 0) &&
                         vectorizable(a.x, a.x_stride, a.x_dtype, vec) && vectorizable(a.w, a.w_stride, a.w_dtype, vec);
    if (has_wgmma(arch) && (aligned || !a.w_by_column)) {
      k.kind = Kind::wgmma;
      VV_ASSIGN(k.wgmma, wgmma_of(a, aligned, sm_count));
      return k;
    }
    if (a.T > kStreamTokens || a.w_by_column) {
      k.kind = Kind::tile;
      k.tile = tile_of(a, aligned);
      return k;
    }
    k.kind = Kind::stream;
    const int cluster = split(a.N, int64_t{a.K} * info(a.w_dtype).bytes, arch);
    for (Stream s : kStreams) {
      s.cluster = cluster;
      s.aligned = aligned;
      if (a.T > s.tokens() || s.smem_bytes() > chip(arch).smem_bytes()) continue;
      Stream wide = kWideStream;
      wide.cluster = cluster;
      wide.aligned = aligned;
      k.stream = s.token_tiles == 8 && int64_t{a.N} / wide.rows() * cluster >= 128 &&
                         wide.smem_bytes() <= chip(arch).smem_bytes()
                     ? wide
                     : s;
      return k;
    }
    return Status(Code::kInternal, "no tactic serves this shape");  // the last row serves all
  }
  static bool general(Key* k) {
    if (k->kind == Kind::mixed_input) {
      if (k->wgmma.rows == 128 && k->wgmma.tokens == 128 && k->wgmma.epilogue == kernels::kEpilogueAny) return false;
      k->wgmma.rows = k->wgmma.tokens = 128, k->wgmma.epilogue = kernels::kEpilogueAny;
      k->wgmma.staged = 0, k->mixed_input.raw = k->mixed_input.held ? held_copies(k->w, 128) : 2;
      k->wgmma = ringed(k->wgmma, k->mixed_input, k->w);
      return true;
    }
    if (k->kind != Kind::wgmma || k->wgmma == GemmTiles::general(k->wgmma)) return false;
    k->wgmma = GemmTiles::general(k->wgmma);
    return true;
  }
  static std::string instance(const Key& k) {
    const auto flag = [](bool b) { return b ? "true" : "false"; };
    const auto also = [](bool b) { return b ? ", true" : ""; };  // of a last argument
    switch (k.kind) {
      case Kind::stream:
        return kernel_expression("gemm_stream<%s, %s, vivace::kernels::GemmStream{%d, %d, %d, %d, %d, %d, %s, %s}>",
                                 type_name(k.x), type_name(k.out), k.stream.warps_n, k.stream.warps_k,
                                 k.stream.row_tiles, k.stream.token_tiles, k.stream.stages, k.stream.cluster,
                                 flag(k.stream.shared_x), flag(k.stream.aligned));
      case Kind::tile:
        return kernel_expression("gemm_tile<%s, %s, vivace::kernels::GemmTile{%d, %d, %d, %d, %d, %s%s}>",
                                 type_name(k.x), type_name(k.out), k.tile.tokens, k.tile.rows, k.tile.warps_t,
                                 k.tile.warps_n, k.tile.stages, flag(k.tile.aligned), also(k.tile.by_column));
      case Kind::weight_only: return WeightOnly::instance("gemm_weight_only", k.weight_only);
      case Kind::wgmma:
        return kernel_expression(
            "gemm_wgmma<%s, %s, vivace::kernels::GemmWgmma{%d, %d, %d, %d, %d, %d, %s, %s, %d, %d, 0, 0, %d%s}>",
            type_name(k.x), type_name(k.out), k.wgmma.rows, k.wgmma.tokens, k.wgmma.stages, k.wgmma.split,
            k.wgmma.multicast_x, k.wgmma.multicast_w, flag(k.wgmma.promote), flag(k.wgmma.aligned),
            k.wgmma.splits_per_block, k.wgmma.epilogue, k.wgmma.staged, also(k.wgmma.by_column));
      case Kind::mixed_input:
        if (k.mixed_input.held)
          return kernel_expression(
              "gemm_mixed_held<vivace::DType::%s, %s, vivace::kernels::GemmWgmma{%d, %d, %d, 1, 1, 1, false, true, 1, "
              "%d, 0, 0, %d, false, true}, vivace::kernels::GemmMixedInput{%d, %d, vivace::DType::%s, false, true}>",
              name(k.w), type_name(k.out), k.wgmma.rows, k.wgmma.tokens, k.wgmma.stages, k.wgmma.epilogue,
              k.wgmma.staged, k.mixed_input.raw, k.mixed_input.group, name(k.mixed_input.scale));
        return kernel_expression(
            "gemm_mixed_input<vivace::DType::%s, %s, vivace::kernels::GemmWgmma{%d, %d, %d, 1, 1, 1, false, true, 1, "
            "%d}, vivace::kernels::GemmMixedInput{%d, %d, vivace::DType::%s, %s}>",
            name(k.w), type_name(k.out), k.wgmma.rows, k.wgmma.tokens, k.wgmma.stages, k.wgmma.epilogue,
            k.mixed_input.raw, k.mixed_input.group, name(k.mixed_input.scale), flag(k.mixed_input.zeros));
      case Kind::simple: break;
    }
    return kernel_expression("gemm_simple<%s, %s, %s%s>", type_name(k.x), type_name(k.w), type_name(k.out),
                             also(k.by_column));
  }
  static void shape(const Args& a, const Key& k, exec::Launch* launch) {
    const auto tiles = [](int64_t n, int64_t tile) { return (n + tile - 1) / tile; };
    if (k.kind == Kind::weight_only)
      return WeightOnly::shape(k.weight_only, tiles(a.T, k.weight_only.p.tokens()) * tiles(a.N, k.weight_only.p.rows()),
                               a.T, launch);
    int64_t grid = tiles(a.T, 64) * tiles(a.N, 64);
    launch->block[0] = 256;
    if (k.kind == Kind::stream) {
      grid = a.T == 0 ? 0 : tiles(a.N, k.stream.rows()) * k.stream.cluster;
      launch->block[0] = static_cast<uint32_t>(k.stream.threads());
      launch->cluster = static_cast<uint32_t>(k.stream.cluster);
      launch->smem_bytes = static_cast<uint32_t>(k.stream.smem_bytes());
    } else if (k.kind == Kind::tile) {
      grid = tiles(a.T, k.tile.tokens) * tiles(a.N, k.tile.rows);
      launch->block[0] = static_cast<uint32_t>(k.tile.threads());
      launch->smem_bytes = static_cast<uint32_t>(k.tile.smem_bytes());
    } else if (k.kind == Kind::wgmma || k.kind == Kind::mixed_input) {
      const Wgmma& p = k.wgmma;
      grid = tiles(a.T, int64_t{p.tokens} * p.multicast_w) * tiles(a.N, int64_t{p.rows} * p.multicast_x) * p.cluster();
      launch->block[0] = static_cast<uint32_t>(k.kind == Kind::mixed_input ? k.mixed_input.threads(p) : p.threads());
      launch->cluster = static_cast<uint32_t>(p.cluster());
      launch->smem_bytes =
          static_cast<uint32_t>(k.kind == Kind::mixed_input ? k.mixed_input.smem_bytes(p, k.w) : p.smem_bytes());
    }
    launch->grid[0] = static_cast<uint32_t>(grid);
  }
  /// Whether W's rows come even ones first.
  static bool paired(const Args& a, const Wgmma& p) {
    return p.epilogue != kernels::kEpilogueAny && (p.has(kernels::kEpilogueGated) || a.out_dtype == DType::e4m3);
  }
  static Status map_w(const Args& a, const Wgmma& p, kernels::TensorMap* to) {
    if (p.by_column) return map(false, a.w, a.K, a.N, a.w_stride, a.w_dtype, 64 / p.multicast_w, to);
    return map(paired(a, p), a.w, a.N, a.K, a.w_stride, a.w_dtype, p.rows / p.multicast_w, to);
  }
  /// Tensor maps, and persistent blocks where the tiles are more than the chip holds at once.
  static Status complete(const Args& a, const Key& k, const Target& target, exec::Launch* launch) {
    if (k.kind == Kind::weight_only && launch->grid[0] > 0) {
      kernels::GemmWeightOnlyArgs weight_only{};
      weight_only.g = a;
      VV_TRY(WeightOnly::map(k.weight_only, a.w, a.N, a.K, row_bytes(a.w_dtype, a.w_stride), &weight_only.w_map));
      VV_TRY(WeightOnly::map_x(k.weight_only, a.x, a.T, a.K, a.x_stride, &weight_only.x_map));
      launch->set_args(weight_only);
      WeightOnly::limit(k.weight_only, a.T, target.sm_count(), launch);
    }
    if ((k.kind != Kind::wgmma && k.kind != Kind::mixed_input) || launch->grid[0] == 0) return {};
    const Wgmma& p = k.wgmma;
    kernels::GemmWgmmaArgs args{};
    if (p.aligned && p.panel == 0) {
      VV_TRY(map(false, a.x, a.T, a.K, a.x_stride, a.x_dtype, p.tokens / p.multicast_x, &args.x_map));
      const bool held = k.kind == Kind::mixed_input && k.mixed_input.held;
      if (k.kind == Kind::wgmma) VV_TRY(map_w(a, p, &args.w_map));
      else if (held && !is_block(a.w_dtype))  // bytes, in the swizzle
        VV_TRY(map(paired(a, p), a.w, a.N, row_bytes(a.w_dtype, a.K), row_bytes(a.w_dtype, a.w_stride), DType::i8,
                   p.rows, &args.w_map));
      else
        VV_TRY(device::encode_map(device::WordMapShape{.data = a.w,
                                                       .rows = a.N,
                                                       .words = row_bytes(a.w_dtype, a.K) / 4,
                                                       .pitch = row_bytes(a.w_dtype, a.w_stride),
                                                       .box_rows = held ? p.rows : MixedInput::warp_rows(p),
                                                       .box_words = (held ? MixedInput::held_row_bytes(a.w_dtype)
                                                                          : MixedInput::pitch(a.w_dtype)) / 4,
                                                       .paired = paired(a, p)},
                                  &args.w_map));
      if (p.has(kernels::kEpilogueResidual) && !p.direct())
        VV_TRY(map(false, a.residual, a.T, a.N, a.residual_stride, a.out_dtype, p.staged > 0 ? p.out_box() : p.tokens,
                   &args.residual_map));
    }
    if (p.staged > 0) {
      const int bytes = info(a.out_dtype).bytes,
                columns = p.has(kernels::kEpilogueGated) ? 32 : 64;  // of out, a warpgroup
      VV_TRY(device::encode_map({.data = a.out,
                                 .rows = a.T,
                                 .columns = a.gated ? a.N / 2 : a.N,
                                 .pitch = a.out_stride * bytes,
                                 .element_bytes = bytes,
                                 .box_rows = p.out_box(),
                                 .box_bytes = columns * bytes},
                                &args.out_map));
    }
    args.g = a;
    if (k.kind == Kind::mixed_input) args.g.alpha *= k.mixed_input.lift(k.w);
    launch->set_args(args);
    if (p.parts() == 1) {
      launch->grid[0] =
          std::min(launch->grid[0], static_cast<uint32_t>(GemmTiles::occupancy(p, target.sm_count())));
    }
    return {};
  }
  template <class Visit>
  static void instances(Arch arch, Visit&& visit) {
    for (const DType t : {DType::bf16, DType::f16, DType::e4m3}) {
      const DType out = t == DType::e4m3 ? DType::bf16 : t;
      if (has_wgmma(arch)) {
        std::vector<Wgmma> all;
        const bool promote = t == DType::e4m3;
        GemmTiles::each(promote, [&](const Wgmma& p) { all.push_back(p); });
        for (const GemmRow& r : shipped_gemm_rows()) {
          const Wgmma p = GemmTiles::laid({r.rows, r.tokens, r.multicast_x, r.multicast_w}, r.T, r.N,
                                          int64_t{r.K} * info(r.dtype).bytes, promote);
          if (r.dtype == t && std::find(all.begin(), all.end(), p) == all.end()) all.push_back(p);
        }
        if (promote) all.push_back(GemmTiles::pick(64, 4096, 4096, false));  // fast_accum
        const auto each = [&](Wgmma p, int32_t finish) {
          p.epilogue = finish;
          visit(Key{Kind::wgmma, t, t, out, {}, {}, {}, p.aligned ? GemmTiles::fill(p) : p});
        };
        std::vector<Wgmma> general;
        for (const Wgmma& p : all) {
          if (const Wgmma g = GemmTiles::general(p);
              p.aligned && std::find(general.begin(), general.end(), g) == general.end())
            general.push_back(g);
          if (t == DType::f16 && p.split > 1) continue;  // it differs from bf16 in an instruction's name
          each(p, p.aligned ? kernels::kEpilogueFast : kernels::kEpilogueAny);
        }
        for (const Wgmma& p : general) each(p, kernels::kEpilogueAny);
        // The epilogues that models have: the others are compiled when they are first used, or decided at run time.
        for (const int64_t T : {16, 1024}) {
          const Wgmma p = GemmTiles::pick(T, 4096, 8192, promote);
          for (const int32_t finish :
               {kernels::kEpilogueResidual, kernels::kEpilogueBias, kernels::kEpilogueGate | kernels::kEpilogueResidual,
                kernels::kEpilogueRowScales | kernels::kEpilogueTokenScales})
            if (t != DType::f16) each(p, kernels::kEpilogueFast | finish);
        }
        continue;
      }
      for (Stream s : kStreams)
        for (const int cluster : {1, 2, 4, 8}) {
          s.cluster = cluster;
          if (s.smem_bytes() > chip(arch).smem_bytes() || (cluster > 1 && (!chip(arch).tma || t == DType::f16)))
            continue;
          visit(Key{Kind::stream, t, t, out, s, {}, {}});
        }
      Stream odd = kStreams[0];
      odd.aligned = false;
      if (odd.smem_bytes() <= chip(arch).smem_bytes()) visit(Key{Kind::stream, t, t, out, odd, {}, {}});
      if (kWideStream.smem_bytes() <= chip(arch).smem_bytes()) visit(Key{Kind::stream, t, t, out, kWideStream, {}, {}});
      for (const Tile& tile : kTiles) visit(Key{Kind::tile, t, t, out, {}, tile, {}});
    }
    visit(Key{Kind::simple, DType::f32, DType::f32, DType::f32, {}, {}, {}});
    by_column_instances(arch, visit);
    // tf32
    if (has_wgmma(arch)) {
      for (const int64_t T : {16, 64, 1024})
        visit(Key{Kind::wgmma, DType::f32, DType::f32, DType::f32, {}, {}, {}, GemmTiles::pick(T, 4096, 16384, false)});
    } else {
      for (const Tile& tile : kTiles) visit(Key{Kind::tile, DType::f32, DType::f32, DType::f32, {}, tile, {}});
      for (const Stream& s : {kStreams[1], kStreams[7]})
        if (s.smem_bytes() <= chip(arch).smem_bytes())
          visit(Key{Kind::stream, DType::f32, DType::f32, DType::f32, s, {}, {}});
    }
    const auto weight_only = [&](const WeightOnly::Key& c) {
      visit(Key{Kind::weight_only, c.x, c.w, c.out, {}, {}, c});
    };
    WeightOnly::instances(arch, weight_only);
    WeightOnly::scaled_instances(arch, weight_only);
    if (has_wgmma(arch)) mixed_input_instances(visit);
  }

 protected:
  template <class Visit>
  static void mixed_input_instance(Visit& visit, DType w, int64_t T, bool residual, int group, DType scale, bool zeros,
                                   bool gated = false, int K = 4096) {
    static const char kAligned[16] = {};
    Args a{};
    a.x = a.w = kAligned, a.residual = residual ? kAligned : nullptr,
    a.w_block_zero = zeros ? reinterpret_cast<const int8_t*>(kAligned) : nullptr;
    a.T = static_cast<int32_t>(T), a.N = 4096, a.K = K, a.block_group = group, a.block_rows = 1, a.block_stride = 4096;
    a.x_stride = a.w_stride = a.out_stride = a.residual_stride = 4096;
    a.x_dtype = a.out_dtype = DType::bf16, a.w_dtype = w, a.scale_dtype = scale;
    if (gated) a.gated = true, a.epilogue = kernels::Activation::silu;
    Key k{Kind::mixed_input, a.x_dtype, w, a.out_dtype, {}, {}, {}};
    if (!(holds(a) ? pick_mixed_held(a, GemmTiles::kSmCount, &k) : pick_mixed_input(a, GemmTiles::kSmCount, &k)).ok())
      return;
    visit(k);
    if (!residual && !gated && T == 100 && general(&k)) visit(k);
  }

 private:
  /// Weights by column: models have none, so that few sizes are made ahead, of bf16 and f32.
  template <class Visit>
  static void by_column_instances(Arch arch, Visit&& visit) {
    const DType t = DType::bf16;
    Key simple{Kind::simple, DType::f32, DType::f32, DType::f32, {}, {}, {}};
    simple.by_column = true;
    visit(simple);
    for (Tile tile : kTiles) {
      if (has_wgmma(arch) && tile.aligned) continue;
      tile.by_column = true;
      visit(Key{Kind::tile, t, t, t, {}, tile, {}});
    }
    if (!has_wgmma(arch)) return;
    std::vector<Wgmma> seen;
    const auto once = [&](Wgmma p, int32_t epilogue) {
      p.epilogue = epilogue, p.by_column = true;
      p = GemmTiles::fill(p);
      if (std::find(seen.begin(), seen.end(), p) != seen.end()) return;
      seen.push_back(p);
      visit(Key{Kind::wgmma, t, t, t, {}, {}, {}, p});
    };
    for (const int64_t T : {8, 16, 32, 64, 128, 256, 520, 1100}) {
      const Wgmma p = GemmTiles::pick(T, 4096, 8192, false);
      once(p, kernels::kEpilogueFast);
      once(GemmTiles::general(p), kernels::kEpilogueAny);
    }
  }
  /// gemm_mixed_input of each format, of each tile, with the epilogues that models have; and what packs hold for all
  /// others.
  template <class Visit>
  static void mixed_input_instances(Visit& visit) {
    const auto one = [&](DType w, int64_t T, bool residual, int group, DType scale, bool zeros) {
      mixed_input_instance(visit, w, T, residual, group, scale, zeros);
    };
    for (const DType w : {DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q8_0, DType::q4_k, DType::q5_k,
                          DType::q6_k, DType::e4m3, DType::i8})
      one(w, 100, false, 0, DType::f32, false);
    for (const int64_t T : {520, 1100}) one(DType::q4_0, T, false, 0, DType::f32, false);
    one(DType::q8_0, 1024, false, 0, DType::f32, false);
    one(DType::q4_0, 520, true, 0, DType::f32, false);
    one(DType::e2m1, 520, false, 16, DType::e4m3, false);
    one(DType::e2m1, 100, true, 16, DType::e4m3, false);
    mixed_input_instance(visit, DType::e2m1, 100, false, 16, DType::e4m3, false, false, 4128);  // not held
    one(DType::i4, 100, false, 128, DType::bf16, true);
    one(DType::i8, 100, false, 128, DType::f16, false);
  }
  static Status map(bool paired, const void* data, int64_t rows, int64_t columns, int64_t stride, DType t, int box,
                    kernels::TensorMap* to) {
    const int bytes = info(t).bytes;
    const device::MapShape shape = {.data = data,
                                    .rows = rows,
                                    .columns = columns,
                                    .pitch = stride * bytes,
                                    .element_bytes = bytes,
                                    .box_rows = box};
    return paired ? device::encode_paired_map(shape, to) : device::encode_map(shape, to);
  }
};

}  // namespace vivace::ops
