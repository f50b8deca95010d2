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
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/ldmatrix.cuh"
#include "vivace/kernels/ptx/mbarrier.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/tma.cuh"
#include "vivace/kernels/ptx/wgmma.cuh"

namespace vivace::kernels {

/// Where a block works: its tiles, its part of K, its place in the cluster.
template <class T, GemmWgmma P>
struct WgmmaPlace {
  static constexpr int kStep = 128 / sizeof(T);  // elements of K a stage
  int part, of_x, of_w;                          // rank in the cluster along split, share_x, share_w
  int tiles_t, tiles_n, first_step, steps;

  __device__ __forceinline__ explicit WgmmaPlace(const GemmArgs& a) {
    const int rank = ptx::cluster_rank<P.cluster()>(), all = (a.K + kStep - 1) / kStep;
    part = rank / (P.share_x * P.share_w), of_x = rank % P.share_x, of_w = rank / P.share_x % P.share_w;
    tiles_t = (a.T + P.tokens * P.share_w - 1) / (P.tokens * P.share_w);
    tiles_n = (a.N + P.rows * P.share_x - 1) / (P.rows * P.share_x);
    first_step = static_cast<int>(int64_t{all} * part / P.split);
    steps = static_cast<int>(int64_t{all} * (part + 1) / P.split) - first_step;
  }
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
  __device__ __forceinline__ bool works(int i, int t0, int M) const { return t0 - of_w * P.tokens < M || i == static_cast<int>(blockIdx.x) / P.cluster(); }
};

/// The loading thread.
template <class T, GemmWgmma P>
__device__ __forceinline__ void wgmma_load(const GemmWgmmaArgs& args, const WgmmaPlace<T, P>& place, uint32_t base, uint32_t full, uint32_t empty) {
  constexpr int kWRows = P.rows / P.share_w, kXRows = P.tokens / P.share_x, kShared = P.share_x * P.share_w;
  const int stride = static_cast<int>(gridDim.x) / P.cluster();
  const uint64_t policy_w = P.tokens <= 64 ? ptx::evict_first() : ptx::evict_normal(), policy_x = P.tokens <= 64 ? ptx::evict_last() : ptx::evict_normal();
  const int same_part = place.part * kShared;
  const auto load_w = [&](int slot, int step, int n0) {
    const uint32_t to = base + slot * P.stage_bytes() + place.of_w * kWRows * 128;
    const int k = (place.first_step + step) * place.kStep, n = n0 + place.of_w * kWRows;
    if constexpr (P.share_w > 1) {
      int mask = 0;
#pragma unroll
      for (int i = 0; i < P.share_w; ++i) mask |= 1 << (i * P.share_x);
      ptx::tma_load_multicast(to, args.w_map, full + 8 * slot, k, n, policy_w, static_cast<uint16_t>(mask << (same_part + place.of_x)));
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
  ptx::dependency_wait();
  const int M = valid_rows(args.g.rows, args.g.T);
  int slot = 0, parity = 1;  // the first turn finds every slot free
  for (int i = static_cast<int>(blockIdx.x) / P.cluster(); i < place.tiles(); i += stride) {
    place.tile(i, &t0, &n0);
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
      if (++slot == P.stages) slot = 0, parity ^= 1;
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
        fetch16<T, false>(ring + slot * (P.stage_bytes() / 16) + row * 8 + (word ^ (row % 8)), from, k, a.K, at < (is_w ? a.N : M), 0);
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

/// The same for sums that are only scaled and biased, with rows of out aligned to 16 bytes: rounded in registers,
/// so that a quarter of the words take the turn. A token's 64 rows are 128 bytes, word i of token t at i ^ (t % 8).
template <class Out, GemmWgmma P>
__device__ __forceinline__ void wgmma_finish_plain(const GemmEpilogue<Out>& epilogue, float* turns, const float (&acc)[P.tokens / 2], int t0, int n0, int M) {
  constexpr int kTokens = 32;
  const GemmArgs& a = epilogue.a;
  const int lane = threadIdx.x % 32, group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
  const int n = n0 + warp * 16 + lane / 4;
  float factor[2] = {1.0f, 1.0f}, bias[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (a.w_row_scale != nullptr && n + 8 * h < a.N) factor[h] = a.w_row_scale[n + 8 * h];
    if (a.bias != nullptr && n + 8 * h < a.N) bias[h] = load_as_float(a.bias, a.bias_dtype, n + 8 * h);
  }
#pragma unroll
  for (int run = 0; run < P.tokens / kTokens; ++run) {
    if (t0 + run * kTokens >= M) break;
    const uint32_t place = ptx::shared_address(turns) + run % 2 * kTokens * 128;
#pragma unroll
    for (int pair = 0; pair < kTokens / 16; ++pair) {
      uint32_t words[4];  // (8 tokens, 8 rows) twice, then the next 8 tokens
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int j = run * (kTokens / 8) + pair * 2 + i;
        const int64_t t = t0 + j * 8 + lane % 4 * 2;
        float s[2] = {1.0f, 1.0f};
        if (a.x_row_scale != nullptr) {
#pragma unroll
          for (int e = 0; e < 2; ++e) s[e] = t + e < M ? a.x_row_scale[t + e] : 0.0f;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float y[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {  // not fused: the bits of the way through finish_rows()
            y[e] = __fmul_rn(__fmul_rn(__fmul_rn(acc[4 * j + 2 * h + e], epilogue.scale), s[e]), factor[h]);
            if (a.bias != nullptr) y[e] = __fadd_rn(y[e], bias[h]);
          }
          words[2 * i + h] = ptx::pack<Out>(y[0], y[1]);
        }
      }
      const int token = pair * 16 + lane / 16 * 8 + lane % 8, word = warp * 2 + lane / 8 % 2;
      ptx::store_matrix4_transposed(place + token * 128 + (word ^ (token % 8)) * 16, words);
    }
    ptx::named_barrier<128>(1 + group);
#pragma unroll
    for (int i = 0; i < kTokens * 8 / 128; ++i) {
      const int token = i * 16 + threadIdx.x % 128 / 8, word = threadIdx.x % 8, col = n0 + word * 8;
      const int64_t t = t0 + run * kTokens + token;
      if (t < M && col < a.N)
        *reinterpret_cast<uint4*>(static_cast<Out*>(a.out) + t * a.out_stride + col) =
            reinterpret_cast<const uint4*>(turns)[run % 2 * kTokens * 8 + token * 8 + (word ^ (token % 8))];
    }
  }
  ptx::named_barrier<128>(1 + group);
}

/// Parts of sums: a block finishes P.slice() rows, whose parts the others send it. A unit is 8 rows, what
/// half the registers of a warp hold; a part of a unit travels as it lies in the registers.
template <GemmWgmma P>
struct WgmmaMerge {
  static constexpr int kUnits = P.rows / 8 / P.split;          // of a block
  static constexpr int kPairs = P.tokens / 8;                  // pairs of tokens a lane, unit
  static constexpr int kVec = kPairs > 1 ? 4 : 2;              // floats at a time
  static constexpr int kPieces = 2 * kPairs / kVec;            // of a lane, unit
  static constexpr int kPartFloats = kUnits * kPairs * 64;

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
  /// Adds the parts in order and turns them into [token][row of the slice].
  __device__ __forceinline__ static void add(const float* sums, float* turn) {
#pragma unroll 1
    for (int i = threadIdx.x; i < kUnits * kPieces * 32; i += 2 * P.rows) {
      const int lane = i % 32, piece = i / 32 % kPieces, unit = i / 32 / kPieces;
      float y[kVec];
      load<kVec>(sums + i * kVec, y);
#pragma unroll
      for (int p = 1; p < P.split; ++p) {
        float more[kVec];
        load<kVec>(sums + p * kPartFloats + i * kVec, more);
#pragma unroll
        for (int j = 0; j < kVec; ++j) y[j] += more[j];
      }
      float* to = turn + (piece * kVec / 2 * 8 + lane % 4 * 2) * P.turn_stride() + unit * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < kVec; ++j) to[(j / 2 * 8 + j % 2) * P.turn_stride()] = y[j];
    }
  }
};

/// Grid: a multiple of P.cluster(), at most the tiles' blocks; exactly these where K is split.
template <class T, class Out, GemmWgmma P>
__global__ void __launch_bounds__(P.threads(), 1) gemm_wgmma(const __grid_constant__ GemmWgmmaArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int C = P.cluster();
  constexpr bool kShared = P.share_x * P.share_w > 1;
  extern __shared__ __align__(1024) unsigned char gemm_wgmma_smem[];
  const GemmArgs& a = args.g;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32;
  const uint32_t base = ptx::shared_address(gemm_wgmma_smem), full = base + P.stages * P.stage_bytes(), empty = full + 8 * P.stages, merged = empty + 8 * P.stages;
  float* const sums = reinterpret_cast<float*>(gemm_wgmma_smem + P.stages * (P.stage_bytes() + 16) + 16);
  static_assert(P.split == 1 || P.tokens * P.turn_stride() * 4 <= P.stages * P.stage_bytes(), "the ring holds the merged sums");
  if (tid == 2 * P.rows) {
    if constexpr (P.aligned) {
      ptx::tma_prefetch(args.w_map);
      ptx::tma_prefetch(args.x_map);
    }
    for (int s = 0; s < P.stages; ++s) {
      ptx::mbarrier_init(full + 8 * s, 1);
      ptx::mbarrier_init(empty + 8 * s, P.rows / 16 * WgmmaRing<T, P>::kPeers);  // the multiplying warps of every block that is sent to
    }
    if constexpr (P.split > 1) ptx::mbarrier_init(merged, 1);
    ptx::mbarrier_fence();
    if constexpr (P.split > 1) ptx::mbarrier_expect(merged, P.split * WgmmaMerge<P>::kPartFloats * 4);
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
        if (tid % 32 == 0) wgmma_load<T, P>(args, place, base, full, empty);
        __syncwarp();
      } else {
        wgmma_fill<T, P>(a, place, reinterpret_cast<uint4*>(gemm_wgmma_smem), full, empty);
      }
    }
    if constexpr (P.split > 1 && !kShared) ptx::cluster_wait<C>();
  } else {
    if constexpr (P.wide()) ptx::registers_up<232>();
    ptx::dependency_wait();
    const int M = valid_rows(a.rows, a.T);
    const GemmEpilogue<Out> epilogue(a);
    const bool vector = epilogue.template wide<4>(), straight = epilogue.plain() && epilogue.template wide<8>();
    WgmmaRing<T, P> ring(place, base, full, empty);
    for (int i = static_cast<int>(blockIdx.x) / C; i < place.tiles(); i += static_cast<int>(gridDim.x) / C) {
      int t0, n0;
      place.tile(i, &t0, &n0);
      if (!place.works(i, t0, M)) continue;
      float acc[P.tokens / 2];
      ring.multiply(place.steps, acc);
      if constexpr (P.split == 1) {
        float* const turns = sums + ring.group * 2 * P.turn_tokens() * P.turn_stride();
        if constexpr (sizeof(Out) == 2 && P.tokens >= 32) {
          if (straight) wgmma_finish_plain<Out, P>(epilogue, turns, acc, t0, n0 + ring.group * 64, M);
          else wgmma_finish<Out, P>(epilogue, turns, acc, t0, n0 + ring.group * 64, M, vector);
        } else {
          wgmma_finish<Out, P>(epilogue, turns, acc, t0, n0 + ring.group * 64, M, vector);
        }
      } else {
        if constexpr (!kShared) ptx::cluster_wait<C>();  // the others run, and their barriers are made
        WgmmaMerge<P>::send(ptx::shared_address(sums), merged, place, acc);
        ptx::named_barrier<2 * P.rows>(1);                                     // nobody of this block reads the ring any more
        ptx::mbarrier_wait<true>(merged, 0);
        float* const turn = reinterpret_cast<float*>(gemm_wgmma_smem);
        WgmmaMerge<P>::add(sums, turn);
        ptx::named_barrier<2 * P.rows>(1);
        finish_turned<Out, P.tokens, P.slice(), 2 * P.rows, (P.tokens > 128 ? 2 : 4)>(epilogue, turn, P.turn_stride(), tid, t0, n0 + place.part * P.slice(), M, vector);
      }
    }
  }
  if constexpr (kShared) {  // a block stays until nobody arrives at its barriers any more
    ptx::cluster_arrive<C>();
    ptx::cluster_wait<C>();
  }
#endif
}

}  // namespace vivace::kernels
