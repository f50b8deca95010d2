// Block formats -> f32 for any level's lanes, with the same bits at every level: each product and each sum
// is rounded on its own.
#pragma once
#include <cstring>

#include "vivace/base/float_types.h"
#include "vivace/cpu/quant/level.h"

namespace vivace::cpu {

template <class B>
struct Blocks {
  using I = typename B::I;
  using F = typename B::F;

  static float f16_at(const uint8_t* p) {
    uint16_t h;  // blocks are 2-byte aligned at best
    std::memcpy(&h, p, sizeof h);
    return f32_of_f16(h);
  }
  static I low(const I& bytes) { return B::band(bytes, 15); }
  static I high(const I& bytes) { return B::shr(bytes, 4); }
  /// (code - zero) * scale; the difference is exact.
  static F scaled(const I& code, float zero, float scale) {
    return B::mul(B::add(B::to_f(code), B::set(-zero)), B::set(scale));
  }

  /// q4_0, q4_1, q5_0, q5_1: f16 scale, f16 minimum (kMin), 32 fifth bits (kFifth), 16 bytes of nibbles:
  /// element j in the low, element j + 16 in the high nibble of byte j.
  template <bool kFifth, bool kMin>
  static void nibbles32(const uint8_t* b, float* y) {
    constexpr float kZero = kMin ? 0 : (kFifth ? 16 : 8);
    const float d = f16_at(b), m = kMin ? f16_at(b + 2) : 0.0f;
    const uint8_t* q = b + (kMin ? 4 : 2);
    uint32_t fifth = 0;
    if (kFifth) std::memcpy(&fifth, q, sizeof fifth), q += 4;
    const I bytes = B::load_u8(q);
    I lo = low(bytes), hi = high(bytes);
    if (kFifth)
      lo = B::bor(lo, B::shl(B::lane_bits(fifth & 0xffff), 4)), hi = B::bor(hi, B::shl(B::lane_bits(fifth >> 16), 4));
    F first = scaled(lo, kZero, d), second = scaled(hi, kZero, d);
    if (kMin) first = B::add(first, B::set(m)), second = B::add(second, B::set(m));
    B::store(y, first);
    B::store(y + 16, second);
  }

  static void q8_0(const uint8_t* b, float* y) {
    const float d = f16_at(b);
    for (int half = 0; half < 2; ++half)  // bit 7 flipped: 128 + q, unsigned
      B::store(y + half * 16, scaled(B::bxor(B::load_u8(b + 2 + half * 16), 128), 128, d));
  }

  /// q4_k, q5_k: f16 d, f16 dmin, 12 bytes of sub-scales, 32 bytes of fifth bits (kFifth), 128 of nibbles.
  /// Bytes 32c.. hold sub-block 2c in their low and 2c + 1 in their high nibbles; bit 2c and 2c + 1 of the
  /// fifth-bit bytes belong to them. A sub-scale and sub-minimum have six bits each.
  template <bool kFifth>
  static void nibbles256(const uint8_t* b, float* y) {
    const float d = f16_at(b), dmin = f16_at(b + 2);
    const uint8_t *s = b + 4, *fifth = b + 16, *q = b + (kFifth ? 48 : 16);
    for (int j = 0; j < 8; ++j) {
      const int scale6 = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6 << 4);
      const int min6 = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | (s[j] >> 6 << 4);
      const float scale = d * static_cast<float>(scale6), min = dmin * static_cast<float>(min6);
      for (int half = 0; half < 2; ++half) {
        const I bytes = B::load_u8(q + j / 2 * 32 + half * 16);
        I code = j % 2 == 0 ? low(bytes) : high(bytes);
        if (kFifth) code = B::bor(code, B::shl(B::band(B::shr(B::load_u8(fifth + half * 16), j), 1), 4));
        B::store(y + j * 32 + half * 16, B::add(B::mul(B::to_f(code), B::set(scale)), B::set(-min)));
      }
    }
  }

  /// 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed sub-scales of 16 elements, f16 d. Each half
  /// of 128 elements is four runs of 32: nibble bytes l and l + 32, low then high; bit pair r of byte l.
  static void q6_k(const uint8_t* b, float* y) {
    const float d = f16_at(b + 208);
    for (int i = 0; i < 16; ++i) {  // 16 elements each
      const int half = i / 8, run = i / 2 % 4, part = i % 2 * 16;
      const I nibbles = B::load_u8(b + half * 64 + run % 2 * 32 + part);
      const I pairs = B::band(B::shr(B::load_u8(b + 128 + half * 32 + part), run * 2), 3);
      const I code = B::bor(run < 2 ? low(nibbles) : high(nibbles), B::shl(pairs, 4));
      B::store(y + i * 16, scaled(code, 32, d * static_cast<float>(static_cast<int8_t>(b[192 + i]))));
    }
  }

  template <void (*kBlock)(const uint8_t*, float*), int kElements, int kBytes>
  static void all(const uint8_t* b, int64_t n, float* dst) {
    for (int64_t i = 0; i < n; i += kElements, b += kBytes) kBlock(b, dst + i);
  }

  static void run(DType t, const uint8_t* b, int64_t n, float* dst) {
    switch (t) {
      case DType::q4_0: return all<&nibbles32<false, false>, 32, 18>(b, n, dst);
      case DType::q4_1: return all<&nibbles32<false, true>, 32, 20>(b, n, dst);
      case DType::q5_0: return all<&nibbles32<true, false>, 32, 22>(b, n, dst);
      case DType::q5_1: return all<&nibbles32<true, true>, 32, 24>(b, n, dst);
      case DType::q8_0: return all<&q8_0, 32, 34>(b, n, dst);
      case DType::q4_k: return all<&nibbles256<false>, 256, 144>(b, n, dst);
      case DType::q5_k: return all<&nibbles256<true>, 256, 176>(b, n, dst);
      case DType::q6_k: return all<&q6_k, 256, 210>(b, n, dst);
      default: __builtin_trap();  // specs list only the formats above
    }
  }
};

}  // namespace vivace::cpu
