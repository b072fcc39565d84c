// The three GEMMs of a linear layer, batch-invariant by construction (a BLAS has to be probed):
//   nt: y = x * w^T (+ bias) (+ residual)    the forward
//   nn: dx = dy * w                          gradient of the input
//   tn: dw += dy^T * x                       gradient of the weight
// Each output adds blocks of 256 terms: one accumulator per block, terms ascending, fused multiply-add, whatever the
// number of rows and the place of a row. The cutting into tiles and threads changes no bit.
//
// A panel of columns of the right-hand side is laid out once ([k][COLUMNS], in the core's second-level cache), and
// all rows of the left-hand side pass over it in tiles. Meanwhile the weights of the *next* panel are prefetched from
// memory: with 64 rows that is the difference between 150 and 190 GFLOP/s.
#include <algorithm>
#include <atomic>

#include "pool.h"
#include "transpose.h"
#include "vec.h"

using namespace zg;

namespace {

constexpr int64_t BLOCK = 256;  // a sum of short sums loses less precision than one long sum

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#define ZG_HAS_GEMM 1
#if defined(__AVX512F__)
constexpr int64_t ROWS = 8, VECS = 2;  // 16 accumulators, 2 columns and a row of 32 registers
#else
constexpr int64_t ROWS = 6, VECS = 1;  // 12 accumulators, 2 columns and a row of 16 registers
#endif
constexpr int64_t COLUMNS = VECS * W;
constexpr int64_t MOST = 8;  // rows of the largest tile that is compiled
constexpr int64_t FEW = 8;   // up to so many rows, reading the weight takes most of the time

// Inline assembly: GCC treats its own builtin as a barrier and then keeps the accumulators in memory.
inline void prefetch(const float* p) {
#if defined(__x86_64__) || defined(__i386__)
  asm volatile("prefetcht1 %0" ::"m"(*reinterpret_cast<const char(*)[64]>(p)));
#else
  __builtin_prefetch(p, 0, 2);
#endif
}

// The left-hand side: stored by rows, or by k for the GEMM with a transposed matrix.
struct Left {
  const float* data;
  int64_t ld;
};

// Prefetches the next panel's weights while this panel is multiplied; step 0 prefetches nothing new.
struct Ahead {
  const float* at;
  int64_t step;
};

// The weight [N, K] of the GEMM that is expected after this one, or null: each thread prefetches the panel that it will
// take first, during its last panel of this GEMM.
struct Next {
  const float* w;
  int64_t N, K;
  int64_t panels() const { return N / COLUMNS; }
  const float* panel(int64_t p) const { return p < panels() ? w + p * COLUMNS * K : nullptr; }
};

// The sums of a tile within a block of terms. Always inlined, so that they stay in registers.
template <int R>
using Sums = vec[R][VECS];

template <int R>
inline __attribute__((always_inline)) void clear(Sums<R>& acc) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < VECS; ++c) acc[r][c] = set1(0.0f);
}

// One term of every sum: row r's factor is x[r * ld], the columns' are b.
template <int R>
inline __attribute__((always_inline)) void add_term(Sums<R>& acc, const float* x, int64_t ld, const float* b) {
  vec column[VECS];
#pragma GCC unroll 2
  for (int c = 0; c < VECS; ++c) column[c] = load(b + c * W);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const vec s = set1(x[r * ld]);
#pragma GCC unroll 2
    for (int c = 0; c < VECS; ++c) acc[r][c] = fma(s, column[c], acc[r][c]);
  }
}

// Stores a finished block in total[R][COLUMNS], or adds it.
template <int R>
inline __attribute__((always_inline)) void add_block(const Sums<R>& acc, bool is_first, float* total) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < VECS; ++c) {
      float* t = total + r * COLUMNS + c * W;
      store(t, is_first ? acc[r][c] : add(load(t), acc[r][c]));
    }
}

// One tile: R rows of `a` by one panel, into total[R][COLUMNS].
template <int R, bool BY_K>
void multiply(Left a, const float* panel, int64_t K, Ahead& ahead, float* total) {
  if (K == 0) std::fill(total, total + R * COLUMNS, 0.0f);
  for (int64_t begin = 0; begin < K; begin += BLOCK) {
    const int64_t end = std::min(K, begin + BLOCK);
    vec acc[R][VECS];
    clear<R>(acc);
    const auto term = [&](int64_t k) __attribute__((always_inline)) {
      add_term<R>(acc, BY_K ? a.data + k * a.ld : a.data + k, BY_K ? 1 : a.ld, panel + k * COLUMNS);
    };
    int64_t k = begin;
    for (; k + 4 <= end; k += 4) {
      prefetch(ahead.at);
      ahead.at += ahead.step;
      term(k), term(k + 1), term(k + 2), term(k + 3);
    }
    for (; k < end; ++k) term(k);
    add_block<R>(acc, begin == 0, total);
  }
}

// What is added to a finished GEMM: a bias by column, then a residual by row (which may be the output itself; either
// may be null). Then the sum is rounded to bf16 if asked. Pointers are those of a tile's first column and row.
struct Extras {
  const float *bias, *residual;
  bool bf16 = false;
  Extras at(int64_t row, int64_t column, int64_t ld) const {
    return {bias ? bias + column : nullptr, residual ? residual + row * ld + column : nullptr, bf16};
  }
};

// y[r][c] = residual[r][c] + (total[r][c] + bias[c]), rounded if asked, for the first `columns` columns.
void finish(const float* total, int64_t rows, Extras extras, float* y, int64_t ld, int64_t columns) {
  const float *bias = extras.bias, *residual = extras.residual;
  for (int64_t r = 0; r < rows; ++r, total += COLUMNS, y += ld) {
    if (columns >= COLUMNS)
      for (int64_t c = 0; c < COLUMNS; c += W) {
        vec v = load(total + c);
        if (bias) v = add(v, load(bias + c));
        if (residual) v = add(load(residual + c), v);
        if (extras.bf16) v = to_bf16(v);
        store(y + c, v);
      }
    else
      for (int64_t c = 0; c < columns; ++c) {
        float v = total[c];
        if (bias) v = v + bias[c];
        if (residual) v = residual[c] + v;
        y[c] = extras.bf16 ? to_bf16(v) : v;
      }
    if (residual) residual += ld;
  }
}

template <bool BY_K>
void multiply_rows(int64_t rows, Left a, const float* panel, int64_t K, Ahead& ahead, float* total) {
  switch (rows) {
    case 1: return multiply<1, BY_K>(a, panel, K, ahead, total);
    case 2: return multiply<2, BY_K>(a, panel, K, ahead, total);
    case 3: return multiply<3, BY_K>(a, panel, K, ahead, total);
    case 4: return multiply<4, BY_K>(a, panel, K, ahead, total);
    case 5: return multiply<5, BY_K>(a, panel, K, ahead, total);
    case 6: return multiply<6, BY_K>(a, panel, K, ahead, total);
    case 7: return multiply<7, BY_K>(a, panel, K, ahead, total);
    default: return multiply<8, BY_K>(a, panel, K, ahead, total);
  }
}

// panel[k][c] = w[column + c][k]; columns at or past N are 0. Prefetches as much from `ahead` as it reads.
void pack_transposed(const float* w, int64_t N, int64_t K, int64_t column, Ahead ahead, float* panel) {
  for (int64_t c = 0; c < COLUMNS; c += W) {
    const int64_t valid = std::min<int64_t>(W, N - column - c);
    const float* rows = w + (column + c) * K;
    int64_t k = 0;
    if (valid == W)
      for (; k + W <= K; k += W) {
        for (int i = 0; i < W; ++i, ahead.at += ahead.step) prefetch(ahead.at);
        transpose_16(rows + k, K, panel + k * COLUMNS + c, COLUMNS);
      }
    for (; k < K; ++k)
      for (int64_t j = 0; j < W; ++j) panel[k * COLUMNS + c + j] = j < valid ? rows[j * K + k] : 0.0f;
  }
}

// panel[k][c] = b[k][column + c]; columns at or past N are 0.
void pack_plain(const float* b, int64_t N, int64_t K, int64_t column, float* panel) {
  const int64_t valid = std::min(COLUMNS, N - column);
  for (int64_t k = 0; k < K; ++k) {
    const float* row = b + k * N + column;
    float* out = panel + k * COLUMNS;
    if (valid == COLUMNS)
      for (int64_t c = 0; c < COLUMNS; c += W) store(out + c, load(row + c));
    else
      for (int64_t c = 0; c < COLUMNS; ++c) out[c] = c < valid ? row[c] : 0.0f;
  }
}

// Up to FEW rows against one panel: 16 terms are transposed into the first-level cache and used at once.
template <int R>
void multiply_few(const float* x, const float* w, int64_t K, Ahead ahead, float* total) {
  alignas(64) float part[W * COLUMNS];
  if (K == 0) std::fill(total, total + R * COLUMNS, 0.0f);
  for (int64_t begin = 0; begin < K; begin += BLOCK) {
    const int64_t end = std::min(K, begin + BLOCK);
    vec acc[R][VECS];
    clear<R>(acc);
    for (int64_t k = begin; k < end; k += W) {
      const int64_t terms = std::min<int64_t>(W, end - k);
      for (int64_t i = 0; i < COLUMNS; ++i, ahead.at += ahead.step) prefetch(ahead.at);
      if (terms == W)
        for (int64_t c = 0; c < COLUMNS; c += W) transpose_16(w + c * K + k, K, part + c, COLUMNS);
      else
        for (int64_t j = 0; j < terms; ++j)
          for (int64_t c = 0; c < COLUMNS; ++c) part[j * COLUMNS + c] = w[c * K + k + j];
      const auto term = [&](int64_t j) __attribute__((always_inline)) {
        add_term<R>(acc, x + k + j, K, part + j * COLUMNS);
      };
      if (terms == W) {
#pragma GCC unroll 16
        for (int64_t j = 0; j < W; ++j) term(j);
      } else {
        for (int64_t j = 0; j < terms; ++j) term(j);
      }
    }
    add_block<R>(acc, begin == 0, total);
  }
}

void multiply_few_rows(int64_t rows, const float* x, const float* w, int64_t K, Ahead ahead, float* total) {
  switch (rows) {
    case 1: return multiply_few<1>(x, w, K, ahead, total);
    case 2: return multiply_few<2>(x, w, K, ahead, total);
    case 3: return multiply_few<3>(x, w, K, ahead, total);
    case 4: return multiply_few<4>(x, w, K, ahead, total);
    case 5: return multiply_few<5>(x, w, K, ahead, total);
    case 6: return multiply_few<6>(x, w, K, ahead, total);
    case 7: return multiply_few<7>(x, w, K, ahead, total);
    default: return multiply_few<8>(x, w, K, ahead, total);
  }
}

float* panel_storage(int64_t floats) {
  static thread_local Buffer buffer;
  return buffer.floats(floats);
}

float* input_storage(int64_t floats) {
  static thread_local Buffer buffer;
  return buffer.floats(floats);
}

// Work items: panels, times parts of the rows if there are too few panels for the threads. A thread takes its next item
// before it computes the current one, to prefetch the next weights.
struct Items {
  int64_t panels, parts, M;
  std::atomic<int64_t> taken{0};
  Items(int64_t N, int64_t M) : panels((N + COLUMNS - 1) / COLUMNS), M(M) {
    const int64_t wanted = 4 * num_threads(), most = std::max<int64_t>(1, M / 64);
    parts = panels ? std::min(most, (wanted + panels - 1) / panels) : 1;
  }
  int64_t count() const { return panels * parts; }
  int64_t take() { return taken.fetch_add(1, std::memory_order_relaxed); }
  int64_t column(int64_t item) const { return item / parts * COLUMNS; }
  int64_t begin(int64_t item) const { return M * (item % parts) / parts; }
  int64_t end(int64_t item) const { return M * (item % parts + 1) / parts; }
};

// All rows of an item against its packed panel.
template <bool BY_K>
void multiply_item(const Items& items, int64_t item, Left a, const float* panel, int64_t K, const float* fetch,
                   Extras extras, float* y, int64_t N) {
  alignas(64) float total[MOST * COLUMNS];
  const int64_t column = items.column(item), begin = items.begin(item), end = items.end(item);
  const int64_t tiles = (end - begin + ROWS - 1) / ROWS;
  // One prefetch per 4 terms: 8 tiles prefetch a panel of COLUMNS rows once.
  Ahead ahead{fetch ? fetch : panel, fetch ? 16 : 0};
  for (int64_t i = 0, m = begin; i < tiles; ++i) {
    const int64_t rows = (end - m + tiles - i - 1) / (tiles - i);  // as even as possible
    if (i == 8 * COLUMNS / 32) ahead = {panel, 0};
    multiply_rows<BY_K>(rows, {a.data + m * (BY_K ? 1 : a.ld), a.ld}, panel, K, ahead, total);
    finish(total, rows, extras.at(m, column, N), y + m * N + column, N, N - column);
    m += rows;
  }
}

void few_rows(const float* x, const float* w, Extras extras, float* y, int64_t M, int64_t N, int64_t K, Next after) {
  const int64_t panels = N / COLUMNS, left = N % COLUMNS, count = panels + (left > 0);
  const int64_t threads = std::min(num_threads(), count);
  // Each thread reads one contiguous part of the weight.
  Shares shares(count, 1, threads);
  on_threads(threads, [&](int64_t t) {
    alignas(64) float total[MOST * COLUMNS];
    shares.work(t, [&](int64_t p, int64_t, int64_t end) {
      const int64_t column = p * COLUMNS;
      const float* panel = w + column * K;
      if (p < panels) {
        const float* fetch = p + 1 < std::min(end, panels) ? panel + COLUMNS * K : after.panel(after.panels() * t / threads);
        multiply_few_rows(M, x, panel, K, fetch ? Ahead{fetch, 16} : Ahead{panel, 0}, total);
      } else {
        float* packed = panel_storage(K * COLUMNS);
        pack_transposed(w, N, K, column, {w, 0}, packed);
        Ahead nothing{packed, 0};
        multiply_rows<false>(M, {x, K}, packed, K, nothing, total);
      }
      finish(total, M, extras.at(0, column, N), y + column, N, N - column);
    });
  });
}
#endif

}  // namespace

extern "C" {

void zg_rms_norm(const float* x, const float* w, float* y, float* rstd, int64_t T, int64_t D, float eps, int64_t bf16);
void zg_swiglu(const float* gate_up, float* y, int64_t T, int64_t F, int64_t bf16);

#ifdef ZG_HAS_GEMM
// x [M, K], w [N, K], bias [N] or null, residual [M, N] or null, y [M, N]; y may be the residual itself.
// bf16: y is rounded. next_w [next_N, next_K]: see Next.
void zg_gemm_nt(const float* x, const float* w, const float* bias, const float* residual, float* y, int64_t M,
                int64_t N, int64_t K, int64_t bf16, const float* next_w, int64_t next_N, int64_t next_K) {
  const Extras extras{bias, residual, bf16 != 0};
  const Next after{next_w, next_w ? next_N : 0, next_K};
  if (M == 0) return;
  if (M <= FEW) return few_rows(x, w, extras, y, M, N, K, after);
  Items items(N, M);
  on_threads(std::min(num_threads(), items.count()), [&](int64_t thread) {
    float* panel = panel_storage(K * COLUMNS);
    for (int64_t item = items.take(); item < items.count();) {
      const int64_t next = items.take(), column = items.column(item);
      // The last panel may be narrower than COLUMNS: nothing past the weight may be prefetched.
      const float* fetch = nullptr;
      if (next >= items.count())
        fetch = after.panel(thread);
      else if (items.column(next) + COLUMNS <= N)
        fetch = w + items.column(next) * K;
      const bool many = items.end(item) - items.begin(item) >= 8 * ROWS;
      pack_transposed(w, N, K, column, fetch && !many ? Ahead{fetch, 16} : Ahead{panel, 0}, panel);
      multiply_item<false>(items, item, {x, K}, panel, K, many ? fetch : nullptr, extras, y, N);
      item = next;
    }
  });
}

// y = rms_norm(x, norm) * w^T + bias, in one call of the same two kernels.
void zg_norm_gemm_nt(const float* x, const float* norm, const float* w, const float* bias, float* y, int64_t M,
                     int64_t N, int64_t K, float eps, int64_t bf16, const float* next_w, int64_t next_N,
                     int64_t next_K) {
  float* normed = input_storage(M * K);
  zg_rms_norm(x, norm, normed, nullptr, M, K, eps, bf16);
  zg_gemm_nt(normed, w, bias, nullptr, y, M, N, K, bf16, next_w, next_N, next_K);
}

// y = swiglu(gate_up [M, 2K]) * w^T + residual, in one call of the same two kernels.
void zg_swiglu_gemm_nt(const float* gate_up, const float* w, const float* residual, float* y, int64_t M, int64_t N,
                       int64_t K, int64_t bf16, const float* next_w, int64_t next_N, int64_t next_K) {
  float* active = input_storage(M * K);
  zg_swiglu(gate_up, active, M, K, bf16);
  zg_gemm_nt(active, w, nullptr, residual, y, M, N, K, bf16, next_w, next_N, next_K);
}

// Logits in chunks of `chunk` columns: y [ceil(N / chunk)][M][chunk], the last chunk packed to its own width.
void zg_head_nt(const float* x, const float* w, float* y, int64_t M, int64_t N, int64_t K, int64_t chunk) {
  for (int64_t begin = 0; begin < N; begin += chunk) {
    const int64_t end = std::min(begin + chunk, N);
    const float* next_w = end < N ? w + end * K : nullptr;
    zg_gemm_nt(x, w + begin * K, nullptr, nullptr, y + M * begin, M, end - begin, K, 0, next_w,
               std::min(chunk, N - end), K);
  }
}

// x [M, N], w [N, K], y [M, K]; adds to y, or replaces it.
void zg_gemm_nn(const float* x, const float* w, float* y, int64_t M, int64_t N, int64_t K, int64_t accumulate) {
  Items items(K, M);
  on_threads(std::min(num_threads(), items.count()), [&](int64_t) {
    float* panel = panel_storage(N * COLUMNS);
    for (int64_t item; (item = items.take()) < items.count();) {
      pack_plain(w, K, N, items.column(item), panel);
      multiply_item<false>(items, item, {x, N}, panel, N, nullptr, {nullptr, accumulate ? y : nullptr}, y, K);
    }
  });
}

// a [M, N], b [M, K], out [N, K] += a^T * b. panels: room for `b` laid out in panels, [K rounded up to
// zg_panel_columns()] * M floats.
//
// Both sides are laid out once: columns of a matrix whose width is a power of two share a few sets of the cache, and
// reading them in place would load them from memory again and again.
void zg_gemm_tn(const float* a, const float* b, float* panels, float* out, int64_t M, int64_t N, int64_t K) {
  constexpr int64_t PART = 4 * MOST;  // columns of `a` that one thread lays out for all panels
  const int64_t num_panels = (K + COLUMNS - 1) / COLUMNS, num_parts = (N + PART - 1) / PART;
  for_rows(num_panels, 1, [&](int64_t p) { pack_plain(b, K, M, p * COLUMNS, panels + p * M * COLUMNS); });
  for_rows(num_parts, 1, [&](int64_t i) {
    alignas(64) float total[MOST * COLUMNS];
    float* part = panel_storage(M * PART);
    const int64_t first = i * PART, width = std::min(PART, N - first);
    const int64_t tiles = (width + ROWS - 1) / ROWS;
    for (int64_t m = 0; m < M; ++m) std::memcpy(part + m * PART, a + m * N + first, sizeof(float) * width);
    for (int64_t p = 0; p < num_panels; ++p)
      for (int64_t t = 0, n = 0; t < tiles; ++t) {
        const int64_t rows = (width - n + tiles - t - 1) / (tiles - t);
        const float* panel = panels + p * M * COLUMNS;
        float* y = out + (first + n) * K + p * COLUMNS;
        Ahead nothing{panel, 0};
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < COLUMNS; c += W) prefetch(y + r * K + c);
        multiply_rows<true>(rows, {part + n, PART}, panel, M, nothing, total);
        finish(total, rows, {nullptr, y}, y, K, K - p * COLUMNS);
        n += rows;
      }
  });
}

int64_t zg_panel_columns() { return COLUMNS; }
#endif

}  // extern "C"
