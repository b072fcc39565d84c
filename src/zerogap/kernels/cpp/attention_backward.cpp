// Gradients of packed attention. Threads take (block, head) items as in the forward pass. A thread adds its block's
// gradients to a page's keys and values when it is the block's turn at the page, in the order of the plan. Results do
// not depend on the number of threads.
#include <atomic>

#include "attention_block.h"
#include "pool.h"

using namespace zg;

namespace {

struct Backward {
  Plan plan;
  const float *grad_out, *q, *out, *lse;
  const float *kt, *kr, *vt;  // keys as [H][S] and [S][H], values as [H][S]
  float *dq, *dk_pages, *dv_pages;
  int64_t N, K, H, group;
  float scale;
  std::atomic<int32_t>* turn;  // [P, K]: steps that have added to the page

  Pages pages(const float* data, int64_t head) const { return {data, K * H * S, head * H * S}; }

  float dot(const float* a, const float* b) const {
    vec sum = set1(0.0f);
    for (int64_t x = 0; x < H; x += W) sum = fma(load(a + x), load(b + x), sum);
    return sum_lanes(sum);
  }

  // Turns scores into softmax weights p, and gradients g of p into those of the scores: p * (g - delta) * scale.
  void weights(const Block& b, const Queries& queries, const float* const* dos, float* w, float* g) const {
    const int64_t ld = score_stride(b);
    for (int64_t i = 0; i < queries.size(); ++i) {
      float *wi = w + i * ld, *gi = g + i * ld;
      const int64_t r = queries.index[i], limit = queries.limit[i], end = (limit + S - 1) / S * S;
      const vec l = set1(lse[r]), delta = set1(dot(dos[i], out + r * H)), f = set1(scale);
      for (int64_t j = limit; j < end; ++j) wi[j] = NEG_INF, gi[j] = 0.0f;
      for (int64_t j = 0; j < end; j += W) {
        const vec p = zg::exp(sub(load(wi + j), l));
        store(wi + j, p);
        store(gi + j, mul(mul(p, sub(load(gi + j), delta)), f));
      }
    }
  }

  void run(const Block& b, int64_t head) const {
    static thread_local Queries queries;
    static thread_local Buffer buffer;
    static thread_local std::vector<const float*> dos;
    static thread_local std::vector<float*> o;
    queries.fill(plan, b, q, head, group, N, H);
    const int64_t n = queries.size(), ld = score_stride(b), floats = n * ld;
    float *w = buffer.floats(2 * floats), *g = w + floats;
    dos.clear(), o.clear();
    for (int64_t i = 0; i < n; ++i) {
      dos.push_back(grad_out + queries.index[i] * H);
      o.push_back(dq + queries.index[i] * H);
      std::memset(o[i], 0, sizeof(float) * H);
    }
    const auto* qs = queries.q.data();
    block_scores(plan, b, b.step_begin, b.step_end, qs, group, pages(kt, head), {}, H, scale, w);
    block_scores(plan, b, b.step_begin, b.step_end, dos.data(), group, pages(vt, head), {}, H, 1.0f, g);
    weights(b, queries, dos.data(), w, g);
    block_values(plan, b, queries, group, g, pages(kr, head), {}, H, 0, H, o.data());
    for (int64_t i = b.step_begin; i < b.step_end; ++i) {
      const Step& step = plan.steps[i];
      const int64_t first = (step.row_begin - b.row_begin) * group;
      const int64_t count = (step.row_end - step.row_begin) * group;
      for (int64_t p = 0; p < step.num_pages; ++p) {
        std::atomic<int32_t>& mine = turn[step.page[p] * K + head];
        wait_until([&] { return mine.load(std::memory_order_acquire) == step.turn[p]; });
        const int64_t at = (step.page[p] * K + head) * H * S, key = first * ld + (step.first_page + p) * S;
        outer_page(w + key, ld, dos.data() + first, count, H, dv_pages + at);
        outer_page(g + key, ld, qs + first, count, H, dk_pages + at);
        mine.store(step.turn[p] + 1, std::memory_order_release);
      }
    }
  }
};

}  // namespace

extern "C" {

// The caller zeroes dk_pages and dv_pages [P, K, S, H], and dq of padding rows.
void zg_packed_attention_backward(const float* grad_out, const float* q, const float* out, const float* lse,
                                  const float* kt, const float* kr, const float* vt, int32_t* plan_data,
                                  float* dq, float* dk_pages, float* dv_pages, int64_t P, int64_t N, int64_t K,
                                  int64_t H, float scale) {
  const Plan plan(plan_data);
  std::vector<std::atomic<int32_t>> turn(P * K);
  for (auto& t : turn) t.store(0, std::memory_order_relaxed);
  const Backward backward{plan, grad_out, q, out, lse, kt, kr, vt, dq, dk_pages, dv_pages, N, K, H, N / K, scale,
                          turn.data()};
  const int64_t num_items = plan.header.num_blocks * K;
  std::atomic<int64_t> next{0};
  on_threads(std::min(num_threads(), num_items), [&](int64_t) {
    for (int64_t i; (i = next.fetch_add(1)) < num_items;) backward.run(plan.blocks[i / K], i % K);
  });
}

// drow[r] = sum of the gradients of its slots, slots ascending. `row` is ascending.
void zg_gather_slots(const float* pages, const int64_t* row, const int64_t* slot, int64_t n, float* drow, int64_t K,
                     int64_t H) {
  // A piece begins and ends between two rows.
  const auto boundary = [&](int64_t i) {
    while (i > 0 && i < n && row[i] == row[i - 1]) ++i;
    return i;
  };
  for_pieces(n, S, [&](int64_t begin, int64_t end) {
    end = boundary(end);
    for (int64_t i = boundary(begin); i < end; ++i)
      for (int64_t h = 0; h < K; ++h) {
        const float* src = pages + ((slot[i] / S * K + h) * S + slot[i] % S) * H;
        float* dst = drow + (row[i] * K + h) * H;
        for (int64_t x = 0; x < H; ++x) dst[x] += src[x];
      }
  });
}

}  // extern "C"
