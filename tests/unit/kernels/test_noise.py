import warnings

import numpy as np
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT

from zerogap.kernels import position_uniform

N = 20_000


def stream(seed, index=0, count=N):
    position = np.arange(count)
    return position_uniform(np.full(count, seed), np.full(count, index), position)


def check_uniform(sample):
    """Kolmogorov-Smirnov: the largest gap to the uniform distribution, at the 0.1 % level."""
    ordered, n = np.sort(sample), len(sample)
    rank = np.arange(n + 1) / n
    gap = max((rank[1:] - ordered).max(), (ordered - rank[:-1]).max())
    assert gap < 1.95 / np.sqrt(n), gap


def check_uncorrelated(a, b):
    """Pearson's r of independent samples has a standard deviation of 1 / sqrt(n)."""
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(len(a))


def test_the_numbers_of_a_run_never_change():
    seed, index, position = np.array([[0, 0, 0], [1, 0, 0], [-1, 3, 7], [2**63 - 1, 1, 500]]).T
    golden = np.array(
        [0.11260056966858045, 0.3607657276325963, 0.6770156323294564, 0.9692611776849925]
    )
    EXACT.check(position_uniform(seed, index, position), golden)


def test_numbers_lie_in_the_half_open_unit_interval():
    sample = stream(3)
    assert sample.dtype == np.float64
    assert (sample >= 0).all()
    assert (sample < 1).all()


def test_positions_siblings_and_seeds_are_each_uniform():
    zero, count = np.zeros(N, np.int64), np.arange(N)
    for arguments in ((zero, zero, count), (zero, count, zero), (count, zero, zero)):
        check_uniform(position_uniform(*arguments))
    assert_notices("a slight bend", lambda: check_uniform(stream(0) ** 1.05))


def test_distinct_streams_are_uncorrelated():
    base = stream(0)
    for other in (stream(1), stream(-1), stream(2**32), stream(0, index=1), stream(1, index=1)):
        check_uncorrelated(base, other)
    check_uncorrelated(base[1:], base[:-1])
    assert_notices("a shared tenth", lambda: check_uncorrelated(base, 0.9 * stream(1) + 0.1 * base))


def test_the_three_keys_are_not_interchangeable():
    keys = np.array([(a, b, c) for a in range(12) for b in range(12) for c in range(12)])
    assert len(np.unique(position_uniform(*keys.T))) == len(keys)


def test_a_draw_depends_on_its_own_key_only():
    seed, index, position = np.random.default_rng(0).integers(0, 2**40, (3, 50))
    alone = [
        position_uniform(seed[i : i + 1], index[i : i + 1], position[i : i + 1])[0]
        for i in range(50)
    ]
    EXACT.check(position_uniform(seed, index, position), np.array(alone))


def test_large_keys_warn_of_no_overflow():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert 0 <= position_uniform(*np.array([[2**62], [5], [2**62]])) < 1
