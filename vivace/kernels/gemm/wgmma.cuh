// gemm on Hopper: copy engine, warpgroup products, blocks that stay. Limit: memory bandwidth for few
// tokens (N * K * sizeof(W) bytes), 2 T N K flop for many.
//
// W is the 64-row operand and the tokens are the columns, so one kernel serves tiles of 8 to 256 tokens and
// a token's sum is the same in all of them. One warp asks the copy engine for tiles, the others multiply. A
// stage holds 128 bytes of K of the tile's rows and tokens. e4m3 products keep fewer bits of a sum inside
// the tensor unit than f32 has, so with P.promote every stage's sum leaves it and is added in f32.
#pragma once
#include "vivace/kernels/gemm/epilogue.cuh"
#include "vivace/kernels/gemm/fragment.cuh"
#include "vivace/kernels/gemm/wgmma_finish.cuh"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/mbarrier.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/tma.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"

namespace vivace::kernels {

extern __shared__ __align__(1024) unsigned char gemm_wgmma_smem[];

/// Where a block works: its tiles, its part of K, its place in the cluster.
template <class T, GemmWgmma P>
struct WgmmaPlace {
  static constexpr int kStep = 128 / sizeof(T);  // elements of K a stage
  int part, of_x, of_w;                          // rank in the cluster along split, share_x, share_w
  int tiles_t, tiles_n, first_step, steps, all_steps;

  __device__ __forceinline__ explicit WgmmaPlace(const GemmArgs& a) {
    const int rank = ptx::cluster_rank<P.cluster()>(), all = (a.K + kStep - 1) / kStep;
    all_steps = all;
    part = rank / (P.share_x * P.share_w), of_x = rank % P.share_x, of_w = rank / P.share_x % P.share_w;
    tiles_t = (a.T + P.tokens * P.share_w - 1) / (P.tokens * P.share_w);
    tiles_n = (a.N + P.rows * P.share_x - 1) / (P.rows * P.share_x);
    first_step = cut(part * P.inside);
    steps = cut((part + 1) * P.inside) - first_step;
  }
  /// The first step of a part of K.
  __device__ __forceinline__ int cut(int i) const { return static_cast<int>(int64_t{all_steps} * i / P.split); }
  __device__ __forceinline__ int tiles() const { return tiles_t * tiles_n; }
  /// First token and row of tile i. Bands of 2048 tokens, in a band along tokens first, so that clusters
  /// that run together share x and W in L2.
  __device__ __forceinline__ void tile(int i, int* t0, int* n0) const {
    constexpr int kBand = 2048 / (P.tokens * P.share_w);
    const int whole = kBand * tiles_n, band = i / whole, left = i - band * whole, width = min(kBand, tiles_t - band * kBand);
    *t0 = ((band * kBand + left % width) * P.share_w + of_w) * P.tokens;
    *n0 = (left / width * P.share_x + of_x) * P.rows;
  }
  /// Whether the cluster works on the tile: tiles of no valid token are passed over, but for a block's first,
  /// whose weights are on their way before the number of valid tokens is known.
  __device__ __forceinline__ bool works(int i, int t0, int M) const { return i == static_cast<int>(blockIdx.x) / P.cluster() || t0 - of_w * P.tokens < M; }
};

/// The loading thread.
template <class T, class Out, GemmWgmma P>
__device__ __forceinline__ void wgmma_load(const GemmWgmmaArgs& args, const WgmmaPlace<T, P>& place, uint32_t base, uint32_t full, uint32_t empty) {
  constexpr int kWRows = P.rows / P.share_w, kXRows = P.tokens / P.share_x, kShared = P.share_x * P.share_w;
  const int stride = static_cast<int>(gridDim.x) / P.cluster();
  const uint64_t policy_w = P.tokens <= 64 ? ptx::evict_first() : ptx::evict_normal(), policy_x = P.tokens <= 64 ? ptx::evict_last() : ptx::evict_normal();
  const int same_part = place.part * kShared;
  constexpr bool kBlocks = P.finish != kFinishAny && (P.has(kFinishGated) || sizeof(Out) == 1);  // even rows before odd ones
  const auto load_w = [&](int slot, int step, int n0) {
    const uint32_t to = base + slot * P.stage_bytes() + place.of_w * kWRows * 128;
    const int k = (place.first_step + step) * place.kStep, n = n0 + place.of_w * kWRows;
    if constexpr (P.share_w > 1) {
      int mask = 0;
#pragma unroll
      for (int i = 0; i < P.share_w; ++i) mask |= 1 << (i * P.share_x);
      const uint16_t blocks = static_cast<uint16_t>(mask << (same_part + place.of_x));
      if constexpr (kBlocks) ptx::tma_load_blocks_multicast(to, args.w_map, full + 8 * slot, k, n / 16, policy_w, blocks);
      else ptx::tma_load_multicast(to, args.w_map, full + 8 * slot, k, n, policy_w, blocks);
    } else if constexpr (kBlocks) {
      ptx::tma_load_blocks(to, args.w_map, full + 8 * slot, k, n / 16, policy_w);
    } else {
      ptx::tma_load(to, args.w_map, full + 8 * slot, k, n, policy_w);
    }
  };
  const auto load_x = [&](int slot, int step, int t0) {
    const uint32_t to = base + slot * P.stage_bytes() + (P.rows + place.of_x * kXRows) * 128;
    const int k = (place.first_step + step) * place.kStep, t = t0 + place.of_x * kXRows;
    if constexpr (P.share_x > 1)
      ptx::tma_load_multicast(to, args.x_map, full + 8 * slot, k, t, policy_x, static_cast<uint16_t>(((1 << P.share_x) - 1) << (same_part + place.of_w * P.share_x)));
    else
      ptx::tma_load(to, args.x_map, full + 8 * slot, k, t, policy_x);
  };

  // W is immutable: it is on its way while the predecessor still runs.
  int t0, n0, ahead = min(P.stages, place.steps);
  place.tile(static_cast<int>(blockIdx.x) / P.cluster(), &t0, &n0);
  for (int i = 0; i < ahead; ++i) {
    ptx::mbarrier_expect(full + 8 * i, P.stage_bytes());
    load_w(i, i, n0);
  }
  ptx::touch_parameters(args);
  ptx::dependency_wait();
  const int M = valid_rows(args.g.rows, args.g.T);
  int slot = 0, parity = 1;  // the first turn finds every slot free
  const auto advance = [&] {
    if (++slot == P.stages) slot = 0, parity ^= 1;
  };
  for (int i = static_cast<int>(blockIdx.x) / P.cluster(); i < place.tiles(); i += stride) {
    if (i >= stride) place.tile(i, &t0, &n0);
    if (!place.works(i, t0, M)) continue;
    for (int k = 0; k < place.steps; ++k) {
      if (ahead > 0) {
        --ahead;
      } else {
        ptx::mbarrier_wait<false>(empty + 8 * slot, parity);
        ptx::mbarrier_expect(full + 8 * slot, P.stage_bytes());
        load_w(slot, k, n0);
      }
      load_x(slot, k, t0);
      advance();
    }
    if constexpr (P.has(kFinishResidual) && !P.direct()) {  // a slot a warpgroup, read when the sums are done
      for (int g = 0; g < P.groups(); ++g) {
        ptx::mbarrier_wait<false>(empty + 8 * slot, parity);
        ptx::mbarrier_expect(full + 8 * slot, P.tokens * 128);
        ptx::tma_load(base + slot * P.stage_bytes(), args.residual_map, full + 8 * slot, n0 + g * 64, t0, policy_x);
        advance();
      }
    }
  }
}

/// The loading warp where rows are not aligned for the copy engine: element by element, the same stages.
template <class T, GemmWgmma P>
__device__ __forceinline__ void wgmma_fill(const GemmArgs& a, const WgmmaPlace<T, P>& place, uint4* ring, uint32_t full, uint32_t empty) {
  static_assert(P.aligned || P.share_x * P.share_w == 1);
  constexpr int kElems = 16 / sizeof(T);
  ptx::dependency_wait();
  const int M = valid_rows(a.rows, a.T), lane = threadIdx.x % 32;
  int slot = 0, parity = 1;
  for (int i = static_cast<int>(blockIdx.x) / P.cluster(); i < place.tiles(); i += static_cast<int>(gridDim.x) / P.cluster()) {
    int t0, n0;
    place.tile(i, &t0, &n0);
    if (!place.works(i, t0, M)) continue;
    for (int step = 0; step < place.steps; ++step) {
      ptx::mbarrier_wait<false>(empty + 8 * slot, parity);
      for (int j = lane; j < (P.rows + P.tokens) * 8; j += 32) {
        const int row = j / 8, word = j % 8;
        const bool is_w = row < P.rows;
        const int64_t at = is_w ? n0 + row : t0 + row - P.rows, k = int64_t{place.first_step + step} * place.kStep + word * kElems;
        const T* from = is_w ? static_cast<const T*>(a.w) + at * a.w_stride : static_cast<const T*>(a.x) + at * a.x_stride;
        fetch16<T, false>(ring + slot * (P.stage_bytes() / 16) + row * 8 + (word ^ (row % 8)), from, k, a.K, at < (is_w ? a.N : M));
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // ordinary stores, for the tensor unit
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(full + 8 * slot);
      if (++slot == P.stages) slot = 0, parity ^= 1;
    }
  }
}

/// A multiplying warpgroup's part of one tile: acc (as Wgmma says) = its 64 rows x the tokens.
template <class T, GemmWgmma P>
struct WgmmaRing {
  static constexpr int kPeers = P.share_x + P.share_w - 1;  // blocks that this one's stages come from, itself among them
  uint32_t base, full, empty;
  int lane, group, to;  // `to`: the block at whose barrier this lane arrives, of the first kPeers lanes
  int slot = 0, parity = 0;

  __device__ __forceinline__ WgmmaRing(const WgmmaPlace<T, P>& place, uint32_t base_, uint32_t full_, uint32_t empty_)
      : base(base_), full(full_), empty(empty_), lane(threadIdx.x % 32), group(threadIdx.x / 128) {
    const int same_part = place.part * P.share_x * P.share_w;
    if (lane < P.share_x) to = same_part + place.of_w * P.share_x + lane;
    else to = same_part + (lane - P.share_x + (lane - P.share_x >= place.of_w)) * P.share_x + place.of_x;
  }
  __device__ __forceinline__ void release(int free) const {
    if (lane < kPeers) {
      if constexpr (kPeers > 1) ptx::mbarrier_arrive(empty + 8 * free, to);
      else ptx::mbarrier_arrive(empty + 8 * free);
    }
  }
  __device__ __forceinline__ void advance() {
    if (++slot == P.stages) slot = 0, parity ^= 1;
  }
  __device__ __forceinline__ void multiply_stage(float (&d)[P.tokens / 2], bool add) const {
    const uint32_t w = base + slot * P.stage_bytes() + group * 64 * 128, x = base + slot * P.stage_bytes() + P.rows * 128;
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) ptx::Wgmma<T, P.tokens>::run(d, ptx::wgmma_tile(w + k * 32), ptx::wgmma_tile(x + k * 32), add || k > 0);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ uint32_t wait() const {
    ptx::mbarrier_wait<false>(full + 8 * slot, parity);
    return base + slot * P.stage_bytes();
  }
  /// All of a tile's K that this block has.
  __device__ __forceinline__ void multiply_tile(const WgmmaPlace<T, P>& place, float (&acc)[P.tokens / 2]) {
    static_assert(P.inside == 1 || (P.inside == 2 && P.split % 2 == 0));
    if constexpr (P.inside == 1) return multiply(place.steps, acc);
    const int first = place.cut(place.part * P.inside + 1) - place.first_step;
    multiply(first, acc);
    float more[P.tokens / 2];
    multiply(place.steps - first, more);
#pragma unroll
    for (int j = 0; j < P.tokens / 2; ++j) acc[j] += more[j];
  }
  __device__ __forceinline__ void multiply(int steps, float (&acc)[P.tokens / 2]) {
#pragma unroll
    for (int j = 0; j < P.tokens / 2; ++j) acc[j] = 0.0f;
    if constexpr (P.promote) {
      for (int k = 0; k < steps; ++k, advance()) {
        ptx::mbarrier_wait<false>(full + 8 * slot, parity);
        float part[P.tokens / 2];
        multiply_stage(part, false);
        ptx::wgmma_wait<0>(part);
        release(slot);
#pragma unroll
        for (int j = 0; j < P.tokens / 2; ++j) acc[j] += part[j];
      }
    } else {
      int last = -1;
      for (int k = 0; k < steps; ++k, advance()) {
        ptx::mbarrier_wait<false>(full + 8 * slot, parity);
        multiply_stage(acc, true);
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");  // the stage before this one has been read
        if (last >= 0) release(last);
        last = slot;
      }
      ptx::wgmma_wait<0>(acc);
      if (last >= 0) release(last);
    }
  }
};

/// Sums that lie in shared memory as [token][row], floats `stride` apart, to memory: tokens t0 .. and rows n0 ..
/// by kThreads threads of number `tid`, each with its four rows and up to kMost tokens at a time.
template <class Out, int kTokens, int kRows, int kThreads, int kMost>
__device__ __forceinline__ void finish_turned(const GemmEpilogue<Out>& epilogue, const float* turn, int stride, int tid, int t0, int n0, int M, bool vector) {
  constexpr int V = 4, kAcross = kRows / V, kStep = kThreads / kAcross, kEach = (kTokens + kStep - 1) / kStep, R = kEach < kMost ? kEach : kMost;
  static_assert(kThreads % kAcross == 0);
  const int n = n0 + tid % kAcross * V;
  if (n >= epilogue.a.N) return;
#pragma unroll 1
  for (int t = tid / kAcross; t < kTokens; t += R * kStep) {
    float y[R][V];
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (R * kStep <= kTokens || t + r * kStep < kTokens) load<V>(turn + (t + r * kStep) * stride + tid % kAcross * V, y[r]);
    epilogue.finish_rows(t0 + t, kStep, M < t0 + kTokens ? M : t0 + kTokens, n, y, vector);
  }
}

/// Whole sums to memory: through the warpgroup's own shared memory, some tokens at a time, so that a token's
/// rows leave side by side. Two such places take turns.
template <class Out, GemmWgmma P>
__device__ __forceinline__ void wgmma_finish(const GemmEpilogue<Out>& epilogue, float* turns, const float (&acc)[P.tokens / 2], int t0, int n0, int M, bool vector) {
  constexpr int kTokens = P.turn_tokens(), kStride = P.turn_stride();
  const int lane = threadIdx.x % 32, group = threadIdx.x / 128, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll 1
  for (int run = 0; run < P.tokens / kTokens && t0 + run * kTokens < M; ++run) {
    float* const turn = turns + run % 2 * kTokens * kStride;
#pragma unroll
    for (int j = 0; j < P.tokens / 8; ++j) {
      if (j / (kTokens / 8) != run) continue;  // registers have no run-time index
      float* to = turn + (j % (kTokens / 8) * 8 + lane % 4 * 2) * kStride + row;
      to[0] = acc[4 * j], to[kStride] = acc[4 * j + 1];
      to[8] = acc[4 * j + 2], to[kStride + 8] = acc[4 * j + 3];
    }
    ptx::named_barrier<128>(1 + group);
    finish_turned<Out, kTokens, 64, 128, (P.tokens > 128 ? 2 : 4)>(epilogue, turn, kStride, threadIdx.x % 128, t0 + run * kTokens, n0, M, vector);
  }
  ptx::named_barrier<128>(1 + group);  // the next tile starts with the first place again
}

/// Parts of sums: a block finishes P.slice() rows, whose parts the others send it. A unit is 8 rows, what
/// half the registers of a warp hold; a part of a unit travels as it lies in the registers.
template <GemmWgmma P>
struct WgmmaMerge {
  static constexpr int kUnits = P.rows / 8 / P.parts();          // of a block
  static constexpr int kPairs = P.tokens / 8;                  // pairs of tokens a lane, unit
  static constexpr int kVec = kPairs > 1 ? 4 : 2;              // floats at a time
  static constexpr int kPieces = 2 * kPairs / kVec;            // of a lane, unit
  static constexpr int kPartFloats = kUnits * kPairs * 64;
  static constexpr int kItems = kUnits * kPieces * 32;         // groups of kVec floats

  /// `sums` and `barrier`: shared addresses, the same in every block.
  template <class T>
  __device__ __forceinline__ static void send(uint32_t sums, uint32_t barrier, const WgmmaPlace<T, P>& place, const float (&acc)[P.tokens / 2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int unit = warp * 2 + h, rank = unit / kUnits * (P.share_x * P.share_w) + place.of_w * P.share_x + place.of_x;
      const uint32_t to = ptx::remote_shared(sums + 4 * (place.part * kPartFloats + unit % kUnits * kPairs * 64 + lane * kVec), rank), done = ptx::remote_shared(barrier, rank);
#pragma unroll
      for (int q = 0; q < kPieces; ++q) {
        float v[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) v[i] = acc[4 * (q * kVec / 2 + i / 2) + 2 * h + i % 2];
        ptx::remote_store_async(to + q * 128 * kVec, v, done);
      }
    }
  }
  /// The same through this block's own memory `staged`, which nobody else uses any more, by the copy engine.
  template <class T>
  __device__ __forceinline__ static void send_staged(uint32_t sums, uint32_t barrier, float* staged, const WgmmaPlace<T, P>& place, const float (&acc)[P.tokens / 2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int q = 0; q < kPieces; ++q) {
        float v[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) v[i] = acc[4 * (q * kVec / 2 + i / 2) + 2 * h + i % 2];
        store<kVec>(staged + ((warp * 2 + h) * kPieces + q) * 32 * kVec + lane * kVec, v);
      }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // ordinary stores, for the copy engine
    ptx::named_barrier<2 * P.rows>(1);
    const int part = static_cast<int>(threadIdx.x);
    if (part < P.parts()) {
      const int rank = part * (P.share_x * P.share_w) + place.of_w * P.share_x + place.of_x;
      ptx::bulk_to_peer(ptx::remote_shared(sums + 4 * place.part * kPartFloats, rank), ptx::shared_address(staged + part * kPartFloats), 4 * kPartFloats, ptx::remote_shared(barrier, rank));
    }
  }
  /// Item i of this block's rows: its parts added in order.
  __device__ __forceinline__ static void sum(const float* sums, int i, float (&y)[kVec]) {
    constexpr int kPair = P.inside == 1 && P.split > 1 ? 2 : 1;  // in pairs, as blocks that add two parts themselves do
#pragma unroll
    for (int p = 0; p < P.parts(); p += kPair) {
      float more[kVec];
      load<kVec>(sums + p * kPartFloats + i * kVec, more);
      if constexpr (kPair > 1) {
        float second[kVec];
        load<kVec>(sums + (p + 1) * kPartFloats + i * kVec, second);
#pragma unroll
        for (int j = 0; j < kVec; ++j) more[j] += second[j];
      }
#pragma unroll
      for (int j = 0; j < kVec; ++j) y[j] = p == 0 ? more[j] : y[j] + more[j];
    }
  }
  /// Adds the parts in order and turns them into [token][row of the slice].
  __device__ __forceinline__ static void add(const float* sums, float* turn) {
#pragma unroll 1
    for (int i = threadIdx.x; i < kItems; i += 2 * P.rows) {
      const int lane = i % 32, piece = i / 32 % kPieces, unit = i / 32 / kPieces;
      float y[kVec];
      sum(sums, i, y);
      float* to = turn + (piece * kVec / 2 * 8 + lane % 4 * 2) * P.turn_stride() + unit * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < kVec; ++j) to[(j / 2 * 8 + j % 2) * P.turn_stride()] = y[j];
    }
  }
};

/// What a multiplying warpgroup does with whole sums, and where it does it: by any way that serves P.finish.
template <class T, class Out, GemmWgmma P>
__device__ __forceinline__ void wgmma_consume(const GemmArgs& a, const WgmmaPlace<T, P>& place, WgmmaRing<T, P>& ring, unsigned char* sums, uint32_t merged) {
  constexpr bool kParts = P.parts() > 1, kShared = P.share_x * P.share_w > 1, kFast = P.finish != kFinishAny, kDirect = kFast && P.direct();
  using Merge = WgmmaMerge<P>;
  constexpr int kPieces = kParts ? (Merge::kItems + 2 * P.rows - 1) / (2 * P.rows) : 2, kPairs = kParts ? Merge::kVec / 2 : kDirect ? P.tokens / 8 : 1;  // of a lane
  constexpr int kStaged = P.tokens >= 32 ? P.rows * P.tokens * 4 : 0;  // bytes of the ring that the copy engine sends parts from
  static_assert(!kParts || kStaged + (kDirect ? 0 : P.tokens * P.turn_stride() * 4) <= P.stages * P.stage_bytes(), "the ring holds the merged sums");
  static_assert(!kDirect || (sizeof(Out) == 2 && !P.has(kFinishGated)));
  const int tid = static_cast<int>(threadIdx.x), stride = static_cast<int>(gridDim.x) / P.cluster();
  int i = static_cast<int>(blockIdx.x) / P.cluster(), t0, n0;
  place.tile(i, &t0, &n0);
  asm volatile("" : "+r"(t0), "+r"(n0));  // divisions are done before the wait
  ptx::touch_parameters(a);
  ptx::dependency_wait();
  const int M = valid_rows(a.rows, a.T);
  const GemmEpilogue<Out> epilogue(a);
  const bool vector = epilogue.template wide<4>();
  WgmmaFinish<Out, P> out(epilogue);
  for (; i < place.tiles(); i += stride) {
    if (i >= stride) place.tile(i, &t0, &n0);
    if (!place.works(i, t0, M)) continue;
    const int rows0 = n0 + ring.group * 64;  // of this warpgroup
    if constexpr (kFast && !kDirect) out.load_rows(rows0);
    WgmmaPiece<Out, P, kPairs> piece[kPieces];
    const auto item = [&](int p, int* t, int* n) {  // a piece's first token and row
      if constexpr (kParts) {
        const int at = (tid + p * 2 * P.rows) / 32;
        *t = t0 + at % Merge::kPieces * kPairs * 8, *n = n0 + place.part * P.slice() + at / Merge::kPieces * 8;
        return Merge::kItems % (2 * P.rows) == 0 || at < Merge::kItems / 32;
      } else {
        *t = t0, *n = rows0 + tid / 32 % 4 * 16 + 8 * p;
        return true;
      }
    };
    if constexpr (kDirect) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        int t, n;
        if (item(p, &t, &n)) piece[p].prefetch(a, t, n, M);
      }
    }
    float acc[P.tokens / 2];
    ring.multiply_tile(place, acc);
    if constexpr (kParts) {
      if constexpr (!kShared) ptx::cluster_wait<P.cluster()>();  // the others run, and their barriers are made
      if constexpr (kStaged > 0) {
        ptx::named_barrier<2 * P.rows>(1);  // nobody of this block reads the ring any more
        Merge::send_staged(ptx::shared_address(sums), merged, reinterpret_cast<float*>(gemm_wgmma_smem), place, acc);
      } else {
        Merge::send(ptx::shared_address(sums), merged, place, acc);
      }
      const float* const parts = reinterpret_cast<const float*>(sums);
      if constexpr (kDirect) {
        ptx::mbarrier_wait<true>(merged, 0);
        if constexpr (kStaged > 0 && !kShared) __syncwarp(), ptx::cluster_arrive<P.cluster()>();  // what this block has been sent, is here
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          int t, n;
          if (!item(p, &t, &n)) continue;
          float y[Merge::kVec];
          Merge::sum(parts, tid + p * 2 * P.rows, y);
          piece[p].finish(a, out.scale, t, n, M, y);
        }
      } else {
        ptx::named_barrier<2 * P.rows>(1);
        ptx::mbarrier_wait<true>(merged, 0);
        if constexpr (kStaged > 0 && !kShared) __syncwarp(), ptx::cluster_arrive<P.cluster()>();
        float* const turn = reinterpret_cast<float*>(gemm_wgmma_smem + kStaged);
        Merge::add(parts, turn);
        ptx::named_barrier<2 * P.rows>(1);
        finish_turned<Out, P.tokens, P.slice(), 2 * P.rows, (P.tokens > 128 ? 2 : 4)>(epilogue, turn, P.turn_stride(), tid, t0, n0 + place.part * P.slice(), M, vector);
      }
    } else if constexpr (!kFast) {
      wgmma_finish<Out, P>(epilogue, reinterpret_cast<float*>(sums + ring.group * 2 * P.turn_bytes()), acc, t0, rows0, M, vector);
    } else if constexpr (kDirect) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        float y[P.tokens / 4];
#pragma unroll
        for (int j = 0; j < P.tokens / 4; ++j) y[j] = acc[j / 2 * 4 + 2 * p + j % 2];
        int t, n;
        item(p, &t, &n);
        piece[p].finish(a, out.scale, t, n, M, y);
      }
    } else {
      uint32_t residual = 0;
      if constexpr (P.has(kFinishResidual)) {
        for (int g = 0; g < ring.group; ++g, ring.advance()) ring.wait(), ring.release(ring.slot);
        residual = ring.wait();
      }
      out.run(sums + ring.group * 2 * P.turn_bytes(), residual, acc, t0, rows0, M);
      if constexpr (P.has(kFinishResidual)) {
        __syncwarp();
        ring.release(ring.slot), ring.advance();
        for (int g = ring.group + 1; g < P.groups(); ++g, ring.advance()) ring.wait(), ring.release(ring.slot);
      }
    }
  }
}

/// Grid: a multiple of P.cluster(), at most the tiles' blocks; exactly these where a cluster cuts K.
template <class T, class Out, GemmWgmma P>
__global__ void __launch_bounds__(P.threads(), 1) gemm_wgmma(const __grid_constant__ GemmWgmmaArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int C = P.cluster();
  constexpr bool kShared = P.share_x * P.share_w > 1, kStaged = P.parts() > 1 && P.tokens >= 32;
  const GemmArgs& a = args.g;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32;
  const uint32_t base = ptx::shared_address(gemm_wgmma_smem), full = base + P.stages * P.stage_bytes(), empty = full + 8 * P.stages, merged = empty + 8 * P.stages;
  unsigned char* const sums = gemm_wgmma_smem + P.stages * (P.stage_bytes() + 16) + 16;
  if (tid == 2 * P.rows) {
    if constexpr (P.aligned) {
      ptx::tma_prefetch(args.w_map);
      ptx::tma_prefetch(args.x_map);
    }
    for (int s = 0; s < P.stages; ++s) {
      ptx::mbarrier_init(full + 8 * s, 1);
      ptx::mbarrier_init(empty + 8 * s, P.rows / 16 * WgmmaRing<T, P>::kPeers);  // the multiplying warps of every block that is sent to
    }
    if constexpr (P.parts() > 1) ptx::mbarrier_init(merged, 1);
    ptx::mbarrier_fence();
    if constexpr (P.parts() > 1) ptx::mbarrier_expect(merged, P.parts() * WgmmaMerge<P>::kPartFloats * 4);
  }
  __syncthreads();
  if constexpr (C > 1) ptx::cluster_arrive<C>();
  if constexpr (kShared) ptx::cluster_wait<C>();  // before blocks write to each other
  ptx::launch_dependents();

  const WgmmaPlace<T, P> place(a);
  if (warp >= P.rows / 16) {
    if constexpr (P.wide()) ptx::registers_down<40>();
    if (warp == P.rows / 16) {
      if constexpr (P.aligned) {
        if (tid % 32 == 0) wgmma_load<T, Out, P>(args, place, base, full, empty);
        __syncwarp();
      } else {
        wgmma_fill<T, P>(a, place, reinterpret_cast<uint4*>(gemm_wgmma_smem), full, empty);
      }
    }
    if constexpr (P.parts() > 1 && !kShared) ptx::cluster_wait<C>();
    if constexpr (kStaged && !kShared) ptx::cluster_arrive<C>();
  } else {
    if constexpr (P.wide()) ptx::registers_up<232>();
    WgmmaRing<T, P> ring(place, base, full, empty);
    wgmma_consume<T, Out, P>(a, place, ring, sums, merged);
  }
  // A block stays until nobody arrives at its barriers or reads its memory any more.
  if constexpr (kShared) ptx::cluster_arrive<C>();
  if constexpr (kShared || kStaged) ptx::cluster_wait<C>();
#endif
}

}  // namespace vivace::kernels
