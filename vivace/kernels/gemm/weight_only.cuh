// gemm whose weights are dequantized in registers: block formats, 8-bit elements, pairs of types that the tensor cores
// do not multiply. Limit: memory bandwidth at few tokens, N * row_bytes(W, K); the integer units next.
//
// A warp copies 16 rows of W, 256 elements at a time (Hopper: 512, one box of TMA), as raw bytes into its own
// ring and dequantizes them on the way to the tensor cores: no barrier but the warp's. x is converted once a block, a
// panel of K at a time, or comes by TMA as it is (x_ring.cuh). Products of codes and x are exact; each
// group's sum is scaled and added in f32, in the order of K. Where P.persistent(), blocks walk the tiles and their
// rings run through. Where P.wgmma, four warps multiply together: what they dequantized is A's registers, x lies
// swizzled in its ring; the bits are the same.
// Chosen when: weights of another type than x or with block scales, where mixed_input does not serve; every chip.
#pragma once
#include "vivace/kernels/gemm/epilogue.cuh"
#include "vivace/kernels/gemm/panel.cuh"
#include "vivace/kernels/gemm/weights.cuh"
#include "vivace/kernels/gemm/x_ring.cuh"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/mbarrier.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/tma.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"
#include "vivace/kernels/ptx/wgmma_held.cuh"
#include "vivace/kernels/tile/pipeline.cuh"

namespace vivace::kernels {

template <DType kMma>
struct MmaType { using Type = bf16; };
template <>
struct MmaType<DType::f16> { using Type = f16; };

/// How x is held: see XPanel and XRing.
template <class X, class Mma, DType W, GemmAct kAct, GemmWeightOnly P, bool kRing>
struct HeldX { using Type = XPanel<X, Mma, W, kAct, P>; };
template <class X, class Mma, DType W, GemmAct kAct, GemmWeightOnly P>
struct HeldX<X, Mma, W, kAct, P, true> { using Type = XRing<X, W, P>; };

/// A block's tiles: P.rows() rows of W from n0 on times up to P.tokens() tokens, the cluster's share `rank` of K.
/// Row tiles first, first + stride, ... below `end`: begin() goes to one, and copies run ahead into the next.
template <class X, DType W, GemmAct kAct, GemmWeightOnly P>
struct WeightOnlyTile {
  using Mma = typename MmaType<P.mma(kTypeOf<X>, W)>::Type;
  using Row = WeightRow<W, Mma, P.aligned>;
  using Panel = typename HeldX<X, Mma, W, kAct, P, P.x_ring>::Type;
  static constexpr bool kInt = kAct == GemmAct::q8, kBlocks = is_block(W), kFolds = Panel::kFolds,
                        kPairs = Panel::kPairs, kScaled = !kFolds && (kBlocks || P.group > 0);
  static constexpr bool kSuper = kBlocks && info(W).block == 256;
  static constexpr bool kEightMinima = P.sums_in_planes(W, kAct);  // a product, and no sum of a group after the other
  static constexpr bool kHalves = W == DType::q6_k || (P.group == 16 && !kFolds);  // two scales for 32 elements
  /// What makes up for the size that values are dequantized to.
  static constexpr float kLift = kFolds ? 128.0f : kPairs && kIsSame<Mma, bf16> ? 64.0f : 1.0f;
  static constexpr int kScaleAt = 0, kZeroAt = 16 * P.scale_chunks(W),
                       kSidePitch = P.side_pitch(W);  // of what lies behind W
  static constexpr int kWPlanes = P.planes(W, P.mma(kTypeOf<X>, W));
  static constexpr int kStep = P.step(W), kBytes = P.step_bytes(W), kChunks = P.chunks(W), kPitch = P.pitch(W),
                       kSlot = P.slot_bytes(W), kRows = 16 * P.row_tiles;
  static constexpr int kRingBytes = P.ring_bytes(W), kBarrierBytes = P.barrier_bytes(W);
  static constexpr bool kReuse = P.reuse();
  static constexpr int kGroups = kStep / 32, kPanelSteps = P.panel / kStep,
                       kTakes = P.x_ring ? P.x_run(W) : kGroups;                // kTakes: groups of x at a time
  static constexpr bool kTma = P.tma_steps > 0, kWaits = !kTma || P.group > 0;  // kWaits: some copies are cp.async
  static constexpr bool kShifts = kTma && kBytes % 16 != 0;  // steps begin at other places of their 16 bytes
  // Groups whose code is interleaved: all of a step where few tokens leave registers for it.
  static constexpr int kTogether = kWPlanes > 1 || Panel::kPlanes > 1 || W == DType::q5_k ? 1
                                   : P.token_tiles > 2                                    ? (kTma ? 2 : 1)
                                   : kTma&& P.token_tiles == 1                            ? kGroups
                                                                                          : 2;
  static_assert(P.panel % ((P.x_ring ? 32 * kTakes : kStep) * P.warps_k) == 0 && P.slice() % 4 == 0);
  static_assert(!P.wgmma || (P.warps_n == 4 && P.row_tiles == 1 && P.x_ring && P.aligned && kPairs && kWPlanes == 1 &&
                             !kHalves && !Panel::kMin && !kInt && !P.x_scaled));
  static_assert(!P.straight || (P.scale_bytes(W) > 0 && P.scale_bytes(W) % 16 == 0));

  const GemmArgs& a;
  const TensorMap& map;
  int map_row;       // where the matrix starts in it
  uint8_t* ring;     // the warp's [P.stages]: W [kRows][kPitch bytes], scales and zero points [kRows][kSidePitch]
  Panel panel;
  float *sums, *both_sums;  // [part][token][row of the slice]; two of them where P.persistent()
  int64_t pitch;     // bytes between rows of W
  Pipeline<P.stages> w_ring;  // the warp's, of its ring, whose stages it releases to itself: no empty barriers
  int lane, wn, wk, rank;
  int first, count;  // steps of K of this rank
  bool scales_straight, zeros_straight;  // of the arrays beside W
  int turn = 0, n0 = 0;
  ConsumerState<P.stages> ring_at;                    // of the step that is multiplied
  int first_tile, next_tile, next_step, stride, end;  // of the step that is copied next
  bool whole = false;  // the panel holds all of this rank's x

  /// x in the memory behind W's ring.
  __device__ __forceinline__ static Panel held(const GemmArgs& args, const TensorMap* x_map, uint8_t* smem) {
    uint8_t* const memory = smem + P.x_at(W);
    if constexpr (P.x_ring)
      return Panel(x_map, memory, ptx::shared_address(smem) + P.w_barrier_bytes(), args.T,
                   static_cast<int>(threadIdx.x) / 32 % P.warps_n, static_cast<int>(threadIdx.x) / 32 / P.warps_n);
    else return Panel(memory, args.T);
  }
  __device__ __forceinline__ WeightOnlyTile(const GemmArgs& args, const TensorMap& w_map, int w_row,
                                            const TensorMap* x_map, uint8_t* smem, int tile, int stride_, int end_)
      : a(args),
        map(w_map),
        map_row(w_row),
        panel(held(args, x_map, smem)),
        lane(threadIdx.x % 32),
        wn(threadIdx.x / 32 % P.warps_n),
        wk(threadIdx.x / 32 / P.warps_n),
        rank(ptx::cluster_rank<P.cluster>()),
        first_tile(tile),
        next_tile(tile),
        stride(stride_),
        end(end_) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    ring = smem + kBarrierBytes + warp * (P.stages * kSlot);
    sums = both_sums = reinterpret_cast<float*>(smem + kBarrierBytes + (kReuse ? 0 : kRingBytes + panel.bytes()));
    pitch = row_bytes(W, a.w_stride);
    scales_straight = P.straight || (P.group > 0 && straight(a.w_block_scale, a.block_stride * info(P.scale).bytes));
    zeros_straight = P.zeros && straight(a.w_block_zero, a.zero_stride);
    const int64_t steps = (int64_t{a.K} + kStep - 1) / kStep;
    first = static_cast<int>(steps * rank / P.cluster);
    count = static_cast<int>(steps * (rank + 1) / P.cluster) - first;
    next_step = wk;
    if (wk >= count) next_tile = end;
    if constexpr (kTma) {
      w_ring = {ptx::shared_address(smem) + warp * P.stages * 8};
      if (lane == 0) {
#pragma unroll
        for (int s = 0; s < P.stages; ++s) w_ring.init_full(s, 1);
        ptx::mbarrier_fence();
      }
      __syncwarp();
    }
  }
  __device__ __forceinline__ void begin(int tile) { n0 = tile * P.rows(); }

  /// The next step of this warp into place `into`.
  __device__ __forceinline__ void load_next(int into) {
    if (next_tile < end) {
      load_w(next_step, next_tile * P.rows() + wn * kRows, into);
      next_step += P.warps_k;
      if (next_step >= count) next_step = wk, next_tile += stride;
    }
    if constexpr (kWaits) ptx::copy_commit();
  }
  /// Step `i` of this rank, rows of W from row0 on. Bytes beyond K become zeros; rows beyond N stay what
  /// they are, or are those of the next matrix. No L2 policy: ptxas 13.0 keeps a constant one in uniform
  /// registers and loses half of it where lanes diverge.
  __device__ __forceinline__ void load_w(int i, int row0, int into) const {
    uint8_t* slot = ring + into * kSlot;
    const uint8_t* w = static_cast<const uint8_t*>(a.w) + row0 * pitch;
    const int64_t begin = int64_t{first + i} * kBytes, end = row_bytes(W, a.K);
    const int rows = a.N - row0;
    if constexpr (kTma) {  // one box: what lies beyond the matrix comes as zeros, and counts
      if (lane == 0) {
        w_ring.producer_expect(into, kRows * kPitch);
        ptx::tma_load(ptx::shared_address(slot), map, w_ring.full(into),
                      static_cast<int>(kShifts ? begin / 16 * 4 : begin / 4), map_row + row0);
      }
    } else if (P.aligned && begin + kBytes <= end) {
      // Four lanes a row: 64 bytes at a time, so that few sectors are asked for twice.
      const uint8_t* from = w + lane / 4 * pitch + begin + lane % 4 * 16;
      uint8_t* to = slot + lane / 4 * kPitch + lane % 4 * 16;
#pragma unroll
      for (int r = 0; r < kRows / 8; ++r, from += 8 * pitch)
#pragma unroll
        for (int u = 0; u < (kChunks + 3) / 4; ++u)
          if (u * 4 + lane % 4 < kChunks && r * 8 + lane / 4 < rows)
            ptx::copy16(to + r * 8 * kPitch + u * 64, from + u * 64, true);
    } else {
#pragma unroll 1
      for (int at = lane; at < kRows * kChunks; at += 32) {
        const int row = at / kChunks, chunk = at % kChunks;
        if (row >= rows) break;  // rows ascend
        const uint8_t* start = w + row * pitch;
        const uint8_t* from =
            reinterpret_cast<const uint8_t*>(reinterpret_cast<uint64_t>(start + begin) & ~uint64_t{15}) + chunk * 16;
        const int64_t left = start + end - from;
        ptx::copy16_part(slot + row * kPitch + chunk * 16, from,
                         left < 0    ? 0
                         : left < 16 ? static_cast<int>(left)
                                     : 16);
      }
    }
    if constexpr (P.group > 0)
      load_side<kScaleAt, P.scale_bytes(W), P.scale_chunks(W)>(slot, i, row0, a.w_block_scale,
                                                               a.block_stride * info(P.scale).bytes,
                                                               info(P.scale).bytes, scales_straight);
    if constexpr (P.zeros)
      load_side<kZeroAt, P.zero_bytes(W), P.side_chunks(P.zero_bytes(W))>(slot, i, row0, a.w_block_zero, a.zero_stride,
                                                                          1, zeros_straight);
  }
  /// Whether each row of W has a row of its own of an array beside it, which starts at 16 bytes.
  __device__ __forceinline__ bool straight(const void* array, int64_t pitch_bytes) const {
    return a.block_rows == 1 && (reinterpret_cast<uint64_t>(array) | static_cast<uint64_t>(pitch_bytes)) % 16 == 0;
  }
  /// The address of step i's entries of row `row` of W in an array beside it, `pitch_bytes` between its rows.
  __device__ __forceinline__ const uint8_t* side_at(int i, int row, const void* array, int64_t pitch_bytes,
                                                    int bytes) const {
    return static_cast<const uint8_t*>(array) + row / a.block_rows * pitch_bytes +
           int64_t{first + i} * kStep / P.group * bytes;
  }
  template <int kAt, int kSideBytes, int kSide>
  __device__ __forceinline__ void load_side(uint8_t* slot, int i, int row0, const void* array, int64_t pitch_bytes,
                                            int bytes, bool is_straight) const {
    constexpr int kWhole = kSideBytes / 16;
    if constexpr (kSideBytes % 16 == 0) {
      if (is_straight && (int64_t{first + i} + 1) * kStep <= a.K) {
        const uint8_t* from = side_at(i, 0, array, 0, bytes);
#pragma unroll
        for (int at = lane; at < kRows * kWhole; at += 32) {
          const int row = at / kWhole, chunk = at % kWhole;
          if (row0 + row < a.N)
            ptx::copy16(slot + kRows * kPitch + row * kSidePitch + kAt + chunk * 16,
                        from + (row0 + row) * pitch_bytes + chunk * 16, true);
        }
        return;
      }
    }
#pragma unroll 1
    for (int at = lane; at < kRows * kSide; at += 32) {
      const int row = at / kSide, chunk = at % kSide;
      if (row0 + row >= a.N) continue;
      const uint8_t* start = side_at(i, row0 + row, array, pitch_bytes, bytes);
      const uint8_t* from =
          reinterpret_cast<const uint8_t*>(reinterpret_cast<uint64_t>(start) & ~uint64_t{15}) + chunk * 16;
      const int64_t entries = (a.K - int64_t{first + i} * kStep + P.group - 1) / P.group,
                    there = entries * bytes < kSideBytes ? entries * bytes : kSideBytes;
      const int64_t left = start + there - from;
      ptx::copy16_part(slot + kRows * kPitch + row * kSidePitch + kAt + chunk * 16, from,
                       left < 0    ? 0
                       : left < 16 ? static_cast<int>(left)
                                   : 16);
    }
  }
  /// Where row `row`'s entries of step i lie in the ring.
  template <int kAt>
  __device__ __forceinline__ const uint8_t* side_row(int i, int row, const void* array, int64_t pitch_bytes,
                                                     int bytes, bool is_straight) const {
    const uint8_t* p = ring + ring_at.stage * kSlot + kRows * kPitch + row * kSidePitch + kAt;
    if (kStep / P.group * bytes % 16 == 0 && is_straight) return p;
    return p + (reinterpret_cast<uint64_t>(side_at(i, n0 + wn * kRows + row, array, pitch_bytes, bytes)) & 15);
  }
  /// Row r (0 .. 15) of row tile `tile` in step i's place: the lane's top one, or 8 below.
  __device__ __forceinline__ const uint8_t* row_at(int i, int tile, int half) const {
    const int row = tile * 16 + half * 8 + lane / 4;
    const uint8_t* p = ring + ring_at.stage * kSlot + row * kPitch;
    if constexpr (kShifts) p += (first + i) * kBytes & 15;
    if constexpr (!P.aligned)
      p += (reinterpret_cast<uint64_t>(a.w) + (n0 + wn * kRows + row) * pitch + int64_t{first + i} * kBytes) & 15;
    return p;
  }

  /// A row's step, its scales and zero points.
  struct ScaledRow : Row {
    const uint8_t *scales, *zeros;
    __device__ __forceinline__ float scale_of(int j, int half) const {
      if constexpr (kBlocks) {
        return Row::scale(j, half);
      } else {
        const int at = (j * 32 + half * 16) / P.group;
        if constexpr (P.scale == DType::e4m3) return to_float(e4m3{scales[at]});
        else if constexpr (P.scale == DType::f32) return reinterpret_cast<const float*>(scales)[at];
        else return to_float(reinterpret_cast<const typename MmaType<P.scale>::Type*>(scales)[at]);
      }
    }
    /// What each element adds beside its scaled code.
    __device__ __forceinline__ float min_of(int j) const {
      if constexpr (kBlocks) return Row::min(j);
      else return -scale_of(j, 0) * static_cast<float>(static_cast<int8_t>(zeros[j * 32 / P.group]));
    }
  };

  /// Step i into the sums; `at` is its first group's place in the panel, `groups` of them are there.
  __device__ __forceinline__ void multiply(int i, int at, int groups, float (&acc)[P.row_tiles][P.token_tiles][4]) {
    constexpr int kRun = kSuper || kTakes < kGroups ? (kTakes < 8 ? kTakes : 8)
                                                    : kGroups;  // groups of a super-block, or of x's stage
    static_assert(kTakes % kRun == 0);
#pragma unroll
    for (int from = 0; from < kGroups; from += kRun) {
      ScaledRow rows[P.row_tiles][2];
#pragma unroll
      for (int r = 0; r < P.row_tiles; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          static_cast<Row&>(rows[r][h]) = Row(row_at(i, r, h) + (kSuper ? from / kRun * info(W).bytes : 0));
          const int row = r * 16 + h * 8 + lane / 4;
          if constexpr (P.group > 0)
            rows[r][h].scales = side_row<kScaleAt>(i, row, a.w_block_scale, a.block_stride * info(P.scale).bytes,
                                                   info(P.scale).bytes, scales_straight);
          if constexpr (P.zeros)
            rows[r][h].zeros = side_row<kZeroAt>(i, row, a.w_block_zero, a.zero_stride, 1, zeros_straight);
        }
      if constexpr (P.x_ring) {
        if (from % kTakes == 0) panel.take();
      }
      const int base = kSuper ? 0 : from, x_at = (P.x_ring ? from % kTakes : at + from) - base;
      constexpr int kUnit = kFolds ? 2 : 1;  // groups that a lane reads at once
      if constexpr (kSuper) {  // whole blocks
        static_assert(kRun == 8);
        if (groups > from) {
          if constexpr (kEightMinima) add_minima(rows, x_at, acc);
#pragma unroll(kTogether)
          for (int j = 0; j < kRun; ++j) multiply_group(rows, x_at, j, acc);
        }
      } else if constexpr (P.wgmma) {
        if (groups >= from + kRun) multiply_run<kRun>(rows[0], x_at, base, acc[0]);
        else
#pragma unroll 1
          for (int j = 0; j < (groups - from + kUnit - 1) / kUnit * kUnit; ++j)
            multiply_run<1>(rows[0], x_at, base + j, acc[0]);
      } else if (groups >= from + kRun) {
#pragma unroll(kTogether / kUnit)
        for (int j = 0; j < kRun; j += kUnit) multiply_group(rows, x_at, base + j, acc);
      } else {
#pragma unroll 1
        for (int j = 0; j < groups - from; j += kUnit) multiply_group(rows, x_at, base + j, acc);
      }
      if constexpr (P.x_ring) {
        if ((from + kRun) % kTakes == 0) panel.leave();
      }
    }
  }
  __device__ __forceinline__ void multiply_group(const ScaledRow (&rows)[P.row_tiles][2], int at, int j,
                                                 float (&acc)[P.row_tiles][P.token_tiles][4]) const {
    if constexpr (kInt) multiply_codes(rows, at, j, acc);
    else if constexpr (kFolds) multiply_folded(rows, at, j, acc);
    else multiply_planes(rows, at, j, acc);
  }

  /// The lane's operands of group j, as mma.sync's.
  __device__ __forceinline__ void dequantize(const ScaledRow (&rows)[2], int j, uint32_t (&low)[4],
                                             uint32_t (&high)[4]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t v[4];
      if constexpr (kFolds)
        scaled_pairs(word_at<4>(rows[h].p + j / 2 * 32 + lane % 4 * 8 + j % 2 * 4),
                     pair_scale(rows[h].scales[j / 2 * 4 + lane % 4]), v);
      else paired_values<Mma>(word_at<4>(rows[h].p + j * 16 + lane % 4 * 4), v);
      low[h] = v[0], low[2 + h] = v[1], high[h] = v[2], high[2 + h] = v[3];
    }
  }
  /// kRun groups by wgmma, whose sums have the bits of mma.sync's: the next group's weights are dequantized beside the
  /// products of one.
  template <int kRun>
  __device__ __forceinline__ void multiply_run(const ScaledRow (&rows)[2], int at, int j0,
                                               float (&acc)[P.token_tiles][4]) const {
    using Product = ptx::WgmmaHeld<Mma, P.tokens()>;
    constexpr int kSums = 4 * P.token_tiles;
    float(&all)[kSums] = reinterpret_cast<float(&)[kSums]>(acc);
    float part[kSums];
    uint32_t low[2][4], high[2][4];
    const uint64_t x = panel.tile();
    dequantize(rows, j0, low[0], high[0]);
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const int of = at + j0 + j, here = j % 2, next = here ^ 1;
      const uint64_t b = ptx::wgmma_further(x, static_cast<uint32_t>(of / 2 * P.tokens() * 128 + of % 2 * 64));
      float(&to)[kSums] = kScaled ? part : all;
      ptx::wgmma_fence();
      if constexpr (kScaled) Product::begin(to, low[here], b);
      else Product::run(to, low[here], b);
      Product::run(to, high[here], ptx::wgmma_further(b, 32));
      ptx::wgmma_commit();
      if (!kScaled && j > 0) ptx::wgmma_wait<1>();  // what the next registers hold has been read
      if (j + 1 < kRun) dequantize(rows, j0 + j + 1, low[next], high[next]);
      if constexpr (kScaled) {
        const float scale[2] = {rows[0].scale_of(j0 + j, 0), rows[1].scale_of(j0 + j, 0)};
        ptx::wgmma_wait<0>(part);
#pragma unroll
        for (int i = 0; i < kSums; ++i) all[i] = fmaf(part[i], scale[i % 4 / 2], all[i]);
      } else if (j + 1 == kRun) {
        ptx::wgmma_wait<0>(all);
      }
    }
  }

  __device__ __forceinline__ void multiply_planes(const ScaledRow (&rows)[P.row_tiles][2], int at, int j,
                                                  float (&acc)[P.row_tiles][P.token_tiles][4]) const {
    constexpr int kParts = kHalves ? 2 : 1;
    constexpr bool kSplit = kWPlanes > 1 || Panel::kPlanes > 1;
    uint32_t v[P.row_tiles][2][kWPlanes][4];
    float scale[P.row_tiles][2][kParts], minimum[P.row_tiles][2];
#pragma unroll
    for (int r = 0; r < P.row_tiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if constexpr (kPairs)
          paired_values<Mma>(word_at<4>(rows[r][h].p + j * 16 + lane % 4 * 4), v[r][h][0]);
        else rows[r][h].operands(j, lane % 4, v[r][h]);
        if constexpr (kScaled) {
#pragma unroll
          for (int q = 0; q < kParts; ++q) scale[r][h][q] = rows[r][h].scale_of(j, q);
        }
        if constexpr (Panel::kMin && !kEightMinima) {
          minimum[r][h] = rows[r][h].min_of(j);
          if constexpr (kBlocks) minimum[r][h] = fmaf(scale[r][h][0], static_cast<float>(Row::kZero), minimum[r][h]);
          if constexpr (kLift != 1.0f) minimum[r][h] *= 1.0f / kLift;
        }
      }
#pragma unroll
    for (int m = 0; m < P.token_tiles; ++m) {
      uint32_t b[Panel::kPlanes][4];
#pragma unroll
      for (int p = 0; p < Panel::kPlanes; ++p) panel.operands(p, m, at, j, b[p]);
      float2 d = {1.0f, 1.0f};
      if constexpr (P.x_scaled) d = panel.scale(m, at + j);
#pragma unroll
      for (int r = 0; r < P.row_tiles; ++r) {
        float part[2][4] = {};  // of the halves, or of the planes; else the first alone
#pragma unroll
        for (int s = 0; s < kWPlanes; ++s)
#pragma unroll
          for (int p = 0; p < Panel::kPlanes; ++p) {
            if (s + p > 3) continue;  // below 2^-28 of the product
            // Several planes: the large product and the small ones apart, for the tensor core cuts what it adds.
            float(&low)[4] = kScaled ? part[0] : kSplit ? part[s + p > 0] : acc[r][m];
            float(&high)[4] = kScaled ? part[kParts - 1] : kSplit ? part[s + p > 0] : acc[r][m];
            ptx::mma16816<Mma>(low, v[r][0][s][0], v[r][1][s][0], v[r][0][s][1], v[r][1][s][1], b[p][0], b[p][1]);
            ptx::mma16816<Mma>(high, v[r][0][s][2], v[r][1][s][2], v[r][0][s][3], v[r][1][s][3], b[p][2], b[p][3]);
          }
        if constexpr (kScaled) {
#pragma unroll
          for (int q = 0; q < kParts; ++q)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              acc[r][m][e] = fmaf(
                  part[q][e], P.x_scaled ? scale[r][e / 2][q] * (e % 2 ? d.y : d.x) : scale[r][e / 2][q], acc[r][m][e]);
        }
        if constexpr (!kScaled && kSplit) {
#pragma unroll
          for (int e = 0; e < 4; ++e) acc[r][m][e] += part[0][e] + part[1][e];
        }
        if constexpr (Panel::kMin && !kEightMinima) {
          float2 sum = panel.sum(m, at + j);
          if constexpr (P.x_scaled) sum.x *= d.x, sum.y *= d.y;
          add_minimum(sum, minimum[r], acc[r][m]);
        }
      }
    }
  }
  /// What the minima of a block's eight groups from `at` on add, and what takes kZero off the codes: sub-minima and
  /// sub-scales, six bits each, times the planes of x's sums.
  __device__ __forceinline__ void add_minima(const ScaledRow (&rows)[P.row_tiles][2], int at,
                                             float (&acc)[P.row_tiles][P.token_tiles][4]) const {
    static_assert(kLift == 1.0f && !P.x_scaled);
    uint32_t scale[P.row_tiles][2], min[P.row_tiles][2];
#pragma unroll
    for (int r = 0; r < P.row_tiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) rows[r][h].pairs(lane % 4, scale[r][h], min[r][h]);
#pragma unroll
    for (int m = 0; m < P.token_tiles; ++m) {
      uint32_t x[3];
      panel.sums_of_eight(m, at, x);
#pragma unroll
      for (int r = 0; r < P.row_tiles; ++r) {
        float scaled[4] = {}, least[4] = {};
        ptx::mma16816<bf16>(scaled, scale[r][0], scale[r][1], scale[r][0], scale[r][1], x[0], x[1]);
        ptx::mma16816<bf16>(least, min[r][0], min[r][1], min[r][0], min[r][1], x[0], x[1]);
        ptx::mma16816<bf16>(scaled, scale[r][0], scale[r][1], 0, 0, x[2], 0);
        ptx::mma16816<bf16>(least, min[r][0], min[r][1], 0, 0, x[2], 0);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          acc[r][m][e] =
              fmaf(rows[r][e / 2].d, scaled[e], fmaf(rows[r][e / 2].d_min, least[e], acc[r][m][e]));
      }
    }
  }
  /// The two groups from j on, of which the lane has 16 neighbours with one scale.
  __device__ __forceinline__ void multiply_folded(const ScaledRow (&rows)[P.row_tiles][2], int at, int j,
                                                  float (&acc)[P.row_tiles][P.token_tiles][4]) const {
    uint2 codes[P.row_tiles][2];
    uint32_t scale[P.row_tiles][2], v[P.row_tiles][2][4];
#pragma unroll
    for (int r = 0; r < P.row_tiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint8_t* p = rows[r][h].p + j * 16 + lane % 4 * 8;
        codes[r][h] = P.aligned ? *reinterpret_cast<const uint2*>(p) : make_uint2(word_at<1>(p), word_at<1>(p + 4));
        scale[r][h] = pair_scale(rows[r][h].scales[2 * j + lane % 4]);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int r = 0; r < P.row_tiles; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          scaled_pairs(half == 0 ? codes[r][h].x : codes[r][h].y, scale[r][h], v[r][h]);
#pragma unroll
      for (int m = 0; m < P.token_tiles; ++m) {
        uint32_t b[Panel::kPlanes][4];
#pragma unroll
        for (int p = 0; p < Panel::kPlanes; ++p) panel.operands(p, m, at, j + half, b[p]);
#pragma unroll
        for (int r = 0; r < P.row_tiles; ++r) {
          float part[2][4] = {};  // of several planes, as in multiply_planes()
#pragma unroll
          for (int p = 0; p < Panel::kPlanes; ++p) {
            float(&sum)[4] = Panel::kPlanes > 1 ? part[p > 0] : acc[r][m];
            ptx::mma16816<Mma>(sum, v[r][0][0], v[r][1][0], v[r][0][1], v[r][1][1], b[p][0], b[p][1]);
            ptx::mma16816<Mma>(sum, v[r][0][2], v[r][1][2], v[r][0][3], v[r][1][3], b[p][2], b[p][3]);
          }
          if constexpr (Panel::kPlanes > 1) {
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[r][m][e] += part[0][e] + part[1][e];
          }
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_codes(const ScaledRow (&rows)[P.row_tiles][2], int at, int j,
                                                 float (&acc)[P.row_tiles][P.token_tiles][4]) const {
    constexpr int kParts = Panel::kStarts;
    uint32_t low[P.row_tiles][2], high[P.row_tiles][2];
    float scale[P.row_tiles][2][kParts], minimum[P.row_tiles][2];
#pragma unroll
    for (int r = 0; r < P.row_tiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        rows[r][h].codes(j, lane % 4, low[r][h], high[r][h]);
#pragma unroll
        for (int q = 0; q < kParts; ++q) scale[r][h][q] = rows[r][h].scale_of(j, q);
        if constexpr (Panel::kMin) minimum[r][h] = rows[r][h].min_of(j);
      }
#pragma unroll
    for (int m = 0; m < P.token_tiles; ++m) {
      uint32_t b_low, b_high;
      panel.codes(m, at + j, b_low, b_high);
      const float2 d = panel.scale(m, at + j);
#pragma unroll
      for (int r = 0; r < P.row_tiles; ++r) {
        int part[kParts][4];
        const int2 start = panel.start(0, m, at + j);
        if constexpr (kParts == 1) {
          ptx::mma_s8(part[0], low[r][0], low[r][1], high[r][0], high[r][1], b_low, b_high, start.x, start.y);
        } else {
          const int2 second = panel.start(1, m, at + j);
          ptx::mma_s8_half(part[0], low[r][0], low[r][1], b_low, start.x, start.y);
          ptx::mma_s8_half(part[1], high[r][0], high[r][1], b_high, second.x, second.y);
        }
#pragma unroll
        for (int q = 0; q < kParts; ++q)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            acc[r][m][e] = fmaf(__int_as_float(part[q][e]) - kSumStartFloat, scale[r][e / 2][q] * (e % 2 ? d.y : d.x),
                                acc[r][m][e]);
        if constexpr (Panel::kMin) add_minimum(panel.sum(m, at + j), minimum[r], acc[r][m]);
      }
    }
  }
  __device__ __forceinline__ static void add_minimum(float2 sum, const float (&minimum)[2], float (&acc)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) acc[e] = fmaf(minimum[e / 2], e % 2 ? sum.y : sum.x, acc[e]);
  }

  __device__ __forceinline__ void prefetch() {
#pragma unroll
    for (int s = 0; s < P.stages; ++s) load_next(s);
  }
  /// Waits for what prefetch() and prefetch_x() asked for: a block must not end before it has come.
  __device__ __forceinline__ void drain(int tile) {
    if constexpr (P.x_ring) panel.drain();
    if constexpr (kWaits) ptx::copy_wait<0>();
    if constexpr (kTma) {
      for (int s = 0, i = wk; s < P.stages && tile < end && wk < count; ++s) {
        w_ring.consumer_wait({s, 0});
        if ((i += P.warps_k) >= count) i = wk, tile += stride;
      }
    }
  }

  /// Once for all tiles: asks for rows of x from row t0 on. After prefetch(), a barrier of the block and the dependency
  /// wait.
  __device__ __forceinline__ void prefetch_x(int64_t t0) {
    if constexpr (P.x_ring) panel.begin(t0, first, count, (end - first_tile + stride - 1) / stride);
  }
  /// All steps of this warp in a tile, of `tokens` rows of x from row t0 on.
  __device__ __forceinline__ void run(int64_t t0, int tokens, float (&acc)[P.row_tiles][P.token_tiles][4]) {
    if constexpr (P.x_ring) {
      panel.begin_tile();
      for (int i = wk; i < count; i += P.warps_k) step(i, 0, acc);
    } else {
      const X* x = static_cast<const X*>(a.x) + t0 * a.x_stride;
      const bool wide = reinterpret_cast<uint64_t>(x) % 16 == 0 && a.x_stride * sizeof(X) % 16 == 0;
      for (int p = 0; p < count; p += kPanelSteps) {
        const int64_t k = int64_t{first + p} * kStep;
        if (!whole) {
          if (p > 0 || P.persistent()) __syncthreads();  // the panel before has been read
          panel.fill(x + k, a.x_stride, a.K - k, tokens, wide);
          if constexpr (P.x_scaled)
            panel.fill_scales(a.x_block_scale + t0 * a.x_block_stride, a.x_block_stride, static_cast<int>(k / 32),
                              static_cast<int>(min(int64_t{Panel::kGroups}, (a.K - k + 31) / 32)), tokens);
          __syncthreads();
        }
        const int last = min(p + kPanelSteps, count);
        for (int i = p + wk; i < last; i += P.warps_k) step(i, (i - p) * kGroups, acc);
      }
      whole = P.persistent() && count <= kPanelSteps;
    }
    if constexpr (!kTma) ptx::copy_wait<0>();
  }

  /// Sums of all warps and blocks of the cluster, and what follows them; row 0 is token t0.
  template <class Out>
  __device__ __forceinline__ void merge(const float (&acc)[P.row_tiles][P.token_tiles][4], int64_t t0, int tokens) {
    if constexpr (kReuse) ptx::cluster_sync<P.cluster>();  // every ring and panel has been read
    if constexpr (P.persistent()) sums = both_sums + (turn ^= 1) * (P.sum_bytes() / 4);  // the other is still read
    send(acc, tokens);
    ptx::cluster_sync<P.cluster>();
    finish<Out>(t0, tokens);
  }

 private:
  /// Step i of this warp; `at` as in multiply().
  __device__ __forceinline__ void step(int i, int at, float (&acc)[P.row_tiles][P.token_tiles][4]) {
    if constexpr (kWaits) ptx::copy_wait<P.stages - 1>();
    if constexpr (kTma) w_ring.consumer_wait(ring_at);
    __syncwarp();  // every lane's copies are there
    multiply(i, at, static_cast<int>((a.K - int64_t{first + i} * kStep + 31) / 32), acc);
    __syncwarp();  // every lane has left the place
    load_next(ring_at.stage);
    ring_at.advance();
  }
  /// Sums to the block of the cluster that finishes their rows: [part][token][row of the slice].
  __device__ __forceinline__ void send(const float (&acc)[P.row_tiles][P.token_tiles][4], int tokens) const {
    float* part = sums + (rank * P.warps_k + wk) * P.tokens() * P.sum_stride();
#pragma unroll
    for (int r = 0; r < P.row_tiles; ++r)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = (wn * P.row_tiles + r) * 16 + e / 2 * 8 + lane / 4;
        const uint32_t to = ptx::remote_address<P.cluster>(part + row % P.slice(), row / P.slice());
#pragma unroll
        for (int m = 0; m < P.token_tiles; ++m) {
          const int t = m * 8 + lane % 4 * 2 + e % 2;
          if (t < tokens)
            ptx::remote_store<P.cluster>(to + 4 * t * P.sum_stride(),
                                         kLift != 1.0f ? acc[r][m][e] * kLift : acc[r][m][e]);
        }
      }
  }

  /// This block's slice of the outputs.
  template <class Out>
  __device__ __forceinline__ void finish(int64_t t0, int tokens) const {
    constexpr int V = 4, kRuns = P.slice() / V;
    const GemmEpilogue<Out> epilogue(a);
    const bool vector = epilogue.template wide<V>();
    for (int i = static_cast<int>(threadIdx.x); i < tokens * kRuns; i += P.threads()) {
      const int t = i / kRuns, row = i % kRuns * V, n = n0 + rank * P.slice() + row;
      float y[V] = {};
#pragma unroll
      for (int part = 0; part < P.parts(); ++part) {
        const float4 more = *reinterpret_cast<const float4*>(sums + (part * P.tokens() + t) * P.sum_stride() + row);
        y[0] += more.x, y[1] += more.y, y[2] += more.z, y[3] += more.w;
      }
      if (n < a.N) epilogue.finish(t0 + t, n, y, vector);
    }
  }
};

/// Grid: ceil(N / P.rows()) * ceil(T / P.tokens()) * P.cluster blocks; neighbours along T share W. Where P.persistent()
/// and one tile holds all tokens, any number of blocks.
template <class X, DType W, class Out, GemmAct kAct, GemmWeightOnly P>
__global__ void __launch_bounds__(P.threads(), P.blocks(kTypeOf<X>, W, kAct))
    gemm_weight_only(const __grid_constant__ GemmWeightOnlyArgs args) {
  extern __shared__ __align__(1024) uint8_t weight_only_smem[];
  const GemmArgs& a = args.g;
  if constexpr (P.tma_steps > 0) ptx::tma_prefetch(args.w_map);
  if constexpr (P.x_ring) ptx::tma_prefetch(args.x_map);
  const int tiles_t = (a.T + P.tokens() - 1) / P.tokens(), tiles_n = (a.N + P.rows() - 1) / P.rows(),
            block = static_cast<int>(blockIdx.x) / P.cluster, first = block / tiles_t;
  const int stride = P.persistent() && tiles_t == 1 ? static_cast<int>(gridDim.x) : tiles_n;
  WeightOnlyTile<X, W, kAct, P> tile(a, args.w_map, 0, &args.x_map, weight_only_smem, first, stride, tiles_n);
  const int tile_tokens =
      P.x_ring ? even_tokens(a.T, P.tokens()) : P.tokens();  // TMA is slow with rows that are not there
  const int64_t t0 = int64_t{block % tiles_t} * tile_tokens;
  tile.prefetch();  // W is immutable: it is on its way while the predecessor still runs
  if constexpr (P.x_ring) __syncthreads();  // its barriers are there
  ptx::cluster_arrive<P.cluster>();
  ptx::dependency_wait();
  ptx::launch_dependents();
  tile.prefetch_x(t0);
  const int64_t M = valid_rows(a.rows, a.T);
  const int tokens = static_cast<int>(min(M - t0, int64_t{tile_tokens}));
  if (tokens <= 0) {  // the same in every block of the cluster
    tile.drain(first);
    ptx::cluster_wait<P.cluster>();
    return;
  }
  for (int i = first; i < tiles_n; i += stride) {
    float acc[P.row_tiles][P.token_tiles][4] = {};
    tile.begin(i);
    tile.run(t0, tokens, acc);
    ptx::cluster_wait<P.cluster>();
    tile.template merge<Out>(acc, t0, tokens);
  }
}

}  // namespace vivace::kernels
