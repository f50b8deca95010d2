#include "vivace/cpu/convert.h"

#include <array>
#include <bit>
#include <cstring>

#include "vivace/base/float_types.h"

namespace vivace::cpu {
namespace {

// The loops below compute what base/float_types.h defines, bit for bit, without branches or library
// calls, so that compilers vectorise them for any x86-64 or arm64.

constexpr uint32_t bits(float f) { return std::bit_cast<uint32_t>(f); }
constexpr float pow2(int e) { return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23); }

/// yes where the condition holds, else no. A mask, not a branch: compilers will not speculate float
/// arithmetic, so that a conditional around it would keep the loop from being vectorised.
constexpr uint32_t select(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

float upcast_f16(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, mag = (h & 0x7fffu) << 13;
  constexpr uint32_t kRebias = (127 - 15) << 23;
  // A subnormal's mantissa becomes that of a number from 2^-14 on, which is then taken away again.
  const uint32_t small = bits(std::bit_cast<float>(mag | bits(pow2(-14))) - pow2(-14));
  const uint32_t normal = (mag + kRebias) | (mag >= (0x7c00u << 13) ? 0x7f800000u : 0u);
  const uint32_t quiet = mag > (0x7c00u << 13) ? 0x400000u : 0u;
  return std::bit_cast<float>(sign | quiet | select(mag < (0x400u << 13), small, normal));
}

/// Sign and code of the nearest value of a format with kMan mantissa bits, ties to even; above kTop: kTop.
template <int kMan, int kBias, uint32_t kTop>
uint32_t narrow(float f) {
  constexpr int kDrop = 23 - kMan;
  constexpr float kUnit = pow2(kDrop + 1 - kBias);  // its last place is that of the format's subnormals
  const uint32_t mag = bits(f) & 0x7fffffffu;
  const uint32_t small = bits(std::bit_cast<float>(mag) + kUnit) - bits(kUnit);
  const uint32_t normal = ((mag + (1u << (kDrop - 1)) - 1 + (mag >> kDrop & 1)) >> kDrop) - ((127u - kBias) << kMan);
  const uint32_t code = select(mag < bits(pow2(1 - kBias)), small, normal);
  return code < kTop ? code : kTop;
}

uint16_t narrow_f16(float f) {
  const uint32_t mag = bits(f) & 0x7fffffffu, code = narrow<10, 15, 0x7c00>(f);
  return static_cast<uint16_t>((bits(f) >> 16 & 0x8000u) |
                               select(mag > 0x7f800000u, 0x7e00u | (mag >> 13 & 0x3ffu), code));
}

template <int kMan, int kBias, uint32_t kTop>
uint8_t narrow_fp8(float f) {
  const uint32_t mag = bits(f) & 0x7fffffffu, code = narrow<kMan, kBias, kTop>(f);
  return static_cast<uint8_t>((bits(f) >> 24 & 0x80u) | select(mag > 0x7f800000u, 0x7f, code));
}

uint16_t narrow_bf16(float f) {
  const uint32_t u = bits(f), rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16, nan = u >> 16 | 0x40u;
  return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/// All values of an 8-bit format: subnormals are common there, and the table is one KiB.
template <int kMan>
const std::array<float, 256>& fp8_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> v;
    for (int i = 0; i < 256; ++i) v[static_cast<size_t>(i)] = f32_of_fp8<kMan>(static_cast<uint8_t>(i));
    return v;
  }();
  return values;
}

template <int kMan>
void upcast_fp8(const uint8_t* src, int64_t n, float* dst) {
  const auto& values = fp8_values<kMan>();
  for (int64_t i = 0; i < n; ++i) dst[i] = values[src[i]];
}

}  // namespace

void load_f32(const void* src, DType dtype, int64_t first, int64_t n, float* dst) {
  const auto* u16 = static_cast<const uint16_t*>(src) + first;
  const auto* u8 = static_cast<const uint8_t*>(src) + first;
  switch (dtype) {
    case DType::f32: std::memcpy(dst, static_cast<const float*>(src) + first, n * sizeof(float)); return;
    case DType::bf16: for (int64_t i = 0; i < n; ++i) dst[i] = f32_of_bf16(u16[i]); return;
    case DType::f16: for (int64_t i = 0; i < n; ++i) dst[i] = upcast_f16(u16[i]); return;
    case DType::e4m3: upcast_fp8<3>(u8, n, dst); return;
    case DType::e5m2: upcast_fp8<2>(u8, n, dst); return;
    default: __builtin_trap();  // specs list only the types above
  }
}

void store_f32(void* dst, DType dtype, int64_t first, int64_t n, const float* src) {
  auto* u16 = static_cast<uint16_t*>(dst) + first;
  auto* u8 = static_cast<uint8_t*>(dst) + first;
  switch (dtype) {
    case DType::f32: std::memcpy(static_cast<float*>(dst) + first, src, n * sizeof(float)); return;
    case DType::bf16: for (int64_t i = 0; i < n; ++i) u16[i] = narrow_bf16(src[i]); return;
    case DType::f16: for (int64_t i = 0; i < n; ++i) u16[i] = narrow_f16(src[i]); return;
    case DType::e4m3: for (int64_t i = 0; i < n; ++i) u8[i] = narrow_fp8<3, 7, 0x7e>(src[i]); return;
    case DType::e5m2: for (int64_t i = 0; i < n; ++i) u8[i] = narrow_fp8<2, 15, 0x7b>(src[i]); return;
    default: __builtin_trap();  // specs list only the types above
  }
}

}  // namespace vivace::cpu
