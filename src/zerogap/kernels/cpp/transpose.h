// 16 rows of 16 floats, `from_ld` apart, to their transpose, `to_ld` apart.
#pragma once
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace zg {

#if defined(__AVX512F__)

inline void transpose_16(const float* from, int64_t from_ld, float* to, int64_t to_ld) {
  __m512 r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * from_ld);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  const auto pair = [](__m512 a, __m512 b, bool high) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
  };
  for (int i = 0; i < 16; i += 4) {
    r[i] = pair(t[i], t[i + 2], false), r[i + 1] = pair(t[i], t[i + 2], true);
    r[i + 2] = pair(t[i + 1], t[i + 3], false), r[i + 3] = pair(t[i + 1], t[i + 3], true);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88), t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    _mm512_storeu_ps(to + i * to_ld, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
    _mm512_storeu_ps(to + (i + 8) * to_ld, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
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
