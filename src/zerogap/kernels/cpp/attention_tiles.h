// The micro-kernels of attention, forward and backward:
//   scores:     q[h] * k[h][16 keys]         one accumulator of 16 keys per (query, page), h ascending
//   accumulate: w[j] * v[j][16 dims]         one accumulator of 16 dims per (query, dim block), j ascending
//   outer:      w[query][j] * x[query][dims] one accumulator per (key, dim block), queries ascending
// The number of queries or pages that share a load changes the speed, never the additions of a (query, key) pair.
// An accumulator keeps its bits when it is stored and loaded again between two steps.
#pragma once
#include <algorithm>

#include "attention_plan.h"
#include "vec.h"

namespace zg {
namespace {

#if defined(__AVX512F__)
// Queries that share a load: 2 pages x 6 or 4 dim blocks x 6 accumulators fit in 32 registers.
constexpr int QUERIES = 6, PAGES = 2, PAGES_OF_FEW = 4, DIMS = 4;
#else
// Of 16 registers of half the width, 8 accumulate.
constexpr int QUERIES = 2, PAGES = 2, PAGES_OF_FEW = 2, DIMS = 2;
#endif
constexpr int FEW = 3;  // up to so many queries take more pages at once

// The next pages: every iteration of a running loop prefetches some of their lines, so that memory works while the
// core multiplies. They go to the second-level cache, which can wait for more lines at once than the first.
struct Ahead {
  const float* page[STEP_PAGES];
  int64_t num = 0, line = 0, lines = 0;
  void advance() {
    if (line == lines) return;
    for (int64_t i = 0; i < num; ++i) __builtin_prefetch(page[i] + line * W, 0, 2);
    ++line;
  }
};

// s[q][page * S + key] for NQ queries over NP pages.
template <int NQ, int NP>
inline void score_tile(const float* const* q, const float* const* pages, int64_t H, float scale, float* s, int64_t ld,
                       Ahead& ahead) {
  vec acc[NQ][NP];
  for (int a = 0; a < NQ; ++a)
    for (int b = 0; b < NP; ++b) acc[a][b] = set1(0.0f);
  for (int64_t h = 0; h < H; ++h) {
    ahead.advance();
    vec key[NP];
    for (int b = 0; b < NP; ++b) key[b] = load(pages[b] + h * S);
    for (int a = 0; a < NQ; ++a) {
      const vec x = set1(q[a][h]);
      for (int b = 0; b < NP; ++b) acc[a][b] = fma(x, key[b], acc[a][b]);
    }
  }
  const vec f = set1(scale);
  for (int a = 0; a < NQ; ++a)
    for (int b = 0; b < NP; ++b) store(s + a * ld + b * S, mul(acc[a][b], f));
}

template <int NQ>
void score_pages(const float* const* q, const float* const* pages, int64_t num_pages, int64_t H, float scale, float* s,
                 int64_t ld, Ahead& ahead) {
  constexpr int NP = NQ <= FEW ? PAGES_OF_FEW : PAGES;
  int64_t p = 0;
  for (; p + NP <= num_pages; p += NP) score_tile<NQ, NP>(q, pages + p, H, scale, s + p * S, ld, ahead);
  if constexpr (NP == 4) {
    if (p + 3 == num_pages) score_tile<NQ, 3>(q, pages + p, H, scale, s + p * S, ld, ahead), p += 3;
    if (p + 2 == num_pages) score_tile<NQ, 2>(q, pages + p, H, scale, s + p * S, ld, ahead), p += 2;
  }
  for (; p < num_pages; ++p) score_tile<NQ, 1>(q, pages + p, H, scale, s + p * S, ld, ahead);
}

// out[q][NB * 16 dims] += sum over keys [begin, end) of w[q][j] * v[j]; keys count from the first page.
template <int NQ, int NB>
inline void accumulate_tile(const float* w, int64_t ld, const float* const* pages, int64_t begin, int64_t end, int64_t H,
                            int64_t dim, float* const* out, Ahead& ahead) {
  vec acc[NQ][NB];
  for (int a = 0; a < NQ; ++a)
    for (int b = 0; b < NB; ++b) acc[a][b] = load(out[a] + dim + b * W);
  for (int64_t j = begin; j < end;) {
    const int64_t stop = std::min(end, (j / S + 1) * S);
    const float* row = pages[j / S] + (j % S) * H + dim;
    for (; j < stop; ++j, row += H) {
      ahead.advance();
      vec x[NB];
      for (int b = 0; b < NB; ++b) x[b] = load(row + b * W);
      for (int a = 0; a < NQ; ++a) {
        const vec p = set1(w[a * ld + j]);
        for (int b = 0; b < NB; ++b) acc[a][b] = fma(p, x[b], acc[a][b]);
      }
    }
  }
  for (int a = 0; a < NQ; ++a)
    for (int b = 0; b < NB; ++b) store(out[a] + dim + b * W, acc[a][b]);
}

template <int NQ>
void accumulate_dims(const float* w, int64_t ld, const float* const* pages, int64_t begin, int64_t end, int64_t H,
                     int64_t dim, int64_t dim_end, float* const* out, Ahead& ahead) {
  for (; dim + DIMS * W <= dim_end; dim += DIMS * W)
    accumulate_tile<NQ, DIMS>(w, ld, pages, begin, end, H, dim, out, ahead);
  if constexpr (DIMS == 4)
    for (; dim + 2 * W <= dim_end; dim += 2 * W)
      accumulate_tile<NQ, 2>(w, ld, pages, begin, end, H, dim, out, ahead);
  for (; dim < dim_end; dim += W) accumulate_tile<NQ, 1>(w, ld, pages, begin, end, H, dim, out, ahead);
}

// page_out[key][dims] += sum over queries of w[q][key] * x[q][dims], for NK of the 16 keys of a page.
template <int NK, int NB>
inline void outer_tile(const float* w, int64_t ld, int64_t key, const float* const* x, int64_t num_queries, int64_t H,
                       int64_t dim, float* page_out) {
  vec acc[NK][NB];
  for (int a = 0; a < NK; ++a)
    for (int b = 0; b < NB; ++b) acc[a][b] = load(page_out + (key + a) * H + dim + b * W);
  for (int64_t q = 0; q < num_queries; ++q) {
    vec row[NB];
    for (int b = 0; b < NB; ++b) row[b] = load(x[q] + dim + b * W);
    for (int a = 0; a < NK; ++a) {
      const vec p = set1(w[q * ld + key + a]);
      for (int b = 0; b < NB; ++b) acc[a][b] = fma(p, row[b], acc[a][b]);
    }
  }
  for (int a = 0; a < NK; ++a)
    for (int b = 0; b < NB; ++b) store(page_out + (key + a) * H + dim + b * W, acc[a][b]);
}

inline void outer_page(const float* w, int64_t ld, const float* const* x, int64_t num_queries, int64_t H,
                       float* page_out) {
  constexpr int NK = DIMS;
  for (int64_t key = 0; key < S; key += NK) {
    int64_t dim = 0;
    for (; dim + DIMS * W <= H; dim += DIMS * W) outer_tile<NK, DIMS>(w, ld, key, x, num_queries, H, dim, page_out);
    for (; dim < H; dim += W) outer_tile<NK, 1>(w, ld, key, x, num_queries, H, dim, page_out);
  }
}

// clang-format off
#define ZG_BY_QUERIES(count, call)      \
  switch (count) {                      \
    case 1: call(1); break;             \
    case 2: call(2); break;             \
    case 3: call(3); break;             \
    case 4: call(4); break;             \
    case 5: call(5); break;             \
    default: call(6); break;            \
  }
// clang-format on

// Calls f(begin, count, ahead) for tiles of at most QUERIES queries, as equal as possible; each tile prefetches its
// part of the next pages.
template <class F>
inline void for_tiles(int64_t begin, int64_t end, const float* const* next, int64_t num_next, int64_t H, F f) {
  const int64_t n = end - begin, tiles = (n + QUERIES - 1) / QUERIES;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t first = num_next * i / tiles, b = n * i / tiles, e = n * (i + 1) / tiles;
    Ahead ahead;
    ahead.num = num_next * (i + 1) / tiles - first;
    std::copy_n(next + first, ahead.num, ahead.page);
    ahead.lines = ahead.num ? H : 0;
    f(begin + b, e - b, ahead);
  }
}

}  // namespace
}  // namespace zg
