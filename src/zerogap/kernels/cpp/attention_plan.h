// The work of one attention call, laid out once per forward pass and read by all of its layers.
//
// Rows are sorted so that rows which see the same pages are neighbours, and cut into blocks. Within a block the
// pages form a tree: shared pages at the root, each row's own at the leaves. A step is a few pages of one node with the
// rows that see them. Steps are in order of depth, so that every row reads its keys in ascending order. The blocks
// depend on the rows alone; only the order and the splitting of items depend on the number of threads.
//
// One int32 array: Header, then Row[num_rows], int32[num_padding], Block[num_blocks], Step[num_steps],
// Item[num_items].
#pragma once
#include <cstdint>

namespace zg {

constexpr int S = 16;         // slots per page
constexpr int STEP_PAGES = 4;  // pages per step: they fit in the first-level cache beside queries and scores

struct Header {
  int32_t num_rows, num_padding, num_blocks, num_steps, num_items;
  int32_t num_split;      // blocks whose work is split below (block, head)
  int32_t shared_floats;  // scores and masses of split blocks, of all heads
};

struct Row {
  int32_t row, limit;  // sees keys [0, limit)
};

struct Block {
  int32_t row_begin, row_end, step_begin, step_end;
  int32_t num_pages;  // of its longest row
  int32_t split;      // number among the split blocks, -1 if each head is one item
  int32_t pieces;     // score items per head, if split
  int32_t shared_at;  // float offset of its first head's scores, if split
};

struct Step {
  int32_t row_begin, row_end;  // of the plan's rows
  int32_t first_page, num_pages;
  int32_t page[STEP_PAGES];
  int32_t turn[STEP_PAGES];  // number of earlier steps, in order of blocks, that have the page
};

enum Work : int32_t { WHOLE, SCORES, VALUES };

struct Item {
  int32_t work, block, head;
  int32_t begin, end;  // SCORES: steps of the block; VALUES: dims
};

// Pointers to the parts of a plan.
struct Plan {
  Header header;
  Row* rows;
  int32_t* padding;
  Block* blocks;
  Step* steps;
  Item* items;

  Plan(int32_t* data, const Header& h) : header(h) {
    rows = reinterpret_cast<Row*>(data + sizeof(Header) / sizeof(int32_t));
    padding = reinterpret_cast<int32_t*>(rows + h.num_rows);
    blocks = reinterpret_cast<Block*>(padding + h.num_padding);
    steps = reinterpret_cast<Step*>(blocks + h.num_blocks);
    items = reinterpret_cast<Item*>(steps + h.num_steps);
  }
  explicit Plan(int32_t* data) : Plan(data, *reinterpret_cast<const Header*>(data)) {}
  const int32_t* end() const { return reinterpret_cast<const int32_t*>(items + header.num_items); }
};

// Floats between the scores of neighbouring queries. The extra vector keeps rows of 2^n keys out of one cache set.
inline int64_t score_stride(const Block& b) { return (int64_t(b.num_pages) + 1) * S; }

// Scores and masses of one head of a block, in floats.
inline int64_t score_floats(const Block& b, int64_t group) {
  const int64_t n = (b.row_end - b.row_begin) * group;
  return n * score_stride(b) + (n + S - 1) / S * S;
}

}  // namespace zg
