// Attention over pages, and writing to them. A row's bits are the same in decode, chunked prefill and training: the
// micro-kernels of attention_tiles.h add the terms of a (query, key) pair in one order, whatever shares a load with it.
//
// Layout: k[P, K, H, 16], v[P, K, 16, H]; H is a multiple of 16.
#include <atomic>

#include "attention_block.h"
#include "pool.h"

using namespace zg;

namespace {

// Turns scores into exp(score - max); hidden keys and the rest of the last page become 0. Returns their sum, the mass.
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

struct Forward {
  Plan plan;
  const float *q, *kc, *vc;
  float *out, *lse;
  int64_t N, K, H, group;
  float scale;
  float* shared;              // scores and masses of split blocks
  std::atomic<int32_t>* done;  // per split block and head: finished score items, plus one after the softmax

  Pages keys(int64_t head) const { return {kc, K * H * S, head * H * S}; }
  Pages values(int64_t head) const { return {vc, K * H * S, head * H * S}; }

  void softmax(const Block& b, const Queries& queries, float* s, float* mass) const {
    const int64_t ld = score_stride(b);
    for (int64_t i = 0; i < queries.size(); ++i) {
      float peak;
      mass[i] = softmax_numerators(s + i * ld, queries.limit[i], &peak);
      if (lse) lse[queries.index[i]] = peak + float(std::log(double(mass[i])));
    }
  }

  void mix(const Block& b, const Queries& queries, const float* s, const float* mass, int64_t head, int64_t dim,
           int64_t dim_end, const StepPages& then) const {
    static thread_local std::vector<float*> o;
    o.clear();
    for (int64_t i = 0; i < queries.size(); ++i) {
      o.push_back(out + queries.index[i] * H);
      std::memset(o[i] + dim, 0, sizeof(float) * (dim_end - dim));
    }
    block_values(plan, b, queries, group, s, values(head), then, H, dim, dim_end, o.data());
    for (int64_t i = 0; i < queries.size(); ++i)
      for (int64_t x = dim; x < dim_end; x += W) store(o[i] + x, div(load(o[i] + x), set1(mass[i])));
  }

  // The pages that an item reads first.
  StepPages first_pages(int32_t i) const {
    if (i >= plan.header.num_items) return {};
    const Item& item = plan.items[i];
    const Block& b = plan.blocks[item.block];
    return StepPages(plan.steps[item.work == SCORES ? item.begin : b.step_begin],
                     item.work == VALUES ? values(item.head) : keys(item.head));
  }

  // Computes an item. Takes the next one from `queue` before its own last pages, to prefetch the next item's first.
  int32_t run(const Item& item, std::atomic<int32_t>& queue) const {
    static thread_local Queries queries;
    static thread_local Buffer buffer;
    const Block& b = plan.blocks[item.block];
    queries.fill(plan, b, q, item.head, group, N, H);
    const int64_t floats = score_floats(b, group);
    float* s = b.split < 0 ? buffer.floats(floats) : shared + b.shared_at + item.head * floats;
    float* mass = s + queries.size() * score_stride(b);
    const auto scores = [&](int64_t begin, int64_t end, const StepPages& then) {
      block_scores(plan, b, begin, end, queries.q.data(), group, keys(item.head), then, H, scale, s);
    };
    if (item.work == WHOLE) {
      scores(b.step_begin, b.step_end, StepPages(plan.steps[b.step_begin], values(item.head)));
      softmax(b, queries, s, mass);
      const int32_t next = queue.fetch_add(1);
      mix(b, queries, s, mass, item.head, 0, H, first_pages(next));
      return next;
    }
    std::atomic<int32_t>& finished = done[b.split * K + item.head];
    if (item.work == SCORES) {
      scores(item.begin, item.end, {});
      // The thread that finishes last sees the scores of all.
      if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 == b.pieces) {
        softmax(b, queries, s, mass);
        finished.fetch_add(1, std::memory_order_release);
      }
    } else {
      // Items are taken in order, so the scores are done or another thread is computing them.
      wait_until([&] { return finished.load(std::memory_order_acquire) > b.pieces; });
      mix(b, queries, s, mass, item.head, item.begin, item.end, {});
    }
    return queue.fetch_add(1);
  }
};

}  // namespace

extern "C" {

// Row row[i] (or i) to slot[i], unless that is -1. v and vc may be null.
void zg_write_kv(const float* k, const float* v, const int64_t* row, const int64_t* slot, int64_t n, float* kc,
                 float* vc, int64_t K, int64_t H) {
  const auto place = [&](int64_t i, int64_t h) { return (slot[i] / S * K + h) * H * S; };
  const auto write_row = [&](int64_t i) {
    if (slot[i] < 0) return;
    const int64_t r = row ? row[i] : i, offset = slot[i] % S;
    for (int64_t h = 0; h < K; ++h) {
      // A key touches one cache line per dim, and each must come from memory: prefetch those of the next row.
      if (i + 1 < n && slot[i + 1] >= 0 && slot[i + 1] / S != slot[i] / S)
        for (int64_t x = 0; x < H; ++x) __builtin_prefetch(kc + place(i + 1, h) + x * S, 1);
      const float* ks = k + (r * K + h) * H;
      float* kd = kc + place(i, h) + offset;
      for (int64_t x = 0; x < H; ++x) kd[x * S] = ks[x];
      if (v) std::memcpy(vc + place(i, h) + offset * H, v + (r * K + h) * H, sizeof(float) * H);
    }
  };
  // A piece is as long as a page, so that mostly one thread writes the lines of a page.
  for_rows(n, S, write_row);
}

// plan_data: from zg_attention_plan. lse: [T, N] or null. Sets out (and lse) of padding rows to 0.
void zg_paged_attention(const float* q, const float* kc, const float* vc, int32_t* plan_data, float* out, float* lse,
                        int64_t N, int64_t K, int64_t H, float scale) {
  static thread_local Buffer shared;
  static thread_local std::vector<std::atomic<int32_t>> done;
  const Plan plan(plan_data);
  if (int64_t(done.size()) < plan.header.num_split * K)
    done = std::vector<std::atomic<int32_t>>(plan.header.num_split * K);
  for (auto& count : done) count.store(0, std::memory_order_relaxed);
  const Forward forward{plan, q, kc, vc, out, lse, N, K, H, N / K, scale, shared.floats(plan.header.shared_floats),
                        done.data()};
  for (int64_t i = 0; i < plan.header.num_padding; ++i) {
    const int64_t t = plan.padding[i];
    std::memset(out + t * N * H, 0, sizeof(float) * N * H);
    if (lse) std::memset(lse + t * N, 0, sizeof(float) * N);
  }
  std::atomic<int32_t> queue{0};
  on_threads(std::min<int64_t>(num_threads(), plan.header.num_items), [&](int64_t) {
    for (int32_t i = queue.fetch_add(1); i < plan.header.num_items;) i = forward.run(plan.items[i], queue);
  });
}

}  // extern "C"
