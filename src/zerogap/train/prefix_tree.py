"""Samples of one group as a tree: a common prefix is one set of rows.

A branch is a path from the root to a leaf. In tree order, a branch shares at least as many rows with the one before it as
with any earlier one, so one number for each branch (``num_shared``) describes the whole tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Branch:
    """One path of rows."""

    members: tuple[int, ...]
    """Samples whose rows begin this path; the last sample has all rows of the path."""
    num_rows: int
    num_shared: int
    """Leading rows in common with the branch before it; fewer than ``num_rows``."""

    @property
    def num_own(self) -> int:
        """Rows that it adds to the branch before it."""
        return self.num_rows - self.num_shared

    def alone(self) -> "Branch":
        """The same path as the first branch of a tree."""
        return replace(self, num_shared=0)


def prefix_branches(rows: Sequence[np.ndarray], members: Sequence[int]) -> list[Branch]:
    """The tree of ``members``, in an order that depends only on their rows.

    Args:
        rows: int32 [L] a sample, contiguous: the ids of the rows that it needs, at least one.
        members: samples that may share rows, as indices of ``rows``.
    """
    # Any order of ids will do, as long as it is the same at every position: bytes sort fastest.
    ordered = sorted(members, key=lambda i: rows[i].tobytes())
    branches: list[Branch] = []
    waiting: list[int] = []
    shared = 0
    for i, following in zip(ordered, [*ordered[1:], None], strict=True):
        waiting.append(i)
        common = 0 if following is None else _num_common(rows[i], rows[following])
        if common == len(rows[i]):
            continue  # It has no row of its own: the next sample begins with all of its rows.
        branches.append(Branch(tuple(waiting), len(rows[i]), shared))
        waiting, shared = [], common
    return branches


def _num_common(a: np.ndarray, b: np.ndarray) -> int:
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    return int(differs.argmax()) if differs.any() else size
