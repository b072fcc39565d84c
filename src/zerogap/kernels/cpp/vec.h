// A vector of sixteen floats that computes the same bits on every machine.
//
// All kernels are written for this logical width, so that the order of additions, and with it every bit, is the same
// on AVX-512 (one register), AVX2 (two) and other machines (plain loops). Only a processor without a fused multiply-add
// rounds differently: there fma() is a multiplication and an addition.
// Contraction is off (-ffp-contract=off): the compiler fuses a multiply-add only where fma() is written.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#endif

namespace zg {

constexpr int W = 16;  // lanes
constexpr float NEG_INF = -std::numeric_limits<float>::infinity();

// To the nearest bf16, ties to even, as a float. A value too large for bf16 becomes infinite. A NaN stays NaN (quiet,
// sign and upper bits kept); adding to its bits could turn it into infinity.
inline float to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = x != x ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  bits &= 0xffff0000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

#if defined(__AVX512F__)
struct vec {
  __m512 r;
};
inline vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, vec a) { _mm512_storeu_ps(p, a.r); }
inline vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline vec fma(vec a, vec b, vec c) { return {_mm512_fmadd_ps(a.r, b.r, c.r)}; }
inline vec add(vec a, vec b) { return {_mm512_add_ps(a.r, b.r)}; }
inline vec sub(vec a, vec b) { return {_mm512_sub_ps(a.r, b.r)}; }
inline vec mul(vec a, vec b) { return {_mm512_mul_ps(a.r, b.r)}; }
inline vec div(vec a, vec b) { return {_mm512_div_ps(a.r, b.r)}; }
inline vec vmax(vec a, vec b) { return {_mm512_max_ps(a.r, b.r)}; }
inline vec vmin(vec a, vec b) { return {_mm512_min_ps(a.r, b.r)}; }
inline vec round_even(vec a) {
  return {_mm512_roundscale_ps(a.r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for integral n in [-126, 127]
inline vec exp2i(vec n) {
  __m512i i = _mm512_add_epi32(_mm512_cvtps_epi32(n.r), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(i, 23))};
}
// Each lane to the nearest bf16, see the scalar one.
inline vec to_bf16(vec a) {
  const __m512i bits = _mm512_castps_si512(a.r);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i chosen = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.r, a.r, _CMP_UNORD_Q), nearest, quiet);
  return {_mm512_castsi512_ps(_mm512_and_si512(chosen, _mm512_set1_epi32(-0x10000)))};
}
// a where x >= bound, else b
inline vec where_ge(vec x, vec bound, vec a, vec b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.r, bound.r, _CMP_GE_OQ), b.r, a.r)};
}
#elif defined(__AVX2__) && defined(__FMA__)
struct vec {
  __m256 lo, hi;
};
inline vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline vec fma(vec a, vec b, vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline vec add(vec a, vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline vec sub(vec a, vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline vec mul(vec a, vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline vec div(vec a, vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline vec vmax(vec a, vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline vec vmin(vec a, vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline vec round_even(vec a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
inline __m256 exp2i_half(__m256 n) {
  __m256i i = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(i, 23));
}
inline vec exp2i(vec n) { return {exp2i_half(n.lo), exp2i_half(n.hi)}; }
inline __m256 to_bf16_half(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const __m256i chosen = _mm256_blendv_epi8(nearest, quiet, is_nan);
  return _mm256_castsi256_ps(_mm256_and_si256(chosen, _mm256_set1_epi32(-0x10000)));
}
inline vec to_bf16(vec a) { return {to_bf16_half(a.lo), to_bf16_half(a.hi)}; }
inline vec where_ge(vec x, vec bound, vec a, vec b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, bound.lo, _CMP_GE_OQ)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, bound.hi, _CMP_GE_OQ))};
}
#else
struct vec {
  float v[W];
};
// A function body: lane i of the result.
// clang-format off
#define ZG_LANES(expr) { vec o; for (int i = 0; i < W; ++i) o.v[i] = expr; return o; }
inline vec load(const float* p) ZG_LANES(p[i])
inline void store(float* p, vec a) { std::memcpy(p, a.v, sizeof a.v); }
inline vec set1(float x) ZG_LANES(x)
#ifdef __FP_FAST_FMAF
inline vec fma(vec a, vec b, vec c) ZG_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i]))
#else
inline vec fma(vec a, vec b, vec c) ZG_LANES(a.v[i] * b.v[i] + c.v[i])
#endif
inline vec add(vec a, vec b) ZG_LANES(a.v[i] + b.v[i])
inline vec sub(vec a, vec b) ZG_LANES(a.v[i] - b.v[i])
inline vec mul(vec a, vec b) ZG_LANES(a.v[i] * b.v[i])
inline vec div(vec a, vec b) ZG_LANES(a.v[i] / b.v[i])
inline vec vmax(vec a, vec b) ZG_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i])
inline vec vmin(vec a, vec b) ZG_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i])
inline vec round_even(vec a) ZG_LANES(std::nearbyint(a.v[i]))
inline vec exp2i(vec n) {
  vec o;
  for (int i = 0; i < W; ++i) {
    const uint32_t bits = uint32_t(int32_t(n.v[i]) + 127) << 23;
    std::memcpy(&o.v[i], &bits, 4);
  }
  return o;
}
inline vec to_bf16(vec a) ZG_LANES(to_bf16(a.v[i]))
inline vec where_ge(vec x, vec bound, vec a, vec b) ZG_LANES(x.v[i] >= bound.v[i] ? a.v[i] : b.v[i])
// clang-format on
#endif

// Fixed tree: lane i with i + 8, then 4, 2, 1.
#if defined(__AVX512F__)
#define ZG_TREE(name, op)                                                                       \
  inline float name(vec a) {                                                                    \
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.r), 1));     \
    const __m256 y = _mm256_##op##_ps(_mm512_castps512_ps256(a.r), high);                       \
    __m128 x = _mm_##op##_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));           \
    x = _mm_##op##_ps(x, _mm_movehl_ps(x, x));                                                  \
    return _mm_cvtss_f32(_mm_##op##_ss(x, _mm_movehdup_ps(x)));                                 \
  }
ZG_TREE(sum_lanes, add)
ZG_TREE(max_lanes, max)
#undef ZG_TREE
#else
inline float sum_lanes(vec a) {
  float t[W];
  store(t, a);
  for (int step = W / 2; step; step /= 2)
    for (int i = 0; i < step; ++i) t[i] += t[i + step];
  return t[0];
}
inline float max_lanes(vec a) {
  float t[W];
  store(t, a);
  for (int step = W / 2; step; step /= 2)
    for (int i = 0; i < step; ++i) t[i] = t[i] > t[i + step] ? t[i] : t[i + step];
  return t[0];
}
#endif

// First n lanes from p, the rest = fill.
inline vec load_partial(const float* p, int n, float fill) {
  float t[W];
  for (int i = 0; i < W; ++i) t[i] = i < n ? p[i] : fill;
  return load(t);
}
inline void store_partial(float* p, vec a, int n) {
  float t[W];
  store(t, a);
  std::memcpy(p, t, sizeof(float) * n);
}

// e^x, relative error below 2e-7 on [-87.3, 88.3] (tests/unit/kernels/test_native.py); 0 below, so that
// exp(-inf) = 0; 2.4e38 above, since no kernel needs more.
// The operand order of vmax and vmin keeps a NaN (both then return the second operand): a NaN logit must give a NaN
// mass, never a token without mass.
// Range reduction by two-part ln 2 and the degree-5 minimax polynomial of Cephes' expf.
inline vec exp(vec x) {
  const vec lowest = set1(-87.33654f);
  vec y = vmin(set1(88.37626f), vmax(lowest, x));
  vec n = round_even(mul(y, set1(1.44269504088896341f)));
  vec r = fma(n, set1(-0.693359375f), y);
  r = fma(n, set1(2.12194440e-4f), r);
  vec p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, mul(r, r), add(r, set1(1.0f)));
  return where_ge(lowest, x, set1(0.0f), mul(p, exp2i(n)));
}

}  // namespace zg
