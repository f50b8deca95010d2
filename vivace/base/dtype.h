// DType: every element and block format Vivace knows, with its exact size.
// Readable by g++, nvcc and NVRTC.
#pragma once
#include "vivace/base/int.h"

namespace vivace {

/// Element types first, then block formats: a block format packs `block` elements of a row's last
/// axis into `bytes` bytes, scales included, in GGUF's layout.
enum class DType : uint8_t {
  f64, f32, f16, bf16, e4m3, e5m2, e2m1,  // e4m3 = OCP E4M3FN (finite only), e2m1 = FP4, two a byte
  i64, i32, i16, i8, u8, i4, boolean,     // i4: two a byte, low nibble first
  q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k,
};
inline constexpr int kDTypeCount = 22;

struct DTypeInfo {
  const char* name;
  int block;     // elements in the smallest addressable unit
  int bytes;     // bytes of that unit
  bool is_float; // plain floating-point element type
};

#define VV_DTYPE_ROWS                                                                                             \
  {"f64", 1, 8, true}, {"f32", 1, 4, true}, {"f16", 1, 2, true}, {"bf16", 1, 2, true}, {"e4m3", 1, 1, true},      \
  {"e5m2", 1, 1, true}, {"e2m1", 2, 1, true}, {"i64", 1, 8, false}, {"i32", 1, 4, false}, {"i16", 1, 2, false},   \
  {"i8", 1, 1, false}, {"u8", 1, 1, false}, {"i4", 2, 1, false}, {"bool", 1, 1, false}, {"q4_0", 32, 18, false},  \
  {"q4_1", 32, 20, false}, {"q5_0", 32, 22, false}, {"q5_1", 32, 24, false}, {"q8_0", 32, 34, false},             \
  {"q4_k", 256, 144, false}, {"q5_k", 256, 176, false}, {"q6_k", 256, 210, false}

/// Table row of `t`. Total over the enum.
#ifdef __CUDACC__
// Device code cannot index a host table, so each use folds its own.
VV_HD constexpr DTypeInfo info(DType t) {
  constexpr DTypeInfo rows[kDTypeCount] = {VV_DTYPE_ROWS};
  return rows[static_cast<int>(t)];
}
#else
inline constexpr DTypeInfo kDTypeRows[kDTypeCount] = {VV_DTYPE_ROWS};
constexpr const DTypeInfo& info(DType t) { return kDTypeRows[static_cast<int>(t)]; }
#endif
#undef VV_DTYPE_ROWS

VV_HD constexpr const char* name(DType t) { return info(t).name; }

/// A block format: one row element has no address of its own.
VV_HD constexpr bool is_block(DType t) { return t >= DType::q4_0; }

/// Bytes of `n` elements along one row. `n` must be a multiple of info(t).block.
VV_HD constexpr int64_t row_bytes(DType t, int64_t n) { return n / info(t).block * info(t).bytes; }

/// DType by name, written to `*out`; false if no such name.
constexpr bool parse_dtype(const char* s, size_t n, DType* out) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const char* c = info(static_cast<DType>(i)).name;
    size_t k = 0;
    while (k < n && c[k] != '\0' && c[k] == s[k]) ++k;
    if (k == n && c[k] == '\0') {
      *out = static_cast<DType>(i);
      return true;
    }
  }
  return false;
}

}  // namespace vivace
