// Sixteen lanes in one 512-bit register; see vec_portable.h for what each function means.
// Only for files built with AVX-512 (F, BW, VL, DQ, VNNI).
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace vivace::cpu {

struct Avx512 {
  using I = __m512i;
  using F = __m512;
  static constexpr int kTile = 8;
  static constexpr int kDotTokens = 4;
  static constexpr bool kSignedWide = false;

  static I set_i(int32_t x) { return _mm512_set1_epi32(x); }
  static I load_i(const void* p) { return _mm512_loadu_si512(p); }
  static I load_u8(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static I lane_bits(uint32_t bits) { return _mm512_maskz_set1_epi32(static_cast<__mmask16>(bits), 1); }
  static void store_i(void* p, I a) { _mm512_storeu_si512(p, a); }
  static I band(I a, uint32_t m) { return _mm512_and_si512(a, _mm512_set1_epi32(static_cast<int>(m))); }
  static I bor(I a, I b) { return _mm512_or_si512(a, b); }
  static I bxor(I a, uint32_t m) { return _mm512_xor_si512(a, _mm512_set1_epi32(static_cast<int>(m))); }
  static I shr(I a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
  static I shl(I a, int n) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n)); }
  static I mul_i(I a, uint32_t m) { return _mm512_mullo_epi32(a, _mm512_set1_epi32(static_cast<int>(m))); }

  static void transpose16(const uint8_t* const* row, int64_t offset, I* out) {
    I a[4];
    for (int i = 0; i < 4; ++i) {  // 128-bit lane l holds row 4 l + i, so that lane r of a result is row r
      const auto at = [&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[r] + offset)); };
      I v = _mm512_castsi128_si512(at(i));
      v = _mm512_inserti32x4(v, at(4 + i), 1);
      v = _mm512_inserti32x4(v, at(8 + i), 2);
      a[i] = _mm512_inserti32x4(v, at(12 + i), 3);
    }
    const I t0 = _mm512_unpacklo_epi32(a[0], a[1]), t1 = _mm512_unpackhi_epi32(a[0], a[1]);
    const I t2 = _mm512_unpacklo_epi32(a[2], a[3]), t3 = _mm512_unpackhi_epi32(a[2], a[3]);
    out[0] = _mm512_unpacklo_epi64(t0, t2);
    out[1] = _mm512_unpackhi_epi64(t0, t2);
    out[2] = _mm512_unpacklo_epi64(t1, t3);
    out[3] = _mm512_unpackhi_epi64(t1, t3);
  }
  template <bool kWide>
  static I dot(I acc, I w, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(four));
  }
  static F to_f(I a) { return _mm512_cvtepi32_ps(a); }
  static F zero() { return _mm512_setzero_ps(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static float sum(F v) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)),
                 p = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(p, _mm_movehdup_ps(p)));
  }
  static float most(F v) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)),
                 p = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(p, _mm_movehdup_ps(p)));
  }
  /// Halves, then quarters, eighths and pairs of two vectors meet in one; the order of v undoes the shuffles'.
  static F sum16(const F* v) {
    // Place p of the result is filled by the key whose number has bits 0 and 1, and bits 2 and 3, swapped.
    constexpr int kOrder[] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};
    F half[8], quarter[4], eighth[2];
    for (int i = 0; i < 8; ++i) {
      const F a = v[kOrder[i]], b = v[kOrder[i + 8]];
      half[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
    for (int i = 0; i < 4; ++i)
      quarter[i] = _mm512_add_ps(_mm512_shuffle_f32x4(half[i], half[i + 4], 0x88),
                                 _mm512_shuffle_f32x4(half[i], half[i + 4], 0xdd));
    for (int i = 0; i < 2; ++i)
      eighth[i] = _mm512_add_ps(_mm512_shuffle_ps(quarter[i], quarter[i + 2], 0x44),
                                _mm512_shuffle_ps(quarter[i], quarter[i + 2], 0xee));
    return _mm512_add_ps(_mm512_shuffle_ps(eighth[0], eighth[1], 0x88), _mm512_shuffle_ps(eighth[0], eighth[1], 0xdd));
  }
  static F load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const uint16_t* p) {
    const I wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static F low_f16(I a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
  static F high_f16(I a) { return low_f16(_mm512_srli_epi32(a, 16)); }
  static void store_bf16(uint16_t* p, F a) {
    const I u = _mm512_castps_si512(a);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const I rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const I r = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
  }
};

}  // namespace vivace::cpu
