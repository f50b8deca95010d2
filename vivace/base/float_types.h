// f16, bf16, e4m3, e5m2 <-> f32 on the host: round to nearest even, as the chips do.
#pragma once
#include <bit>
#include <cstdint>

namespace vivace {

inline float f32_of_bf16(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

/// NaN stays NaN (quiet), overflow goes to infinity.
inline uint16_t bf16_of_f32(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float f32_of_f16(uint16_t h) { return static_cast<float>(std::bit_cast<_Float16>(h)); }
inline uint16_t f16_of_f32(float f) { return std::bit_cast<uint16_t>(static_cast<_Float16>(f)); }

/// OCP FP8. `kMantissa` 3: E4M3FN (no infinity, max 448); 2: E5M2 (max 57344).
template <int kMantissa>
inline float f32_of_fp8(uint8_t v) {
  constexpr int kExpBits = 7 - kMantissa, kBias = (1 << (kExpBits - 1)) - 1;
  const int exp = (v >> kMantissa) & ((1 << kExpBits) - 1), man = v & ((1 << kMantissa) - 1);
  float r;
  if (kMantissa == 3 && exp == 15 && man == 7) r = std::bit_cast<float>(0x7fc00000u);
  else if (kMantissa == 2 && exp == 31) r = std::bit_cast<float>(man ? 0x7fc00000u : 0x7f800000u);
  else if (exp == 0)
    r = static_cast<float>(man) * std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - kBias - kMantissa) << 23);
  else
    r = std::bit_cast<float>((static_cast<uint32_t>(exp - kBias + 127) << 23) |
                             (static_cast<uint32_t>(man) << (23 - kMantissa)));
  return v & 0x80 ? -r : r;
}

/// Saturating (as cvt.rn.satfinite): |f| above the largest finite value, infinity included, gives
/// that value with f's sign. NaN gives NaN.
template <int kMantissa>
inline uint8_t fp8_of_f32(float f) {
  constexpr int kExpBits = 7 - kMantissa, kBias = (1 << (kExpBits - 1)) - 1;
  constexpr uint8_t kMaxFinite = kMantissa == 3 ? 0x7e : 0x7b, kNan = 0x7f;
  const uint32_t u = std::bit_cast<uint32_t>(f), mag = u & 0x7fffffffu;
  const uint8_t sign = static_cast<uint8_t>((u >> 24) & 0x80u);
  if (mag > 0x7f800000u) return sign | kNan;
  const int exp = static_cast<int>(mag >> 23) - 127;
  // Bits dropped below the target's last place; more for subnormals of the target.
  const int drop = 23 - kMantissa + (exp < 1 - kBias ? 1 - kBias - exp : 0);
  if (drop > 24) return sign;  // below half of the smallest subnormal
  const uint64_t man = (mag & 0x7fffffu) | (mag >= 0x800000u ? 0x800000u : 0u);
  const uint64_t half = 1ull << (drop - 1), rest = man & ((1ull << drop) - 1);
  uint64_t q = man >> drop;
  if (rest > half || (rest == half && (q & 1))) ++q;
  // q holds the implicit bit: adding it to the shifted exponent carries as it should.
  const int64_t code = exp < 1 - kBias ? static_cast<int64_t>(q)
                                       : (static_cast<int64_t>(exp + kBias - 1) << kMantissa) + static_cast<int64_t>(q);
  return sign | (code > kMaxFinite ? kMaxFinite : static_cast<uint8_t>(code));
}

inline float f32_of_e4m3(uint8_t v) { return f32_of_fp8<3>(v); }
inline float f32_of_e5m2(uint8_t v) { return f32_of_fp8<2>(v); }
inline uint8_t e4m3_of_f32(float f) { return fp8_of_f32<3>(f); }
inline uint8_t e5m2_of_f32(float f) { return fp8_of_f32<2>(f); }

}  // namespace vivace
