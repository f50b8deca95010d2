// A panel of x in shared memory, in the form that products with dequantized weights read: planes of bf16 or f16
// whose sum is x, or int8 codes with their scales. Made by all threads of a block, once a panel.
#pragma once
#include "vivace/kernels/gemm/weight_only.h"
#include "vivace/kernels/gemm/upcast.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/mma_int.cuh"

namespace vivace::kernels {

/// Integer sums start here, as the bits of 1.5 * 2^23: read as a float they are that number plus the sum.
inline constexpr int kSumStart = 0x4b400000;
inline constexpr float kSumStartFloat = 12582912.0f;

template <class T>
inline constexpr DType kTypeOf = sizeof(T) == 4    ? DType::f32
                                 : sizeof(T) == 1  ? DType::e4m3
                                 : kIsSame<T, f16> ? DType::f16
                                                   : DType::bf16;

/// Eight elements with the pairs (0, 4), (1, 5), (2, 6), (3, 7) together.
__device__ __forceinline__ uint4 paired(uint4 v) {
  return make_uint4(__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410),
                    __byte_perm(v.y, v.w, 0x7632));
}
/// Sum of a group of 32: pairs, then pairs of these, and so on.
template <class X>
__device__ __forceinline__ float group_sum(const X* group) {
  float quarter[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float v[8];
    load<8>(group + i * 8, v);
    quarter[i] = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  }
  return (quarter[0] + quarter[1]) + (quarter[2] + quarter[3]);
}
/// Stores a group's sum of token t as three bf16 whose sum it is, exactly: eight groups of a token are three planes of
/// 16 bytes.
template <int kTokens>
__device__ __forceinline__ void put_sum_planes(float* sums, int group, int t, float sum) {
  uint16_t* const eight = reinterpret_cast<uint16_t*>(sums) + (group / 8 * kTokens + t) * 24 + group % 8;
  const Planes3 planes(sum);
#pragma unroll
  for (int p = 0; p < 3; ++p) eight[8 * p] = static_cast<uint16_t>(planes.part[p] >> 16);
}
/// The lane's operands of eight groups from `group` on, of token tile m: a pair of groups a plane.
template <int kTokens>
__device__ __forceinline__ void sum_planes(const float* sums, int m, int group, uint32_t (&x)[3]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t* const eight =
      reinterpret_cast<const uint32_t*>(sums) + (group / 8 * kTokens + m * 8 + lane / 4) * 12 + lane % 4;
#pragma unroll
  for (int p = 0; p < 3; ++p) x[p] = eight[4 * p];
}
/// Where 16 bytes of row t lie, in words of as many: in odd rows of kFolds neighbours are swapped, so that what eight
/// lanes read, each one of two neighbours, is in every bank.
template <bool kFolds>
__device__ __forceinline__ int x_word(int t, int word) {
  return kFolds ? word ^ (t & 1) : word;
}
/// Lane c's operands of a group of 32 elements of a token's row in shared memory, the at + j-th: 8 bytes and the 8 that
/// lie 32 behind; where kPairs, 16 as paired() gives them; where kFolds too, the lane has 32 bytes of two groups, of
/// which these are one half (`at` is even), and which lie as x_word() says.
template <bool kPairs, bool kFolds>
__device__ __forceinline__ void x_operands(const uint8_t* row, int t, int at, int j, int c, uint32_t (&b)[4]) {
  if constexpr (kPairs) {
    const uint8_t* group =
        row + (kFolds ? at * 64 + j / 2 * 128 + c * 32 + x_word<kFolds>(t, j % 2) * 16 : (at + j) * 64 + c * 16);
    const uint4 v = *reinterpret_cast<const uint4*>(group);
    b[0] = v.x, b[1] = v.y, b[2] = v.z, b[3] = v.w;
  } else {
    const uint8_t* group = row + (at + j) * 64 + c * 8;
    const uint2 low = *reinterpret_cast<const uint2*>(group), high = *reinterpret_cast<const uint2*>(group + 32);
    b[0] = low.x, b[1] = low.y, b[2] = high.x, b[3] = high.y;
  }
}

template <class X, class Mma, DType W, GemmAct kAct, GemmWeightOnly P>
struct XPanel {
  static constexpr bool kInt = kAct == GemmAct::q8, kMin = P.has_min(W);
  static constexpr int kPlanes = kInt ? 1 : P.planes(kTypeOf<X>, kTypeOf<Mma>);
  static constexpr int kStarts = P.starts(W, kAct), kZero = W == DType::q4_0   ? 8
                                                            : W == DType::q5_0 ? 16
                                                            : W == DType::q6_k ? 32
                                                                               : 0;
  static constexpr int kGroups = P.panel / 32, kPitch = P.x_pitch(kTypeOf<X>, W, kAct), kTokens = P.tokens();

  uint8_t* x;            // [plane][token] rows of kPitch bytes
  int *starts;           // [half][group][token] first value of an integer sum: less its zero point
  float *scales,
      *sums;  // [group][token] d of int8 blocks, or x_block_scale; sum of the group's x, or d times that of its codes
  int rows;              // tokens that have a row

  // Constants, not calls: NVRTC reads a policy from memory where a member function of it gets a run-time argument.
  static constexpr int kSideBytes = P.side_bytes(W, kAct);
  static constexpr bool kSumPlanes = P.sums_in_planes(W, kAct);
  static constexpr bool kFolds = P.folds(kTypeOf<X>, W), kPairs = P.pairs(kTypeOf<X>, W);
  static constexpr bool kCopies = !kInt && kTypeOf<X> == kTypeOf<Mma>;  // x as it is: no register in between

  __device__ __forceinline__ XPanel(uint8_t* memory, int T) : x(memory), rows(min(T, kTokens)) {
    starts = reinterpret_cast<int*>(memory + kPlanes * rows * kPitch);
    scales = reinterpret_cast<float*>(starts + kStarts * kGroups * kTokens);
    sums = scales + (kInt || P.x_scaled ? kGroups * kTokens : 0);
  }
  __device__ __forceinline__ int bytes() const { return kPlanes * rows * kPitch + kSideBytes; }

  /// x_block_scale of the panel's groups of 32 from the `first`th on: an entry serves four.
  __device__ __forceinline__ void fill_scales(const float* from, int64_t stride, int first, int groups,
                                              int tokens) const {
    for (int i = static_cast<int>(threadIdx.x); i < tokens * kGroups; i += P.threads())
      if (i % kGroups < groups)
        scales[i % kGroups * kTokens + i / kGroups] = from[i / kGroups * stride + (first + i % kGroups) / 4];
  }

  /// Elements [0, K) of `tokens` rows at `from`, of which a panel holds the first P.panel; those beyond are zeros
  /// up to the end of a group of 32 (where kFolds: of 64). `wide`: rows start at 16 bytes. Four lanes a group, eight
  /// elements each.
  __device__ __forceinline__ void fill(const X* from, int64_t stride, int64_t K, int tokens, bool wide) const {
    constexpr int kQuads = P.threads() / 4, kBatch = kCopies ? 1 : 2;
    const int quad = static_cast<int>(threadIdx.x) / 4, lane = static_cast<int>(threadIdx.x) % 4;
    constexpr int kUnit = kFolds ? 64 : 32;  // up to whose end there are zeros
    const int groups = K < P.panel ? static_cast<int>((K + kUnit - 1) / kUnit) * (kUnit / 32) : kGroups;
    if constexpr (kCopies) {
      if (wide && K % 8 == 0) return copy(from, stride, K, tokens, groups);
    }
    for (int first = 0; first < tokens * kGroups; first += kBatch * kQuads) {
      Vec<X, 8> raw[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int u = first + i * kQuads + quad, t = u / kGroups, k = u % kGroups * 32 + lane * 8;
        const X* p = from + t * stride + k;
        if (t >= tokens || u % kGroups >= groups) continue;
        if (wide && k + 8 <= K) {
          raw[i] = *reinterpret_cast<const Vec<X, 8>*>(p);
        } else {
#pragma unroll
          for (int e = 0; e < 8; ++e) raw[i].v[e] = k + e < K ? p[e] : X{};
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int u = first + i * kQuads + quad, t = u / kGroups, group = u % kGroups;
        const bool valid = t < tokens && group < groups;
        if constexpr (kInt) put_codes(raw[i], t, group, lane, valid);
        else put_planes(raw[i], t, group, lane, valid);
      }
    }
  }

  /// The same where x needs no conversion: 16 bytes a copy, all of a thread's in flight together.
  __device__ __forceinline__ void copy(const X* from, int64_t stride, int64_t K, int tokens, int groups) const {
    constexpr int kWords = kGroups * 4;
    for (int u = static_cast<int>(threadIdx.x); u < tokens * kWords; u += P.threads()) {
      const int t = u / kWords, word = u % kWords;
      if (word < groups * 4)
        ptx::copy16(x + t * kPitch + x_word<kFolds>(t, word) * 16, from + t * stride + word * 8, word * 8 < K);
    }
    ptx::copy_commit();
    ptx::copy_wait<0>();
    if constexpr (kPairs) {  // a thread's own copies
      for (int u = static_cast<int>(threadIdx.x); u < tokens * kWords; u += P.threads()) {
        const int t = u / kWords, word = u % kWords;
        uint4* at = reinterpret_cast<uint4*>(x + t * kPitch + x_word<kFolds>(t, word) * 16);
        if (word < groups * 4) *at = paired(*at);
      }
    }
    if constexpr (kMin) {
      __syncthreads();
      for (int u = static_cast<int>(threadIdx.x); u < tokens * kGroups; u += P.threads()) {
        const int t = u % tokens, group = u / tokens;
        if (group >= groups) break;
        put_sum(group, t, group_sum(reinterpret_cast<const X*>(x + t * kPitch + group * 64)));
      }
    }
  }

  /// The lane's operands of plane p: x of token tile m, group at + j of the panel; `at` is even where kFolds.
  __device__ __forceinline__ void operands(int p, int m, int at, int j, uint32_t (&b)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32,
              t = min(m * 8 + lane / 4, rows - 1);  // rows beyond: any, their results are dropped
    x_operands<kPairs, kFolds>(x + (p * rows + t) * kPitch, t, at, j, lane % 4, b);
  }
  __device__ __forceinline__ void codes(int m, int j, uint32_t& low, uint32_t& high) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, t = min(m * 8 + lane / 4, rows - 1);
    const uint8_t* row = x + t * kPitch + j * 32 + lane % 4 * 4;
    low = *reinterpret_cast<const uint32_t*>(row);
    high = *reinterpret_cast<const uint32_t*>(row + 16);
  }
  /// Of the two tokens whose sums the lane holds.
  __device__ __forceinline__ int2 start(int half, int m, int j) const {
    return *reinterpret_cast<const int2*>(starts + (half * kGroups + j) * kTokens + column(m));
  }
  __device__ __forceinline__ float2 scale(int m, int j) const {
    return *reinterpret_cast<const float2*>(scales + j * kTokens + column(m));
  }
  __device__ __forceinline__ float2 sum(int m, int j) const {
    return *reinterpret_cast<const float2*>(sums + j * kTokens + column(m));
  }
  __device__ __forceinline__ void sums_of_eight(int m, int j, uint32_t (&planes)[3]) const {
    sum_planes<kTokens>(sums, m, j, planes);
  }

 private:
  __device__ __forceinline__ void put_sum(int group, int t, float sum) const {
    if constexpr (kSumPlanes) put_sum_planes<kTokens>(sums, group, t, sum);
    else sums[group * kTokens + t] = sum;
  }
  __device__ __forceinline__ static int column(int m) { return m * 8 + static_cast<int>(threadIdx.x) % 4 * 2; }

  __device__ __forceinline__ void put_planes(const Vec<X, 8>& raw, int t, int group, int lane, bool valid) const {
    float v[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = to_float(raw.v[e]);
    if constexpr (kMin) {
      float s = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
      s += __shfl_xor_sync(0xffffffffu, s, 1);
      s += __shfl_xor_sync(0xffffffffu, s, 2);  // pairs of quarters, as copy() adds them
      if (valid && lane == 0) put_sum(group, t, s);
    }
    if (!valid) return;
    uint32_t parts[2][kPlanes][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float four[4] = {v[4 * h], v[4 * h + 1], v[4 * h + 2], v[4 * h + 3]};
      split4<Mma, kPlanes>(four, parts[h]);
    }
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
      const uint4 v = {parts[0][p][0], parts[0][p][1], parts[1][p][0], parts[1][p][1]};
      *reinterpret_cast<uint4*>(x + (p * rows + t) * kPitch + x_word<kFolds>(t, group * 4 + lane) * 16) =
          kPairs ? paired(v) : v;
    }
  }

  /// d = amax / 127, q = rint(x * (127 / amax)) to even. A NaN makes its block NaN; a block so small that
  /// 127 / amax overflows counts as zeros. The same bits as the CPU's.
  __device__ __forceinline__ void put_codes(const Vec<X, 8>& raw, int t, int group, int lane, bool valid) const {
    float v[8];
    uint32_t top = 0;  // |x| as an integer orders like |x|, with NaN above all
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      v[e] = to_float(raw.v[e]);
      top = max(top, __float_as_uint(v[e]) & 0x7fffffffu);
    }
    top = max(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = max(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float amax = __uint_as_float(top), d = __fdiv_rn(amax, 127.0f);
    float inverse = __fdiv_rn(127.0f, amax);
    if (inverse == __uint_as_float(0x7f800000u)) inverse = 0.0f;
    uint32_t code[8], word[2];
#pragma unroll
    for (int e = 0; e < 8; ++e) code[e] = __float_as_uint(__fadd_rn(__fmul_rn(v[e], inverse), kSumStartFloat));
#pragma unroll
    for (int h = 0; h < 2; ++h)
      word[h] = __byte_perm(__byte_perm(code[4 * h], code[4 * h + 1], 0x0040),
                            __byte_perm(code[4 * h + 2], code[4 * h + 3], 0x0040), 0x5410);
    int s = ptx::dot4(word[0], 0x01010101u, ptx::dot4(word[1], 0x01010101u, 0));
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    if constexpr (kStarts == 2) {
      if (valid && lane % 2 == 0) starts[(lane / 2 * kGroups + group) * kTokens + t] = kSumStart - kZero * s;
    }
    s += __shfl_xor_sync(0xffffffffu, s, 2);
    if (!valid) return;
    *reinterpret_cast<uint2*>(x + t * kPitch + group * 32 + lane * 8) = {word[0], word[1]};
    if (lane == 0) {
      if constexpr (kStarts == 1) starts[group * kTokens + t] = kSumStart - kZero * s;
      scales[group * kTokens + t] = d;
      if constexpr (kMin) sums[group * kTokens + t] = __fmul_rn(d, static_cast<float>(s));
    }
  }
};

}  // namespace vivace::kernels
