// One token against 16 weight rows without unpacking them first: a row's codes meet the activations as they
// lie in memory, and a tree of shuffles brings the sums of 16 rows into 16 lanes. From there on the f32 chain
// is Product::tile's, so the bits are those of any other number of tokens.
// Only for files built with AVX-512 (F, BW, VL, DQ, VNNI).
#pragma once
#include "vivace/cpu/gemm/level.h"
#include "vivace/cpu/gemm/unpack.h"
#include "vivace/cpu/simd/vec_avx512.h"

namespace vivace::cpu {

struct Rows512 {
  using I = __m512i;
  using F = __m512;
  using B = Avx512;

  static I load256_twice(const uint8_t* p) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static I load256_twice(const int8_t* p) { return load256_twice(reinterpret_cast<const uint8_t*>(p)); }
  static I low_high(I lo, I hi) { return _mm512_inserti64x4(lo, _mm512_castsi512_si256(hi), 1); }
  /// Lanes of the lower half are shifted right by `lo` bits, those of the upper half by `hi`.
  static I shift_halves(I a, int lo, int hi) {
    return _mm512_srlv_epi32(a, low_high(_mm512_set1_epi32(lo), _mm512_set1_epi32(hi)));
  }
  static I dot(I codes, I x) { return _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, x); }

  /// Four vectors of 16 partial sums -> in each 128-bit lane, the four sums of that lane of a, b, c, d.
  static I add4(I a, I b, I c, I d) {
    const I ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const I cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  }
  /// [a0 + a1, a2 + a3, b0 + b1, b2 + b3] of 128-bit lanes.
  static I add_pairs(I a, I b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  }

  /// f16 at `offset` of each row.
  static F halves(const uint8_t* const* row, int64_t offset) {
    const auto eight = [&](int r0) {
      __m128i v = _mm_setzero_si128();
      const auto at = [&](int r) { uint16_t h; std::memcpy(&h, row[r0 + r] + offset, 2); return static_cast<int>(h); };
      v = _mm_insert_epi16(v, at(0), 0), v = _mm_insert_epi16(v, at(1), 1), v = _mm_insert_epi16(v, at(2), 2),
      v = _mm_insert_epi16(v, at(3), 3);
      v = _mm_insert_epi16(v, at(4), 4), v = _mm_insert_epi16(v, at(5), 5), v = _mm_insert_epi16(v, at(6), 6),
      v = _mm_insert_epi16(v, at(7), 7);
      return v;
    };
    return _mm512_cvtph_ps(_mm256_set_m128i(eight(8), eight(0)));
  }

  /// The end of a group's chain: sum + dot * (scale * d).
  static F add(F sum, I dot, F scale, float d) { return B::fma(B::to_f(dot), B::mul(scale, B::set(d)), sum); }

  /// Sums of a 32-block of 16 rows; codes(r) has row r in its lower half and row r + 4 in its upper.
  template <class Codes>
  static I block32(const Codes& codes, I x) {
    const auto four = [&](int r) {
      return add4(dot(codes(r), x), dot(codes(r + 1), x), dot(codes(r + 2), x), dot(codes(r + 3), x));
    };
    return add_pairs(four(0), four(8));
  }

  static void q8_0(const uint8_t* const* row, int64_t n, int64_t ahead, const ActTile& x, float* acc) {
    F sum = B::zero();
    for (int64_t b = 0; b < n / 32; ++b) {
      const int64_t at = b * 34;
      Unpack<B>::prefetch(row, at, 34, ahead);
      const auto half = [&](int r) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row[r] + at + 2)); };
      const auto codes = [&](int r) {
        return B::bxor(_mm512_inserti64x4(_mm512_castsi256_si512(half(r)), half(r + 4), 1), 0x80808080u);
      };
      const I total = block32(codes, load256_twice(x.q + b * 32));
      sum = add(sum, _mm512_add_epi32(total, B::set_i(x.offset[b])), halves(row, at), x.d[b]);
    }
    B::store(acc, sum);
  }

  /// q4_0 q4_1 q5_0 q5_1.
  template <bool kMin, bool kHigh>
  static void nibbles32(const uint8_t* const* row, int64_t n, int64_t ahead, const ActTile& x, float* acc) {
    constexpr int kHeader = kMin ? 4 : 2, kBytes = 16 + kHeader + (kHigh ? 4 : 0);
    F sum = B::zero();
    for (int64_t b = 0; b < n / 32; ++b) {
      const int64_t at = b * kBytes;
      Unpack<B>::prefetch(row, at, kBytes, ahead);
      const auto twice = [&](int r) {
        return _mm256_broadcastsi128_si256(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[r] + at + kBytes - 16)));
      };
      const auto fifths = [&](int r) {
        uint32_t v;
        std::memcpy(&v, row[r] + at + kHeader, 4);
        return static_cast<uint64_t>(v);
      };
      const I shift = _mm512_set_epi64(0x400000004, 0x400000004, 0, 0, 0x400000004, 0x400000004, 0, 0);
      const auto codes = [&](int r) {
        const I both = _mm512_inserti64x4(_mm512_castsi256_si512(twice(r)), twice(r + 4), 1);
        const I low = B::band(_mm512_srlv_epi32(both, shift), 0x0f0f0f0fu);
        if constexpr (!kHigh) return low;
        else return _mm512_mask_add_epi8(low, fifths(r) | fifths(r + 4) << 32, low, _mm512_set1_epi8(16));
      };
      I total = block32(codes, load256_twice(x.q + b * 32));
      if (!kMin) total = _mm512_add_epi32(total, B::set_i(x.offset[b]));
      sum = add(sum, total, halves(row, at), x.d[b]);
      if (kMin) sum = B::fma(halves(row, at + 2), B::set(x.sum[b]), sum);
    }
    B::store(acc, sum);
  }

  /// q4_k, q5_k.
  template <bool kHigh>
  static void nibbles256(const uint8_t* const* row, int64_t n, int64_t ahead, const ActTile& x, float* acc) {
    constexpr int kBytes = kHigh ? 176 : 144;
    F sum = B::zero();
    for (int64_t b = 0; b < n / 256; ++b) {
      const int64_t at = b * kBytes;
      Unpack<B>::prefetch(row, at, kBytes, ahead);
      I head[4];
      B::transpose16(row, at, head);
      const F d = B::low_f16(head[0]), dmin = B::mul(B::set(-1.0f), B::high_f16(head[0]));
      for (int c = 0; c < 4; ++c) {
        const I xs = B::load_i(x.q + b * 256 + c * 64);
        const auto codes = [&](int r) {
          const I low = B::band(shift_halves(load256_twice(row[r] + at + kBytes - 128 + c * 32), 0, 4), 0x0f0f0f0fu);
          if constexpr (!kHigh) return low;
          const I high = shift_halves(load256_twice(row[r] + at + 16), 2 * c, 2 * c + 1);
          return _mm512_or_si512(low, B::shl(B::band(high, 0x01010101u), 4));
        };
        const auto four = [&](int r) {
          return add4(dot(codes(r), xs), dot(codes(r + 1), xs), dot(codes(r + 2), xs), dot(codes(r + 3), xs));
        };
        const I lo = add_pairs(four(0), four(4)),
                hi = add_pairs(four(8), four(12));  // of rows 0..7, 8..15: [c, c + 1] by lane
        const I dots[2] = {_mm512_shuffle_i32x4(lo, hi, 0x88), _mm512_shuffle_i32x4(lo, hi, 0xdd)};
        for (int h = 0; h < 2; ++h) {
          const int j = 2 * c + h;
          const int64_t g = b * 8 + j;
          sum = add(sum, dots[h], B::mul(d, B::to_f(Unpack<B>::scale6(head, j))), x.d[g]);
          sum = B::fma(B::mul(dmin, B::to_f(Unpack<B>::min6(head, j))), B::set(x.sum[g]), sum);
        }
      }
    }
    B::store(acc, sum);
  }

  static void q6_k(const uint8_t* const* row, int64_t n, int64_t ahead, const ActTile& x, float* acc) {
    F sum = B::zero();
    for (int64_t b = 0; b < n / 256; ++b) {
      const int64_t at = b * 210;
      Unpack<B>::prefetch(row, at, 210, ahead);
      I scales[4];
      B::transpose16(row, at + 192, scales);
      const F d = halves(row, at + 208);
      for (int half = 0; half < 2; ++half) {
        const int8_t* q = x.q + b * 256 + half * 128;
        const I x_low = B::load_i(q), x_high = B::load_i(q + 64);
        I low[4], high[4];  // of rows 4 i .. 4 i + 3: a lane a group
        for (int i = 0; i < 4; ++i) {
          I l[4], h[4];
          for (int k = 0; k < 4; ++k) {
            const uint8_t* p = row[4 * i + k] + at;
            const I nibbles = B::load_i(p + half * 64);
            const I pairs = shift_halves(load256_twice(p + 128 + half * 32), 0, 2);
            l[k] = dot(_mm512_or_si512(B::band(nibbles, 0x0f0f0f0fu), B::band(B::shl(pairs, 4), 0x30303030u)), x_low);
            h[k] = dot(_mm512_or_si512(B::band(B::shr(nibbles, 4), 0x0f0f0f0fu), B::band(pairs, 0x30303030u)), x_high);
          }
          low[i] = add4(l[0], l[1], l[2], l[3]);
          high[i] = add4(h[0], h[1], h[2], h[3]);
        }
        for (int part = 0; part < 2; ++part) {
          const I* v = part ? high : low;
          const I a = _mm512_shuffle_i32x4(v[0], v[1], 0x88),
                  c = _mm512_shuffle_i32x4(v[2], v[3], 0x88);  // groups 0, 2
          const I e = _mm512_shuffle_i32x4(v[0], v[1], 0xdd),
                  f = _mm512_shuffle_i32x4(v[2], v[3], 0xdd);  // groups 1, 3
          const I dots[4] = {_mm512_shuffle_i32x4(a, c, 0x88), _mm512_shuffle_i32x4(e, f, 0x88),
                             _mm512_shuffle_i32x4(a, c, 0xdd), _mm512_shuffle_i32x4(e, f, 0xdd)};
          for (int g = 0; g < 4; ++g) {
            const int j = half * 8 + part * 4 + g;
            const int64_t group = b * 16 + j;
            sum = add(sum, _mm512_add_epi32(dots[g], B::set_i(x.offset[group])),
                      B::mul(d, Unpack<B>::scale8(scales, j)), x.d[group / 2]);
          }
        }
      }
    }
    B::store(acc, sum);
  }

  static void run(DType t, const uint8_t* const* row, int64_t n, int64_t ahead, const ActTile& x, float* acc) {
    switch (t) {
      case DType::q4_0: return nibbles32<false, false>(row, n, ahead, x, acc);
      case DType::q4_1: return nibbles32<true, false>(row, n, ahead, x, acc);
      case DType::q5_0: return nibbles32<false, true>(row, n, ahead, x, acc);
      case DType::q5_1: return nibbles32<true, true>(row, n, ahead, x, acc);
      case DType::q8_0: return q8_0(row, n, ahead, x, acc);
      case DType::q4_k: return nibbles256<false>(row, n, ahead, x, acc);
      case DType::q5_k: return nibbles256<true>(row, n, ahead, x, acc);
      case DType::q6_k: return q6_k(row, n, ahead, x, acc);
      default: __builtin_trap();  // specs list only the formats above
    }
  }
};

}  // namespace vivace::cpu
