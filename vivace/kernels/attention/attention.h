// Arguments of `attention`, shared by the CPU and CUDA kernels. POD; see vivace/ops/attention.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/attention/variant.h"
#include "vivace/kernels/tile/tensor_map.h"

namespace vivace::kernels {

enum class AttentionMask : uint8_t { causal, prefix, full, state };

struct AttentionArgs {
  const void* q;          // [T, Hq, D] dtype
  const void* k;          // [B, L, Hkv, D] kv_dtype, with heads_first [B, Hkv, L, D]
  const void* v;          // alike, heads of Dv
  const int32_t* pos;     // [T] or null: pos[t] = t
  const int32_t* slot;    // [T] or null: 0
  const int32_t* length;  // [S] or null: slot_capacity()
  const int32_t* prefix;  // [S], set iff mask is prefix or state
  const int32_t* page_table;  // [S, P] block of each page of a slot, or null: block = slot
  const int32_t* k_offsets;   // [S + 1] first row of each slot in block 0, its only one; or null
  const float* sinks;     // [Hq] or null
  const float* head_scale;  // [Hq] or null
  const float* slopes;    // [Hq] or null: ALiBi
  const int32_t* bits;    // [T, W] or null
  const int32_t* bits_from;  // [S] or null: 0
  void* out;              // [T, Hq, Dv] out_dtype()
  const float* out_scale;  // [1] of e4m3 outputs, else null
  float* lse;             // [T, Hq] or null
  const int32_t* rows;    // [1] device-side T, or null
  int64_t q_stride, k_stride, v_stride, out_stride, lse_stride;  // elements a token (k, v: a block)
  int64_t table_stride, bits_stride;  // elements a slot of page_table, a token of bits
  int32_t T, S, B, L, P, W, Hq, Hkv, D, Dv;
  int32_t k_pitch, v_pitch;  // of `attention`: elements between positions of a block; dense Hkv * D, heads_first D
  float scale, softcap;   // softcap 0: none
  int32_t window;         // 0: none
  AttentionMask mask;
  DType dtype, kv_dtype;
  bool heads_first;       // a block's heads one after the other, not its positions
  AttentionExtra extra;   // of a user's variant; without one words() lies there

  /// [words_of()] what clusters of attention_swap_ab exchange; or null: one has all of a KV head's keys.
  VV_HD uint32_t* words() const { return *reinterpret_cast<uint32_t* const*>(extra.bytes); }
  /// Its elements: counts, which lie where they do whatever the call, and of each row of 16 tokens, the most that are a
  /// decode step of one slot, sums and states of eight clusters.
  VV_HD static constexpr int64_t words_of(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t dv) {
    return words_ahead() + 32 * ((tokens < 16 ? tokens : 16) * (heads / kv_heads) + 16) * ((dv + 127) / 128 * 128);
  }
  VV_HD static constexpr int words_ahead() { return 4096; }
  VV_HD DType out_dtype() const { return out_scale != nullptr ? DType::e4m3 : dtype; }
  /// Whether scores or visibility depend on more than spans, scale and soft cap.
  VV_HD bool has_terms() const { return head_scale != nullptr || slopes != nullptr || bits != nullptr; }
  /// Whether `bits` lets query t see position j of its slot: from bits_from on, bit j - bits_from decides.
  VV_HD bool bit(int64_t t, int64_t slot_of_t, int64_t j) const {
    if (bits == nullptr) return true;
    if (bits_from != nullptr) j -= bits_from[slot_of_t];
    if (j < 0) return true;
    return j / 32 < W && (static_cast<uint32_t>(bits[t * bits_stride + j / 32]) >> (j % 32) & 1u) != 0;
  }
  /// Tokens may well have slots of their own: decode steps of several sequences.
  VV_HD bool by_token() const { return slot != nullptr && T <= S; }
  VV_HD int group() const { return Hq / Hkv; }  // query heads that read one kv head
  /// Places of a slot.
  VV_HD int64_t slot_capacity() const { return page_table ? int64_t{P} * L : L; }
  /// Block and position in it of position j of a slot; block -1: the page does not exist.
  VV_HD int64_t block(int64_t s, int64_t j) const {
    if (page_table == nullptr) return k_offsets ? 0 : s;
    const int64_t b = page_table[s * table_stride + static_cast<uint32_t>(j) / static_cast<uint32_t>(L)];
    return b >= 0 && b < B ? b : -1;
  }
  VV_HD int64_t row_in_block(int64_t s, int64_t j) const {
    if (k_offsets != nullptr) return j + k_offsets[s];
    return page_table ? static_cast<uint32_t>(j) % static_cast<uint32_t>(L) : j;  // positions fit 31 bits
  }
  /// Without pages: the element where position 0 of a slot lies, `stride` of them between blocks and `pitch` between
  /// positions.
  VV_HD int64_t slot_at(int64_t s, int64_t stride, int64_t pitch) const {
    return k_offsets ? k_offsets[s] * pitch : s * stride;
  }
  /// Heads' rows, of D or Dv elements, between positions of a dense block and between kv heads of any.
  VV_HD int32_t position_rows() const { return heads_first ? 1 : Hkv; }
  VV_HD int32_t head_rows() const { return heads_first ? L : 1; }
};

/// The keys that a query sees: one run of its slot's positions, whatever the mask.
struct AttentionSpan {
  int64_t slot, first, end;

  VV_HD AttentionSpan(const AttentionArgs& a, int64_t t) : slot(a.slot ? a.slot[t] : 0), first(0), end(0) {
    const int64_t pos = a.pos ? a.pos[t] : t;
    if (slot < 0 || slot >= a.S) {
      slot = 0;
      return;
    }
    end = a.slot_capacity();
    if (a.length != nullptr) {
      const int64_t valid = a.length[slot];
      if (valid < end) end = valid;
    }
    if (a.k_offsets != nullptr) {  // rows that k does not have are not there
      const int64_t from = a.k_offsets[slot], to = a.k_offsets[slot + 1],
                    held = from < 0 ? 0 : (to < a.L ? to : a.L) - from;
      if (held < end) end = held < 0 ? 0 : held;
    }
    if (a.mask != AttentionMask::full) {
      int64_t seen = pos + 1;
      if (a.mask == AttentionMask::prefix && a.prefix[slot] > seen) seen = a.prefix[slot];
      // Three blocks: the prefix, one state, all after it; each sees itself and those before it.
      if (a.mask == AttentionMask::state)
        seen = pos < a.prefix[slot] ? a.prefix[slot] : pos == a.prefix[slot] ? seen : end;
      if (seen < end) end = seen;
    }
    if (a.window > 0 && pos - a.window + 1 > 0) first = pos - a.window + 1;
    if (end < first) first = end = 0;
  }
};

/// Kernel for 16-bit queries on tensor cores. A row is a query of one head; `warps_m` * 16 rows that read
/// one kv head make a tile (of one token only if by_token()). Keys go in blocks of `keys`, block b to stream b % (split
/// * warps_n), where a stream is warps_m warps; split thread blocks, a cluster, share a tile's streams. What a row's
/// bits depend on is keys and the number of streams.
struct AttentionTile {
  int32_t d, dv;     // head sizes, up to 256
  int32_t warps_m, warps_n, keys, stages, split;
  bool wide;         // 16-byte accesses
  bool wgmma;       // Hopper: warpgroups, wgmma; one stream
  bool warp_specialized =
      false;  // warpgroups whose keys and values a producer warp brings by TMA; else heads of a multiple of 64
  bool one_span = false;  // with it: tokens that share a slot see the same places, from 0 on
  static constexpr int kBarrierBytes = 128;
  constexpr bool operator==(const AttentionTile&) const = default;

  /// Four warpgroups of consumers leave no registers for a producer: one of their warps asks for keys and values.
  VV_HD constexpr bool tall() const { return warp_specialized && warps_m == 16; }
  VV_HD constexpr int producer_threads() const { return warp_specialized && !tall() ? 128 : 0; }
  VV_HD constexpr int threads() const { return 32 * warps_m * warps_n + producer_threads(); }
  VV_HD constexpr int rows() const { return 16 * warps_m; }
  VV_HD constexpr int padded(int dim) const { return (dim + 15) / 16 * 16; }
  /// 16-bit elements between rows in shared memory: an odd number of 16-byte units, so that the eight rows
  /// of a matrix lie in different banks.
  VV_HD constexpr int pitch(int dim) const { return wgmma ? (dim + 63) / 64 * 64 : padded(dim) + 8; }
  VV_HD constexpr int stage_bytes() const { return keys * (pitch(d) + pitch(dv)) * 2; }
  VV_HD constexpr int query_bytes() const { return rows() * pitch(d) * 2; }
  VV_HD constexpr int partial() const {
    return rows() * (padded(dv) + 2);
  }  // f32 sums, maximum, row_sum of a stream's rows
  VV_HD constexpr bool merges() const { return warps_n * split > 1; }
  VV_HD constexpr int smem() const {
    const int streams = warps_n * stages * stage_bytes();
    const int merging = merges() ? (warps_n * partial() + 2 * rows()) * 4 : 0;
    return query_bytes() + (streams > merging ? streams : merging) + (warp_specialized ? kBarrierBytes : 0);
  }
};

/// Kernel for few 16-bit queries on Hopper: decode and chunks. warps_m * 16 rows make a tile; warps_d warps share a
/// row's columns; `split` thread blocks, a cluster, share a tile's keys. A row's bits depend on neither.
struct AttentionStream {
  int32_t d, dv;  // head sizes, up to 256; rows of 16 bytes or multiples
  int32_t warps_m, warps_d, stages, split;
  int32_t slots;  // units of keys a block does before the cluster meets
  static constexpr int kKeys = 64, kGroup = 4;  // keys of a block, blocks of a group: the tree of a row's sum
  static constexpr int kProducers = 64;           // threads that copy
  constexpr bool operator==(const AttentionStream&) const = default;

  VV_HD constexpr int consumers() const { return 32 * warps_m * warps_d; }
  VV_HD constexpr int threads() const { return consumers() + kProducers; }
  VV_HD constexpr int occupancy() const {
    return warps_m == 1 && d <= 128 && dv <= 128 ? 2 : 1;
  }  // blocks that an SM's registers hold
  VV_HD constexpr int rows() const { return 16 * warps_m; }
  /// Rows of a tile: of one token if by_token().
  VV_HD int height(const AttentionArgs& a) const {
    const int64_t all = a.by_token() ? a.group() : int64_t{a.T} * a.group();
    return all < rows() ? static_cast<int>(all) : rows();
  }
  VV_HD constexpr int padded(int dim) const { return (dim + 15) / 16 * 16; }
  /// Bytes between rows of keys or values, so that what a warp reads together lies in different banks.
  VV_HD constexpr int pitch(int dim, int bytes) const {
    return bytes == 2 ? padded(dim) * 2 + 16 : ((dim + 15) / 16 + 3) / 8 * 128 + 64;
  }
  VV_HD constexpr int pitch_v(int dim, int bytes) const {
    return bytes == 2 ? pitch(dim, 2) : ((dim + 15) / 16 | 1) * 16;
  }
  VV_HD constexpr int stage_bytes(int bytes) const { return kKeys * (pitch(d, bytes) + pitch_v(dv, bytes)); }
  VV_HD constexpr int query_bytes(int height) const { return (height * ((padded(d) + 8) * 2 + 4) + 15) / 16 * 16; }
  static constexpr int kScorePitch = kKeys + 8;  // floats; two buffers of scores for each row
  VV_HD constexpr int score_bytes(int height) const { return 2 * height * kScorePitch * 4; }
  /// Fours of columns of a tile's rows that one block of a cluster sums up at the end.
  VV_HD constexpr int share(int height) const { return (height * (padded(dv) / 4) + split - 1) / split; }
  VV_HD constexpr int barriers_at(int bytes, int height) const {
    return query_bytes(height) + stages * stage_bytes(bytes) + score_bytes(height) +
           (split > 1 ? split * slots * (share(height) * 16 + height * 8) : 0);
  }
  VV_HD constexpr int smem(int bytes, int height) const { return barriers_at(bytes, height) + stages * 16; }
};

/// Kernel for few 16-bit queries on Hopper whose keys TMA brings. warps_m * 16 rows make a tile; four warps for 16 of
/// them share a block's keys, then its columns; `teams` of such take a thread block's blocks of keys in turn; `split`
/// thread blocks, a cluster, all of them: block b, counted from position 0, is for team b / split % teams of b % split.
/// A row's bits follow from keys, split and teams.
struct AttentionSplitKV {
  int32_t d, dv;  // head sizes, up to 256
  int32_t bytes;  // of an element of the cache
  int32_t warps_m, keys, stages, split, teams;
  static constexpr int kWarps = 4;  // along keys, then along columns
  constexpr bool operator==(const AttentionSplitKV&) const = default;

  VV_HD constexpr int rows() const { return 16 * warps_m; }
  VV_HD constexpr int team() const { return 32 * kWarps * warps_m; }  // threads
  VV_HD constexpr int consumers() const { return team() * teams; }
  VV_HD constexpr int threads() const { return consumers() + 32; }
  VV_HD constexpr int occupancy() const {
    return warps_m * teams == 1 && d <= 128 && dv <= 128 ? 2 : 1;
  }  // blocks that an SM's registers hold
  /// Rows of a tile: of one token if by_token().
  VV_HD int height(const AttentionArgs& a) const {
    const int64_t all = a.by_token() ? a.group() : int64_t{a.T} * a.group();
    return all < rows() ? static_cast<int>(all) : rows();
  }
  VV_HD constexpr int padded(int dim) const { return (dim + 15) / 16 * 16; }
  VV_HD constexpr int panels(int dim) const { return (dim * bytes + 127) / 128; }  // of 128 bytes of a row, swizzled
  VV_HD constexpr int stage_bytes() const { return keys * (panels(d) + panels(dv)) * 128; }
  VV_HD constexpr int query_pitch() const { return padded(d) + 8; }  // elements
  VV_HD constexpr int probability_pitch() const { return keys + 8; }
  /// Fours of columns of a tile's rows that one block of a cluster sums up at the end.
  VV_HD constexpr int share(int height) const { return (height * (padded(dv) / 4) + split - 1) / split; }
  VV_HD constexpr int state_bytes(int height) const {
    return (height + 1) / 2 * 16;
  }  // f32 maximum and row_sum of each row
  VV_HD constexpr int partial_bytes(int height) const {
    return height * padded(dv) * 4 + state_bytes(height);
  }  // sums and states of a team
  VV_HD constexpr int received_bytes(int height) const {
    return share(height) * 16 + state_bytes(height);
  }  // of one team to one block
  // Shared memory: stages (at the end partials), queries, probabilities, maxima and row_sums, what was sent here,
  // barriers.
  VV_HD constexpr int stages_bytes() const {
    return stages * stage_bytes() > teams * partial_bytes(rows()) ? stages * stage_bytes()
                                                                  : teams * partial_bytes(rows());
  }
  VV_HD constexpr int queries_at() const { return (stages_bytes() + 15) / 16 * 16; }
  VV_HD constexpr int probabilities_at() const { return queries_at() + rows() * query_pitch() * 2; }
  VV_HD constexpr int maxima_at() const { return probabilities_at() + 2 * teams * rows() * probability_pitch() * 2; }
  VV_HD constexpr int q_descales_at() const {
    return maxima_at() + teams * 2 * kWarps * rows() * 4;
  }  // e4m3: what each row was divided by
  VV_HD constexpr int received_at() const { return q_descales_at() + rows() * 4; }
  VV_HD constexpr int barriers_at(int height) const {
    return received_at() + (split > 1 ? split * teams * received_bytes(height) : 0);
  }
  VV_HD constexpr int smem(int height) const { return barriers_at(height) + stages * 4 * 8 + 8; }
};

/// Kernel for few 16-bit queries on Hopper, swap-AB: `rows` rows make a tile, `split` thread blocks, a
/// cluster, share its keys: block b of 128, counted from position 0, is for thread block b % split. A row's bits follow
/// from split.
struct AttentionSwapAB {
  int32_t d, dv;   // head sizes, up to 256
  int32_t rows;    // 8, 16 or 32
  int32_t stages;   // 128 keys, or values, each: on their way or in use
  int32_t split;   // 1, 2, 4 or 8
  static constexpr int kKeys = 128, kBox = 64;  // kBox: keys that one request brings, at most
  constexpr bool operator==(const AttentionSwapAB&) const = default;

  VV_HD constexpr int threads() const { return 256 + 32; }
  /// Blocks that an SM's registers hold. Heads of up to 64 in eight parts would spill two words; such calls have a
  /// block an SM at most.
  VV_HD constexpr int occupancy() const {
    return rows <= 8 && smem() <= 113 * 1024 && !(split == 8 && panels(d) == 1) ? 2 : 1;
  }
  /// Rows of a tile: of whole tokens, of one if by_token().
  VV_HD int height(const AttentionArgs& a) const { return a.by_token() ? a.group() : rows / a.group() * a.group(); }
  VV_HD constexpr int panels(int dim) const { return (dim + 63) / 64; }  // of 128 bytes of a row, swizzled
  VV_HD constexpr int own() const { return (panels(dv) + 1) / 2; }       // panels of values of a warpgroup
  VV_HD constexpr int stage_bytes() const { return kKeys * panels(d > dv ? d : dv) * 128; }
  VV_HD constexpr int sums_bytes() const { return own() * rows * 512; }  // of a tile
  VV_HD constexpr int share_bytes() const { return sums_bytes() / split; }  // of what a part sends each other
  // Shared memory: stages, queries, probabilities, what was sent here, maxima, row_sums of each warp, barriers.
  VV_HD constexpr int queries_at() const { return stages * stage_bytes(); }
  VV_HD constexpr int probabilities_at() const { return queries_at() + rows * panels(d) * 128; }
  VV_HD constexpr int received_at() const { return probabilities_at() + rows * kKeys * 2; }
  VV_HD constexpr int states_at() const { return received_at() + (split > 1 ? sums_bytes() : 0); }
  VV_HD constexpr int maxima_at() const { return states_at() + split * rows * 8; }
  VV_HD constexpr int row_sums_at() const { return maxima_at() + rows * 4; }
  VV_HD constexpr int barriers_at() const { return row_sums_at() + 8 * rows * 4; }
  VV_HD constexpr int smem() const { return barriers_at() + (stages * 5 + 2) * 8; }
};

/// How `clusters` of attention_swap_ab share the keys of a KV head: of blocks of keys in their order each split of one
/// takes turns(), then those of the next cluster do. Not of AttentionSwapAB: kernels of one cluster keep their code.
struct AttentionClusters {
  int32_t split, clusters;

  VV_HD constexpr int turns() const { return 4; }
  /// The first block of keys of a split of a cluster, the one that follows b, and how many there are of `blocks`.
  VV_HD constexpr int first_block(int cluster, int of) const { return cluster * turns() * split + of; }
  VV_HD constexpr int next_block(int b) const {
    return b + split * ((b / split + 1) % turns() == 0 ? turns() * (clusters - 1) + 1 : 1);
  }
  VV_HD constexpr int block_count(int cluster, int of, int blocks) const {
    const int all = blocks > of ? (blocks - 1 - of) / split + 1 : 0, lap = turns() * clusters,
              last = all % lap - cluster * turns();
    return all / lap * turns() + (last < 0 ? 0 : last > turns() ? turns() : last);
  }
  /// Clusters that have keys, the first ones; one at least, which writes the zeros of rows that see nothing.
  VV_HD constexpr int used(int blocks) const {
    const int n = (blocks + turns() * split - 1) / (turns() * split);
    return n < 1 ? 1 : n > clusters ? clusters : n;
  }
};

/// Arguments of `prefill_tma`, `prefill_tall`, `swap_ab` and `split_kv`: those of the op, and k and v as TMA
/// reads them: innermost first [D, L, Hkv, B] in boxes of 64 elements (e4m3: pairs) of min(n, L) positions (without
/// pages: n); n: the kernel's keys, swap_ab: kBox.
struct AttentionTmaArgs {
  static constexpr int kBytes = 512;
  alignas(64) unsigned char args[kBytes];
  TensorMap k, v;

  VV_HD const AttentionArgs& a() const { return *reinterpret_cast<const AttentionArgs*>(args); }
};
#ifndef __CUDACC_RTC__  // NVRTC has no __builtin_offsetof; the host pass has looked
static_assert(sizeof(AttentionArgs) <= AttentionTmaArgs::kBytes);
#endif

/// Arguments of `swap_ab`: TMA loads queries too, where queries() says so.
struct AttentionSwapABArgs {
  AttentionTmaArgs tma;
  TensorMap q;  // [D, T * Hq, 1, 1] where joined, else [D, group, Hkv, T], in boxes of queries().box rows

  /// How the queries of a tile of `rows` rows come. Host and kernel both ask here: what the map's axes are is not to be
  /// told from the box, for a group may fill a tile as joined heads and tokens do.
  struct Queries {
    int box;      // rows that one request brings; 0: threads copy them
    bool joined;  // heads and tokens lie at one pitch and are one axis: one kv head has all heads, tokens lie side by
                  // side
  };
  VV_HD static Queries queries(const AttentionArgs& a, int rows) {
    if (a.Hkv == 1 && a.q_stride == int64_t{a.Hq} * a.D) return {rows, true};
    return {a.group() % 8 == 0 && rows % a.group() == 0 ? a.group() : 0, false};
  }
};

/// Kernel for everything else: f32 arithmetic of any types, any head size, any alignment.
struct AttentionPlain {
  int32_t threads;
  int32_t lanes;   // threads that share a key
  int32_t items;   // elements of a head a thread holds: heads of up to lanes * items
  bool wide;       // accesses of 4 elements
  constexpr bool operator==(const AttentionPlain&) const = default;
};

}  // namespace vivace::kernels
