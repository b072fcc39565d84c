// One (block, head) of an attention call: its queries, and the walk over its steps.
#pragma once
#include <vector>

#include "attention_tiles.h"

namespace zg {
namespace {

// The pages of one layer: [P, K, x, y] with x * y = H * S.
struct Pages {
  const float* data;
  int64_t page_stride, head_offset;
  const float* operator[](int64_t page) const { return data + page * page_stride + head_offset; }
};

// Query vectors of one key/value head: rows of a block times the heads of the group.
struct Queries {
  std::vector<const float*> q;
  std::vector<int64_t> index;  // of the vector in [T, N]
  std::vector<int32_t> limit;  // number of keys it sees

  void fill(const Plan& plan, const Block& b, const float* data, int64_t head, int64_t group, int64_t N, int64_t H) {
    q.clear(), index.clear(), limit.clear();
    for (int64_t i = b.row_begin; i < b.row_end; ++i)
      for (int64_t g = 0; g < group; ++g) {
        const int64_t r = plan.rows[i].row * N + head * group + g;
        q.push_back(data + r * H), index.push_back(r), limit.push_back(plan.rows[i].limit);
      }
  }
  int64_t size() const { return q.size(); }
};

// Where the pages of a step are in one of the layouts.
struct StepPages {
  const float* at[STEP_PAGES];
  int64_t num = 0;
  StepPages() = default;
  StepPages(const Step& s, const Pages& pages) : num(s.num_pages) {
    for (int64_t p = 0; p < num; ++p) at[p] = pages[s.page[p]];
  }
};

// Calls f(step, its pages, the next step's pages) for steps [begin, end). `then`: the pages read after the last step.
template <class F>
inline void for_steps(const Plan& plan, int64_t begin, int64_t end, const Pages& pages, const StepPages& then, F f) {
  StepPages now(plan.steps[begin], pages);
  for (int64_t i = begin; i < end; ++i) {
    const StepPages next = i + 1 < end ? StepPages(plan.steps[i + 1], pages) : then;
    f(plan.steps[i], now, next);
    now = next;
  }
}

// s[query][key] = scale * q . k of steps [begin, end).
inline void block_scores(const Plan& plan, const Block& b, int64_t begin, int64_t end, const float* const* q,
                         int64_t group, const Pages& k, const StepPages& then, int64_t H, float scale, float* s) {
  const int64_t ld = score_stride(b);
  for_steps(plan, begin, end, k, then, [&](const Step& step, const StepPages& now, const StepPages& next) {
    const int64_t first = (step.row_begin - b.row_begin) * group, last = (step.row_end - b.row_begin) * group;
    for_tiles(first, last, next.at, next.num, H, [&](int64_t i, int64_t count, Ahead& ahead) {
      float* at = s + i * ld + step.first_page * S;
#define ZG_CALL(NQ) score_pages<NQ>(q + i, now.at, now.num, H, scale, at, ld, ahead)
      ZG_BY_QUERIES(count, ZG_CALL)
#undef ZG_CALL
    });
  });
}

// out[query][dims] += sum of w[query][key] * v[key] over the keys that each query sees, ascending.
inline void block_values(const Plan& plan, const Block& b, const Queries& queries, int64_t group, const float* w,
                         const Pages& v, const StepPages& then, int64_t H, int64_t dim, int64_t dim_end,
                         float* const* out) {
  const int64_t ld = score_stride(b);
  for_steps(plan, b.step_begin, b.step_end, v, then, [&](const Step& step, const StepPages& now, const StepPages& next) {
    const int64_t first = (step.row_begin - b.row_begin) * group, last = (step.row_end - b.row_begin) * group;
    const int64_t key = int64_t(step.first_page) * S, keys = now.num * S;
    for_tiles(first, last, next.at, next.num, H, [&](int64_t i, int64_t count, Ahead& ahead) {
      const float* at = w + i * ld + key;
      const int32_t* limit = queries.limit.data() + i;
      const int64_t shared = std::min<int64_t>(keys, *std::min_element(limit, limit + count) - key);
#define ZG_CALL(NQ) accumulate_dims<NQ>(at, ld, now.at, 0, shared, H, dim, dim_end, out + i, ahead)
      ZG_BY_QUERIES(count, ZG_CALL)
#undef ZG_CALL
      for (int64_t a = 0; a < count; ++a) {
        const int64_t own = std::min<int64_t>(keys, limit[a] - key);
        if (own > shared)
          accumulate_dims<1>(at + a * ld, ld, now.at, shared, own, H, dim, dim_end, out + i + a, ahead);
      }
    });
  });
}

}  // namespace
}  // namespace zg
