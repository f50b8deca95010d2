// Sixteen lanes without intrinsics. The three vec_*.h define the same names, so that a kernel is
// written once: I = 16 x 32-bit integers, F = 16 x f32. Plain loops: the compiler maps them to what the
// target's baseline has.
#pragma once
#include <cstring>

#include "vivace/base/float_types.h"

namespace vivace::cpu {

struct Portable {
  struct I { uint32_t v[16]; };
  struct F { float v[16]; };
  static constexpr int kTile = 4;     // tokens of an int8 tile: kTile accumulators of each kind
  static constexpr int kDotTokens = 2;  // tokens of an f32 tile, against four weight rows
  static constexpr bool kSignedWide = false;

  template <class T, class G>
  static T make(G&& g) {
    T r;
    for (int i = 0; i < 16; ++i) r.v[i] = g(i);
    return r;
  }
  static I set_i(int32_t x) { return make<I>([&](int) { return static_cast<uint32_t>(x); }); }
  static I load_i(const void* p) { I r; std::memcpy(&r, p, sizeof r); return r; }
  /// Sixteen bytes, one a lane.
  static I load_u8(const uint8_t* p) { return make<I>([&](int i) { return uint32_t{p[i]}; }); }
  /// Lane i = bit i.
  static I lane_bits(uint32_t bits) { return make<I>([&](int i) { return bits >> i & 1; }); }
  static void store_i(void* p, const I& a) { std::memcpy(p, &a, sizeof a); }
  static I band(const I& a, uint32_t m) { return make<I>([&](int i) { return a.v[i] & m; }); }
  static I bor(const I& a, const I& b) { return make<I>([&](int i) { return a.v[i] | b.v[i]; }); }
  static I bxor(const I& a, uint32_t m) { return make<I>([&](int i) { return a.v[i] ^ m; }); }
  static I shr(const I& a, int n) { return make<I>([&](int i) { return a.v[i] >> n; }); }
  static I shl(const I& a, int n) { return make<I>([&](int i) { return a.v[i] << n; }); }
  static I mul_i(const I& a, uint32_t m) { return make<I>([&](int i) { return a.v[i] * m; }); }

  /// out[j] lane r = the j-th four bytes at row[r] + offset.
  static void transpose16(const uint8_t* const* row, int64_t offset, I* out) {
    for (int r = 0; r < 16; ++r)
      for (int j = 0; j < 4; ++j) std::memcpy(&out[j].v[r], row[r] + offset + 4 * j, 4);
  }
  /// acc + the dot products of each lane's four unsigned bytes with the four signed bytes at x. Exact.
  /// kWide: bytes of w may exceed 127.
  template <bool kWide>
  static I dot(const I& acc, const I& w, const int8_t* x) {
    const int32_t x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
    return make<I>([&](int i) {
      const uint32_t b = w.v[i];
      return acc.v[i] +
             static_cast<uint32_t>(static_cast<int32_t>(b & 255) * x0 + static_cast<int32_t>(b >> 8 & 255) * x1 +
                                   static_cast<int32_t>(b >> 16 & 255) * x2 + static_cast<int32_t>(b >> 24) * x3);
    });
  }
  static F to_f(const I& a) { return make<F>([&](int i) { return static_cast<float>(static_cast<int32_t>(a.v[i])); }); }
  static F zero() { return {}; }
  static F set(float x) { return make<F>([&](int) { return x; }); }
  static F load(const float* p) { F r; std::memcpy(&r, p, sizeof r); return r; }
  static void store(float* p, const F& a) { std::memcpy(p, &a, sizeof a); }
  static F mul(const F& a, const F& b) { return make<F>([&](int i) { return a.v[i] * b.v[i]; }); }
  static F add(const F& a, const F& b) { return make<F>([&](int i) { return a.v[i] + b.v[i]; }); }
  static F max(const F& a, const F& b) { return make<F>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
  /// a * b + c; fused where the level has it.
  static F fma(const F& a, const F& b, const F& c) { return make<F>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; }); }
  /// The sum of the lanes, as a tree: i and i + 8, then i and i + 4, 2, 1.
  static float sum(const F& v) {
    F s = v;
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) s.v[i] += s.v[i + half];
    return s.v[0];
  }
  /// The largest lane, where none is NaN.
  static float most(const F& v) {
    float m = v.v[0];
    for (int i = 1; i < 16; ++i) m = v.v[i] > m ? v.v[i] : m;
    return m;
  }
  /// Lane j = sum(v[j]).
  static F sum16(const F* v) {
    return make<F>([&](int j) { return sum(v[j]); });
  }
  static F load_f16(const uint16_t* p) { return make<F>([&](int i) { return f32_of_f16(p[i]); }); }
  static F load_bf16(const uint16_t* p) { return make<F>([&](int i) { return f32_of_bf16(p[i]); }); }
  /// The low and the high half of each dword as f16.
  static F low_f16(const I& a) { return make<F>([&](int i) { return f32_of_f16(static_cast<uint16_t>(a.v[i])); }); }
  static F high_f16(const I& a) {
    return make<F>([&](int i) { return f32_of_f16(static_cast<uint16_t>(a.v[i] >> 16)); });
  }
  /// Rounds to nearest even; NaN stays NaN.
  static void store_bf16(uint16_t* p, const F& a) {
    for (int i = 0; i < 16; ++i) p[i] = bf16_of_f32(a.v[i]);
  }
};

}  // namespace vivace::cpu
