"""Samples of one group as a tree: what any of them have in common from the start is one set of rows.

A branch is a path from the root to a leaf. In the order of the tree a branch shares with the one before it at least what it
shares with any earlier one, so one number a branch (``num_shared``) describes the whole tree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Branch:
    """One path of rows."""

    members: tuple[int, ...]
    """Samples whose rows are the first ones of this path; the last of them has all of them."""
    num_rows: int
    num_shared: int
    """Leading rows that it has in common with the branch before it; fewer than ``num_rows``."""

    @property
    def num_own(self) -> int:
        """Rows that are added to those of the branch before."""
        return self.num_rows - self.num_shared

    def alone(self) -> "Branch":
        """The same path as the first of a tree."""
        return replace(self, num_shared=0)


def prefix_branches(rows: Sequence[np.ndarray], members: Sequence[int]) -> list[Branch]:
    """The tree of ``members``, in an order that is a function of their rows.

    Args:
        rows: int32 [L] a sample, contiguous: the ids of the rows that it needs, at least one.
        members: samples that may share; places in ``rows``.
    """
    # Any order of ids will do, as long as it is the same at every position: bytes sort fastest.
    ordered = sorted(members, key=lambda i: rows[i].tobytes())
    branches: list[Branch] = []
    waiting: list[int] = []
    shared = 0
    for i, following, common in _neighbours(rows, ordered):
        waiting.append(i)
        if following is not None and common == len(rows[i]):
            continue  # Nothing of its own: the next sample begins with it.
        branches.append(Branch(tuple(waiting), len(rows[i]), shared))
        waiting, shared = [], common
    return branches


def _neighbours(
    rows: Sequence[np.ndarray], ordered: Sequence[int]
) -> Iterator[tuple[int, int | None, int]]:
    """Each sample with the next one and the number of leading rows that the two have in common."""
    for i, following in zip(ordered, [*ordered[1:], None], strict=True):
        yield i, following, 0 if following is None else _num_common(rows[i], rows[following])


def _num_common(a: np.ndarray, b: np.ndarray) -> int:
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    return int(differs.argmax()) if differs.any() else size
