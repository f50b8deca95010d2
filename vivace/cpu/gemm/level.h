// The inner parts of gemm, one set an instruction-set level. Light includes only: the level files are
// built for CPUs that the rest of the library may not assume.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::cpu {

inline constexpr int kPanelRows = 16;   // weight rows that are worked on together, one a lane
inline constexpr int64_t kSlab = 2048;  // elements of K that are unpacked at a time

/// A slab of 16 weight rows, unpacked: byte j of lane r of group g is element 4 g + j of row r, less
/// nothing: codes stay unsigned and their zero point enters through ActTile::offset. Those of q8_0 are signed, without
/// an offset, in levels whose kSignedWide says so.
struct Panel {
  alignas(64) uint8_t q[kSlab * kPanelRows];            // [K/4][16][4]
  alignas(64) float scale[kSlab / 16 * kPanelRows];     // [K/32 (K/16 in q6_k)][16]
  alignas(64) float min[kSlab / 32 * kPanelRows];       // [K/32][16], formats with a minimum
};

/// Quantized activations of `w` tokens, interleaved by token.
struct ActTile {
  const int8_t* q;        // [K/4][w][4]
  const float* d;         // [K/32][w] scales
  const float* sum;       // [K/32][w] d * (sum of q): the factor of the minimum
  const int32_t* offset;  // [K/32 (K/16 in q6_k)][w] -zero_point * (sum of q)
};

/// What a block format's codes mean beyond their bits.
struct CodeInfo {
  int zero;   // subtracted from each unsigned code
  bool min;   // has a minimum
  int group;  // elements that share a scale
};
constexpr CodeInfo code_info(DType t) {
  switch (t) {
    case DType::q4_0: return {8, false, 32};
    case DType::q5_0: return {16, false, 32};
    case DType::q8_0: return {128, false, 32};
    case DType::q6_k: return {32, false, 16};
    default: return {0, true, 32};  // q4_1 q5_1 q4_k q5_k
  }
}

struct GemmLevel {
  int tile;        // most tokens of an ActTile
  int dot_tokens;  // most tokens of one call of dots
  /// `n` elements (a multiple of the block) of 16 rows -> panel. What lies `ahead` bytes further on is
  /// prefetched; 0 for nothing.
  void (*unpack)(DType t, const uint8_t* const* row, int64_t n, int64_t ahead, Panel* panel);
  /// acc[token][16] (+)= panel x tile over n elements; `more` continues from what acc holds.
  void (*product)(DType t, const Panel& panel, const ActTile& x, int tokens, int64_t n, bool more, float* acc);
  /// One row of K values -> its places in a tile of `w` tokens.
  void (*quantize)(DType t, const float* x, int64_t K, int w, int8_t* q, float* d, float* sum, int32_t* offset);
  /// n values of a plain type as f32.
  void (*upcast)(DType t, const void* src, int64_t n, float* dst);
  /// part[row][token][16] (+)= lane-wise sums over n (a multiple of 16) of four f32 rows and `tokens` rows of x.
  void (*dots)(const float* const* row, const float* x, int64_t x_stride, int tokens, int64_t n, bool more,
               float* part);
  /// residual + act(alpha * acc + bias) of 16 columns, stored; act is none or the exact GELU. False: the dtypes need
  /// the general path.
  bool (*store16)(const float* acc, float alpha, const void* bias, DType bias_dtype, bool gelu, const void* residual,
                  void* out, DType out_dtype);
  /// acc[16] = 16 rows x one token over all n elements of K, without a panel between: the bits of unpack and
  /// product. Null in levels where the panel is as fast.
  void (*direct)(DType t, const uint8_t* const* row, int64_t n, int64_t ahead, const ActTile& x, float* acc) = nullptr;
};

const GemmLevel* gemm_portable();
const GemmLevel* gemm_avx2();    // nullptr in builds for other CPUs
const GemmLevel* gemm_avx512();  // likewise

}  // namespace vivace::cpu
