// Builds the plan of attention_plan.h: which rows form a block, over which pages, in which order.
#include "attention_plan.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

using namespace zg;

namespace {

// Loading a page from memory takes as long as multiplying it with this many queries.
constexpr int64_t QUERIES_A_LOAD = 10;
// Queries per block. More would save loads of shared pages; this many fill the register tiles, and their scores stay
// in cache.
constexpr int64_t BLOCK_QUERIES = 48;
constexpr int64_t BLOCK_FLOATS = 96 * 1024;
// A (block, head) that takes more than this share of a thread's work is split if the threads' loads are uneven.
constexpr double LARGE_SHARE = 0.125, UNEVEN = 1.04;

struct Shape {
  const int32_t* table;
  int64_t ld, group, K, dim_blocks, threads;
};

struct Builder {
  Shape shape;
  std::vector<Row> rows;
  std::vector<int32_t> sequence;  // of each row
  std::vector<int32_t> shared;    // leading pages that a row and the row before it have in common and both see
  std::vector<int32_t> padding;
  std::vector<Block> blocks;
  std::vector<int64_t> cost;  // of one head of each block
  std::vector<Step> steps;
  std::vector<Item> items;
  int64_t num_split = 0, shared_floats = 0;

  int64_t pages(int64_t i) const { return (rows[i].limit + S - 1) / S; }
  const int32_t* entries(int64_t i) const { return shape.table + int64_t(sequence[i]) * shape.ld; }

  // Sequences in lexicographic order of the pages they see, each one's rows by position.
  void sort_rows(const int32_t* seq, const int32_t* pos, int64_t T, int64_t B) {
    std::vector<int32_t> seen(B, 0), order;
    for (int64_t t = 0; t < T; ++t)
      if (pos[t] >= 0) {
        if (!seen[seq[t]]) order.push_back(seq[t]);
        seen[seq[t]] = std::max(seen[seq[t]], pos[t] / S + 1);
      }
    const auto table = [&](int32_t b) { return shape.table + b * shape.ld; };
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const auto [x, y] = std::mismatch(table(a), table(a) + std::min(seen[a], seen[b]), table(b));
      const int64_t common = x - table(a);
      if (common < std::min(seen[a], seen[b])) return *x < *y;
      return seen[a] != seen[b] ? seen[a] < seen[b] : a < b;
    });
    std::vector<int32_t> rank(B, 0);
    for (size_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
    std::vector<int32_t> index;
    for (int64_t t = 0; t < T; ++t) (pos[t] < 0 ? padding : index).push_back(t);
    std::stable_sort(index.begin(), index.end(), [&](int32_t a, int32_t b) {
      return rank[seq[a]] != rank[seq[b]] ? rank[seq[a]] < rank[seq[b]] : pos[a] < pos[b];
    });
    for (int32_t t : index) rows.push_back({t, pos[t] + 1}), sequence.push_back(seq[t]);
    shared.assign(rows.size(), 0);
    for (size_t i = 1; i < rows.size(); ++i) {
      const int64_t most = std::min(pages(i), pages(i - 1));
      shared[i] = sequence[i] == sequence[i - 1]
                      ? most
                      : std::mismatch(entries(i), entries(i) + most, entries(i - 1)).first - entries(i);
    }
  }

  // A block takes rows that share pages until it is full; then it ends where rows of its later half share least.
  void cut_blocks() {
    const int64_t n = rows.size();
    for (int64_t begin = 0; begin < n;) {
      int64_t end = begin + 1, longest = pages(begin);
      for (; end < n && shared[end]; ++end) {
        longest = std::max(longest, pages(end));
        const int64_t queries = (end + 1 - begin) * shape.group;
        if (queries > BLOCK_QUERIES || queries * (longest + 1) * S > BLOCK_FLOATS) break;
      }
      if (end < n && shared[end])
        for (int64_t cut = end, low = begin + (end - begin + 1) / 2; cut > low; --cut)
          if (shared[cut - 1] < shared[end]) end = cut - 1;
      add_block(begin, end);
      begin = end;
    }
  }

  void add_block(int64_t begin, int64_t end) {
    Block b{};
    b.row_begin = begin, b.row_end = end, b.step_begin = steps.size(), b.split = -1;
    for (int64_t i = begin; i < end; ++i) b.num_pages = std::max<int32_t>(b.num_pages, pages(i));
    add_steps(begin, end, 0);
    b.step_end = steps.size();
    int64_t total = 0;
    for (int64_t i = b.step_begin; i < b.step_end; ++i) total += step_cost(steps[i]);
    blocks.push_back(b), cost.push_back(total);
  }

  int64_t step_cost(const Step& s) const {
    return s.num_pages * std::max((s.row_end - s.row_begin) * shape.group, QUERIES_A_LOAD);
  }

  // Steps over the pages from `depth` on, of neighbouring rows that share all pages before it.
  void add_steps(int64_t begin, int64_t end, int64_t depth) {
    int64_t common = end - begin == 1 ? pages(begin) : pages(begin + 1);
    for (int64_t i = begin + 1; i < end; ++i) common = std::min<int64_t>(common, shared[i]);
    for (; depth < common; depth += STEP_PAGES) {
      Step s{};
      s.row_begin = begin, s.row_end = end, s.first_page = depth;
      s.num_pages = std::min<int64_t>(STEP_PAGES, common - depth);
      std::copy_n(entries(begin) + depth, s.num_pages, s.page);
      steps.push_back(s);
    }
    for (int64_t i = begin; end - begin > 1 && i < end;) {
      int64_t stop = i + 1;
      while (stop < end && shared[stop] > common) ++stop;
      if (pages(i) > common) add_steps(i, stop, common);
      i = stop;
    }
  }

  void longest_first() {
    std::vector<int32_t> order(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return cost[a] > cost[b]; });
    std::vector<Block> sorted;
    std::vector<int64_t> costs;
    for (int32_t b : order) sorted.push_back(blocks[b]), costs.push_back(cost[b]);
    blocks.swap(sorted), cost.swap(costs);
  }

  void number_turns(int64_t num_pages) {
    std::vector<int32_t> count(num_pages, 0);
    for (const Block& b : blocks)
      for (int64_t i = b.step_begin; i < b.step_end; ++i)
        for (int64_t p = 0; p < steps[i].num_pages; ++p) steps[i].turn[p] = count[steps[i].page[p]]++;
  }

  // The best number of equal parts to cut each of `count` tasks into, so that all threads end together.
  int64_t even_parts(int64_t count, int64_t most, bool divides) const {
    int64_t best = 1;
    double least = 1e30;
    for (int64_t p = 1; p <= most; ++p) {
      const double time = double((count * p + shape.threads - 1) / shape.threads) / p;
      if ((!divides || most % p == 0) && time < least - 1e-9) best = p, least = time;
    }
    return best;
  }

  bool is_uneven() const {
    std::vector<int64_t> load(shape.threads, 0);
    for (size_t b = 0; b < blocks.size(); ++b)
      for (int64_t k = 0; k < shape.K; ++k) *std::min_element(load.begin(), load.end()) += cost[b];
    const double total = std::accumulate(load.begin(), load.end(), 0.0);
    return *std::max_element(load.begin(), load.end()) > UNEVEN * total / shape.threads;
  }

  // Items in the order in which threads take them: values of split blocks come last, after their scores.
  void add_items() {
    if (shape.threads > 1 && is_uneven()) {
      const int64_t total = std::accumulate(cost.begin(), cost.end(), int64_t(0)) * shape.K;
      for (size_t i = 0; i < blocks.size(); ++i)
        if (cost[i] > LARGE_SHARE * total / shape.threads) blocks[i].split = num_split++;
    }
    for (size_t i = 0; i < blocks.size(); ++i)
      if (blocks[i].split >= 0) add_score_items(i);
    for (size_t i = 0; i < blocks.size(); ++i)
      for (int32_t k = 0; k < shape.K && blocks[i].split < 0; ++k)
        items.push_back({WHOLE, int32_t(i), k, 0, 0});
    const int64_t parts = even_parts(num_split * shape.K, shape.dim_blocks, true);
    const int32_t dims = shape.dim_blocks / parts * S;
    for (size_t i = 0; i < blocks.size(); ++i)
      for (int32_t k = 0; k < shape.K && blocks[i].split >= 0; ++k)
        for (int32_t p = 0; p < parts; ++p)
          items.push_back({VALUES, int32_t(i), k, p * dims, (p + 1) * dims});
  }

  void add_score_items(int32_t block) {
    Block& b = blocks[block];
    const int64_t num_steps = b.step_end - b.step_begin;
    b.pieces = even_parts(num_split * shape.K, std::min(num_steps, 2 * shape.threads), false);
    b.shared_at = shared_floats;
    shared_floats += score_floats(b, shape.group) * shape.K;
    for (int32_t k = 0; k < shape.K; ++k) {
      int64_t done = 0;
      int32_t begin = b.step_begin;
      for (int32_t i = b.step_begin, piece = 1; i < b.step_end; ++i) {
        done += step_cost(steps[i]);
        // Each piece gets at least one step.
        const bool is_last = piece == b.pieces, must_end = b.step_end - 1 - i == b.pieces - piece;
        if (i + 1 == b.step_end || (!is_last && (must_end || done * b.pieces >= cost[block] * piece))) {
          items.push_back({SCORES, block, k, begin, i + 1});
          begin = i + 1, ++piece;
        }
      }
    }
  }

  bool write(int32_t* out, int64_t capacity) const {
    const Header h{int32_t(rows.size()),  int32_t(padding.size()), int32_t(blocks.size()), int32_t(steps.size()),
                   int32_t(items.size()), int32_t(num_split),      int32_t(shared_floats)};
    const Plan plan(out, h);
    if (plan.end() - out > capacity) return false;
    std::memcpy(out, &h, sizeof h);
    std::copy(rows.begin(), rows.end(), plan.rows);
    std::copy(padding.begin(), padding.end(), plan.padding);
    std::copy(blocks.begin(), blocks.end(), plan.blocks);
    std::copy(steps.begin(), steps.end(), plan.steps);
    std::copy(items.begin(), items.end(), plan.items);
    return true;
  }
};

// The first row that reads a table entry or a page that does not exist; T if there is none.
int64_t first_bad_row(const Shape& d, const int32_t* seq, const int32_t* pos, int64_t T, int64_t B, int64_t num_pages) {
  std::vector<int64_t> checked(B, 0);
  for (int64_t t = 0; t < T; ++t) {
    if (pos[t] < 0) continue;
    if (seq[t] < 0 || seq[t] >= B || pos[t] / S >= d.ld) return t;
    for (int64_t& p = checked[seq[t]]; p <= pos[t] / S; ++p) {
      const int32_t page = d.table[seq[t] * d.ld + p];
      if (page < 0 || page >= num_pages) return t;
    }
  }
  return T;
}

}  // namespace

extern "C" {

// Returns -1, or the first row that reads a page that does not exist; -2 if the plan is larger than `capacity` int32.
int64_t zg_attention_plan(const int32_t* table, int64_t B, int64_t ld, const int32_t* seq, const int32_t* pos,
                          int64_t T, int64_t num_pages, int64_t group, int64_t K, int64_t H, int64_t threads,
                          int32_t* out, int64_t capacity) {
  const Shape shape{table, ld, group, K, H / S, threads};
  const int64_t bad = first_bad_row(shape, seq, pos, T, B, num_pages);
  if (bad < T) return bad;
  Builder b{};
  b.shape = shape;
  b.sort_rows(seq, pos, T, B);
  b.cut_blocks();
  b.longest_first();
  b.number_turns(num_pages);
  b.add_items();
  return b.write(out, capacity) ? -1 : -2;
}

}  // extern "C"
