// Outputs of gemm_wgmma that leave while the next tile is multiplied (GemmWgmma::staged): the consumer warps round them
// into shared memory and go on; a warp that does nothing else hands them to TMA and waits for it.
//
// A tile's first half goes to its place beside the ring, or to a slot of the ring that the producer thread has left
// free, where its residual lies then; the second half always beside the ring.
#pragma once
#include "vivace/kernels/gemm/wgmma_epilogue.cuh"
#include "vivace/kernels/gemm/wgmma_load.cuh"

namespace vivace::kernels {

template <class T, class Out, GemmWgmma P>
struct WgmmaTmaStore {
  using Finish = WgmmaEpilogue<Out, P>;
  static constexpr bool kBorrows = wgmma_borrows<Out, P>(), kResidual = P.has(kEpilogueResidual);
  static constexpr int kRow = wgmma_row_bytes<Out, P>(), kSecond = P.second(), kFirst = P.tokens - kSecond;
  static constexpr int kPeers = P.multicast_x + P.multicast_w - 1;
  static constexpr int kSlots = kBorrows ? 1 + kResidual : kResidual * P.groups();  // of the ring, a tile's epilogue
  static_assert(!kBorrows || (P.staged == kSecond && P.groups() * kSecond * kRow <= P.stage_bytes()));
  static_assert(!kResidual || (kRow == 128 && !P.has(kEpilogueGated)));

  unsigned char* smem;  // the ring's
  Pipeline<1, 2> halves;  // of a tile: the consumer warps write them, one lane of the storing warp has read both

  __device__ __forceinline__ WgmmaTmaStore(unsigned char* smem_, uint32_t merged) : smem(smem_), halves{merged + 16} {}
  __device__ __forceinline__ void init() const { halves.init(P.rows / 16, 1); }

  /// Offset of a warpgroup's half in `smem`; `slot`: the borrowed one.
  __device__ __forceinline__ static int offset_of(int half, int group, int slot) {
    constexpr int kStaged = P.stages * P.stage_bytes();
    if constexpr (kBorrows)
      return half == 0 ? slot * P.stage_bytes() + group * kFirst * kRow : kStaged + group * kSecond * kRow;
    else return kStaged + (group * P.tokens + half * kFirst) * kRow;
  }
  /// Whether all of the tile's tokens that the map holds are valid: else the consumer warps store those that are.
  __device__ __forceinline__ static bool whole(const GemmArgs& a, int t0, int M) {
    return M == a.T || t0 + P.tokens <= M;
  }

  /// By a consumer warpgroup. turn: parity of the tile before this one, 1 for the first. n0: the warpgroup's first row.
  template <class Consumer>
  __device__ __forceinline__ void leave(const Finish& out, Consumer& pipeline, const float (&acc)[P.tokens / 2], int t0,
                                        int n0, int M, int turn) const {
    uint32_t residual = 0;
    if constexpr (kBorrows) {
      residual = pipeline.wait() + pipeline.group * kFirst * 128;
    } else if constexpr (kResidual) {
      for (int g = 0; g < pipeline.group; ++g, pipeline.advance()) pipeline.wait(), pipeline.release(pipeline.at.stage);
      residual = pipeline.wait();
    }
    halves.producer_acquire({turn, 0});
    half<0, kFirst>(out, offset_of(0, pipeline.group, pipeline.at.stage), residual, acc, t0, n0, M);
    if constexpr (kBorrows) {
      pipeline.advance();
      if constexpr (kResidual) residual = pipeline.wait() + pipeline.group * kSecond * 128;
    } else {
      residual += kFirst * 128;
    }
    half<1, kSecond>(out, offset_of(1, pipeline.group, 0), residual, acc, t0, n0, M);
    if constexpr (kResidual) {
      pipeline.release(pipeline.at.stage), pipeline.advance();
      if constexpr (!kBorrows)
        for (int g = pipeline.group + 1; g < P.groups(); ++g, pipeline.advance())
          pipeline.wait(), pipeline.release(pipeline.at.stage);
    }
  }

  /// By a warp, all lanes.
  __device__ __forceinline__ void run(const GemmWgmmaArgs& args, WgmmaTileCoord<T, P> coord,
                                      const WgmmaRing<P>& ring) const {
    const GemmArgs& a = args.g;
    const int lane = threadIdx.x % 32, stride = static_cast<int>(gridDim.x) / P.cluster();
    ptx::dependency_wait();
    const int M = valid_rows(a.rows, a.T);
    int i = static_cast<int>(blockIdx.x) / P.cluster(), slot = 0, parity = 0;
    if (!coord.narrow(M, stride, &i)) slot = coord.ahead() % P.stages;
    for (; i < coord.tiles(); i += stride, parity ^= 1) {
      int t0, n0;
      coord.tile(i, &t0, &n0);
      slot = (slot + coord.steps) % P.stages;
      const bool stores = t0 < M && whole(a, t0, M);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        halves.consumer_wait({0, parity}, h);
        if (lane == 0) {
          if (stores)
            for (int g = 0; g < P.groups(); ++g) store(args.out_map, h, g, slot, t0, n0 + g * 64);
          ptx::bulk_commit();
        }
        __syncwarp();
      }
      if constexpr (kBorrows) {
        if (lane == 0) ptx::bulk_wait_read<1>();
        __syncwarp();
        if (lane < kPeers) {
          if constexpr (kPeers > 1) ptx::mbarrier_arrive_many(ring.empty(slot), coord.peer(lane), P.rows / 16);
          else ptx::mbarrier_arrive_many(ring.empty(slot), P.rows / 16);
        }
      }
      if (lane == 0) ptx::bulk_wait_read<0>(), halves.consumer_release(0);
      __syncwarp();
      slot = (slot + kSlots) % P.stages;
    }
  }

 private:
  template <int kHalf, int kCount>
  __device__ __forceinline__ void half(const Finish& out, int at, uint32_t residual, const float (&acc)[P.tokens / 2],
                                       int t0, int n0, int M) const {
    constexpr int kFrom = kHalf * kFirst;
    out.template write<kFrom, kCount>(smem + at, residual, acc, t0, M);
    ptx::tensor_fence();  // ordinary stores, for TMA
    if (!whole(out.a, t0, M)) {
      ptx::named_barrier<128>(1 + threadIdx.x / 128);
      out.template copy<kFrom, kCount>(smem + at, out.first(t0, n0), t0, n0, M);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) halves.producer_commit(0, kHalf);
  }
  __device__ __forceinline__ void store(const TensorMap& map, int h, int group, int slot, int t0, int n0) const {
    const uint32_t from = ptx::shared_address(smem) + offset_of(h, group, slot);
    const int first = h * kFirst, count = h == 0 ? kFirst : kSecond, column = P.has(kEpilogueGated) ? n0 / 2 : n0;
    for (int t = 0; t < count; t += P.out_box()) ptx::tma_store(map, from + t * kRow, column, t0 + first + t);
  }
};

}  // namespace vivace::kernels
