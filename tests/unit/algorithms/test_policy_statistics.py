import math

import numpy as np
from helpers.planted_fault import assert_notices
from helpers.tolerance import FLOAT64_SAME_OP

from zerogap.algorithms import policy_statistics


def test_policy_statistics_match_the_loop():
    rng = np.random.default_rng(0)
    old, new, entropy = rng.normal(size=(3, 40)).astype(np.float32)
    is_clipped, mask = rng.random((2, 40)) < 0.5
    new[~mask] = np.nan

    def loop(tokens):
        log_ratios = [float(new[t]) - float(old[t]) for t in tokens]
        ratios = [math.exp(d) for d in log_ratios]
        return {
            "num_tokens": len(tokens),
            "ratio_mean": sum(ratios) / len(tokens),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "kl_to_old": sum(math.exp(d) - 1 - d for d in log_ratios) / len(tokens),
            "clip_fraction": sum(bool(is_clipped[t]) for t in tokens) / len(tokens),
            "entropy": sum(float(entropy[t]) for t in tokens) / len(tokens),
        }

    ours = vars(policy_statistics(new, old, entropy, is_clipped, mask))
    tokens = np.flatnonzero(mask)
    FLOAT64_SAME_OP.check(ours, loop(tokens))
    assert_notices("one token missing", lambda: FLOAT64_SAME_OP.check(ours, loop(tokens[:-1])))


def test_an_unchanged_policy_has_ratio_exactly_one():
    log_probs = np.array([-0.1, -3.0], np.float32)
    found = policy_statistics(
        log_probs, log_probs.copy(), np.zeros(2), np.zeros(2, bool), np.ones(2, bool)
    )
    assert (found.ratio_mean, found.ratio_min, found.ratio_max, found.kl_to_old) == (
        1.0,
        1.0,
        1.0,
        0.0,
    )
