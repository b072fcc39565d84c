// Attention over pages. Three micro-kernels serve forward and backward:
//   scores:     q[h] * k[h][16 keys]         one accumulator of 16 keys a (query, page), h ascending
//   accumulate: w[j] * v[j][16 dims]         one accumulator of 16 dims a (query, dim block), j ascending
//   outer:      w[query][j] * x[query][dims] one accumulator a (key, dim block), queries ascending
// How many queries or pages share a load changes the speed and never a (query, key) pair's additions:
// a row's bits are the same in decode, chunked prefill and training.
//
// Layout: k[P, K, H, 16], v[P, K, 16, H]; H is a multiple of 16.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "vec.h"

using namespace zg;

namespace {

constexpr int S = 16;  // slots a page
#if defined(__AVX512F__)
// Queries that share a load: 2 pages x 6 or 4 dim blocks x 6 accumulators fit in 32 registers.
constexpr int QUERIES = 6;
#else
constexpr int QUERIES = 2;
#endif

struct Pages {
  const float* data;
  const int32_t* table;
  int64_t page_stride, head_offset;
  const float* operator[](int64_t i) const { return data + table[i] * page_stride + head_offset; }
};

// s[q][page * S + key] for NQ queries over NP neighbouring pages.
template <int NQ, int NP>
void score_tile(const float* const* q, const Pages& k, int64_t page, int64_t H, float scale, float* s,
                int64_t ld) {
  vec acc[NQ][NP];
  const float* kp[NP];
  for (int b = 0; b < NP; ++b) kp[b] = k[page + b];
  for (int a = 0; a < NQ; ++a)
    for (int b = 0; b < NP; ++b) acc[a][b] = set1(0.0f);
  for (int64_t h = 0; h < H; ++h) {
    vec key[NP];
    for (int b = 0; b < NP; ++b) key[b] = load(kp[b] + h * S);
    for (int a = 0; a < NQ; ++a) {
      const vec x = set1(q[a][h]);
      for (int b = 0; b < NP; ++b) acc[a][b] = fma(x, key[b], acc[a][b]);
    }
  }
  const vec f = set1(scale);
  for (int a = 0; a < NQ; ++a)
    for (int b = 0; b < NP; ++b) store(s + a * ld + (page + b) * S, mul(acc[a][b], f));
}

template <int NQ>
void score_rows(const float* const* q, const Pages& k, int64_t num_pages, int64_t H, float scale, float* s,
                int64_t ld) {
  constexpr int NP = NQ >= 4 ? 2 : 4;
  int64_t page = 0;
  for (; page + NP <= num_pages; page += NP) score_tile<NQ, NP>(q, k, page, H, scale, s, ld);
  for (; page < num_pages; ++page) score_tile<NQ, 1>(q, k, page, H, scale, s, ld);
}

// out[q][block of NB*16 dims] += sum over keys [begin, end) of w[q][j] * v[j].
template <int NQ, int NB>
void accumulate_tile(const float* w, int64_t ld, const Pages& v, int64_t begin, int64_t end, int64_t H,
                     int64_t dim, float* const* out) {
  vec acc[NQ][NB];
  for (int a = 0; a < NQ; ++a)
    for (int b = 0; b < NB; ++b) acc[a][b] = load(out[a] + dim + b * W);
  for (int64_t j = begin; j < end;) {
    const int64_t stop = std::min(end, (j / S + 1) * S);
    const float* row = v[j / S] + (j % S) * H + dim;
    for (; j < stop; ++j, row += H) {
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
void accumulate_rows(const float* w, int64_t ld, const Pages& v, int64_t begin, int64_t end, int64_t H,
                     float* const* out) {
  int64_t dim = 0;
  for (; dim + 4 * W <= H; dim += 4 * W) accumulate_tile<NQ, 4>(w, ld, v, begin, end, H, dim, out);
  for (; dim < H; dim += W) accumulate_tile<NQ, 1>(w, ld, v, begin, end, H, dim, out);
}

// page_out[key][dims] += sum over queries of w[q][key] * x[q][dims], for the 16 keys of one page.
template <int NK, int NB>
void outer_tile(const float* w, int64_t ld, int64_t key, const float* const* x, int64_t num_queries,
                int64_t H, int64_t dim, float* page_out) {
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

void outer_page(const float* w, int64_t ld, const float* const* x, int64_t num_queries, int64_t H,
                float* page_out) {
  for (int64_t key = 0; key < S; key += 4) {
    int64_t dim = 0;
    for (; dim + 4 * W <= H; dim += 4 * W) outer_tile<4, 4>(w, ld, key, x, num_queries, H, dim, page_out);
    for (; dim < H; dim += W) outer_tile<4, 1>(w, ld, key, x, num_queries, H, dim, page_out);
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

// Query vectors of one key/value head: neighbouring rows of one sequence times the heads of the group.
struct Block {
  std::vector<const float*> q;
  std::vector<int64_t> row, limit;  // limit: number of keys the query sees
  int64_t num_keys() const { return limit.back(); }
  int64_t num_pages() const { return (num_keys() + S - 1) / S; }
};

void all_scores(const Block& b, const float* const* q, const Pages& k, int64_t H, float scale, float* s,
                int64_t ld) {
  const int64_t n = b.q.size();
  for (int64_t i = 0; i < n; i += QUERIES) {
    const int64_t m = std::min<int64_t>(QUERIES, n - i);
    const int64_t pages = (b.limit[i + m - 1] + S - 1) / S;
#define ZG_CALL(NQ) score_rows<NQ>(q + i, k, pages, H, scale, s + i * ld, ld)
    ZG_BY_QUERIES(m, ZG_CALL)
#undef ZG_CALL
  }
}

// out += w * v for every query, each over its own keys only, ascending.
void all_accumulate(const Block& b, const float* w, int64_t ld, const Pages& v, int64_t H,
                    float* const* out) {
  const int64_t n = b.q.size();
  for (int64_t i = 0; i < n; i += QUERIES) {
    const int64_t m = std::min<int64_t>(QUERIES, n - i);
    const int64_t shared = b.limit[i];  // limits ascend within a block
#define ZG_CALL(NQ) accumulate_rows<NQ>(w + i * ld, ld, v, 0, shared, H, out + i)
    ZG_BY_QUERIES(m, ZG_CALL)
#undef ZG_CALL
    for (int64_t a = i; a < i + m; ++a)
      if (b.limit[a] > shared) accumulate_rows<1>(w + a * ld, ld, v, shared, b.limit[a], H, out + a);
  }
}

// Scores to exp(score - max); hidden keys and the rest of the last page become 0. Returns the mass.
float softmax_numerators(float* s, int64_t limit, float* peak_out) {
  const int64_t full = limit / S * S, end = (limit + S - 1) / S * S;
  if (full < end)
    for (int64_t j = limit; j < end; ++j) s[j] = NEG_INF;
  vec top = set1(NEG_INF);
  for (int64_t j = 0; j < end; j += W) top = vmax(top, load(s + j));
  const float peak = max_lanes(top);
  const vec p = set1(peak);
  vec mass = set1(0.0f);
  for (int64_t j = 0; j < end; j += W) {
    const vec e = zg::exp(sub(load(s + j), p));
    store(s + j, e);
    mass = add(mass, e);
  }
  *peak_out = peak;
  return sum_lanes(mass);
}

// Tasks: runs of rows with one sequence and ascending positions, at most `most` rows each.
std::vector<std::pair<int64_t, int64_t>> row_runs(const int32_t* seq, const int32_t* pos, int64_t T,
                                                  int64_t most) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (int64_t t = 0; t < T;) {
    if (pos[t] < 0) {
      ++t;
      continue;
    }
    int64_t e = t + 1;
    while (e < T && e - t < most && pos[e] > pos[e - 1] && seq[e] == seq[t]) ++e;
    runs.emplace_back(t, e);
    t = e;
  }
  return runs;
}

struct Shape {
  int64_t N, K, H, group;
};

void fill_block(Block& b, const float* q, const int32_t* pos, int64_t begin, int64_t end, int64_t head,
                const Shape& d) {
  b.q.clear(), b.row.clear(), b.limit.clear();
  for (int64_t t = begin; t < end; ++t)
    for (int64_t g = 0; g < d.group; ++g) {
      const int64_t r = t * d.N + head * d.group + g;
      b.q.push_back(q + r * d.H), b.row.push_back(r), b.limit.push_back(pos[t] + 1);
    }
}

int64_t padded(int64_t keys) { return (keys + S - 1) / S * S; }

}  // namespace

extern "C" {

void zg_write_kv(const float* k, const float* v, const int64_t* row, const int64_t* slot, int64_t n,
                 float* kc, float* vc, int64_t K, int64_t H) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    if (slot[i] < 0) continue;
    const int64_t r = row ? row[i] : i, page = slot[i] / S, offset = slot[i] % S;
    for (int64_t h = 0; h < K; ++h) {
      const float *ks = k + (r * K + h) * H, *vs = v + (r * K + h) * H;
      float *kd = kc + (page * K + h) * H * S + offset, *vd = vc + ((page * K + h) * S + offset) * H;
      for (int64_t x = 0; x < H; ++x) kd[x * S] = ks[x];
      std::memcpy(vd, vs, sizeof(float) * H);
    }
  }
}

// lse: [T, N] or null. out rows of padding (position < 0) are set to 0.
void zg_paged_attention(const float* q, const float* kc, const float* vc, const int32_t* table,
                        int64_t table_ld, const int32_t* seq, const int32_t* pos, float* out, float* lse,
                        int64_t T, int64_t N, int64_t K, int64_t H, float scale) {
  const Shape d{N, K, H, N / K};
  const auto runs = row_runs(seq, pos, T, 8);
  const int64_t page_stride = K * H * S;
#pragma omp parallel
  {
    std::vector<float> s;
    std::vector<float*> o;
    Block b;
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < int64_t(runs.size()) * K; ++task) {
      const auto [begin, end] = runs[task % runs.size()];
      const int64_t head = task / runs.size();
      fill_block(b, q, pos, begin, end, head, d);
      const int32_t* pages = table + seq[begin] * table_ld;
      const Pages kp{kc, pages, page_stride, head * H * S}, vp{vc, pages, page_stride, head * H * S};
      const int64_t ld = padded(b.num_keys()), n = b.q.size();
      if (int64_t(s.size()) < n * ld) s.resize(n * ld);
      all_scores(b, b.q.data(), kp, H, scale, s.data(), ld);
      std::vector<float> mass(n);
      o.clear();
      for (int64_t i = 0; i < n; ++i) {
        float peak;
        mass[i] = softmax_numerators(s.data() + i * ld, b.limit[i], &peak);
        if (lse) lse[b.row[i]] = peak + float(std::log(double(mass[i])));
        o.push_back(out + b.row[i] * H);
        std::memset(o[i], 0, sizeof(float) * H);
      }
      all_accumulate(b, s.data(), ld, vp, H, o.data());
      for (int64_t i = 0; i < n; ++i)
        for (int64_t x = 0; x < H; x += W) store(o[i] + x, div(load(o[i] + x), set1(mass[i])));
    }
#pragma omp for schedule(static)
    for (int64_t t = 0; t < T; ++t)
      if (pos[t] < 0) {
        std::memset(out + t * N * H, 0, sizeof(float) * N * H);
        if (lse)
          for (int64_t h = 0; h < N; ++h) lse[t * N + h] = 0.0f;
      }
  }
}

// Backward of packed training rows. Pages: k as [H][S] (kt) and as [S][H] (kr); v as [H][S] only (vt).
// dk_pages, dv_pages [P, K, S, H] are zeroed by the caller. component[b]: sequences that share pages have one
// number and are done by one thread, in order, so that no two threads add to a page.
// delta[t, n] = sum(grad_out * out).
void zg_packed_attention_backward(const float* grad_out, const float* q, const float* delta, const float* lse,
                                  const float* kt, const float* kr, const float* vt, const int32_t* table,
                                  int64_t table_ld, const int32_t* seq, const int32_t* pos,
                                  const int32_t* component, float* dq, float* dk_pages, float* dv_pages,
                                  int64_t T, int64_t N, int64_t K, int64_t H, float scale) {
  const Shape d{N, K, H, N / K};
  auto runs = row_runs(seq, pos, T, 8);
  std::stable_sort(runs.begin(), runs.end(), [&](const auto& a, const auto& b) {
    return component[seq[a.first]] < component[seq[b.first]];
  });
  std::vector<int64_t> starts;
  for (size_t i = 0; i < runs.size(); ++i)
    if (i == 0 || component[seq[runs[i].first]] != component[seq[runs[i - 1].first]]) starts.push_back(i);
  const int64_t num_components = starts.size();
  starts.push_back(runs.size());
  const int64_t page_stride = K * H * S;
#pragma omp parallel
  {
    std::vector<float> w, g;
    std::vector<float*> o;
    std::vector<const float*> dos;
    Block b;
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < num_components * K; ++task) {
      const int64_t c = task / K, head = task % K;
      for (int64_t run = starts[c]; run < starts[c + 1]; ++run) {
        const auto [begin, end] = runs[run];
        fill_block(b, q, pos, begin, end, head, d);
        const int32_t* pages = table + seq[begin] * table_ld;
        const int64_t offset = head * H * S, ld = padded(b.num_keys()), n = b.q.size();
        const Pages ktp{kt, pages, page_stride, offset}, krp{kr, pages, page_stride, offset},
            vtp{vt, pages, page_stride, offset};
        if (int64_t(w.size()) < n * ld) w.resize(n * ld), g.resize(n * ld);
        dos.clear(), o.clear();
        for (int64_t i = 0; i < n; ++i) {
          dos.push_back(grad_out + b.row[i] * H);
          o.push_back(dq + b.row[i] * H);
          std::memset(o[i], 0, sizeof(float) * H);
        }
        all_scores(b, b.q.data(), ktp, H, scale, w.data(), ld);
        all_scores(b, dos.data(), vtp, H, 1.0f, g.data(), ld);
        for (int64_t i = 0; i < n; ++i) {
          float *wi = w.data() + i * ld, *gi = g.data() + i * ld;
          const vec l = set1(lse[b.row[i]]), dl = set1(delta[b.row[i]]), f = set1(scale);
          for (int64_t j = b.limit[i]; j < ld; ++j) wi[j] = NEG_INF, gi[j] = 0.0f;
          for (int64_t j = 0; j < ld; j += W) {
            const vec p = zg::exp(sub(load(wi + j), l));
            store(wi + j, p);
            store(gi + j, mul(mul(p, sub(load(gi + j), dl)), f));
          }
        }
        all_accumulate(b, g.data(), ld, krp, H, o.data());
        for (int64_t page = 0; page < b.num_pages(); ++page) {
          const int64_t at = pages[page] * page_stride + offset;
          outer_page(w.data() + page * S, ld, dos.data(), n, H, dv_pages + at);
          outer_page(g.data() + page * S, ld, b.q.data(), n, H, dk_pages + at);
        }
      }
    }
  }
}

// drow[r] = sum of its slots' gradients, slots ascending. row ascends.
void zg_gather_slots(const float* pages, const int64_t* row, const int64_t* slot, int64_t n, float* drow,
                     int64_t K, int64_t H) {
#pragma omp parallel for schedule(static)
  for (int64_t h = 0; h < K; ++h)
    for (int64_t i = 0; i < n; ++i) {
      const float* src = pages + ((slot[i] / S * K + h) * S + slot[i] % S) * H;
      float* dst = drow + (row[i] * K + h) * H;
      for (int64_t x = 0; x < H; ++x) dst[x] += src[x];
    }
}

}  // extern "C"
