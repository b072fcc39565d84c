// y = x * w^T for row-invariant linear layers: each output adds blocks of 256 k, each one accumulator, k ascending,
// fused multiply-add, whatever M is and wherever the row stands. Exact by construction, where a BLAS has to be probed.
//
// A panel of 32 output columns is transposed once ([K][32], in the core's second-level cache) and all rows pass over
// it in tiles of 8. Only for AVX-512; elsewhere zg_has_gemm() is 0 and the BLAS multiplies.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "vec.h"

using namespace zg;

namespace {

constexpr int64_t ROWS = 8, COLUMNS = 2 * W;
constexpr int64_t BLOCK = 256;  // shorter sums of sums lose less than one long sum

#if defined(__AVX512F__)

// 16 rows of 16 floats, `from_ld` apart, to their transpose, `to_ld` apart.
void transpose_16(const float* from, int64_t from_ld, float* to, int64_t to_ld) {
  __m512 r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * from_ld);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  auto pair = [](__m512 a, __m512 b, bool high) {
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

// panel[k][c] = w[column + c][k]; columns at or past N are 0.
void pack_panel(const float* w, int64_t N, int64_t K, int64_t column, float* panel) {
  for (int64_t c = 0; c < COLUMNS; c += 16) {
    const int64_t valid = std::min<int64_t>(16, N - column - c);
    const float* rows = w + (column + c) * K;
    int64_t k = 0;
    if (valid == 16)
      for (; k + 16 <= K; k += 16) transpose_16(rows + k, K, panel + k * COLUMNS + c, COLUMNS);
    for (; k < K; ++k)
      for (int64_t j = 0; j < 16; ++j) panel[k * COLUMNS + c + j] = j < valid ? rows[j * K + k] : 0.0f;
  }
}

void multiply_tile(const float* x, int64_t K, const float* panel, float* y, int64_t ld, int64_t columns) {
  float total[ROWS][COLUMNS] = {};
  for (int64_t begin = 0; begin < K; begin += BLOCK) {
    const int64_t end = std::min(K, begin + BLOCK);
    vec acc[ROWS][2];
    for (int r = 0; r < ROWS; ++r) acc[r][0] = acc[r][1] = set1(0.0f);
    for (int64_t k = begin; k < end; ++k) {
      const vec a = load(panel + k * COLUMNS), b = load(panel + k * COLUMNS + W);
      for (int r = 0; r < ROWS; ++r) {
        const vec s = set1(x[r * K + k]);
        acc[r][0] = fma(s, a, acc[r][0]), acc[r][1] = fma(s, b, acc[r][1]);
      }
    }
    for (int r = 0; r < ROWS; ++r) {
      store(total[r], add(load(total[r]), acc[r][0]));
      store(total[r] + W, add(load(total[r] + W), acc[r][1]));
    }
  }
  for (int r = 0; r < ROWS; ++r)
    std::memcpy(y + r * ld, total[r], sizeof(float) * std::min(COLUMNS, columns));
}

#endif

}  // namespace

extern "C" {

#if defined(__AVX512F__)
int zg_has_gemm() { return 1; }

// x [M, K], M a multiple of 8; w [N, K]; y [M, N].
void zg_gemm(const float* x, const float* w, float* y, int64_t M, int64_t N, int64_t K) {
  const int64_t panels = (N + COLUMNS - 1) / COLUMNS;
#pragma omp parallel
  {
    std::vector<float> storage(K * COLUMNS + 16);
    float* panel = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(storage.data()) + 63) / 64 * 64);
#pragma omp for schedule(dynamic, 1)
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t column = p * COLUMNS;
      pack_panel(w, N, K, column, panel);
      for (int64_t m = 0; m < M; m += ROWS)
        multiply_tile(x + m * K, K, panel, y + m * N + column, N, N - column);
    }
  }
}
#else
int zg_has_gemm() { return 0; }
void zg_gemm(const float*, const float*, float*, int64_t, int64_t, int64_t) {}
#endif

}  // extern "C"
