"""Which rows are computed together: trees are cut where it costs least, and the parts are dealt out evenly.

From a few hundred rows on, a micro-batch's time is proportional to its rows; its memory always is. So a group is cut only
if it has to be, and there are as few micro-batches as possible, of equal size rather than full.
"""

import heapq
import itertools
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.train.prefix_tree import Branch


@dataclass(frozen=True)
class Bundle:
    """Neighbouring branches of one group, computed together."""

    branches: tuple[Branch, ...]
    """The first one shares nothing: all of its rows are computed here."""
    num_repeated: int
    """Rows among these that another bundle of the group also computes."""

    @property
    def num_rows(self) -> int:
        """Rows of all branches, each shared row counted once."""
        return sum(branch.num_own for branch in self.branches)


def cut(branches: Sequence[Branch], max_rows: int) -> list[Bundle]:
    """Cut a group's tree into parts of at most ``max_rows``: fewest rows in total, then the most even sizes.

    A branch that is longer than that is a part of its own. Branches keep their order, so a part costs all rows of its
    first branch, and the rows that each other branch adds.
    """
    num_branches = len(branches)
    num_rows_N = np.array([branch.num_rows for branch in branches], np.float64)
    own_N = np.array([branch.num_own for branch in branches], np.float64)
    if num_rows_N[0] + own_N[1:].sum() <= max_rows:
        return [Bundle(tuple(branches), 0)]
    # rows(i, j) of the part [i, j) = first_N[i] + done_N[j]
    done_N = np.concatenate([[0.0], np.cumsum(own_N)])
    first_N = num_rows_N - done_N[1:]
    # Squares only break ties between cuts with equally many rows: together they weigh less than one row.
    evenness = 0.5 / (num_branches * max(max_rows, num_rows_N.max()) ** 2)
    cost_N, begin_N = np.zeros(num_branches + 1), np.zeros(num_branches + 1, np.int64)
    for j in range(1, num_branches + 1):
        rows_I = first_N[:j] + done_N[j]
        cost_I = cost_N[:j] + rows_I + evenness * rows_I**2
        cost_I[:-1][rows_I[:-1] > max_rows] = np.inf
        begin_N[j] = cost_I.argmin()
        cost_N[j] = cost_I[begin_N[j]]
    bounds = [num_branches]
    while bounds[-1]:
        bounds.append(int(begin_N[bounds[-1]]))
    bounds.reverse()
    return [
        Bundle((branches[i].alone(), *branches[i + 1 : j]), branches[i].num_shared)
        for i, j in itertools.pairwise(bounds)
    ]


def deal(bundles: Sequence[Bundle], max_rows: int) -> list[list[Bundle]]:
    """The bundles of each micro-batch: as many micro-batches as best fit needs, dealt the largest bundle first to be even.

    Ties keep the order of ``bundles``, so the result depends only on the input.
    """
    ordered = sorted(bundles, key=lambda bundle: -bundle.num_rows)
    fitted = _best_fit(ordered, max_rows)
    dealt = _even(ordered, len(fitted))
    # Even dealing may overfill a micro-batch where best fit fills one exactly.
    fits = (len(bin_) == 1 or sum(b.num_rows for b in bin_) <= max_rows for bin_ in dealt)
    return dealt if all(fits) else fitted


def _best_fit(ordered: Sequence[Bundle], max_rows: int) -> list[list[Bundle]]:
    """Put each bundle into the fullest bin that has room."""
    bins: list[list[Bundle]] = []
    room: list[tuple[int, int]] = []  # (free rows, bin), ascending
    for bundle in ordered:
        at = bisect_left(room, (bundle.num_rows, -1))
        if at == len(room):
            room.append((max_rows, len(bins)))
            bins.append([])
        free, bin_ = room.pop(at)
        bins[bin_].append(bundle)
        insort(room, (free - bundle.num_rows, bin_))
    return bins


def _even(ordered: Sequence[Bundle], num_bins: int) -> list[list[Bundle]]:
    """Put each bundle into the emptiest of ``num_bins`` bins."""
    bins: list[list[Bundle]] = [[] for _ in range(num_bins)]
    filled = [(0, b) for b in range(num_bins)]
    for bundle in ordered:
        num_rows, at = filled[0]
        bins[at].append(bundle)
        heapq.heapreplace(filled, (num_rows + bundle.num_rows, at))
    return bins
