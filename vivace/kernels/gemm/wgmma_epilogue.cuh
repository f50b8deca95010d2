// The epilogue of gemm_wgmma where what follows the sum is known when the kernel is made (GemmWgmma::epilogue): the
// same operations in the same order as GemmEpilogue, on the sums as they lie in the tensor core's registers.
#pragma once
#include "vivace/kernels/gate/activation.h"
#include "vivace/kernels/gemm/epilogue.cuh"
#include "vivace/kernels/norm/rms.cuh"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/ldmatrix.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/words.cuh"
#include "vivace/kernels/tile/divide.cuh"

namespace vivace::kernels {

/// What belongs to one row of W.
struct WgmmaRowFactors {
  float scale = 1.0f, bias = 0.0f;
  uint16_t gate;  // bits of out's type: what is made of a value waits for it

  /// Of row n, which may lie beyond N.
  template <class Out, GemmWgmma P>
  __device__ __forceinline__ void load(const GemmArgs& a, int n) {
    if constexpr (P.has(kEpilogueRowScales)) scale = n < a.N ? a.w_row_scale[n] : 0.0f;
    if constexpr (P.has(kEpilogueBias)) bias = n < a.N ? load_as_float(a.bias, a.bias_dtype, n) : 0.0f;
    if constexpr (P.has(kEpilogueGate)) gate = n < a.N ? static_cast<const uint16_t*>(a.gate)[n] : uint16_t{0};
  }
};

/// One value after the other. Nothing is fused: tactics must agree.
template <GemmWgmma P>
__device__ __forceinline__ float wgmma_biased(float sum, float scale, float token, const WgmmaRowFactors& row) {
  float y = __fmul_rn(sum, scale);
  if constexpr (P.has(kEpilogueTokenScales)) y = __fmul_rn(y, token);
  if constexpr (P.has(kEpilogueRowScales)) y = __fmul_rn(y, row.scale);
  if constexpr (P.has(kEpilogueBias)) y = __fadd_rn(y, row.bias);
  return y;
}
/// y / d as 8 bits have it, rounded as the division is, by products alone: r is 1 / d rounded, and one step of the
/// remainder corrects y * r; where that overflows, y * r saturates as y / d does. A d whose reciprocal is no normal
/// number and y are first taken nearer to 1: what of y that loses, no 8 bits hold. Without a branch: values that wait
/// for one another cost more than the products.
struct WgmmaDivisor {
  float d, r, up;

  WgmmaDivisor() = default;
  __device__ __forceinline__ explicit WgmmaDivisor(float divisor) {
    const float size = fabsf(divisor);
    up = size >= 0x1p-100f && size <= 0x1p100f ? 1.0f : size < 1.0f ? 0x1p64f : 0x1p-64f;
    d = __fmul_rn(divisor, up), r = 1.0f / d;
  }
  __device__ __forceinline__ float of(float y) const {
    const float v = __fmul_rn(y, up), q = __fmul_rn(v, r), better = fmaf(fmaf(-q, d, v), r, q);
    return fabsf(q) < 0x1p20f && q != 0.0f ? better : q;  // a zero keeps its sign
  }
};

template <class Out, GemmWgmma P>
__device__ __forceinline__ float wgmma_gated(float y, const WgmmaDivisor& divisor, const WgmmaRowFactors& row,
                                             float residual) {
  if constexpr (P.has(kEpilogueGate)) y = __fmul_rn(y, to_float(Out{row.gate}));
  if constexpr (P.has(kEpilogueResidual)) y = __fadd_rn(residual, y);
  if constexpr (sizeof(Out) == 1) y = divisor.of(y);
  return y;
}

/// Two 16-bit outputs of one register as f32.
template <class Out>
__device__ __forceinline__ float half_of(uint32_t pair, int i) {
  return to_float(Out{static_cast<uint16_t>(i == 0 ? pair & 0xffffu : pair >> 16)});
}

/// Where kEpilogueTokenNorms: a block's factors of its tokens, of which there is one tile.
template <GemmWgmma P>
__device__ __forceinline__ float* token_norms() {
  __shared__ float norms[P.tokens];
  return norms;
}
/// By kTokenNormThreads threads of number `thread`, two to sixteen a token, while others load and multiply.
template <GemmWgmma P>
__device__ __forceinline__ void make_token_norms(const RmsSquares& squares, const GemmArgs& a, int thread) {
  static_assert(2 * P.tokens <= kTokenNormThreads);
  constexpr int kEach = P.tokens <= 8 ? 16 : P.tokens <= 16 ? 8 : P.tokens <= 32 ? 4 : 2;
  const int token = thread / kEach;
  int rows = a.rows != nullptr ? *a.rows : a.T;  // on its way beside the sums, also those of rows that nobody counts
  const float sum = rms_sum<kEach>(squares, token, thread % kEach, token < P.tokens && token < a.T);
  asm volatile("" : "+r"(rows));  // not looked at before
  if (token < P.tokens && thread % kEach == 0) token_norms<P>()[token] = token < rows ? rms_factor(squares, sum) : 0.0f;
}

/// Where those threads and the consumers meet.
template <GemmWgmma P>
__device__ __forceinline__ void token_norms_made() { ptx::named_arrive<2 * P.rows + kTokenNormThreads>(5); }
template <GemmWgmma P>
__device__ __forceinline__ void await_token_norms() { ptx::named_barrier<2 * P.rows + kTokenNormThreads>(5); }

/// Scales of tokens t and t + 1 below M.
template <GemmWgmma P>
__device__ __forceinline__ void token_scales(const GemmArgs& a, int64_t t, int M, float (&s)[2]) {
  s[0] = s[1] = 1.0f;
  if constexpr (P.has(kEpilogueTokenNorms)) {
    s[0] = token_norms<P>()[t], s[1] = token_norms<P>()[t + 1];
  } else if constexpr (P.has(kEpilogueTokenScales)) {
#pragma unroll
    for (int e = 0; e < 2; ++e) s[e] = t + e < M ? a.x_row_scale[t + e] : 0.0f;
  }
}

/// A warpgroup's sums of many tokens: rounded in registers, turned by way of shared memory, 32 tokens at a time, so
/// that a token's columns leave side by side. Two such places take turns. 16 bytes of token t lie at a place that
/// depends on t, which keeps banks apart.
template <class Out, GemmWgmma P>
struct WgmmaEpilogue {
  static constexpr bool kGated = P.has(kEpilogueGated), kOneByte = sizeof(Out) == 1;
  static constexpr bool kPaired =
      kGated || kOneByte;  // W's rows lie even ones first: registers 0, 1 and 2, 3 are neighbours
  static constexpr int kColumns = kGated ? 32 : 64;         // of out, a warpgroup
  static constexpr int kWords = kColumns * sizeof(Out) / 16;  // of 16 bytes, a token
  static constexpr int kTokens = 32;

  const GemmArgs& a;
  float scale;
  WgmmaDivisor divisor;
  WgmmaRowFactors row[2];

  float factors[3];  // x_scale, w_scale, out_scale

  /// Behind the dependency wait; then ready() before the first epilogue, when what it reads has come.
  __device__ __forceinline__ explicit WgmmaEpilogue(const GemmArgs& args) : a(args) {
    factors[0] = a.x_scale != nullptr ? *a.x_scale : 1.0f;
    factors[1] = a.w_scale != nullptr ? *a.w_scale : 1.0f;
    if constexpr (kOneByte) factors[2] = a.out_scale != nullptr ? *a.out_scale : 1.0f;
  }
  __device__ __forceinline__ void ready() {
    scale = a.alpha * factors[0] * factors[1];
    if constexpr (kOneByte) divisor = WgmmaDivisor(factors[2]);
  }
  /// Of the warpgroup's 64 rows that start at n0.
  __device__ __forceinline__ void load_rows(int n0) {
    const int lane = threadIdx.x % 32, first = n0 + threadIdx.x / 32 % 4 * 16;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      row[h].template load<Out, P>(a, first + (kPaired ? lane / 4 * 2 + h : lane / 4 + 8 * h));
  }

  __device__ __forceinline__ static int swizzled_at(int token, int word) {
    return token * kWords + (word ^ (kWords == 8 ? token % 8 : kWords == 4 ? token / 2 % 4 : token / 4 % 2));
  }

  /// Registers 4 j .. 4 j + 3 of a lane, tokens t, t + 1: out's words. residual: as load_matrix4_transposed() gives it.
  __device__ __forceinline__ void values(const float* sums, int64_t t, int M, const uint32_t* residual,
                                         float (&z)[2][2]) const {
    float s[2];
    token_scales<P>(a, t, M, s);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 2; ++e) z[h][e] = wgmma_biased<P>(sums[2 * h + e], scale, s[e], row[h]);
    constexpr int kHalves = kGated ? 1 : 2;
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if constexpr (P.activation() != Activation::none) z[h][e] = activate_as<P.activation()>(z[h][e]);
        if constexpr (kGated) z[0][e] = __fmul_rn(z[0][e], z[1][e]);
        float more = 0.0f;
        if constexpr (P.has(kEpilogueResidual)) more = half_of<Out>(residual[h], e);
        z[h][e] = wgmma_gated<Out, P>(z[h][e], divisor, row[h], more);
      }
  }

  /// Tokens kFrom to kFrom + kCount of the tile, rounded, to the place `to`. `residual`: shared address of theirs,
  /// [token][64 columns].
  template <int kFrom, int kCount>
  __device__ __forceinline__ void write(unsigned char* to, uint32_t residual, const float (&acc)[P.tokens / 2], int t0,
                                        int M) const {
    static_assert(kFrom % 16 == 0 && kCount % 16 == 0);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const uint32_t at = ptx::shared_address(to);
#pragma unroll
    for (int pair = 0; pair < kCount / 16; ++pair) {
      const int token = pair * 16 + lane / 16 * 8 + lane % 8, word = warp * 2 + lane / 8 % 2;
      uint32_t more[4] = {}, words[4], column[2] = {};  // words: (8 tokens, 8 rows) twice, then the next 8 tokens;
                                                        // column, where kPaired: of 8 tokens each
      if constexpr (P.has(kEpilogueResidual))
        ptx::load_matrix4_transposed(residual + token * 128 + (word ^ (token % 8)) * 16, more);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int j = kFrom / 8 + pair * 2 + i;
        float z[2][2];
        values(acc + 4 * j, t0 + j * 8 + lane % 4 * 2, M, more + 2 * i, z);
        if constexpr (!kPaired) {
          words[2 * i] = ptx::pack<Out>(z[0][0], z[0][1]), words[2 * i + 1] = ptx::pack<Out>(z[1][0], z[1][1]);
        } else if constexpr (!kOneByte) {
          column[i] = ptx::pack<Out>(z[0][0], z[0][1]);
        } else if constexpr (!kGated) {
          column[i] = ptx::pack_e4m3(z[0][0], z[1][0]) | ptx::pack_e4m3(z[0][1], z[1][1]) << 16;
        } else {  // a byte a token and column: neighbouring columns are in neighbouring lanes
          const uint32_t own = ptx::pack_e4m3(z[0][0], z[0][1]), other = __shfl_xor_sync(0xffffffffu, own, 4);
          const bool odd = lane / 4 % 2 != 0;
          const uint32_t both = odd ? (other >> 8) | (own & 0xff00u) : (own & 0xffu) | (other & 0xffu) << 8;
          const int t = (pair * 2 + i) * 8 + lane % 4 * 2 + odd, byte = warp * 8 + lane / 8 * 2;
          *reinterpret_cast<uint16_t*>(to + swizzled_at(t, byte / 16) * 16 + byte % 16) = static_cast<uint16_t>(both);
        }
      }
      if constexpr (!kPaired) ptx::store_matrix4_transposed(at + swizzled_at(token, word) * 16, words);
      else if constexpr (!(kOneByte && kGated))
        ptx::store_matrix2_transposed(at + swizzled_at(pair * 16 + lane % 16, warp) * 16, column);
    }
  }
  /// Where a thread's 16 bytes of the tile's first tokens go, found before there are any: kPass tokens take one access
  /// of the warpgroup.
  static constexpr int kPass = 128 / kWords;
  __device__ __forceinline__ Out* first(int t0, int n0) const {
    const int thread = threadIdx.x % 128;
    return static_cast<Out*>(a.out) + int64_t{t0 + thread / kWords} * a.out_stride + (kGated ? n0 / 2 : n0) +
           thread % kWords * (16 / static_cast<int>(sizeof(Out)));
  }
  /// The same tokens from there to memory, by the whole warpgroup; those at M and beyond are dropped. `to`: first().
  /// All are read before one is stored, so that they do not wait one after the other.
  template <int kFrom, int kCount>
  __device__ __forceinline__ void copy(const unsigned char* from, Out* to, int t0, int n0, int M) const {
    constexpr int kPasses = (kCount + kPass - 1) / kPass;
    const int thread = threadIdx.x % 128, token = thread / kWords, word = thread % kWords;
    const bool within = (kGated ? n0 / 2 : n0) + word * (16 / static_cast<int>(sizeof(Out))) < (kGated ? a.N / 2 : a.N);
    uint32_t words[kPasses][4];
#pragma unroll
    for (int i = 0; i < kPasses; ++i)
      ptx::load_words(ptx::shared_address(from) + swizzled_at(min(i * kPass + token, kCount - 1), word) * 16, words[i]);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int at = i * kPass + token;
      if (at < kCount && t0 + kFrom + at < M && within)
        ptx::store_words(to + int64_t{kFrom + i * kPass} * a.out_stride, words[i]);
    }
  }

  /// All tokens, some at a time by way of the warpgroup's two places `turns`.
  template <int kRun = 0>
  __device__ __forceinline__ void run(unsigned char* turns, uint32_t residual, const float (&acc)[P.tokens / 2],
                                      Out* to, int t0, int n0, int M) const {
    constexpr int kFrom = kRun * kTokens, kCount = P.tokens - kFrom < kTokens ? P.tokens - kFrom : kTokens;
    if (t0 + kFrom < M) {
      unsigned char* const turn = turns + kRun % 2 * (kTokens * kWords * 16);
      write<kFrom, kCount>(turn, residual + kFrom * 128, acc, t0, M);
      ptx::named_barrier<128>(1 + threadIdx.x / 128);
      copy<kFrom, kCount>(turn, to, t0, n0, M);
    }
    if constexpr (kFrom + kCount < P.tokens) run<kRun + 1>(turns, residual, acc, to, t0, n0, M);
    else ptx::named_barrier<128>(1 + threadIdx.x / 128);  // the next tile starts with the first place again
  }
};

/// Few tokens, or parts of sums: straight from registers, eight rows at a time, which are 16 bytes of a token. `Out`
/// has 16 bits. A piece: the sums of 8 rows (lane / 4) and kPairs * 8 tokens, a lane's as in the tensor core's
/// registers.
template <class Out, GemmWgmma P, int kPairs>
struct WgmmaPiece {
  WgmmaRowFactors row;
  uint32_t residual[kPairs];
  int64_t residual_at, out_at;  // elements

  /// Where it lies, known before the dependency wait. `t`, `n`: the first token and row.
  __device__ __forceinline__ void aim(const GemmArgs& a, int t, int n) {
    const int lane = threadIdx.x % 32;
    const int64_t token = t + lane / 4, col = n + lane % 4 * 2;
    out_at = token * a.out_stride + col;
    asm volatile("" : "+l"(out_at));
    if constexpr (P.has(kEpilogueResidual)) {
      residual_at = token * a.residual_stride + col;
      asm volatile("" : "+l"(residual_at));
    }
  }
  /// Before the sums are there.
  __device__ __forceinline__ void prefetch(const GemmArgs& a, int t, int n, int M) {
    const int lane = threadIdx.x % 32, col = n + lane % 4 * 2;
    row.template load<Out, P>(a, n + lane / 4);
    if constexpr (P.has(kEpilogueResidual)) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i)
        residual[i] = t + 8 * i + lane / 4 < M && col < a.N
                          ? *reinterpret_cast<const uint32_t*>(static_cast<const Out*>(a.residual) + residual_at +
                                                               8 * i * a.residual_stride)
                          : 0;
    }
  }
  /// What follows from that, while the sums or their parts are on their way.
  __device__ __forceinline__ void prepare() {
    if constexpr (P.has(kEpilogueResidual)) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) residual[i] = ptx::transpose_matrix(residual[i]);
    }
  }
  /// Outputs as they lie in the sums' registers: two tokens of a row a word.
  __device__ __forceinline__ void words(const GemmArgs& a, float scale, int t, int M, const float (&y)[2 * kPairs],
                                        uint32_t (&word)[kPairs]) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float s[2], z[2];
      token_scales<P>(a, t + 8 * i + threadIdx.x % 4 * 2, M, s);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        z[e] = wgmma_biased<P>(y[2 * i + e], scale, s[e], row);
        if constexpr (P.activation() != Activation::none) z[e] = activate_as<P.activation()>(z[e]);
        z[e] = wgmma_gated<Out, P>(z[e], WgmmaDivisor(1.0f), row,
                                   P.has(kEpilogueResidual) ? half_of<Out>(residual[i], e) : 0.0f);
      }
      word[i] = ptx::pack<Out>(z[0], z[1]);
    }
  }
  /// Turned: the lane's two columns of its token of each eight.
  __device__ __forceinline__ static void turn(uint32_t (&word)[kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) word[i] = ptx::transpose_matrix(word[i]);
  }
  /// Turned words to memory.
  __device__ __forceinline__ void store(const GemmArgs& a, int t, int n, int M, const uint32_t (&word)[kPairs]) const {
    const int lane = threadIdx.x % 32, col = n + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      if (t + 8 * i + lane / 4 < M && col < a.N)
        *reinterpret_cast<uint32_t*>(static_cast<Out*>(a.out) + out_at + 8 * i * a.out_stride) = word[i];
  }
};

/// What rms_rows makes of a piece, beside it: the next product's rows and the sums of the squares of its eight columns.
/// kFp8: these rows in e4m3.
template <class Out, int kPairs, bool kFp8>
struct WgmmaNextPiece {
  float factor[2];
  int64_t scaled_at, squares_at;  // elements

  /// Where it goes, and a weight, which is never written: known before the dependency wait. `t`, `n`: the first token
  /// and column.
  __device__ __forceinline__ void aim(const GemmNext& next, int t, int n, int N) {
    const int lane = threadIdx.x % 32, col = n + lane % 4 * 2;
    const int64_t token = t + lane / 4;
    scaled_at = token * next.scaled_stride + col, squares_at = token * next.squares_stride + col / kRmsColumns;
    asm volatile("" : "+l"(scaled_at), "+l"(squares_at));
    factor[0] = factor[1] = 1.0f;
    if (next.weight == nullptr || col >= N) return;
    if (next.weight_f32) return load<2>(static_cast<const float*>(next.weight) + col, factor);
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(static_cast<const Out*>(next.weight) + col);
#pragma unroll
    for (int e = 0; e < 2; ++e) factor[e] = half_of<Out>(pair, e);
  }
  /// Before the sums are there.
  __device__ __forceinline__ void prefetch(const GemmNext& next, int n, int N) {
    const int col = n + threadIdx.x % 4 * 2;
    if (next.scale == nullptr || col >= N) return;
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(static_cast<const Out*>(next.scale) + col);
#pragma unroll
    for (int e = 0; e < 2; ++e) factor[e] = __fadd_rn(1.0f, half_of<Out>(pair, e));
  }
  /// Of kCount pieces, turned, side by side: one after the other each would wait for its own sums. count: tokens from
  /// each one's first on; none where it has no columns. scaled_scale: loaded long before.
  template <int kCount>
  __device__ __forceinline__ static void leave(const GemmNext& next, float scaled_scale, const WgmmaNextPiece* piece,
                                               const int (&count)[kCount], const uint32_t (&word)[kCount][kPairs]) {
    const int token = threadIdx.x % 32 / 4;
    float sum[kCount][kPairs];
#pragma unroll
    for (int p = 0; p < kCount; ++p)
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float first = half_of<Out>(word[p][i], 0), second = half_of<Out>(word[p][i], 1);
        if constexpr (kFp8) {
          float v[2] = {__fmul_rn(first, piece[p].factor[0]), __fmul_rn(second, piece[p].factor[1])};
          RoughDivider(scaled_scale).divide_flat(v);
          if (8 * i + token < count[p])
            *reinterpret_cast<uint16_t*>(static_cast<unsigned char*>(next.scaled) + piece[p].scaled_at +
                                         8 * i * next.scaled_stride) =
                static_cast<uint16_t>(ptx::pack_e4m3(v[0], v[1]));
        } else {
          if (8 * i + token < count[p])
            *reinterpret_cast<uint32_t*>(static_cast<Out*>(next.scaled) + piece[p].scaled_at +
                                         8 * i * next.scaled_stride) =
                ptx::pack<Out>(__fmul_rn(first, piece[p].factor[0]), __fmul_rn(second, piece[p].factor[1]));
        }
        sum[p][i] = rms_pair(first, second);
      }
#pragma unroll
    for (int d = 1; d < 4; d *= 2)
#pragma unroll
      for (int p = 0; p < kCount; ++p)
#pragma unroll
        for (int i = 0; i < kPairs; ++i) sum[p][i] = __fadd_rn(sum[p][i], __shfl_xor_sync(0xffffffffu, sum[p][i], d));
#pragma unroll
    for (int p = 0; p < kCount; ++p)
#pragma unroll
      for (int i = 0; i < kPairs; ++i)
        if (8 * i + token < count[p] && threadIdx.x % 4 == 0)
          next.squares[piece[p].squares_at + 8 * i * next.squares_stride] = sum[p][i];
  }
};

/// The same of gates and ups: 16 rows lie even ones first, so a gate and its up row meet in a lane and 8 columns leave.
template <class Out, GemmWgmma P, int kPairs>
struct WgmmaGatedPiece {
  WgmmaRowFactors row[2];

  /// `n`: the first of the 16 rows of W.
  __device__ __forceinline__ void prefetch(const GemmArgs& a, int n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) row[h].template load<Out, P>(a, n + threadIdx.x % 32 / 4 * 2 + h);
  }
  /// sum(h, i, e): of a gate (h = 0) or an up row, and token 8 i + lane % 4 * 2 + e.
  template <class Sum>
  __device__ __forceinline__ void finish(const WgmmaEpilogue<Out, P>& out, int t, int n, int M, Sum&& sum) const {
    const GemmArgs& a = out.a;
    const int lane = threadIdx.x % 32, col = n / 2 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float s[2], z[2];
      token_scales<P>(a, t + 8 * i + lane % 4 * 2, M, s);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float gate = wgmma_biased<P>(sum(0, i, e), out.scale, s[e], row[0]);
        if constexpr (P.activation() != Activation::none) gate = activate_as<P.activation()>(gate);
        z[e] = wgmma_gated<Out, P>(__fmul_rn(gate, wgmma_biased<P>(sum(1, i, e), out.scale, s[e], row[1])), out.divisor,
                                   row[0], 0.0f);
      }
      const int64_t token = t + 8 * i + lane / 4;
      const bool within = token < M && col < a.N / 2;
      Out* const to = static_cast<Out*>(a.out) + token * a.out_stride + col;
      if constexpr (sizeof(Out) == 1) {  // a byte in each half of a word, on its way through
        const uint32_t pair = ptx::pack_e4m3(z[0], z[1]),
                       word = ptx::transpose_matrix((pair & 0xffu) | (pair & 0xff00u) << 8);
        if (within) *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>((word & 0xffu) | word >> 8);
      } else {
        const uint32_t word = ptx::transpose_matrix(ptx::pack<Out>(z[0], z[1]));
        if (within) *reinterpret_cast<uint32_t*>(to) = word;
      }
    }
  }
};

}  // namespace vivace::kernels
