// Row-wise kernels. float32 throughout; threads split the rows, never the reduction of a row.
#include <algorithm>
#include <vector>

#include "pool.h"
#include "vec.h"

using namespace zg;

namespace {

constexpr int64_t ROWS = 4;  // rows per piece of work; fewer are not worth another thread

// sum of a[i] * b[i] in 16 lanes, then a fixed tree; the tail goes through the same lanes, zero-filled.
float dot(const float* a, const float* b, int64_t n) {
  vec acc = set1(0.0f);
  int64_t i = 0;
  for (; i + W <= n; i += W) acc = fma(load(a + i), load(b + i), acc);
  if (i < n) acc = fma(load_partial(a + i, n - i, 0.0f), load_partial(b + i, n - i, 0.0f), acc);
  return sum_lanes(acc);
}

float inverse_rms(const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(dot(x, x, n) / float(n) + eps);
}

void normalise(const float* x, const float* w, float* y, int64_t n, float rstd) {
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] * rstd) * w[i];
}

void round_row(const float* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(y + i, to_bf16(load(x + i)));
  for (; i < n; ++i) y[i] = to_bf16(x[i]);
}

// dx of y = x * rstd * w, and dw += dy * x * rstd unless dw is null. dw sums over all rows (times heads) in double: its
// rounding must not depend on how rows were split into micro-batches.
void normalise_backward(const float* dy, const float* x, const float* w, float rstd, float* dx, double* dw,
                        int64_t n) {
  vec acc = set1(0.0f);
  int64_t i = 0;
  for (; i + W <= n; i += W) acc = fma(mul(load(dy + i), load(w + i)), load(x + i), acc);
  if (i < n)
    acc = fma(mul(load_partial(dy + i, n - i, 0.0f), load_partial(w + i, n - i, 0.0f)),
              load_partial(x + i, n - i, 0.0f), acc);
  const float mean = sum_lanes(acc) * rstd * rstd * rstd / float(n);
  if (dw)
    for (i = 0; i < n; ++i) dw[i] += double(dy[i] * (x[i] * rstd));
  for (i = 0; i < n; ++i) dx[i] = dy[i] * w[i] * rstd - x[i] * mean;
}

// sum[0..width) = the sum of what add(row, partial) adds for each of T rows: BLOCK rows per partial sum, partial sums
// in order, all in double. It does not depend on the threads. Without a sum, add(row, null) for each row.
template <class F>
void sum_of_rows(int64_t T, int64_t width, float* sum, F add) {
  if (sum == nullptr) return for_rows(T, ROWS, [&](int64_t t) { add(t, nullptr); });
  constexpr int64_t BLOCK = 64;
  static thread_local std::vector<double> storage;
  const int64_t blocks = (T + BLOCK - 1) / BLOCK;
  storage.resize(blocks * width);
  double* const partial = storage.data();
  for_rows(blocks, 1, [&](int64_t b) {
    std::fill_n(partial + b * width, width, 0.0);
    for (int64_t t = b * BLOCK; t < std::min(T, (b + 1) * BLOCK); ++t) add(t, partial + b * width);
  });
  for (int64_t i = 0; i < width; ++i) {
    double total = 0.0;
    for (int64_t b = 0; b < blocks; ++b) total += partial[b * width + i];
    sum[i] = float(total);
  }
}

float* head_storage(int64_t floats) {
  static thread_local Buffer buffer;
  return buffer.floats(floats);
}

// Rotates pairs (i, i + H/2) by the row's angles; sign = -1 rotates back (the backward).
void rotate(const float* x, const float* c, const float* s, float sign, float* y, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half], sine = sign * s[i];
    y[i] = a * c[i] - b * sine;
    y[i + half] = b * c[i] + a * sine;
  }
}

}  // namespace

extern "C" {

// y[t] = table[ids[t]]. Returns the number of ids outside [0, V); their rows become NaN.
int64_t zg_embedding(const int64_t* ids, const float* table, float* y, int64_t T, int64_t V, int64_t D) {
  int64_t outside = 0;
  for (int64_t t = 0; t < T; ++t) {
    float* row = y + t * D;
    if (ids[t] >= 0 && ids[t] < V) {
      std::memcpy(row, table + ids[t] * D, sizeof(float) * D);
      continue;
    }
    ++outside;
    for (int64_t d = 0; d < D; ++d) row[d] = std::numeric_limits<float>::quiet_NaN();
  }
  return outside;
}

// table[ids[t]] += x[t], rows in order.
void zg_embedding_backward(const int64_t* ids, const float* x, float* table, int64_t T, int64_t D) {
  // A piece is columns, not rows: an id may occur many times.
  for_pieces(D, 4 * W, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < T; ++t)
      for (int64_t d = begin; d < end; ++d) table[ids[t] * D + d] += x[t * D + d];
  });
}

// y[i] = x[i] to the nearest bf16; y may be x.
void zg_round_bf16(const float* x, float* y, int64_t n) {
  constexpr int64_t PART = 4 * 4096;
  for_pieces(n, PART, [&](int64_t begin, int64_t end) { round_row(x + begin, y + begin, end - begin); });
}

// rstd may be null. Here and below, bf16 rounds the result to the nearest bf16.
void zg_rms_norm(const float* x, const float* w, float* y, float* rstd, int64_t T, int64_t D, float eps,
                 int64_t bf16) {
  for_rows(T, ROWS, [&](int64_t t) {
    const float r = inverse_rms(x + t * D, D, eps);
    normalise(x + t * D, w, y + t * D, D, r);
    if (bf16) round_row(y + t * D, y + t * D, D);
    if (rstd) rstd[t] = r;
  });
}

// dw [D] or null: see sum_of_rows.
void zg_rms_norm_backward(const float* dy, const float* x, const float* w, const float* rstd, float* dx, float* dw,
                          int64_t T, int64_t D) {
  sum_of_rows(T, D, dw, [&](int64_t t, double* sum) {
    normalise_backward(dy + t * D, x + t * D, w, rstd[t], dx + t * D, sum, D);
  });
}

void zg_swiglu(const float* gate_up, float* y, int64_t T, int64_t F, int64_t bf16) {
  for_rows(T, ROWS, [&](int64_t t) {
    const float *g = gate_up + t * 2 * F, *u = g + F;
    float* out = y + t * F;
    for (int64_t i = 0; i < F; i += W) {
      const int n = F - i < W ? int(F - i) : W;
      vec gate = n == W ? load(g + i) : load_partial(g + i, n, 0.0f);
      vec up = n == W ? load(u + i) : load_partial(u + i, n, 0.0f);
      vec sigmoid_inv = add(set1(1.0f), exp(sub(set1(0.0f), gate)));
      vec r = mul(div(gate, sigmoid_inv), up);
      if (bf16) r = to_bf16(r);
      n == W ? store(out + i, r) : store_partial(out + i, r, n);
    }
  });
}

void zg_swiglu_backward(const float* dy, const float* gate_up, float* d_gate_up, int64_t T, int64_t F) {
  for_rows(T, ROWS, [&](int64_t t) {
    const float *g = gate_up + t * 2 * F, *u = g + F, *d = dy + t * F;
    float *dg = d_gate_up + t * 2 * F, *du = dg + F;
    for (int64_t i = 0; i < F; i += W) {
      const int n = F - i < W ? int(F - i) : W;
      const bool full = n == W;
      vec gate = full ? load(g + i) : load_partial(g + i, n, 0.0f);
      vec up = full ? load(u + i) : load_partial(u + i, n, 0.0f);
      vec grad = full ? load(d + i) : load_partial(d + i, n, 0.0f);
      vec one = set1(1.0f);
      vec sigmoid = div(one, add(one, exp(sub(set1(0.0f), gate))));
      vec silu = mul(gate, sigmoid);
      // d silu = sigmoid * (1 + gate * (1 - sigmoid))
      vec slope = mul(sigmoid, fma(gate, sub(one, sigmoid), one));
      vec out_g = mul(mul(grad, up), slope), out_u = mul(grad, silu);
      full ? store(dg + i, out_g) : store_partial(dg + i, out_g, n);
      full ? store(du + i, out_u) : store_partial(du + i, out_u, n);
    }
  });
}

// Scalar cosf and sinf: a vectorised one may round an angle differently depending on its place in the batch.
void zg_rope_tables(const float* inv_freq, const int64_t* position, float* cos, float* sin, int64_t T,
                    int64_t half) {
  for_rows(T, ROWS, [&](int64_t t) {
    for (int64_t i = 0; i < half; ++i) {
      const float angle = float(position[t]) * inv_freq[i];
      cos[t * half + i] = std::cos(angle);
      sin[t * half + i] = std::sin(angle);
    }
  });
}

// q_norm, k_norm may both be null.
void zg_qkv_rope(const float* qkv, const float* cos, const float* sin, const float* q_norm,
                 const float* k_norm, float* q, float* k, float* v, int64_t T, int64_t N, int64_t K,
                 int64_t H, float eps, int64_t bf16) {
  const int64_t E = (N + 2 * K) * H, half = H / 2;
  for_rows(T, ROWS, [&](int64_t t) {
    const float *row = qkv + t * E, *c = cos + t * half, *s = sin + t * half;
    for (int64_t h = 0; h < N + K; ++h) {
      const bool is_q = h < N;
      const float* x = row + h * H;
      const float* w = is_q ? q_norm : k_norm;
      if (w) {
        float* normed = head_storage(H);
        normalise(x, w, normed, H, inverse_rms(x, H, eps));
        x = normed;
      }
      float* y = is_q ? q + (t * N + h) * H : k + (t * K + h - N) * H;
      rotate(x, c, s, 1.0f, y, half);
      if (bf16) round_row(y, y, H);
    }
    const float* values = row + (N + K) * H;
    if (bf16)
      round_row(values, v + t * K * H, K * H);
    else
      std::memcpy(v + t * K * H, values, sizeof(float) * K * H);
  });
}

// qkv may be null without norms. dw [2, H] for q_norm and k_norm, or null: see sum_of_rows.
void zg_qkv_rope_backward(const float* dq, const float* dk, const float* dv, const float* qkv,
                          const float* cos, const float* sin, const float* q_norm, const float* k_norm,
                          float* dqkv, float* dw, int64_t T, int64_t N, int64_t K, int64_t H, float eps) {
  const int64_t E = (N + 2 * K) * H, half = H / 2;
  sum_of_rows(T, 2 * H, dw, [&](int64_t t, double* sum) {
    const float *c = cos + t * half, *s = sin + t * half;
    for (int64_t h = 0; h < N + K; ++h) {
      const bool is_q = h < N;
      const float* g = is_q ? dq + (t * N + h) * H : dk + (t * K + h - N) * H;
      const float* w = is_q ? q_norm : k_norm;
      float* out = dqkv + t * E + h * H;
      float* turned = w ? head_storage(H) : out;
      rotate(g, c, s, -1.0f, turned, half);
      if (w) {
        const float* x = qkv + t * E + h * H;
        normalise_backward(turned, x, w, inverse_rms(x, H, eps), out, sum ? sum + (is_q ? 0 : H) : nullptr, H);
      }
    }
    std::memcpy(dqkv + t * E + (N + K) * H, dv + t * K * H, sizeof(float) * K * H);
  });
}

}  // extern "C"
