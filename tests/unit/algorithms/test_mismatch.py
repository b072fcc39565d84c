import math

import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.tolerance import FLOAT64_SAME_OP

from zerogap.algorithms import gap_statistics
from zerogap.errors import DataError, NumericsError


def loop_statistics(old, rollout, mask):
    gaps = [float(o) - float(r) for o, r, m in zip(old, rollout, mask, strict=True) if m]
    return {
        "num_tokens": len(gaps),
        "mean": sum(abs(d) for d in gaps) / len(gaps),
        "max": max(abs(d) for d in gaps),
        "signed_mean": sum(gaps) / len(gaps),
        "k3": sum(math.exp(d) - 1 - d for d in gaps) / len(gaps),
    }


def test_gap_statistics_match_the_loop():
    rng = np.random.default_rng(0)
    rollout = -rng.exponential(size=50).astype(np.float32)
    old = rollout + rng.normal(scale=0.1, size=50).astype(np.float32)
    mask = rng.random(50) < 0.6
    rollout[~mask], old[~mask] = np.nan, np.nan
    ours = vars(gap_statistics(old, rollout, mask))
    FLOAT64_SAME_OP.check(ours, loop_statistics(old, rollout, mask))
    assert_notices(
        "sides exchanged",
        lambda: FLOAT64_SAME_OP.check(ours, loop_statistics(rollout, old, mask)),
    )


def test_equal_log_probs_have_a_gap_of_exactly_zero():
    log_probs = np.array([-0.1, -3.0], np.float32)
    gap = gap_statistics(log_probs, log_probs.copy(), np.ones(2, bool))
    assert (gap.mean, gap.max, gap.signed_mean, gap.k3) == (0.0, 0.0, 0.0, 0.0)


def test_no_tokens_is_no_statistic():
    with pytest.raises(DataError, match="mask of 2 tokens is empty"):
        gap_statistics(np.zeros(2), np.zeros(2), np.zeros(2, bool))


def test_a_missing_log_prob_that_counts_is_refused():
    # Case 29: null log-probs raise; they never zero the mask.
    with pytest.raises(NumericsError, match="not finite at token 2"):
        gap_statistics(np.zeros(3), np.array([0.0, 0.0, np.nan]), np.array([True, False, True]))
