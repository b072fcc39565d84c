// Transposes 16 rows of 16 floats, `from_ld` apart, to rows `to_ld` apart.
#pragma once
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace zg {

#if defined(__AVX512F__)

// Four columns at a time: loads put rows i, i + 4, i + 8 and i + 12 side by side, so that two stages of shuffles are
// enough. Shuffles limit the speed of a transpose.
inline void transpose_16(const float* from, int64_t from_ld, float* to, int64_t to_ld) {
  const auto pair = [](__m512 a, __m512 b, bool high) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
  };
  for (int g = 0; g < 16; g += 4) {
    __m512 t[4];
    for (int i = 0; i < 4; ++i) {
      const float* p = from + i * from_ld + g;
      t[i] = _mm512_castps128_ps512(_mm_loadu_ps(p));
      t[i] = _mm512_mask_broadcast_f32x4(t[i], 0x00f0, _mm_loadu_ps(p + 4 * from_ld));
      t[i] = _mm512_mask_broadcast_f32x4(t[i], 0x0f00, _mm_loadu_ps(p + 8 * from_ld));
      t[i] = _mm512_mask_broadcast_f32x4(t[i], 0xf000, _mm_loadu_ps(p + 12 * from_ld));
    }
    const __m512 low_01 = _mm512_unpacklo_ps(t[0], t[1]), high_01 = _mm512_unpackhi_ps(t[0], t[1]);
    const __m512 low_23 = _mm512_unpacklo_ps(t[2], t[3]), high_23 = _mm512_unpackhi_ps(t[2], t[3]);
    _mm512_storeu_ps(to + g * to_ld, pair(low_01, low_23, false));
    _mm512_storeu_ps(to + (g + 1) * to_ld, pair(low_01, low_23, true));
    _mm512_storeu_ps(to + (g + 2) * to_ld, pair(high_01, high_23, false));
    _mm512_storeu_ps(to + (g + 3) * to_ld, pair(high_01, high_23, true));
  }
}

#elif defined(__AVX2__)

inline void transpose_8(const float* from, int64_t from_ld, float* to, int64_t to_ld) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_ld);
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44), r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44), r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_ld, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_ld, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

inline void transpose_16(const float* from, int64_t from_ld, float* to, int64_t to_ld) {
  for (int64_t i = 0; i < 16; i += 8)
    for (int64_t j = 0; j < 16; j += 8)
      transpose_8(from + i * from_ld + j, from_ld, to + j * to_ld + i, to_ld);
}

#else

inline void transpose_16(const float* from, int64_t from_ld, float* to, int64_t to_ld) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) to[j * to_ld + i] = from[i * from_ld + j];
}

#endif

}  // namespace zg
