// Tactics of products whose weights are widened in registers (kernels/gemm/codes.cuh): shared by gemm and
// grouped_gemm.
#pragma once
#include "vivace/kernels/gemm/codes.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

/// Shared memory a block may have on the chip.
constexpr int gemm_smem_limit(Arch arch) {
  if (arch == Arch::sm80 || arch == Arch::sm87) return 163 * 1024;
  return (arch >= Arch::sm90a && arch <= Arch::sm110a ? 227 : 99) * 1024;
}

struct GemmCodesGpu {
  using Policy = kernels::GemmCodes;
  using Act = kernels::GemmAct;
  struct Key {
    DType x, w, out;
    Act act;
    Policy p;
    bool operator==(const Key&) const = default;
  };

  // warps n, k; row tiles; token tiles; stages; cluster (set by split()); panel of one plane; aligned. The
  // first row that holds T (those of kAnyTokens on: several times) and the chip's shared memory serves. All agree in warps_k.
  static constexpr Policy kTactics[] = {
      {4, 2, 1, 1, 3, 1, 4096, true}, {4, 2, 1, 1, 2, 1, 2048, true}, {4, 2, 1, 2, 3, 1, 1024, true}, {4, 2, 1, 4, 2, 1, 512, true},
      {4, 2, 2, 8, 2, 1, 512, true},  {4, 2, 1, 1, 2, 1, 512, true}, {2, 2, 1, 1, 2, 1, 512, true},
  };
  static constexpr int kAnyTokens = 4;
  static constexpr int kWarpsK = 2;

  /// Blocks that share a tile's K, from the weight's shape alone: enough to fill the chip, a step a warp at least.
  static constexpr int split(int64_t N, int64_t K, DType w, Arch arch) {
    if (arch < Arch::sm90a) return 1;
    const int64_t steps = (K + Policy::step(w) - 1) / Policy::step(w);
    int s = 1;
    while (s < 4 && (N + 63) / 64 * s < 128 && steps >= int64_t{s} * 2 * kWarpsK) s *= 2;
    return s;
  }

  /// Whether rows of `pitch` bytes at `w` and the steps in them start at 16 bytes.
  static bool aligned(const void* w, int64_t pitch, DType t) {
    return reinterpret_cast<uintptr_t>(w) % 16 == 0 && pitch % 16 == 0 && Policy::step_bytes(t) % 16 == 0;
  }

  /// A row of the table for these operands: `form` says all that does not come from the row.
  static constexpr Policy with(Policy p, const Policy& form, DType x, DType w, Act act) {
    p.cluster = form.cluster, p.aligned = form.aligned, p.group = form.group, p.scale = form.scale, p.zeros = form.zeros, p.x_scaled = form.x_scaled;
    if (act == Act::f32 && Policy::planes(x, Policy::mma(x, w)) > 1) p.panel = p.panel / 4 > 512 ? p.panel / 4 : 512;
    return p;
  }
  static constexpr Policy form(int cluster, bool aligned, int group = 0, DType scale = DType::f32, bool zeros = false, bool x_scaled = false) {
    return {0, 0, 0, 0, 0, cluster, 0, aligned, group, scale, zeros, x_scaled};
  }

  static Result<Key> pick(DType x, DType w, DType out, Act act, int64_t T, const Policy& form, Arch arch) {
    for (const Policy& row : kTactics) {
      const Policy p = with(row, form, x, w, act);
      const bool any = &row - kTactics >= kAnyTokens;
      if ((T > p.tokens() && !any) || p.smem_bytes(x, w, act, p.tokens()) > gemm_smem_limit(arch)) continue;
      return Key{x, w, out, act, p};
    }
    return Status(Code::kInternal, "no tactic serves this shape");
  }

  /// `kernel` is the template's name.
  static std::string instance(const char* kernel, const Key& k) {
    return kernel_expression("%s<%s, vivace::DType::%s, %s, vivace::kernels::GemmAct::%s, vivace::kernels::GemmCodes{%d, %d, %d, %d, %d, %d, %d, %s, %d, vivace::DType::%s, %s, %s}>", kernel,
                             type_name(k.x), name(k.w), type_name(k.out), k.act == Act::q8 ? "q8" : "f32", k.p.warps_n, k.p.warps_k, k.p.row_tiles,
                             k.p.token_tiles, k.p.stages, k.p.cluster, k.p.panel, k.p.aligned ? "true" : "false",
                             k.p.group, name(k.p.scale), k.p.zeros ? "true" : "false", k.p.x_scaled ? "true" : "false");
  }

  /// T is the bound that the kernel sees in its arguments.
  static void shape(const Key& k, int64_t tiles, int64_t T, exec::Launch* launch) {
    launch->block[0] = static_cast<uint32_t>(k.p.threads());
    launch->cluster = static_cast<uint32_t>(k.p.cluster);
    launch->smem_bytes = static_cast<uint32_t>(k.p.smem_bytes(k.x, k.w, k.act, static_cast<int>(T < k.p.tokens() ? T : k.p.tokens())));
    launch->grid[0] = static_cast<uint32_t>(tiles * k.p.cluster);
  }

  /// Every tactic with one block format; every format, and the kinds of x, with the first tactic.
  template <class Visit>
  static void instances(Arch arch, Visit&& visit) {
    const auto one = [&](DType x, DType w, Act act, const Policy& row, const Policy& form) { visit_one(arch, visit, x, w, act, row, form); };
    for (const Policy& p : kTactics) one(DType::bf16, DType::q4_0, Act::f32, p, form(1, true));
    if (arch >= Arch::sm90a) one(DType::bf16, DType::q4_0, Act::f32, kTactics[0], form(4, true));
    for (const DType w : {DType::q4_1, DType::q5_0, DType::q5_1, DType::q8_0, DType::q4_k, DType::q5_k, DType::q6_k})
      one(DType::bf16, w, Act::f32, kTactics[1], form(1, w == DType::q8_0));
    for (const DType w : {DType::q4_0, DType::q8_0, DType::q4_k, DType::q5_k, DType::q6_k}) one(DType::bf16, w, Act::q8, kTactics[1], form(1, w != DType::q6_k));
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
    const auto one = [&](DType x, DType w, const Policy& row, const Policy& form) { visit_one(arch, visit, x, w, Act::f32, row, form); };
    for (const int tactic : {0, 4}) {
      one(DType::bf16, DType::e2m1, kTactics[tactic], form(1, true, 16, DType::e4m3));
      one(DType::bf16, DType::i4, kTactics[tactic], form(1, true, 128, DType::bf16, true));
      one(DType::e4m3, DType::e4m3, kTactics[tactic], form(1, true, 128, DType::f32, false, true));
    }
    one(DType::f16, DType::i4, kTactics[1], form(1, false, 32, DType::f32, true));
    one(DType::bf16, DType::i8, kTactics[0], form(1, true, 128, DType::f16));
  }

 private:
  template <class Visit>
  static void visit_one(Arch arch, Visit&& visit, DType x, DType w, Act act, const Policy& row, const Policy& form) {
    const Policy p = with(row, form, x, w, act);
    if (p.smem_bytes(x, w, act, p.tokens()) <= gemm_smem_limit(arch)) visit(Key{x, w, x == DType::e4m3 ? DType::bf16 : x, act, p});
  }
};

}  // namespace vivace::ops
