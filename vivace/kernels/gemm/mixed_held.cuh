// Mixed-input gemm of many bf16 tokens with W dequantized in registers, on Hopper: gemm_wgmma's producer, for x alone,
// and its epilogues; a second producer warp copies W as it is stored, and the warps that multiply make of it wgmma's
// first operand, 64 elements of K beside the products of the 64 before. Same bits as gemm_mixed_input.
// Limit: 2 T N K flop, and beside them some 250 cycles a step of 64 elements that few tokens do not hide.
// Chosen when: Hopper, more than 64 bf16 tokens, W in q4_0, q4_k, q6_k or q8_0, or NVFP4 whose K
// is a multiple of 256, or e4m3 or i8 without scales of groups.
#pragma once
#include "vivace/kernels/gemm/held_weights.cuh"
#include "vivace/kernels/gemm/mixed_input.h"
#include "vivace/kernels/gemm/wgmma.cuh"

namespace vivace::kernels {

/// Copies of W of a tile's K.
template <DType W>
__device__ __forceinline__ int held_copies(const GemmArgs& a) {
  return (a.K + HeldWeights<W>::kElements - 1) / HeldWeights<W>::kElements;
}

/// Whether W's rows come even ones first.
template <class Out, GemmWgmma P>
__device__ constexpr bool held_paired() {
  return P.epilogue != kEpilogueAny && (P.has(kEpilogueGated) || sizeof(Out) == 1);
}

/// The thread that copies W. Those of the first tile are on their way before the predecessor ends.
template <DType W, class Out, GemmWgmma P, int kCopies>
__device__ __forceinline__ void load_held(const GemmWgmmaArgs& args, WgmmaTileCoord<bf16, P> coord, uint32_t to,
                                          const Pipeline<kCopies>& ring) {
  using Rows = HeldWeights<W>;
  // Of q6_k a copy's rows are 105 words; TMA begins at the 16 bytes before.
  constexpr int kBytes = P.rows * Rows::kRowBytes,
                kStep = is_block(W) ? static_cast<int>(row_bytes(W, Rows::kElements)) / 4 : Rows::kRowBytes;
  const int copies = held_copies<W>(args.g), stride = static_cast<int>(gridDim.x);
  const uint64_t policy = ptx::evict_first();
  ProducerState<kCopies> at;
  int i = static_cast<int>(blockIdx.x), t0, n0, done = 0;
  const auto copy = [&] {
    ring.producer_acquire(at);
    ring.producer_expect(at.stage, kBytes);
    const uint32_t place = to + at.stage * kBytes, full = ring.full(at.stage);
    const int from = kStep % 4 == 0 ? done * kStep : done * kStep & ~3;
    if constexpr (held_paired<Out, P>()) ptx::tma_load_blocks(place, args.w_map, full, from, n0 / 16, policy);
    else ptx::tma_load(place, args.w_map, full, from, n0, policy);
    at.advance(), ++done;
  };
  coord.tile(i, &t0, &n0);
  while (done < min(kCopies, copies)) copy();
  ptx::touch_parameters(args);
  ptx::dependency_wait();
  bool next = args.g.rows != nullptr && !coord.narrow(valid_rows(args.g.rows, args.g.T), stride, &i);
  for (; i < coord.tiles(); i += stride, next = true) {
    if (next) coord.tile(i, &t0, &n0), done = 0;
    while (done < copies) copy();
  }
}

/// WgmmaPipeline whose W is in registers.
template <DType W, class Out, GemmWgmma P, int kCopies>
struct HeldPipeline {
  using Rows = HeldWeights<W>;
  static constexpr int kSteps = Rows::kElements / 64;
  static constexpr bool kScaled = W == DType::e2m1;  // by entries of w_block_scale, 16 bytes a row and copy
  static_assert(int{Rows::kElements} == GemmMixedInput::held_elements(W) &&
                int{Rows::kRowBytes} == GemmMixedInput::held_row_bytes(W));
  static_assert(P.cluster() == 1 && P.split == 1 && P.panel == 0 && P.held && !P.promote && kSteps % 2 == 0);
  const GemmArgs& a;
  uint32_t base, w_base;  // of the stages of x; of the copies, at the lane's first bytes
  WgmmaRing<P> ring;
  Pipeline<kCopies> copies;
  int lane, group;
  ConsumerState<P.stages> at;
  ConsumerState<kCopies> copy;
  int last = -1;  // the stage whose products may still be on their way
  Rows rows;
  const uint4* scales[2];  // of the lane's rows

  __device__ __forceinline__ HeldPipeline(const GemmArgs& a_, uint32_t base_, const WgmmaRing<P>& ring_, uint32_t w,
                                          const Pipeline<kCopies>& copies_)
      : a(a_), base(base_), w_base(w + Rows::place()), ring(ring_), copies(copies_), lane(threadIdx.x % 32),
        group(P.groups() == 1 ? 0 : ptx::warp_of_block() / 4) {}

  __device__ __forceinline__ void release(int stage) const {
    if (lane == 0) ring.consumer_release(stage);
  }
  __device__ __forceinline__ void advance() { at.advance(); }
  /// Until the stage of x has come; where it lies.
  __device__ __forceinline__ uint32_t wait() const {
    ring.consumer_wait(at);
    return base + at.stage * P.stage_bytes();
  }
  __device__ __forceinline__ void release_copy() {
    __syncwarp();  // every lane has read it
    if (lane == 0) copies.consumer_release(copy.stage);
    copy.advance();
  }
  /// The first copies of a tile that has no valid token.
  __device__ __forceinline__ void skip() {
    for (int i = min(kCopies, held_copies<W>(a)); i > 0; --i) copies.consumer_wait(copy), release_copy();
  }
  /// To the tile whose rows of this warpgroup begin at n0.
  __device__ __forceinline__ void aim(int n0) {
    if constexpr (kScaled) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = threadIdx.x % 128 / 32 * 16 + (held_paired<Out, P>() ? lane / 4 * 2 + i : lane / 4 + 8 * i);
        scales[i] = reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(a.w_block_scale) +
                                                   min(n0 + row, a.N - 1) * a.block_stride);
        rows.scales[i] = *scales[i];
      }
    }
  }
  /// All of a tile's K. A loop over pairs of steps: four in one run of code, and the compiler has each product wait for
  /// the one before.
  __device__ __forceinline__ void multiply_tile(const WgmmaTileCoord<bf16, P>& coord, float (&acc)[P.tokens / 2]) {
#pragma unroll
    for (int j = 0; j < P.tokens / 2; ++j) acc[j] = 0.0f;
    uint32_t w[2][4][4];
    [[maybe_unused]] uint32_t shift = 0;  // where a copy's rows begin, from its first bytes on
#pragma unroll 1
    for (int left = coord.steps; left > 0; left -= kSteps) {
      copies.consumer_wait(copy);
      [[maybe_unused]] uint4 coming[2];
      if constexpr (kScaled) {
#pragma unroll
        for (int i = 0; i < 2; ++i) coming[i] = left > kSteps ? *++scales[i] : rows.scales[i];
      }
      uint32_t first = w_base + copy.stage * (P.rows * Rows::kRowBytes);
      if constexpr (is_block(W) && row_bytes(W, Rows::kElements) % 16 != 0)
        first += shift, shift = (shift + static_cast<uint32_t>(row_bytes(W, Rows::kElements))) % 16;
#pragma unroll 1
      for (int pair = 0; pair < (min(left, kSteps) + 1) / 2; ++pair) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          rows.dequantize(first, pair, half, w[half]);
          const uint64_t x = ptx::wgmma_tile(wait());
          ptx::wgmma_fence();
#pragma unroll
          for (int q = 0; q < 4; ++q)
            ptx::WgmmaHeld<bf16, P.tokens>::run(acc, w[half][q], ptx::wgmma_further(x, q * 32));
          ptx::wgmma_commit();
          ptx::wgmma_wait<1>();  // registers and the stage of the half before this one have been read
          if (last >= 0) release(last);
          last = at.stage;
          at.advance();
        }
      }
      release_copy();
      if constexpr (kScaled) rows.scales[0] = coming[0], rows.scales[1] = coming[1];
    }
    ptx::wgmma_wait<0>(acc);
    if (last >= 0) release(last);
    last = -1;
  }
};

/// Grid: at most the tiles.
template <DType W, class Out, GemmWgmma P, GemmMixedInput Q>
__global__ void __launch_bounds__(P.threads(), 1) gemm_mixed_held(const __grid_constant__ GemmWgmmaArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // [copies of W][the ring of x, its barriers and what gemm_wgmma has behind them][barriers of the copies]
  constexpr int kCopies = Q.raw * Q.held_bytes(P, W);
  const int warp = ptx::warp_of_block();
  unsigned char* const memory = gemm_wgmma_smem + kCopies;
  const uint32_t w = ptx::shared_address(gemm_wgmma_smem), base = w + kCopies,
                 barriers = base + P.stages * P.stage_bytes() + P.staged_bytes(), merged = barriers + 16 * P.stages;
  const WgmmaRing<P> ring{barriers};
  const Pipeline<Q.raw> copies{base + P.smem_bytes()};
  [[maybe_unused]] const auto store = [&] { return WgmmaTmaStore<bf16, Out, P>(memory, merged); };
  if (threadIdx.x == 2 * P.rows) {
    ptx::tma_prefetch(args.x_map);
    ptx::tma_prefetch(args.w_map);
    ring.init(1, P.rows / 16);
    copies.init(1, P.rows / 16);
    if constexpr (P.staged > 0) ptx::tma_prefetch(args.out_map), store().init();
    ptx::mbarrier_fence();
  }
  __syncthreads();
  ptx::launch_dependents();
  const WgmmaTileCoord<bf16, P> coord(args.g);
  if (warp >= P.rows / 16) {
    if constexpr (P.wide()) ptx::registers_down<P.groups() == 3 ? 56 : 40>();
    if (warp == P.rows / 16) {
      if (ptx::elect_lane()) wgmma_load<bf16, Out, P>(args, coord, base, ring);
      __syncwarp();
    } else if (warp == P.rows / 16 + 1) {
      if (ptx::elect_lane()) load_held<W, Out, P>(args, coord, w, copies);
      __syncwarp();
    } else if constexpr (P.staged > 0) {
      if (warp == P.rows / 16 + 2) store().run(args, coord, ring);
    }
  } else {
    if constexpr (P.wide()) ptx::registers_up<P.groups() == 3 ? 152 : 232>();
    HeldPipeline<W, Out, P, Q.raw> pipeline(args.g, base, ring, w, copies);
    wgmma_consume<bf16, Out, P>(args.g, args.g, coord, pipeline, memory + P.stages * (P.stage_bytes() + 16) + 16,
                                merged);
  }
#endif
}

}  // namespace vivace::kernels
