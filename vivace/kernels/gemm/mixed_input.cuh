// Mixed-input gemm of many bf16 tokens with quantized weights, on Hopper: gemm_wgmma whose W does not come by TMA as it
// is. Four producer warps load W's bytes, dequantize them, round them to bf16 and write them where wgmma reads. Limit:
// 2 T N K flop; a tile's 8192 elements a step cost a warp about 350 instructions, which 256 tokens (1024 cycles) hide.
// Chosen when: Hopper, more than 64 bf16 tokens, quantized weights in rows that TMA takes.
#pragma once
#include "vivace/kernels/gemm/weights.cuh"
#include "vivace/kernels/gemm/wgmma.cuh"
#include "vivace/kernels/gemm/mixed_input.h"

namespace vivace::kernels {

/// One of the producer warps: rows kRows * warp .. of each tile.
template <DType W, class Out, GemmWgmma P, GemmMixedInput Q>
struct DequantWarp {
  using Coord = WgmmaTileCoord<bf16, P>;
  using Row = WeightRow<W, bf16, true>;
  static constexpr int kSteps = GemmMixedInput::kElements / Coord::kStep;  // of the ring, a copy
  static constexpr int kRows = Q.warp_rows(P), kOctets = kRows / 8, kGroups = Q.groups(P);
  static constexpr int kPitch = Q.pitch(W), kSlot = kRows * kPitch;
  static constexpr bool kBlocks = is_block(W),
                        kMin = W == DType::q4_1 || W == DType::q5_1 || W == DType::q4_k || W == DType::q5_k,
                        kFolds = Q.folds(W), kHalves = Q.group == 16 && !kFolds;
  static constexpr int kEntries = Q.group == 0 ? 0 : kHalves ? 2 : 1;  // of w_block_scale, of 32 elements
  static constexpr bool kPaired =
      P.epilogue != kEpilogueAny && (P.has(kEpilogueGated) || sizeof(Out) == 1);  // of 16 rows the even ones come first
  // Registers of the producer warps, where the consumers need more than an equal share, and of them, the 16-byte words
  // of eight rows that they hold before they store.
  static constexpr bool kTight = P.tokens == 256, kHeavy = info(W).block == 256 || kMin || kEntries == 2 || Q.zeros;
  static constexpr int kRegisters = kTight ? 104 : 144, kUp = kTight ? 200 : 176,
                       kBatch = (kTight && kHeavy) || kOctets < 4 ? 2 : 4;
  static constexpr int kKept = kEntries > 0 ? kEntries : 1;
  static_assert((P.rows == 128 || P.rows == 64) && P.tokens > 64 && P.cluster() == 1 && P.split == 1 && P.panel == 0);

  const GemmWgmmaArgs& args;
  const GemmArgs& a;
  Coord coord;
  uint8_t* raw;                   // the warp's [Q.raw][kRows][kPitch bytes]
  Pipeline<Q.raw> raw_ring;       // the warp's, which releases a stage to itself: no empty barriers
  int lane, warp, group, stride;  // warp: of the group
  int octet_row;       // of eight: rows whose stores go out together lie in different words of the swizzle
  int copies;          // of a tile's K
  ConsumerState<Q.raw> into, from;  // the next copy's; that of the one that is dequantized
  int next_tile, next_copy;  // what is copied next
  int side_row[kOctets];  // of w_block_scale and w_block_zero: the lane's rows of this tile, in the order of W
  // Entries of w_block_scale, as they lie in memory, and w_block_zero: those of a step are asked for during the one
  // before.
  struct Side {
    uint32_t scale[kOctets][2][kKept];
    int zero[kOctets][2];
  } side;

  __device__ __forceinline__ DequantWarp(const GemmWgmmaArgs& args_, const Coord& coord_, unsigned char* smem)
      : args(args_),
        a(args_.g),
        coord(coord_),
        lane(threadIdx.x % 32),
        warp((threadIdx.x / 32 - P.rows / 16) % GemmMixedInput::kWarps),
        group((threadIdx.x / 32 - P.rows / 16) / GemmMixedInput::kWarps),
        stride(gridDim.x),
        octet_row(kFolds ? lane / 4 % 2 * 4 + lane / 8 : lane / 4 % 4 * 2 + lane / 16),
        copies((a.K + GemmMixedInput::kElements - 1) / GemmMixedInput::kElements) {
    const int own = group * GemmMixedInput::kWarps + warp;
    raw = smem + Q.raw_at(P) + own * Q.ring_bytes(P, W);
    raw_ring = {ptx::shared_address(smem) + Q.raw_at(P) + GemmMixedInput::kWarps * kGroups * Q.ring_bytes(P, W) +
                own * 8 * Q.raw};
    from_tile(blockIdx.x);
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < Q.raw; ++i) raw_ring.init_full(i, 1);
      ptx::mbarrier_fence();
    }
    __syncwarp();
  }

  /// The next 256 elements of the warp's rows, of the tile in turn.
  __device__ __forceinline__ void copy_next() {
    if (next_tile >= coord.tiles()) return;
    int t0, n0;
    coord.tile(next_tile, &t0, &n0);
    if (lane == 0) {  // what lies beyond the matrix comes as zeros, and counts
      raw_ring.producer_expect(into.stage, kSlot);
      const uint32_t to = ptx::shared_address(raw + into.stage * kSlot), full = raw_ring.full(into.stage);
      const int word = next_copy * (Q.bytes(W) / 4), row = n0 + kRows * warp;
      if constexpr (kPaired) ptx::tma_load_blocks(to, args.w_map, full, word, row / 16);
      else ptx::tma_load(to, args.w_map, full, word, row);
    }
    into.advance();
    next_copy += kGroups;
    wrap();
  }
  /// Copies of one tile after the other, of which every kGroups-th is the group's, the first in tile i.
  __device__ __forceinline__ void from_tile(int i) { next_tile = i, next_copy = group, wrap(); }
  __device__ __forceinline__ void wrap() {
    while (next_copy >= copies) next_copy -= copies, next_tile += stride;
  }
  /// Until the oldest copy is there; and done with it.
  __device__ __forceinline__ void wait_copy() const {
    raw_ring.consumer_wait(from);
  }
  __device__ __forceinline__ void release_copy() {
    __syncwarp();  // all lanes have read it
    from.advance();
  }

  /// An entry of a's scales as it lies in memory, and as f32: what is asked for early must not be looked at early.
  __device__ __forceinline__ uint32_t entry(int64_t at) const {
    if constexpr (info(Q.scale).bytes == 1) return static_cast<const uint8_t*>(a.w_block_scale)[at];
    else if constexpr (info(Q.scale).bytes == 2) return static_cast<const uint16_t*>(a.w_block_scale)[at];
    else return static_cast<const uint32_t*>(a.w_block_scale)[at];
  }
  __device__ __forceinline__ static float value(uint32_t bits) {
    if constexpr (Q.scale == DType::e4m3) return to_float(e4m3{static_cast<uint8_t>(bits)});
    else if constexpr (Q.scale == DType::bf16) return to_float(bf16{static_cast<uint16_t>(bits)});
    else if constexpr (Q.scale == DType::f16) return to_float(f16{static_cast<uint16_t>(bits)});
    else return __uint_as_float(bits);
  }
  /// Two elements of a group, whose operands are `pair`.
  __device__ __forceinline__ static uint32_t scaled(uint32_t pair, float scale, float zero, float min) {
    float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
    if constexpr (Q.zeros) low -= zero, high -= zero;
    if constexpr (kMin) return ptx::pack<bf16>(__fmaf_rn(low, scale, min), __fmaf_rn(high, scale, min));
    return ptx::pack<bf16>(__fmul_rn(low, scale), __fmul_rn(high, scale));
  }

  /// To a tile: rows n0 on, of which `turn` is the group whose copy is first.
  __device__ __forceinline__ void begin(int n0, int turn) {
    if constexpr (Q.group > 0) {
#pragma unroll
      for (int o = 0; o < kOctets; ++o)
        side_row[o] =
            min(n0 + kRows * warp + (kPaired ? o / 2 * 16 + octet_row * 2 + o % 2 : 8 * o + octet_row), a.N - 1) /
            a.block_rows;
      prefetch_scales((group ^ turn) * kSteps, side);
    }
  }
  /// Asks for the entries of w_block_scale and w_block_zero of a step.
  __device__ __forceinline__ void prefetch_scales(int step, Side& to) const {
    if constexpr (Q.group > 0) {
#pragma unroll
      for (int o = 0; o < kOctets; ++o)
#pragma unroll
        for (int g = 0; g < 2; ++g) {
          const int k = min(step * 64 + 32 * g, a.K - 1),
                    own = kFolds ? lane % 4 / 2 * 16 : 0;  // eight elements have one scale
#pragma unroll
          for (int e = 0; e < kEntries; ++e)
            to.scale[o][g][e] = entry(side_row[o] * a.block_stride + min(k + own + 16 * e, a.K - 1) / Q.group);
          if constexpr (Q.zeros) to.zero[o][g] = a.w_block_zero[side_row[o] * a.zero_stride + k / Q.group];
        }
    }
  }
  /// Row 8 o + octet_row, the lane's share of 64 elements, as pairs of bf16.
  __device__ __forceinline__ void upcast_rows(int o, int step, uint32_t (&w)[kOctets][2][1][4]) const {
    const Row row(raw + from.stage * kSlot + (8 * o + octet_row) * kPitch);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const int j = step % kSteps * 2 + g;
      uint32_t(&y)[1][4] = w[o][g];
      if constexpr (kFolds) {  // elements 8 c on of the 32, in their order
        uint32_t pair[4];
        scaled_pairs(*reinterpret_cast<const uint32_t*>(row.p + j * 16 + lane % 4 * 4), pair_scale(side.scale[o][g][0]),
                     pair);
        y[0][0] = __byte_perm(pair[0], pair[1], 0x5410), y[0][1] = __byte_perm(pair[2], pair[3], 0x5410);
        y[0][2] = __byte_perm(pair[0], pair[1], 0x7632), y[0][3] = __byte_perm(pair[2], pair[3], 0x7632);
      } else {
        row.operands(j, lane % 4, y);
      }
      if constexpr (!kFolds && (kBlocks || Q.group > 0)) {
        float first, second, min = 0;
        if constexpr (kBlocks) {
          first = second = row.scale(j, 0);
          if constexpr (kMin) min = __fmaf_rn(static_cast<float>(Row::kZero), first, row.min(j));
        } else {
          first = value(side.scale[o][g][0]), second = value(side.scale[o][g][kEntries - 1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
          y[0][i] = scaled(y[0][i], i < 2 ? first : second, static_cast<float>(side.zero[o][g]), min);
      }
      if (g == 1 && step * 64 + 32 >= a.K)
        y[0][0] = y[0][1] = y[0][2] = y[0][3] = 0;  // x is zero there, and what was copied before may be no number
    }
  }
  /// Elements [64 step, 64 step + 64) of the warp's rows to the ring's stage at `stage`.
  __device__ __forceinline__ void upcast(int step, unsigned char* stage) const {
    const int c = lane % 4;
    // Loads before stores, which the compiler must believe to change what is read.
#pragma unroll
    for (int first = 0; first < kOctets; first += kBatch) {
      uint32_t w[kOctets][2][1][4];
#pragma unroll
      for (int o = first; o < first + kBatch; ++o) upcast_rows(o, step, w);
#pragma unroll
      for (int o = first; o < first + kBatch; ++o) {
        const int to = kRows * warp + 8 * o + octet_row;
#pragma unroll
        for (int g = 0; g < 2; ++g)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if constexpr (kFolds) {
              if (half == 0)
                *reinterpret_cast<uint4*>(stage + to * 128 + ((4 * g + c) ^ (to % 8)) * 16) =
                    make_uint4(w[o][g][0][0], w[o][g][0][1], w[o][g][0][2], w[o][g][0][3]);
              continue;
            }
            const int byte = 64 * g + 32 * half + 8 * c;
            *reinterpret_cast<uint2*>(stage + to * 128 + ((byte / 16) ^ (to % 8)) * 16 + byte % 16) =
                make_uint2(w[o][g][0][2 * half], w[o][g][0][2 * half + 1]);
          }
      }
    }
  }
  __device__ __forceinline__ void run(uint32_t base, unsigned char* stages, const WgmmaRing<P>& ring) {
    static_assert(kGroups <= 2 && P.stages >= Q.least_stages(P));
    const bool loads = warp == 0 && lane == 0;
    const uint64_t policy = W == DType::e2m1 && P.rows == 128
                                ? ptx::evict_normal()
                                : ptx::evict_last();  // of x, which all blocks read; NVFP4 loses 1 to 5 % by the last
    ProducerState<P.stages> at;
    int ahead = min(Q.raw, (copies - group + kGroups - 1) / kGroups), turn = 0, i = blockIdx.x, t0,
        n0;  // turn: the group whose copy it is
    const auto commit = [&] {
      __syncwarp();
      if (lane == 0) ring.producer_commit(at.stage);
    };
    for (int c = 0; c < ahead; ++c) copy_next();  // of the first tile: W is immutable
    coord.tile(i, &t0, &n0);
    begin(n0, turn);
    ptx::touch_parameters(args);
    ptx::dependency_wait();
    bool next = !coord.narrow(valid_rows(a.rows, a.T), stride, &i);
    if (next) {  // no token has the first tile: what the consumer warps wait for is empty
      for (int k = coord.ahead(); k > 0; --k, at.advance()) {
        if (group != 0) continue;
        if (loads) ring.producer_commit(at.stage);
        commit();
      }
      for (; ahead > 0; --ahead) wait_copy(), release_copy();
      from_tile(i);
    } else {
      next_tile += i - static_cast<int>(blockIdx.x);
    }
    for (; ahead < Q.raw; ++ahead) copy_next();
    for (; i < coord.tiles(); i += stride, next = true) {
      if (next) coord.tile(i, &t0, &n0), begin(n0, turn);
      for (int k = 0; k < coord.steps; ++k, at.advance()) {
        const bool ends = k % kSteps == kSteps - 1 || k == coord.steps - 1;  // a copy
        if (kGroups == 1 || turn == group) {
          ring.producer_acquire(at);
          if (loads) {
            ring.producer_expect(at.stage, P.tokens * 128);
            ptx::tma_load(base + at.stage * P.stage_bytes() + P.rows * 128, args.x_map, ring.full(at.stage),
                          k * Coord::kStep, t0, policy);
          }
          if (k % kSteps == 0) wait_copy();
          Side coming = side;
          if (const int then = ends ? k + 1 + (kGroups - 1) * kSteps : k + 1; then < coord.steps)
            prefetch_scales(then, coming);
          upcast(k, stages + at.stage * P.stage_bytes());
          side = coming;
          if (ends) release_copy(), copy_next();
          ptx::tensor_fence();  // ordinary stores, for the tensor core
          commit();
        }
        if (kGroups > 1 && ends) turn ^= 1;
      }
      if constexpr (P.has(kEpilogueResidual)) {  // a stage a warpgroup, as in wgmma_load()
        for (int g = 0; g < P.groups(); ++g, at.advance()) {
          if (group != 0) continue;
          ring.producer_acquire(at);
          if (loads) {
            ring.producer_expect(at.stage, P.tokens * 128);
            ptx::tma_load(base + at.stage * P.stage_bytes(), args.residual_map, ring.full(at.stage), n0 + g * 64, t0,
                          policy);
          }
          commit();
        }
      }
    }
  }
};

/// Grid: at most the tiles.
template <DType W, class Out, GemmWgmma P, GemmMixedInput Q>
__global__ void __launch_bounds__(Q.threads(P), 1) gemm_mixed_input(const __grid_constant__ GemmWgmmaArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t base = ptx::shared_address(gemm_wgmma_smem);
  const WgmmaRing<P> ring{base + P.stages * P.stage_bytes()};
  if (threadIdx.x == 0) {
    ptx::tma_prefetch(args.x_map);
    ptx::tma_prefetch(args.w_map);
    ring.init(1 + GemmMixedInput::kWarps, P.rows / 16);
    ptx::mbarrier_fence();
  }
  __syncthreads();
  ptx::launch_dependents();
  const WgmmaTileCoord<bf16, P> coord(args.g);
  using Warp = DequantWarp<W, Out, P, Q>;
  if (warp >= P.rows / 16) {
    if constexpr (P.wide()) ptx::registers_down<Warp::kRegisters>();
    Warp(args, coord, gemm_wgmma_smem).run(base, gemm_wgmma_smem, ring);
  } else {
    if constexpr (P.wide()) ptx::registers_up<Warp::kUp>();
    WgmmaPipeline<bf16, P> pipeline(coord, base, ring);
    wgmma_consume<bf16, Out, P>(args.g, coord, pipeline, gemm_wgmma_smem + P.stages * (P.stage_bytes() + 16) + 16, 0);
  }
#endif
}

}  // namespace vivace::kernels
