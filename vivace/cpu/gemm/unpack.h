// Block formats of 16 rows -> Panel, for any level's lanes. A format's bytes are first transposed by
// dwords, so that lane r holds four bytes of row r, and decoded afterwards, 16 rows at once.
#pragma once
#include <cstring>
#include <type_traits>

#include "vivace/base/float_types.h"
#include "vivace/cpu/gemm/level.h"

namespace vivace::cpu {

template <class B>
struct Unpack {
  using I = typename B::I;
  using F = typename B::F;

  static void put(Panel* p, int64_t group, const I& v) { B::store_i(p->q + group * 64, v); }

  /// Dwords of all rows' blocks, collected before any is used: a wide load that follows narrow stores to
  /// the same place waits until they left the store queue.
  struct Dwords {
    alignas(64) uint32_t v[kSlab / 32][16];

    /// The first kSize (2 or 4) bytes at `offset` of each of n blocks of kBytes.
    template <int kSize>
    void collect(const uint8_t* const* row, int64_t n, int bytes, int offset) {
      for (int r = 0; r < 16; ++r) {
        const uint8_t* p = row[r] + offset;
        for (int64_t b = 0; b < n; ++b, p += bytes) {
          std::conditional_t<kSize == 2, uint16_t, uint32_t> x;
          std::memcpy(&x, p, kSize);
          v[b][r] = x;
        }
      }
    }
    I operator[](int64_t b) const { return B::load_i(v[b]); }
  };

  /// Bits 4 g .. 4 g + 3 of each lane as bit 4 of its four bytes.
  static I fifth_bits(const I& high, int g) {
    return B::shl(B::band(B::mul_i(B::band(B::shr(high, 4 * g), 15), 0x00204081u), 0x01010101u), 4);
  }

  /// q4_0 q4_1 q5_0 q5_1: nibble j of 16 is element j (low) and 16 + j (high).
  template <bool kMin, bool kHigh>
  static void nibbles32(const uint8_t* const* row, int64_t n, int64_t ahead, Panel* p) {
    constexpr int kHeader = kMin ? 4 : 2, kBytes = 16 + kHeader + (kHigh ? 4 : 0);
    Dwords headers, fifths;
    headers.template collect<kHeader>(row, n / 32, kBytes, 0);
    if (kHigh) fifths.template collect<4>(row, n / 32, kBytes, kHeader);
    for (int64_t b = 0; b < n / 32; ++b) {
      const int64_t at = b * kBytes;
      prefetch(row, at, kBytes, ahead);
      B::store(p->scale + b * 16, B::low_f16(headers[b]));
      if (kMin) B::store(p->min + b * 16, B::high_f16(headers[b]));
      I high = headers[b], t[4];
      if (kHigh) high = fifths[b];
      B::transpose16(row, at + kBytes - 16, t);
      for (int g = 0; g < 4; ++g) {
        I lo = B::band(t[g], 0x0f0f0f0fu), hi = B::band(B::shr(t[g], 4), 0x0f0f0f0fu);
        if (kHigh) lo = B::bor(lo, fifth_bits(high, g)), hi = B::bor(hi, fifth_bits(high, g + 4));
        put(p, b * 8 + g, lo);
        put(p, b * 8 + 4 + g, hi);
      }
    }
  }

  static void q8_0(const uint8_t* const* row, int64_t n, int64_t ahead, Panel* p) {
    Dwords headers;
    headers.template collect<2>(row, n / 32, 34, 0);
    for (int64_t b = 0; b < n / 32; ++b) {
      prefetch(row, b * 34, 34, ahead);
      B::store(p->scale + b * 16, B::low_f16(headers[b]));
      for (int half = 0; half < 2; ++half) {
        I t[4];
        B::transpose16(row, b * 34 + 2 + half * 16, t);
        for (int g = 0; g < 4; ++g)
          put(p, b * 8 + half * 4 + g, B::kSignedWide ? t[g] : B::bxor(t[g], 0x80808080u));  // signed -> 128 + q
      }
    }
  }

  /// Scale and minimum j of 8, six bits each, from a k-quant's transposed header: 4 in the low bits of a byte, the
  /// other 4 in what those bytes leave over.
  static I scale6(const I* head, int j) {
    if (j < 4) return B::band(B::shr(head[1], 8 * j), 63);
    return B::bor(B::band(B::shr(head[3], 8 * j - 32), 15), B::shl(B::band(B::shr(head[1], 8 * j - 26), 3), 4));
  }
  static I min6(const I* head, int j) {
    if (j < 4) return B::band(B::shr(head[2], 8 * j), 63);
    return B::bor(B::band(B::shr(head[3], 8 * j - 28), 15), B::shl(B::band(B::shr(head[2], 8 * j - 26), 3), 4));
  }
  /// Signed byte j of 16.
  static F scale8(const I* bytes, int j) {
    const I code = B::band(B::bxor(B::shr(bytes[j / 4], j % 4 * 8), 0x80), 0xff);
    return B::add(B::to_f(code), B::set(-128.0f));
  }

  /// q4_k, q5_k: see vivace/cpu/quant/blocks.h for the layout.
  template <bool kHigh>
  static void nibbles256(const uint8_t* const* row, int64_t n, int64_t ahead, Panel* p) {
    constexpr int kBytes = kHigh ? 176 : 144;
    for (int64_t b = 0; b < n / 256; ++b) {
      const int64_t at = b * kBytes;
      prefetch(row, at, kBytes, ahead);
      I head[4];  // d and dmin, then the twelve bytes of scales and minima
      B::transpose16(row, at, head);
      const F d = B::low_f16(head[0]), dmin = B::mul(B::set(-1.0f), B::high_f16(head[0]));
      for (int j = 0; j < 8; ++j) {
        B::store(p->scale + (b * 8 + j) * 16, B::mul(d, B::to_f(scale6(head, j))));
        B::store(p->min + (b * 8 + j) * 16, B::mul(dmin, B::to_f(min6(head, j))));
      }
      for (int half = 0; half < 2; ++half) {
        I high[4];
        if (kHigh) B::transpose16(row, at + 16 + half * 16, high);
        for (int c = 0; c < 4; ++c) {  // 32 bytes: sub-block 2 c low, 2 c + 1 high
          I t[4];
          B::transpose16(row, at + kBytes - 128 + c * 32 + half * 16, t);
          for (int g = 0; g < 4; ++g) {
            I lo = B::band(t[g], 0x0f0f0f0fu), hi = B::band(B::shr(t[g], 4), 0x0f0f0f0fu);
            if (kHigh) {
              lo = B::bor(lo, B::shl(B::band(B::shr(high[g], 2 * c), 0x01010101u), 4));
              hi = B::bor(hi, B::shl(B::band(B::shr(high[g], 2 * c + 1), 0x01010101u), 4));
            }
            put(p, (b * 8 + 2 * c) * 8 + half * 4 + g, lo);
            put(p, (b * 8 + 2 * c + 1) * 8 + half * 4 + g, hi);
          }
        }
      }
    }
  }

  static void q6_k(const uint8_t* const* row, int64_t n, int64_t ahead, Panel* p) {
    Dwords ends;
    ends.template collect<2>(row, n / 256, 210, 208);
    for (int64_t b = 0; b < n / 256; ++b) {
      const int64_t at = b * 210;
      prefetch(row, at, 210, ahead);
      I scales[4];
      B::transpose16(row, at + 192, scales);
      const F d = B::low_f16(ends[b]);
      for (int j = 0; j < 16; ++j) B::store(p->scale + (b * 16 + j) * 16, B::mul(d, scale8(scales, j)));
      // Each half of 128 elements: runs of 32 take nibble bytes l and l + 32, low then high, and bit pair `run` of byte
      // l.
      for (int half = 0; half < 2; ++half)
        for (int part = 0; part < 2; ++part) {  // 16 of a run's 32 elements
          I high[4];
          B::transpose16(row, at + 128 + half * 32 + part * 16, high);
          for (int run = 0; run < 4; ++run) {
            I t[4];
            B::transpose16(row, at + half * 64 + run % 2 * 32 + part * 16, t);
            for (int g = 0; g < 4; ++g) {
              const I low = B::band(B::shr(t[g], run / 2 * 4), 0x0f0f0f0fu);
              const I top = B::shl(B::band(B::shr(high[g], 2 * run), 0x03030303u), 4);
              put(p, (b * 8 + half * 4 + run) * 8 + part * 4 + g, B::bor(low, top));
            }
          }
        }
    }
  }

  /// The 16 rows follow each other in memory: what they hold of one block is what is `ahead` consumed later.
  [[gnu::always_inline]] static void prefetch(const uint8_t* const* row, int64_t at, int bytes, int64_t ahead) {
    if (ahead == 0) return;
    const uint8_t* next = row[0] + ahead + at * 16;
    for (int i = 0; i < 16 * bytes; i += 64) __builtin_prefetch(next + i);
  }

  static void run(DType t, const uint8_t* const* row, int64_t n, int64_t ahead, Panel* p) {
    switch (t) {
      case DType::q4_0: return nibbles32<false, false>(row, n, ahead, p);
      case DType::q4_1: return nibbles32<true, false>(row, n, ahead, p);
      case DType::q5_0: return nibbles32<false, true>(row, n, ahead, p);
      case DType::q5_1: return nibbles32<true, true>(row, n, ahead, p);
      case DType::q8_0: return q8_0(row, n, ahead, p);
      case DType::q4_k: return nibbles256<false>(row, n, ahead, p);
      case DType::q5_k: return nibbles256<true>(row, n, ahead, p);
      case DType::q6_k: return q6_k(row, n, ahead, p);
      default: __builtin_trap();  // specs list only the formats above
    }
  }
};

}  // namespace vivace::cpu
