"""The work array of an attention plan, read back: blocks, steps and items of ``cpp/attention_plan.h``."""

from dataclasses import dataclass

import numpy as np
import torch

from zerogap.kernels import AttentionPlan
from zerogap.kernels.native import native

WHOLE, SCORES, VALUES = range(3)


@dataclass(frozen=True)
class Work:
    """Each array has a row per entry and a column per field of its C++ struct."""

    rows: np.ndarray
    """(row, limit)"""
    padding: np.ndarray
    blocks: np.ndarray
    """(row_begin, row_end, step_begin, step_end, num_pages, split, pieces, shared_at)"""
    steps: np.ndarray
    """(row_begin, row_end, first_page, num_pages, 4 pages, 4 turns)"""
    items: np.ndarray
    """(work, block, head, begin, end)"""

    def pages_seen(self) -> dict[int, list[int]]:
        """Pages in the order in which each row meets them."""
        seen: dict[int, list[int]] = {int(row): [] for row in self.rows[:, 0]}
        for block in self.blocks:
            for step in self.steps[block[2] : block[3]]:
                for row in self.rows[step[0] : step[1], 0]:
                    assert len(seen[row]) == step[2]
                    seen[row] += step[4 : 4 + step[3]].tolist()
        return seen

    def num_loads(self) -> int:
        """Pages that are brought in, once for each block that reads them."""
        return int(self.steps[:, 3].sum())

    def makespan(self, num_threads: int, *, head_dim: int) -> float:
        """Time until the last thread is done over that of an even split, if a page is as dear as its queries."""
        load = np.zeros(num_threads)
        for work, block, _head, begin, end in self.items:
            steps = self.steps[self.blocks[block][2] : self.blocks[block][3]]
            if work == SCORES:
                steps = self.steps[begin:end]
            share = {WHOLE: 1.0, SCORES: 0.5, VALUES: 0.5 * (end - begin) / head_dim}[int(work)]
            load[load.argmin()] += share * (steps[:, 3] * (steps[:, 1] - steps[:, 0])).sum()
        return float(load.max() / load.mean())


def read_work(
    plan: AttentionPlan,
    *,
    group: int,
    num_kv_heads: int,
    head_dim: int = 64,
    num_pages: int = 10**5,
) -> Work:
    """The work of a plan for the present number of threads."""
    array = native.attention_work(
        plan,
        num_rows=len(plan.row_position_T),
        num_pages=num_pages,
        num_heads=group * num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )
    return work_of(array)


def work_of(array: torch.Tensor) -> Work:
    """Views of a work array."""
    array = array.numpy()
    at, parts = 7, []
    for count, width in zip(array[:5], (2, 1, 8, 12, 5), strict=True):
        parts.append(array[at : at + count * width].reshape(count, width))
        at += count * width
    return Work(*parts)


def decode_plan(tables: list[list[int]], positions: list[int]) -> AttentionPlan:
    """One row a sequence."""
    table = np.full((len(tables), max(map(len, tables))), -7, np.int32)
    for b, pages in enumerate(tables):
        table[b, : len(pages)] = pages
    rows = torch.arange(len(tables), dtype=torch.int32)
    return AttentionPlan(torch.from_numpy(table), rows, torch.tensor(positions, dtype=torch.int32))
