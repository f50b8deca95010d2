// Tactics of products whose weights are dequantized in registers (kernels/gemm/weight_only.cuh): shared by gemm and
// grouped_gemm.
#pragma once
#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "vivace/device/tensor_map.h"
#include "vivace/kernels/gemm/weight_only.h"
#include "vivace/ops/gemm_table.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

struct GemmWeightOnlyGpu {
  using Policy = kernels::GemmWeightOnly;
  using Act = kernels::GemmAct;
  struct Key {
    DType x, w, out;
    Act act;
    Policy p;
    bool operator==(const Key&) const = default;
  };

  // warps n, k; row tiles; token tiles; stages; cluster (set by split()); panel of one plane; aligned. The
  // first row that holds T (those of kAnyTokens on: several times) and the chip's shared memory serves. All agree in
  // warps_k.
  static constexpr Policy kTactics[] = {
      {4, 2, 1, 1, 3, 1, 4096, true}, {4, 2, 1, 1, 2, 1, 2048, true}, {4, 2, 1, 2, 3, 1, 1024, true},
      {4, 2, 1, 4, 2, 1, 512, true},  {4, 2, 2, 8, 2, 1, 512, true},  {4, 2, 1, 1, 2, 1, 512, true},
      {2, 2, 1, 1, 2, 1, 512, true},
  };
  static constexpr int kAnyTokens = 4;
  // Hopper on, where TMA brings W, up to kFewTokens tokens: the same, by tokens alone. Rows before kAnyDepth hold all
  // of x, those from it on a panel at a time; see takes_room(). The last serves several times.
  static constexpr Policy kTmaTactics[] = {
      {2, 4, 1, 1, 2, 1, 4096, true}, {2, 4, 1, 1, 2, 1, 16384, true}, {2, 4, 1, 1, 2, 1, 8192, true},
      {2, 4, 1, 1, 2, 1, 6144, true}, {2, 4, 1, 1, 2, 1, 6144, true},  {2, 4, 1, 1, 2, 1, 2048, true},
      {2, 4, 1, 2, 2, 1, 4096, true}, {2, 4, 1, 2, 1, 1, 4096, true},  {2, 4, 1, 2, 2, 1, 2048, true},
      {2, 4, 2, 4, 1, 1, 2048, true}, {2, 4, 1, 4, 1, 1, 2048, true},  {2, 4, 1, 1, 1, 1, 2048, true},
  };
  // The same where it brings x too, two tokens on. Rows from kAnyDepth on fill their stages again. Rings of 1024 have
  // stages of 128 elements: 33 tokens and more of four bits in one pass, 64 rows of eight bits a tile.
  static constexpr Policy kRingTactics[] = {
      {2, 4, 1, 1, 2, 1, 4096, true}, {2, 4, 1, 1, 2, 1, 16384, true}, {2, 4, 1, 1, 2, 1, 8192, true},
      {2, 4, 1, 1, 2, 1, 6144, true}, {2, 4, 1, 1, 2, 1, 4096, true},  {2, 4, 1, 2, 2, 1, 4096, true},
      {2, 4, 1, 2, 1, 1, 4096, true}, {2, 4, 1, 2, 1, 1, 2048, true},  {2, 4, 2, 8, 1, 1, 1024, true},
      {2, 4, 2, 4, 1, 1, 2048, true}, {4, 4, 1, 4, 1, 1, 1024, true},  {2, 4, 1, 4, 1, 1, 2048, true},
      {2, 4, 1, 1, 1, 1, 2048, true},
  };
  // The same by wgmma, more than kMmaTokens tokens: codes of four bits with scales beside them. For others (q4_0, eight
  // bits) mma.sync is as fast.
  static constexpr Policy kWgmmaTactics[] = {{4, 4, 1, 4, 1, 1, 2048, true}, {4, 4, 1, 8, 1, 1, 1024, true}};
  static constexpr int kMmaTokens = 16;
  static constexpr int kFewTokens = 64, kTmaSteps = 2, kAnyDepth = 4, kSmCount = kHopper.sm_count;

  /// Blocks that share a tile's K, from the weight's shape alone: enough to fill the chip, a step a warp at least.
  static constexpr int split(int64_t N, int64_t K, DType w, Arch arch, bool tma) {
    if (!chip(arch).tma) return 1;
    const Policy& p = tma ? kTmaTactics[0] : kTactics[0];
    const int64_t step = form(1, true, 0, DType::f32, false, false, tma).step(w), steps = (K + step - 1) / step;
    int s = 1;
    while (s < 4 && (N + p.rows() - 1) / p.rows() * s < 128 && steps >= int64_t{s} * 2 * p.warps_k) s *= 2;
    return s;
  }
  /// Whether TMA takes W: whole groups of 32 in rows of whole 16 bytes, and steps of whole words.
  static bool has_tma(const void* w, int64_t pitch, int64_t K, DType t, Arch arch) {
    return chip(arch).tma && !portable_only() && reinterpret_cast<uintptr_t>(w) % 16 == 0 && pitch % 16 == 0 &&
           K % 32 == 0 && row_bytes(t, K) % 16 == 0 &&
           form(1, true, 0, DType::f32, false, false, true).step_bytes(t) % 4 == 0;
  }

  /// Whether it takes x: several tokens, as the tensor cores read them, in rows that start at 16 bytes.
  static bool ring(const void* x, int64_t stride, DType x_dtype, DType w, Act act, int64_t T, bool x_scaled) {
    return T > 1 && act == Act::f32 && !x_scaled && x_dtype == Policy::mma(x_dtype, w) &&
           vectorizable(x, stride, x_dtype, 8);
  }

  /// Whether rows of `pitch` bytes at `w` and the steps in them start at 16 bytes.
  static bool aligned(const void* w, int64_t pitch, DType t) {
    return reinterpret_cast<uintptr_t>(w) % 16 == 0 && pitch % 16 == 0 && Policy{}.step_bytes(t) % 16 == 0;
  }

  /// Whether each row of W has a row of scales that starts at 16 bytes, as a step's part of it does.
  static bool straight(const kernels::GemmArgs& a, const Policy& form) {
    const int bytes = form.scale_bytes(a.w_dtype);
    const int64_t pitch = a.block_stride * info(a.scale_dtype).bytes;
    return form.tma_steps > 0 && a.block_rows == 1 && bytes > 0 && bytes % 16 == 0 && pitch % 16 == 0 &&
           reinterpret_cast<uintptr_t>(a.w_block_scale) % 16 == 0;
  }

  /// A row of the table for these operands: `form` says all that does not come from the row.
  static constexpr Policy with(Policy p, const Policy& form, DType x, DType w, Act act) {
    p.cluster = form.cluster, p.aligned = form.aligned, p.group = form.group, p.scale = form.scale,
    p.zeros = form.zeros, p.x_scaled = form.x_scaled, p.tma_steps = form.tma_steps, p.x_ring = form.x_ring;
    p.straight = form.straight && (p.row_tiles > 1 || p.wgmma);  // where room is short
    if (p.tma_steps == 0 && act == Act::f32 && Policy::planes(x, Policy::mma(x, w)) > 1)
      p.panel = p.panel / 4 > 512 ? p.panel / 4 : 512;
    return p;
  }
  static constexpr Policy form(int cluster, bool aligned, int group = 0, DType scale = DType::f32, bool zeros = false,
                               bool x_scaled = false, bool tma = false, bool x_ring = false) {
    return {0, 0, 0, 0, 0, cluster, 0, aligned, group, scale, zeros, x_scaled, tma ? kTmaSteps : 0, x_ring};
  }

  /// For calls of about T tokens and never more than `most`.
  static Result<Key> pick(DType x, DType w, DType out, Act act, int64_t T, int64_t most, int64_t N, int64_t K,
                          const Policy& form, Arch arch) {
    if (form.tma_steps > 0) return pick_tma(x, w, out, act, T, most, N, K, form, arch);
    for (const Policy& row : kTactics) {
      const Policy p = with(row, form, x, w, act);
      const bool any = &row - kTactics >= kAnyTokens;
      if ((T > p.tokens() && !any) || p.smem_bytes(x, w, act, p.tokens()) > chip(arch).smem_bytes()) continue;
      return Key{x, w, out, act, p};
    }
    return unserved(x, w, arch);
  }
  static Status unserved(DType x, DType w, Arch arch) {
    return Status(Code::kUnsupported,
                  strf("x %s with w %s: no tile fits the %d KiB of shared memory of %s; x bf16 is served", name(x),
                       name(w), chip(arch).smem_bytes() / 1024, name(arch)));
  }
  /// Whether 32 rows of W a tile are better than 64: of these a turn of the chip takes as long as one and a half.
  static bool low(int64_t T, int64_t N, const Policy& p) {
    const auto turns = [&](int rows) {
      return ((N + rows - 1) / rows * ((T + p.tokens() - 1) / p.tokens()) * p.cluster + kSmCount - 1) / kSmCount;
    };
    return 2 * turns(32) <= 3 * turns(64);
  }
  /// A row whose stages of x are a quarter of a step; and who takes it. 64 tokens in one pass: q4_0 and NVFP4, for
  /// whose products the registers are enough (i4 and scales a group spill up to 96 bytes there). 64 rows: elements of
  /// eight bits, for which a longer ring leaves no room.
  static constexpr bool short_stages(const Policy& row) { return row.panel < 512 * row.warps_k; }
  static constexpr bool takes_short_stages(DType w, const Policy& p) {
    if (p.token_tiles == 8) return w == DType::q4_0 || p.wide(w);
    return p.step(w) == 512 && p.step_bytes(w) >= 512;
  }
  /// Blocks that an SM holds at once with `smem_bytes` each.
  static int held(const Key& k, uint32_t smem_bytes) {
    const int by_memory = static_cast<int>(kHopper.sm_smem_kib * 1024 / (smem_bytes + 1024));
    return std::max(1, std::min(by_memory, k.p.blocks(k.x, k.w, k.act)));
  }
  /// Whether a row that holds all of x takes the room of an SM's second block, which `refilled` leaves, and there are
  /// tiles for it: x once more for each tile costs less than half of the warps.
  static bool takes_room(const Key& whole, const Key& refilled, int tokens, int64_t N) {
    const auto blocks = [&](const Key& k) {
      return held(k, static_cast<uint32_t>(k.p.smem_bytes(k.x, k.w, k.act, tokens)));
    };
    return whole.act == Act::f32 && (N + whole.p.rows() - 1) / whole.p.rows() * whole.p.cluster > kSmCount &&
           blocks(whole) < blocks(refilled);
  }
  /// The row of kWgmmaTactics for a call, if one serves and its tiles of 64 rows fill the chip.
  static std::optional<Key> pick_wgmma(DType x, DType w, DType out, Act act, int64_t T, int64_t N, const Policy& form,
                                       Arch arch) {
    if (!form.x_ring || !chip(arch).wgmma || x != DType::bf16 || T <= kMmaTokens || !form.aligned || form.has_min(w))
      return {};
    for (const Policy& row : kWgmmaTactics) {
      Policy p = row;
      p.wgmma = true;
      p = with(p, form, x, w, act);
      // Scales of NVFP4 whose rows start anywhere leave 64 tokens too few registers.
      const bool fits = p.smem_bytes(x, w, act, p.tokens()) <= chip(arch).smem_bytes() &&
                        (p.token_tiles < 8 || p.straight || !p.wide(w));
      if (p.pairs(x, w) && T <= p.tokens() && fits && !low(T, N, p)) return Key{x, w, out, act, p};
    }
    return {};
  }
  static Result<Key> pick_tma(DType x, DType w, DType out, Act act, int64_t T, int64_t most, int64_t N, int64_t K,
                              const Policy& form, Arch arch) {
    if (const std::optional<Key> key = pick_wgmma(x, w, out, act, T, N, form, arch)) return *key;
    const std::span<const Policy> rows =
        form.x_ring ? std::span<const Policy>(kRingTactics) : std::span<const Policy>(kTmaTactics);
    for (const Policy& row : rows) {
      const Policy p = with(row, form, x, w, act);
      const bool first = &row == &rows.front(), last = &row == &rows.back(), whole = &row - rows.data() < kAnyDepth;
      if (form.x_ring && p.rows() == 64 && low(T, N, p)) continue;
      if (short_stages(row) && !(takes_short_stages(w, p) && T > p.tokens() / 2)) continue;
      const int tokens = static_cast<int>(most < p.tokens() ? most : p.tokens());
      if ((T > p.tokens() && row.token_tiles < 4 && !last) || (whole && K > row.panel) ||
          p.smem_bytes(x, w, act, tokens) > chip(arch).smem_bytes())
        continue;
      const Key key{x, w, out, act, p};
      if (whole && !first && takes_room(key, Key{x, w, out, act, with(rows[kAnyDepth], form, x, w, act)}, tokens, N))
        continue;
      return key;
    }
    return unserved(x, w, arch);
  }

  /// `kernel` is the template's name.
  static std::string instance(const char* kernel, const Key& k) {
    return kernel_expression(
        "%s<%s, vivace::DType::%s, %s, vivace::kernels::GemmAct::%s, vivace::kernels::GemmWeightOnly{%d, %d, %d, %d, "
        "%d, %d, %d, %s, %d, vivace::DType::%s, %s, %s, %d, %s%s}>",
        kernel, type_name(k.x), name(k.w), type_name(k.out), k.act == Act::q8 ? "q8" : "f32", k.p.warps_n, k.p.warps_k,
        k.p.row_tiles, k.p.token_tiles, k.p.stages, k.p.cluster, k.p.panel, k.p.aligned ? "true" : "false", k.p.group,
        name(k.p.scale), k.p.zeros ? "true" : "false", k.p.x_scaled ? "true" : "false", k.p.tma_steps,
        k.p.x_ring ? "true" : "false",
        k.p.wgmma ? (k.p.straight ? ", true, true" : ", false, true") : k.p.straight ? ", true" : "");
  }

  /// T is the bound that the kernel sees in its arguments.
  static void shape(const Key& k, int64_t tiles, int64_t T, exec::Launch* launch) {
    launch->block[0] = static_cast<uint32_t>(k.p.threads());
    launch->cluster = static_cast<uint32_t>(k.p.cluster);
    launch->smem_bytes =
        static_cast<uint32_t>(k.p.smem_bytes(k.x, k.w, k.act, static_cast<int>(T < k.p.tokens() ? T : k.p.tokens())));
    launch->grid[0] = static_cast<uint32_t>(tiles * k.p.cluster);
  }
  /// What TMA is to know of `rows` rows of K elements, `pitch` bytes apart; nothing where it brings none.
  static Status map(const Key& k, const void* w, int64_t rows, int64_t K, int64_t pitch, kernels::TensorMap* to) {
    if (k.p.tma_steps == 0) return {};
    return device::encode_map(device::WordMapShape{.data = w,
                                                   .rows = rows,
                                                   .words = row_bytes(k.w, K) / 4,
                                                   .pitch = pitch,
                                                   .box_rows = 16 * k.p.row_tiles,
                                                   .box_words = k.p.pitch(k.w) / 4},
                              to);
  }
  /// The same of x [T, K], where it brings that.
  static Status map_x(const Key& k, const void* x, int64_t T, int64_t K, int64_t stride, kernels::TensorMap* to) {
    if (!k.p.x_ring) return {};
    const int bytes = info(k.x).bytes;
    if (k.p.wgmma)
      return device::encode_map(device::MapShape{.data = x,
                                                 .rows = T,
                                                 .columns = K,
                                                 .pitch = stride * bytes,
                                                 .element_bytes = bytes,
                                                 .box_rows = kernels::even_tokens(static_cast<int>(T), k.p.tokens())},
                                to);
    return device::encode_map(device::WordMapShape{.data = x,
                                                   .rows = T,
                                                   .words = K * bytes / 8,
                                                   .pitch = stride * bytes,
                                                   .box_rows = kernels::even_tokens(static_cast<int>(T), k.p.tokens()),
                                                   .box_words = k.p.x_pitch(k.x, k.w, k.act) / 8,
                                                   .word_bytes = 8},
                              to);
  }
  /// As many blocks as the chip holds at once where they walk the tiles.
  static void limit(const Key& k, int64_t T, int sm_count, exec::Launch* launch) {
    if (!k.p.persistent() || T > k.p.tokens()) return;
    launch->grid[0] = std::min(launch->grid[0], static_cast<uint32_t>(sm_count * held(k, launch->smem_bytes)));
  }

  /// Every tactic with one block format; every format, and the kinds of x, with the first tactic.
  template <class Visit>
  static void instances(Arch arch, Visit&& visit) {
    if (chip(arch).tma && !portable_only()) return tma_instances(arch, visit);
    const auto one = [&](DType x, DType w, Act act, const Policy& row, const Policy& form) {
      visit_one(arch, visit, x, w, act, row, form);
    };
    for (const Policy& p : kTactics) one(DType::bf16, DType::q4_0, Act::f32, p, form(1, true));
    for (const DType w : {DType::q4_1, DType::q5_0, DType::q5_1, DType::q8_0, DType::q4_k, DType::q5_k, DType::q6_k})
      one(DType::bf16, w, Act::f32, kTactics[1], form(1, w == DType::q8_0));
    for (const DType w : {DType::q4_0, DType::q8_0, DType::q4_k, DType::q5_k, DType::q6_k})
      one(DType::bf16, w, Act::q8, kTactics[1], form(1, w != DType::q6_k));
    one(DType::f16, DType::q4_0, Act::f32, kTactics[0], form(1, true));
    one(DType::f32, DType::q4_0, Act::f32, kTactics[0], form(1, true));
    one(DType::bf16, DType::e4m3, Act::f32, kTactics[0], form(1, true));
    one(DType::bf16, DType::i8, Act::f32, kTactics[1], form(1, false));
    one(DType::f32, DType::bf16, Act::f32, kTactics[1], form(1, true));
    one(DType::bf16, DType::f32, Act::f32, kTactics[1], form(1, false));
  }

  /// The same of weights with scales beside them.
  template <class Visit>
  static void scaled_instances(Arch arch, Visit&& visit) {
    if (chip(arch).tma && !portable_only()) return tma_scaled_instances(arch, visit);
    const auto one = [&](DType x, DType w, const Policy& row, const Policy& form) {
      visit_one(arch, visit, x, w, Act::f32, row, form);
    };
    for (const int tactic : {0, 4}) {
      one(DType::bf16, DType::e2m1, kTactics[tactic], form(1, true, 16, DType::e4m3));
      one(DType::bf16, DType::i4, kTactics[tactic], form(1, true, 128, DType::bf16, true));
      one(DType::e4m3, DType::e4m3, kTactics[tactic], form(1, true, 128, DType::f32, false, true));
    }
    one(DType::f16, DType::i4, kTactics[1], form(1, false, 32, DType::f32, true));
    one(DType::bf16, DType::i8, kTactics[0], form(1, true, 128, DType::f16));
  }

 private:
  /// Visits what pick() gives, each once.
  template <class Visit>
  struct Picks {
    Arch arch;
    Visit& visit;
    std::vector<Key> seen = {};
    void operator()(DType x, DType w, Act act, int64_t T, int64_t K, Policy form, int64_t N = 24576) {
      form.x_ring = form.tma_steps > 0 && ring(nullptr, 8, x, w, act, T, form.x_scaled);
      const Result<Key> k = pick(x, w, x == DType::e4m3 ? DType::bf16 : x, act, T, T, N, K, form, arch);
      if (!k.ok() || std::find(seen.begin(), seen.end(), *k) != seen.end()) return;
      seen.push_back(*k);
      visit(*k);
    }
  };
  /// instances() of chips whose TMA brings W: few tokens with it, many without, rows off 16 bytes.
  template <class Visit>
  static void tma_instances(Arch arch, Visit& visit) {
    Picks<Visit> one{arch, visit};
    const Policy tma = form(1, true, 0, DType::f32, false, false, true), aligned = form(1, true), odd = form(1, false);
    for (const int T : {1, 8, 16, 32, 64}) one(DType::bf16, DType::q4_0, Act::f32, T, 4096, tma);
    for (const int N : {4096, 24576})
      for (const int T : {1, 2, 8}) one(DType::bf16, DType::q4_0, Act::f32, T, 12288, tma, N);
    for (const int T : {1, 8}) one(DType::bf16, DType::q4_0, Act::f32, T, 5120, tma);
    one(DType::bf16, DType::q4_0, Act::f32, 32, 4096, tma, 4096);
    one(DType::bf16, DType::q4_0, Act::f32, 1, 4096, form(2, true, 0, DType::f32, false, false, true));
    const DType many = chip(arch).wgmma ? DType::f16 : DType::bf16;  // of prefill; gemm_mixed_input serves bf16
    for (const DType w : {DType::q4_0, DType::q8_0}) one(many, w, Act::f32, 512, 4096, aligned);
    for (const DType w : {DType::q4_1, DType::q5_0, DType::q5_1, DType::q8_0, DType::q4_k, DType::q5_k, DType::e4m3,
                          DType::i8, DType::f32})
      one(DType::bf16, w, Act::f32, 1, 4096, tma);
    for (const int T : {16, 64}) one(DType::bf16, DType::q8_0, Act::f32, T, 4096, tma);
    one(DType::bf16, DType::q8_0, Act::f32, 32, 4096, tma, 4096);
    one(DType::bf16, DType::e4m3, Act::f32, 64, 4096, tma);
    for (const DType w : {DType::q4_0, DType::q8_0, DType::q4_k}) one(DType::bf16, w, Act::q8, 1, 4096, tma);
    for (const DType x : {DType::f16, DType::f32}) one(x, DType::q4_0, Act::f32, 8, 4096, tma);
    one(DType::f32, DType::bf16, Act::f32, 1, 4096, tma);
    for (const DType w : {DType::q4_0, DType::q4_1, DType::q8_0, DType::q6_k, DType::i8, DType::f32})
      one(DType::bf16, w, Act::f32, 1, 4096, odd);
    for (const DType w : {DType::q8_0, DType::q6_k}) one(DType::bf16, w, Act::q8, 1, 4096, odd);
  }
  template <class Visit>
  static void tma_scaled_instances(Arch arch, Visit& visit) {
    Picks<Visit> one{arch, visit};
    for (const bool tma : {true, false}) {
      const int T = tma ? 1 : 70;
      const DType x = tma || !chip(arch).wgmma ? DType::bf16 : DType::f16;
      one(x, DType::e2m1, Act::f32, T, 4096, form(1, true, 16, DType::e4m3, false, false, tma));
      one(x, DType::i4, Act::f32, T, 4096, form(1, true, 128, DType::bf16, true, false, tma));
      one(DType::e4m3, DType::e4m3, Act::f32, T, 4096, form(1, true, 128, DType::f32, false, true, tma));
    }
    for (const int T : {8, 16, 48, 64})
      one(DType::bf16, DType::e2m1, Act::f32, T, 4096, form(1, true, 16, DType::e4m3, false, false, true));
    Policy straight = form(1, true, 16, DType::e4m3, false, false, true);
    straight.straight = true;
    for (const int T : {32, 64}) one(DType::bf16, DType::e2m1, Act::f32, T, 4096, straight);
    for (const int T : {32, 64})
      one(DType::bf16, DType::i4, Act::f32, T, 4096, form(1, true, 128, DType::bf16, false, false, true));
    for (const int K : {5120, 17408})
      one(DType::bf16, DType::e2m1, Act::f32, 1, K, form(1, true, 16, DType::e4m3, false, false, true));
    one(DType::bf16, DType::i4, Act::f32, 1, 5120, form(1, true, 128, DType::bf16, true, false, true));
    one(DType::bf16, DType::i4, Act::f32, 8, 4096, form(1, true, 128, DType::bf16, true, false, true));
    one(DType::f16, DType::i4, Act::f32, 1, 4096, form(1, false, 32, DType::f32, true));
    one(DType::bf16, DType::i8, Act::f32, 1, 4096, form(1, true, 128, DType::f16, false, false, true));
  }

  template <class Visit>
  static void visit_one(Arch arch, Visit&& visit, DType x, DType w, Act act, const Policy& row, const Policy& form) {
    const Policy p = with(row, form, x, w, act);
    if (p.smem_bytes(x, w, act, p.tokens()) <= chip(arch).smem_bytes())
      visit(Key{x, w, x == DType::e4m3 ? DType::bf16 : x, act, p});
  }
};

}  // namespace vivace::ops
