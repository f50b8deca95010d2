// Sixteen lanes in two 256-bit registers; see vec_portable.h for what each function means.
// Only for files built with AVX2, FMA and F16C.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace vivace::cpu {

struct Avx2 {
  struct I { __m256i a, b; };
  struct F { __m256 a, b; };
  static constexpr int kTile = 2;  // 16 registers: two accumulators of each kind take eight
  static constexpr int kDotTokens = 1;
  static constexpr bool kSignedWide = true;  // dot<true> takes signed bytes of w

  static __m256i load8(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static __m128i load4(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static __m256i all(uint32_t m) { return _mm256_set1_epi32(static_cast<int>(m)); }

  static I set_i(int32_t x) { const __m256i v = _mm256_set1_epi32(x); return {v, v}; }
  static I load_i(const void* p) { return {load8(p), load8(static_cast<const char*>(p) + 32)}; }
  static __m256i bytes8(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static I load_u8(const uint8_t* p) { return {bytes8(p), bytes8(p + 8)}; }
  static I lane_bits(uint32_t bits) {
    const __m256i v = _mm256_set1_epi32(static_cast<int>(bits)), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                  one = _mm256_set1_epi32(1);
    return {_mm256_and_si256(_mm256_srlv_epi32(v, lane), one),
            _mm256_and_si256(_mm256_srlv_epi32(_mm256_srli_epi32(v, 8), lane), one)};
  }
  static void store_i(void* p, I v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), v.a);
    _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, v.b);
  }
  static I band(I v, uint32_t m) { return {_mm256_and_si256(v.a, all(m)), _mm256_and_si256(v.b, all(m))}; }
  static I bor(I v, I w) { return {_mm256_or_si256(v.a, w.a), _mm256_or_si256(v.b, w.b)}; }
  static I bxor(I v, uint32_t m) { return {_mm256_xor_si256(v.a, all(m)), _mm256_xor_si256(v.b, all(m))}; }
  static I shr(I v, int n) {
    const __m128i c = _mm_cvtsi32_si128(n);
    return {_mm256_srl_epi32(v.a, c), _mm256_srl_epi32(v.b, c)};
  }
  static I shl(I v, int n) {
    const __m128i c = _mm_cvtsi32_si128(n);
    return {_mm256_sll_epi32(v.a, c), _mm256_sll_epi32(v.b, c)};
  }
  static I mul_i(I v, uint32_t m) { return {_mm256_mullo_epi32(v.a, all(m)), _mm256_mullo_epi32(v.b, all(m))}; }

  static void transpose16(const uint8_t* const* row, int64_t offset, I* out) {
    __m256i half[2][4];
    for (int h = 0; h < 2; ++h) {
      __m256i a[4];  // 128-bit lane l holds row 8 h + 4 l + i
      for (int i = 0; i < 4; ++i)
        a[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(load4(row[8 * h + i] + offset)),
                                       load4(row[8 * h + 4 + i] + offset), 1);
      const __m256i t0 = _mm256_unpacklo_epi32(a[0], a[1]), t1 = _mm256_unpackhi_epi32(a[0], a[1]);
      const __m256i t2 = _mm256_unpacklo_epi32(a[2], a[3]), t3 = _mm256_unpackhi_epi32(a[2], a[3]);
      half[h][0] = _mm256_unpacklo_epi64(t0, t2);
      half[h][1] = _mm256_unpackhi_epi64(t0, t2);
      half[h][2] = _mm256_unpacklo_epi64(t1, t3);
      half[h][3] = _mm256_unpackhi_epi64(t1, t3);
    }
    for (int j = 0; j < 4; ++j) out[j] = {half[0][j], half[1][j]};
  }
  /// Pairs of products are summed in 16 bits, which saturate above 2^15 - 1: wide bytes are signed ones here, of which
  /// |w| <= 128 multiplies x with w's sign, and |x| <= 127.
  template <bool kWide>
  static __m256i dot8(__m256i acc, __m256i w, __m256i x) {
    const __m256i pairs =
        kWide ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  template <bool kWide>
  static I dot(I acc, I w, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    const __m256i b = _mm256_set1_epi32(four);
    return {dot8<kWide>(acc.a, w.a, b), dot8<kWide>(acc.b, w.b, b)};
  }
  static F to_f(I v) { return {_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)}; }
  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set(float x) { const __m256 v = _mm256_set1_ps(x); return {v, v}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v.a), _mm256_storeu_ps(p + 8, v.b); }
  static F mul(F v, F w) { return {_mm256_mul_ps(v.a, w.a), _mm256_mul_ps(v.b, w.b)}; }
  static F add(F v, F w) { return {_mm256_add_ps(v.a, w.a), _mm256_add_ps(v.b, w.b)}; }
  static F max(F v, F w) { return {_mm256_max_ps(v.a, w.a), _mm256_max_ps(v.b, w.b)}; }
  static F fma(F u, F v, F w) { return {_mm256_fmadd_ps(u.a, v.a, w.a), _mm256_fmadd_ps(u.b, v.b, w.b)}; }
  static float sum(F v) {
    const __m256 h = _mm256_add_ps(v.a, v.b);
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)),
                 p = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(p, _mm_movehdup_ps(p)));
  }
  static float most(F v) {
    const __m256 h = _mm256_max_ps(v.a, v.b);
    const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)),
                 p = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(p, _mm_movehdup_ps(p)));
  }
  /// Halves, then quarters, then pairs of two vectors meet in one; the order of v undoes the shuffles'.
  static __m256 sum8(const F* v) {
    constexpr int kOrder[] = {0, 2, 1, 3};  // v[kOrder[e] + 4 l] ends in place e of 128-bit lane l
    __m256 quarter[4], pair[2];
    for (int i = 0; i < 4; ++i) {
      const F &f = v[kOrder[i]], &g = v[4 + kOrder[i]];
      const __m256 x = _mm256_add_ps(f.a, f.b), y = _mm256_add_ps(g.a, g.b);
      quarter[i] = _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
    }
    // quarter[0..3] are keys 0 2 1 3: places of the result are filled by quarters 0, 2, 1, 3 in turn.
    for (int i = 0; i < 2; ++i) {
      const __m256 x = quarter[i], y = quarter[i + 2];
      pair[i] = _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
    }
    return _mm256_add_ps(_mm256_shuffle_ps(pair[0], pair[1], 0x88), _mm256_shuffle_ps(pair[0], pair[1], 0xdd));
  }
  static F sum16(const F* v) { return {sum8(v), sum8(v + 8)}; }
  static F load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(load4(p)), _mm256_cvtph_ps(load4(p + 8))}; }
  static __m256 bf16x8(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load4(p)), 16));
  }
  static F load_bf16(const uint16_t* p) { return {bf16x8(p), bf16x8(p + 8)}; }
  /// Eight dwords below 2^16 as eight words.
  static __m128i words(__m256i v) {
    return _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  }
  static F low_f16(I v) {
    const I low = band(v, 0xffff);
    return {_mm256_cvtph_ps(words(low.a)), _mm256_cvtph_ps(words(low.b))};
  }
  static F high_f16(I v) { return low_f16(shr(v, 16)); }
  static __m128i bf16_words(__m256 v) {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), all(1));
    const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, all(0x7fff)));
    const __m256i quiet = _mm256_or_si256(u, all(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return words(_mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16));
  }
  static void store_bf16(uint16_t* p, F v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bf16_words(v.a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), bf16_words(v.b));
  }
};

}  // namespace vivace::cpu
