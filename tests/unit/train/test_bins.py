import itertools

import numpy as np
import pytest

from zerogap.train.bins import Bundle, cut, deal
from zerogap.train.prefix_tree import Branch


def bundle(num_rows: int) -> Bundle:
    return Bundle((Branch((0,), num_rows, 0),), 0)


def dealt(sizes, max_rows):
    return [[b.num_rows for b in bin_] for bin_ in deal([bundle(n) for n in sizes], max_rows)]


def tree(rng, num_branches: int) -> list[Branch]:
    rows = rng.integers(1, 30, num_branches)
    shared = [0, *(int(rng.integers(0, min(a, b))) for a, b in itertools.pairwise(rows))]
    return [Branch((i,), int(n), s) for i, (n, s) in enumerate(zip(rows, shared, strict=True))]


def rows_of_part(branches) -> int:
    return branches[0].num_rows + sum(branch.num_own for branch in branches[1:])


def fewest_rows(branches, max_rows) -> int:
    """Over all ways to cut."""
    best = []
    for bounds in itertools.product([False, True], repeat=len(branches) - 1):
        at = [0, *(i + 1 for i, is_cut in enumerate(bounds) if is_cut), len(branches)]
        parts = [branches[i:j] for i, j in itertools.pairwise(at)]
        if all(rows_of_part(part) <= max_rows or len(part) == 1 for part in parts):
            best.append(sum(map(rows_of_part, parts)))
    return min(best)


@pytest.mark.parametrize("seed", range(30))
def test_no_other_cut_has_fewer_rows(seed):
    rng = np.random.default_rng(seed)
    branches, max_rows = tree(rng, int(rng.integers(1, 9))), int(rng.integers(1, 90))
    bundles = cut(branches, max_rows)
    assert [b.members for part in bundles for b in part.branches] == [b.members for b in branches]
    assert all(part.branches[0].num_shared == 0 for part in bundles)
    assert all(part.num_rows <= max_rows or len(part.branches) == 1 for part in bundles)
    assert sum(part.num_rows for part in bundles) == fewest_rows(branches, max_rows)
    repeated = sum(part.num_rows for part in bundles) - rows_of_part(branches)
    assert sum(part.num_repeated for part in bundles) == repeated


def test_equal_costs_are_cut_evenly():
    siblings = [Branch((i,), 14, 10 if i else 0) for i in range(9)]
    parts = cut(siblings, 27)
    assert [len(part.branches) for part in parts] == [3, 3, 3]


def test_micro_batches_are_few_and_then_even():
    assert dealt([100] * 25, 1024) == [[100] * 9, [100] * 8, [100] * 8]
    assert dealt([604] * 8, 1024) == [[604]] * 8


def test_where_an_even_deal_would_overfill_best_fit_stays():
    # Largest first into the emptiest: 5 + 3 + 3 > 10.
    assert dealt([5, 5, 4, 3, 3], 10) == [[5, 5], [4, 3, 3]]


def test_what_is_longer_than_a_micro_batch_stands_alone():
    assert sorted(dealt([30, 4, 4, 4], 10)) == [[4], [4, 4], [30]]


def test_nothing_makes_no_micro_batch():
    assert deal([], 10) == []
