// How attention runs on a GPU: which kernel, cut how.
#pragma once
#include "vivace/kernels/attention/attention.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

struct AttentionGpu {
  static constexpr const char* kHeader = "vivace/kernels/attention/attention.cuh";
  using Args = kernels::AttentionArgs;
  using Tile = kernels::AttentionTile;
  using Plain = kernels::AttentionPlain;
  struct Key {
    DType q, kv;
    bool tensor;  // tile, else plain
    Tile tile;
    Plain plain;
    bool terms = false;  // per-head scales, slopes or bits
    bool operator==(const Key&) const = default;
  };
  /// Roles of a call. A row's bits depend on its role, never on its neighbours.
  enum class Role { decode, chunk, prefill };
  static constexpr int kMaxTileDim = 256;

  /// Decode: tokens with slots of their own, or few; one row of mma tiles and all streams along the keys.
  /// Chunk: some tens of queries of one sequence, such as an action chunk.
  static Role role(const Args& a) {
    if (a.by_token() || a.T <= 16 || (a.slot != nullptr && a.T <= 64)) return Role::decode;
    return a.T <= 64 ? Role::chunk : Role::prefill;
  }
  static int row_class(const Args& a) { return static_cast<int>(role(a)); }
  /// Shared memory a block may have on the chip.
  static constexpr int smem_limit(Arch arch) {
    if (arch == Arch::sm80 || arch == Arch::sm87) return 163 * 1024;
    return (arch >= Arch::sm90a && arch <= Arch::sm110a ? 227 : 99) * 1024;
  }
  /// The cut for a role: fixed by head sizes, most places a slot can have, and chip.
  static constexpr Tile cut(Role role, int d, int dv, int64_t places, bool wide, Arch arch) {
    const int largest = d > dv ? d : dv, blocks = arch >= Arch::sm90a ? (places <= 128 ? 1 : places <= 512 ? 4 : 8) : 1;
    Tile t{d, dv, 1, 4, 16, 3, blocks, wide, false};
    if (role == Role::chunk) t = {d, dv, 4, 2, 32, 2, blocks, wide, false};
    if (role == Role::prefill) t = {d, dv, 4, 1, largest > 128 ? 32 : 64, 2, 1, wide, false};
    if (role == Role::prefill && arch == Arch::sm90a && d == dv && (d == 64 || d == 128 || d == 256))
      return {d, dv, 8, 1, d > 128 ? 64 : 128, 2, 1, wide, true};
    while (t.smem() > smem_limit(arch)) {
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
    return a.D % n == 0 && a.Dv % n == 0 && vectorizable(a.q, a.q_stride, a.dtype, n) && vectorizable(a.k, a.k_stride, a.kv_dtype, n) &&
           vectorizable(a.v, a.v_stride, a.kv_dtype, n) && vectorizable(a.out, a.out_stride, a.dtype, 2);
  }
  static Result<Key> pick(const Args& a, Arch arch) {
    const int largest = a.D > a.Dv ? a.D : a.Dv;
    if (int64_t{a.T} * a.Hq > INT32_MAX / 2)
      return Status(Code::kUnsupported, strf("T * Hq = %ld queries are above 2^30; cut the call", static_cast<long>(int64_t{a.T} * a.Hq)));
    Key k{a.dtype, a.kv_dtype, a.dtype != DType::f32 && (a.kv_dtype == a.dtype || a.kv_dtype == DType::e4m3) && largest <= kMaxTileDim, {}, {}};
    if (k.tensor) k.tile = cut(role(a), a.D, a.Dv, a.places(), aligned(a, 8), arch);
    else k.plain = plain(largest, aligned(a, 4));
    k.terms = a.has_terms();
    return k;
  }
  static std::string instance(const Key& k) { return instance(k, k.terms ? "vivace::kernels::Terms" : "vivace::kernels::Standard"); }
  /// The same kernel for a variant, the C++ name of a struct (kernels/attention/variant.cuh).
  static std::string instance(const Key& k, const std::string& variant) {
    if (!k.tensor)
      return kernel_expression("attention_plain<%s, %s, vivace::kernels::AttentionPlain{%d, %d, %d, %s}, %s>", type_name(k.q), type_name(k.kv),
                               k.plain.threads, k.plain.lanes, k.plain.items, k.plain.wide ? "true" : "false", variant.c_str());
    const Tile& t = k.tile;
    return kernel_expression("%s<%s, %s, vivace::kernels::AttentionTile{%d, %d, %d, %d, %d, %d, %d, %s, %s}, %s>", t.groups ? "attention_group" : "attention_tile",
                             type_name(k.q), type_name(k.kv), t.d, t.dv, t.warps_m, t.warps_n, t.keys, t.stages, t.split, t.wide ? "true" : "false",
                             t.groups ? "true" : "false", variant.c_str());
  }
  static void shape(const Args& a, const Key& k, exec::Launch* launch) {
    if (!k.tensor) {
      launch->grid[0] = static_cast<uint32_t>(a.T * a.Hq);
      launch->block[0] = static_cast<uint32_t>(k.plain.threads);
      const int streams = k.plain.threads / k.plain.lanes;
      launch->smem_bytes = static_cast<uint32_t>(streams * (k.plain.lanes * k.plain.items + 2) * 4);
      return;
    }
    const int group = a.group(), height = a.by_token() && group < k.tile.rows() ? group : k.tile.rows();
    const int64_t tiles = (int64_t{a.T} * group + height - 1) / height;
    launch->grid[0] = static_cast<uint32_t>(tiles * a.Hkv * k.tile.split);
    launch->block[0] = static_cast<uint32_t>(k.tile.threads());
    launch->cluster = static_cast<uint32_t>(k.tile.split);
    launch->smem_bytes = static_cast<uint32_t>(k.tile.smem());
  }
  /// Head sizes that models have; others compile when they come.
  template <class Visit>
  static void instances(Arch arch, Visit&& visit) {
    for (const Role r : {Role::decode, Role::chunk, Role::prefill})
      for (const int d : {64, 72, 128, 256}) visit(Key{DType::bf16, DType::bf16, true, cut(r, d, d, 4096, true, arch), {}});
    for (const Role r : {Role::decode, Role::prefill}) {
      visit(Key{DType::f16, DType::f16, true, cut(r, 128, 128, 4096, true, arch), {}});
      visit(Key{DType::bf16, DType::e4m3, true, cut(r, 128, 128, 4096, true, arch), {}});
      visit(Key{DType::bf16, DType::bf16, true, cut(r, 64, 64, 128, false, arch), {}});
    }
    for (const int d : {64, 128, 256, 1024})
      for (const bool wide : {true, false}) visit(Key{DType::f32, DType::bf16, false, {}, plain(d, wide)});
    visit(Key{DType::f32, DType::f32, false, {}, plain(64, true)});
    for (const Role r : {Role::decode, Role::chunk, Role::prefill}) visit(Key{DType::bf16, DType::bf16, true, cut(r, 128, 128, 4096, true, arch), {}, true});
  }
};

}  // namespace vivace::ops
