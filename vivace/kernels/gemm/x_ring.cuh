// x of the weight-only gemm by TMA: a pipeline of stages for each warp along K, so that the columns of a later step
// come while those of this one are multiplied.
#pragma once
#include "vivace/kernels/gemm/panel.cuh"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/tma.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"
#include "vivace/kernels/tile/pipeline.cuh"

namespace vivace::kernels {

/// Reads as XPanel does, of the stage that take() gave. The warps of a block that have the same share of K have one
/// ring: they take and leave its stages together, and the first of them asks for what comes next.
template <class X, DType W, GemmWeightOnly P>
struct XRing {
  static constexpr int kPlanes = 1, kStages = P.x_stages(W), kRun = P.x_run(W),
                       kRuns = P.step(W) / (32 * kRun);  // kRun: groups of a stage
  static constexpr int kPitch = P.x_pitch(kTypeOf<X>, W, GemmAct::f32), kTokens = P.tokens(), kThreads = 32 * P.warps_n;
  static constexpr int kSideBytes = P.side_bytes(W, GemmAct::f32),
                       kSumSize = P.sum_size(W, GemmAct::f32),
                       kStageSums = kRun * kTokens * kSumSize;  // bytes of the sums of a stage
  static constexpr bool kFolds = P.folds(kTypeOf<X>, W), kPairs = P.pairs(kTypeOf<X>, W), kMin = P.has_min(W);

  const TensorMap* map;
  uint8_t* memory;     // [share][stage][token] rows of kPitch bytes, then [share][stage][group][token] sums of groups
  Pipeline<kStages> ring;  // the share's
  int rows, stride;    // tokens of a stage, and the bytes from one to the next
  int wn, wk;
  int t0 = 0, first = 0, runs = 0;  // rows of x from t0 on; the share's first step; stages that it takes in a tile
  ConsumerState<kStages> ring_at;   // of what is taken next
  int next = 0, left = 0;           // of what is asked for next: its number in a tile; how many there are
  bool whole = false, seen = false,
       ready = false;  // the ring holds all of the share; a tile has begun; all is prepared

  __device__ __forceinline__ XRing(const TensorMap* x_map, uint8_t* memory_, uint32_t barriers, int T, int wn_, int wk_)
      : map(x_map),
        memory(memory_),
        ring{barriers + wk_ * 16 * kStages},
        rows(even_tokens(T, kTokens)),
        stride(P.x_stage_bytes(kTypeOf<X>, W, rows)),
        wn(wn_),
        wk(wk_) {
    if (wn == 0 && threadIdx.x % 32 == 0) {
#pragma unroll
      for (int p = 0; p < kStages; ++p) ring.init_full(p, 1), ring.init_empty(p, P.warps_n);
      ptx::mbarrier_fence();
    }
  }
  __device__ __forceinline__ int bytes() const { return P.warps_k * kStages * stride + kSideBytes; }

  /// Asks for the first stages. `count` steps of K from `first` on are dealt to the shares; `tiles` tiles will take
  /// them. After the dependency wait, and a barrier of the block since the constructor.
  __device__ __forceinline__ void begin(int64_t token, int first_step, int count, int tiles) {
    t0 = static_cast<int>(token), first = first_step + wk;
    runs = count > wk ? (count - wk + P.warps_k - 1) / P.warps_k * kRuns : 0;
    whole = runs <= kStages;
    left = whole ? runs : runs * tiles;
    if (wn == 0) {
#pragma unroll 1
      for (int p = 0; p < kStages; ++p) tma_load_stage(p);
    }
  }
  __device__ __forceinline__ void begin_tile() {
    if (whole) ready = seen, seen = true, ring_at = {};
  }
  /// Waits for what begin() asked for.
  __device__ __forceinline__ void drain() const {
    for (int p = 0; p < min(runs, kStages); ++p) ring.consumer_wait({p, 0});
  }
  /// Waits for the next stage.
  __device__ __forceinline__ void take() {
    ring.consumer_wait(ring_at);
    if constexpr (kPairs || kMin) {
      if (ready) return;
      prepare();
      ptx::named_barrier<kThreads>(1 + wk);
    }
  }
  /// The stage may be filled again.
  __device__ __forceinline__ void leave() {
    if (!whole) {
      if constexpr (kPairs) ptx::tensor_fence();  // prepare() has written what TMA writes next
      __syncwarp();
      const uint32_t read = ring.empty(ring_at.stage);
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(read);
      if (wn == 0 && left > 0) {
        ptx::mbarrier_wait<false>(read, ring_at.phase);
        tma_load_stage(ring_at.stage);
      }
    }
    ring_at.advance();
  }

  /// The lane's operands of token tile m, group at + j of the stage.
  __device__ __forceinline__ void operands(int, int m, int at, int j, uint32_t (&b)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32,
              t = min(m * 8 + lane / 4, rows - 1);  // rows beyond: any, their results are dropped
    x_operands<kPairs, kFolds>(here() + t * kPitch, t, at, j, lane % 4, b);
  }
  /// Where P.wgmma: 64 elements of every token, from the stage's first group on; those of the next lie kTokens rows on.
  __device__ __forceinline__ uint64_t tile() const { return ptx::wgmma_tile(ptx::shared_address(here())); }
  /// Sums of group j, of the two tokens whose products the lane holds.
  __device__ __forceinline__ float2 sum(int m, int j) const {
    return *reinterpret_cast<const float2*>(sums() + j * kTokens + m * 8 + static_cast<int>(threadIdx.x) % 4 * 2);
  }
  __device__ __forceinline__ void sums_of_eight(int m, int j, uint32_t (&planes)[3]) const {
    sum_planes<kTokens>(sums(), m, j, planes);
  }

 private:
  /// Where P.wgmma: the pairs that lane c of mma.sync takes of 32 elements (see x_operands()) become the c-th of four
  /// words of 16 bytes. Of kFolds, whose lanes have 16 neighbours of 64 elements, a half of these.
  struct Turned {
    uint4 v[4];
    /// word(i): the i-th of a token's eight.
    template <class Word>
    __device__ __forceinline__ void read(int part, Word word) {
#pragma unroll
      for (int c = 0; c < 4; ++c) v[c] = paired(*word(kFolds ? 2 * c + part : 4 * part + c));
    }
    template <class Word>
    __device__ __forceinline__ void write(int part, Word word) const {
      *word(4 * part) = make_uint4(v[0].x, v[1].x, v[2].x, v[3].x);
      *word(4 * part + 1) = make_uint4(v[0].y, v[1].y, v[2].y, v[3].y);
      *word(4 * part + 2) = make_uint4(v[0].z, v[1].z, v[2].z, v[3].z);
      *word(4 * part + 3) = make_uint4(v[0].w, v[1].w, v[2].w, v[3].w);
    }
  };
  __device__ __forceinline__ uint8_t* here() const {
    return memory + (wk * kStages + ring_at.stage) * stride;
  }
  __device__ __forceinline__ float* sums() const {
    return reinterpret_cast<float*>(memory + P.warps_k * kStages * stride +
                                    (wk * kStages + ring_at.stage) * kStageSums);
  }

  __device__ __forceinline__ void tma_load_stage(int into) {
    if (left == 0) return;
    --left;
    if (threadIdx.x % 32 == 0) {
      const int column = ((first + next / kRuns * P.warps_k) * kRuns + next % kRuns) * (kRun * 32);
      const uint32_t to = ptx::shared_address(memory + (wk * kStages + into) * stride);
      if constexpr (P.wgmma) {
        ring.producer_expect(into, rows * kRun * 64);
#pragma unroll
        for (int block = 0; block < kRun / 2; ++block)
          ptx::tma_load(to + block * kTokens * 128, *map, ring.full(into), column + block * 64, t0);
      } else {
        ring.producer_expect(into, rows * kPitch);
        ptx::tma_load(to, *map, ring.full(into), column / 4, t0);
      }
    }
    if (++next == runs) next = 0;
  }
  /// What operands() and sum() want beside x itself, by all warps of the share.
  __device__ __forceinline__ void prepare() const {
    const int thread = wn * 32 + static_cast<int>(threadIdx.x) % 32;
    if constexpr (P.wgmma) {
      static_assert(kPairs && !kMin);
      static_assert(kTokens * kRun % kThreads == 0);
      constexpr int kParts = kFolds ? 1 : 2;  // of a token's 64 elements
      // Neighbours are tokens: eight of them meet in no bank.
      for (int u = thread; u < kTokens * (kRun / 2) * kParts; u += kThreads) {
        const int t = u % kTokens, more = u / kTokens, block = more % (kRun / 2), part = more / (kRun / 2);
        uint8_t* const row = here() + (block * kTokens + t) * 128;
        const auto word = [&](int i) { return reinterpret_cast<uint4*>(row + (i ^ (t & 7)) * 16); };
        if (t >= rows) continue;
        Turned of[3 - kParts];
#pragma unroll
        for (int h = 0; h < 3 - kParts; ++h) of[h].read(part + h, word);
#pragma unroll
        for (int h = 0; h < 3 - kParts; ++h) of[h].write(part + h, word);
      }
      ptx::tensor_fence();  // wgmma reads it
    } else if constexpr (kPairs) {
      for (int u = thread; u < rows * (kRun * 4); u += kThreads) {
        const int t = u / (kRun * 4), word = u % (kRun * 4);
        uint4* row = reinterpret_cast<uint4*>(here() + t * kPitch);
        const uint4 v = row[word];
        if constexpr (kFolds) __syncwarp();  // neighbours of a row are a warp's neighbours: both are read
        row[x_word<kFolds>(t, word)] = paired(v);
      }
    }
    if constexpr (kMin) {
      for (int u = thread; u < rows * kRun; u += kThreads) {
        const int t = u % rows, group = u / rows;
        const float sum = group_sum(reinterpret_cast<const X*>(here() + t * kPitch + group * 64));
        if constexpr (P.sums_in_planes(W, GemmAct::f32)) put_sum_planes<kTokens>(sums(), group, t, sum);
        else sums()[group * kTokens + t] = sum;
      }
    }
  }
};

}  // namespace vivace::kernels
