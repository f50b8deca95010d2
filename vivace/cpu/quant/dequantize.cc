#include "vivace/cpu/quant/dequantize.h"

#include <cstring>

#include "vivace/base/float_types.h"

namespace vivace::cpu {
namespace {

float f16_at(const uint8_t* p) {
  uint16_t h;  // blocks are 2-byte aligned at best
  std::memcpy(&h, p, sizeof h);
  return f32_of_f16(h);
}

/// q4_0, q4_1, q5_0, q5_1: f16 scale, f16 minimum (kMin), 32 fifth bits (kHigh), 16 bytes of nibbles:
/// element j in the low, element j + 16 in the high nibble of byte j.
template <bool kHigh, bool kMin>
void nibbles32(const uint8_t* b, float* y) {
  const float d = f16_at(b), m = kMin ? f16_at(b + 2) : 0.0f;
  const uint8_t* q = b + (kMin ? 4 : 2);
  uint32_t high = 0;
  if (kHigh) std::memcpy(&high, q, sizeof high), q += 4;
  constexpr int kZero = kMin ? 0 : (kHigh ? 16 : 8);
  for (int j = 0; j < 16; ++j) {
    const int lo = (q[j] & 15) | static_cast<int>((high >> j & 1) << 4);
    const int hi = (q[j] >> 4) | static_cast<int>((high >> (j + 16) & 1) << 4);
    y[j] = static_cast<float>(lo - kZero) * d + m;
    y[j + 16] = static_cast<float>(hi - kZero) * d + m;
  }
}

void q8_0(const uint8_t* b, float* y) {
  const float d = f16_at(b);
  for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(static_cast<int8_t>(b[2 + j])) * d;
}

/// Sub-scale and sub-minimum `j` of eight, six bits each, packed in 12 bytes.
struct ScaleMin {
  int scale, min;
};
ScaleMin scale_min(const uint8_t* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | (s[j - 4] >> 6 << 4), (s[j + 4] >> 4) | (s[j] >> 6 << 4)};
}

/// q4_k, q5_k: f16 d, f16 dmin, 12 bytes of sub-scales, 32 bytes of fifth bits (kHigh), 128 of nibbles.
/// Bytes 32c.. hold sub-block 2c in their low and 2c + 1 in their high nibbles; bit 2c and 2c + 1 of the
/// fifth-bit bytes belong to them.
template <bool kHigh>
void nibbles256(const uint8_t* b, float* y) {
  const float d = f16_at(b), dmin = f16_at(b + 2);
  const uint8_t* high = b + 16;
  const uint8_t* q = b + (kHigh ? 48 : 16);
  for (int j = 0; j < 8; ++j) {
    const ScaleMin s = scale_min(b + 4, j);
    const float scale = d * static_cast<float>(s.scale), min = dmin * static_cast<float>(s.min);
    for (int l = 0; l < 32; ++l) {
      int v = q[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
      if (kHigh) v |= (high[l] >> j & 1) << 4;
      y[j * 32 + l] = static_cast<float>(v) * scale - min;
    }
  }
}

/// 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed sub-scales of 16 elements, f16 d. Each half
/// of 128 elements is four runs of 32: nibble bytes l and l + 32, low then high; bit pair r of byte l.
void q6_k(const uint8_t* b, float* y) {
  const float d = f16_at(b + 208);
  const auto* scales = reinterpret_cast<const int8_t*>(b + 192);
  for (int half = 0; half < 2; ++half)
    for (int run = 0; run < 4; ++run)
      for (int l = 0; l < 32; ++l) {
        const int low = b[half * 64 + run % 2 * 32 + l] >> (run / 2 * 4) & 15;
        const int high = b[128 + half * 32 + l] >> (run * 2) & 3;
        const float scale = d * static_cast<float>(scales[half * 8 + run * 2 + l / 16]);
        y[half * 128 + run * 32 + l] = static_cast<float>((low | high << 4) - 32) * scale;
      }
}

}  // namespace

void dequantize_row(DType dtype, const void* row, int64_t first, int64_t n, float* dst) {
  const DTypeInfo format = info(dtype);
  const uint8_t* b = static_cast<const uint8_t*>(row) + row_bytes(dtype, first);
  void (*block)(const uint8_t*, float*) = nullptr;
  switch (dtype) {
    case DType::q4_0: block = nibbles32<false, false>; break;
    case DType::q4_1: block = nibbles32<false, true>; break;
    case DType::q5_0: block = nibbles32<true, false>; break;
    case DType::q5_1: block = nibbles32<true, true>; break;
    case DType::q8_0: block = q8_0; break;
    case DType::q4_k: block = nibbles256<false>; break;
    case DType::q5_k: block = nibbles256<true>; break;
    case DType::q6_k: block = q6_k; break;
    default: __builtin_trap();  // specs list only the formats above
  }
  for (int64_t i = 0; i < n; i += format.block, b += format.bytes) block(b, dst + i);
}

}  // namespace vivace::cpu
