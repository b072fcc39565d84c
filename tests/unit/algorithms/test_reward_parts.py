"""GDPO: each reward is normalised within its group, then the weighted sum over the batch."""

import math

import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from hypothesis import given
from hypothesis import strategies as st

from zerogap.algorithms import combined_rewards, group_advantages
from zerogap.errors import DataError, NumericsError

WEIGHTS = {"correct": 1.0, "short": -0.3, "format": 0.5}
NORMALIZE = {"correct": "group", "short": "group", "format": "none"}


def batch(seed=0, size=60, num_groups=9):
    """Parts of different scale, with failed samples whose slots hold anything."""
    rng = np.random.default_rng(seed)
    is_valid = rng.random(size) < 0.8
    parts = {
        "correct": rng.integers(0, 2, size).astype(float),
        "short": 100 * rng.random(size),
        "format": rng.normal(size=size),
    }
    for part in parts.values():
        part[~is_valid] = np.nan
    return parts, [f"g{i}" for i in rng.integers(0, num_groups, size)], is_valid


def loop_combined(parts, weights, normalize, group_ids, is_valid, *, ddof=1):
    """Equations 4 and 5, one sample and one reward at a time."""
    result = []
    for i in range(len(group_ids)):
        total = 0.0 if is_valid[i] else math.nan
        for name, part in parts.items():
            mine = [
                float(part[j])
                for j in range(len(part))
                if is_valid[j] and group_ids[j] == group_ids[i]
            ]
            value = float(part[i])
            if normalize[name] == "group" and is_valid[i]:
                mean = sum(mine) / len(mine)
                spread = sum((r - mean) ** 2 for r in mine)
                value -= mean
                if len(mine) > 1 and spread > 0:
                    value /= max(math.sqrt(spread / (len(mine) - ddof)), 1e-6)
            total += weights[name] * value
        result.append(total)
    return np.array(result)


def loop_batch_normalized(advantages, is_valid, *, ddof=1):
    """Equation 6."""
    mine = [a for a, valid in zip(advantages, is_valid, strict=True) if valid]
    mean = sum(mine) / len(mine)
    std = math.sqrt(sum((a - mean) ** 2 for a in mine) / (len(mine) - ddof))
    return np.where(is_valid, (advantages - mean) / std, np.nan)


def test_combined_rewards_match_the_loop():
    parts, group_ids, is_valid = batch()
    ours = combined_rewards(parts, WEIGHTS, NORMALIZE, group_ids, is_valid)
    assert ours.dtype == np.float64
    FLOAT64_SAME_OP.check(ours, loop_combined(parts, WEIGHTS, NORMALIZE, group_ids, is_valid))
    faults = {
        "a weight": ({**WEIGHTS, "short": -0.3000001}, NORMALIZE, {}),
        "not normalised": (WEIGHTS, {**NORMALIZE, "short": "none"}, {}),
        "all normalised": (WEIGHTS, dict.fromkeys(NORMALIZE, "group"), {}),
        "population std": (WEIGHTS, NORMALIZE, {"ddof": 0}),
    }
    for what, (weights, normalize, options) in faults.items():
        other = loop_combined(parts, weights, normalize, group_ids, is_valid, **options)
        assert_notices(what, lambda other=other: FLOAT64_SAME_OP.check(ours, other))


def test_sum_then_normalize_is_another_thing():
    # The paper's example: with one reward right or both, GRPO's advantages are the same; GDPO's are not.
    one, both = np.array([0.0, 1.0]), np.array([0.0, 0.0])
    ids, valid = ["a", "a"], np.ones(2, bool)

    def gdpo(first, second):
        parts = {"first": first, "second": second}
        weights, normalize = dict.fromkeys(parts, 1.0), dict.fromkeys(parts, "group")
        return combined_rewards(parts, weights, normalize, ids, valid)

    def grpo(first, second):
        return group_advantages(first + second, ids, valid, divisor="group_std").advantages

    half = math.sqrt(0.5)
    FLOAT64_SAME_OP.check(gdpo(one, both), np.array([-half, half]))
    FLOAT64_SAME_OP.check(gdpo(one, one), np.array([-2 * half, 2 * half]))
    EXACT.check(grpo(one, both), grpo(one, one))


def test_equal_rewards_and_lone_members_give_exactly_zero():
    # 0.1 three times has a rounded mean that is not 0.1.
    parts = {"a": np.array([0.1, 0.1, 0.1, 7.0]), "b": np.array([0.7, 0.7, 0.7, np.inf])}
    weights, normalize = dict.fromkeys(parts, 3.0), dict.fromkeys(parts, "group")
    parts["b"][3] = 5.0
    found = combined_rewards(parts, weights, normalize, ["g", "g", "g", "alone"], np.ones(4, bool))
    EXACT.check(found, np.zeros(4))
    other = np.array([True, True, True, False])
    EXACT.check(
        combined_rewards(parts, weights, normalize, ["g", "g", "g", "g"], other),
        np.array([0.0, 0.0, 0.0, np.nan]),
    )


def test_raw_parts_are_the_weighted_sum():
    parts, group_ids, is_valid = batch()
    normalize = dict.fromkeys(parts, "none")
    found = combined_rewards(parts, WEIGHTS, normalize, group_ids, is_valid)
    for i in np.flatnonzero(is_valid):
        assert found[i] == math.fsum(WEIGHTS[name] * part[i] for name, part in parts.items())


@given(st.permutations(range(60)), st.permutations(list(WEIGHTS)))
def test_neither_the_order_of_samples_nor_of_parts_changes_a_bit(order, names):
    parts, group_ids, is_valid = batch()
    straight = combined_rewards(parts, WEIGHTS, NORMALIZE, group_ids, is_valid)
    turned = combined_rewards(
        {name: parts[name][order] for name in names},
        {name: WEIGHTS[name] for name in names},
        {name: NORMALIZE[name] for name in names},
        [group_ids[i] for i in order],
        is_valid[order],
    )
    EXACT.check(turned, straight[order])


def gdpo_advantages(combined, group_ids, is_valid):
    """Of the preset: std = "batch_advantage"."""
    return group_advantages(combined, group_ids, is_valid, divisor="batch_advantage_std").advantages


def test_gdpo_is_normalised_over_the_batch_and_keeps_silent_groups_at_exactly_zero():
    normalize = dict.fromkeys(WEIGHTS, "group")
    parts, group_ids, is_valid = batch()
    for part in parts.values():
        part[np.array(group_ids) == "g3"] = 0.1
    combined = combined_rewards(parts, WEIGHTS, normalize, group_ids, is_valid)
    found = gdpo_advantages(combined, group_ids, is_valid)
    is_flat = (np.array(group_ids) == "g3") & is_valid
    assert is_flat.sum() > 1
    assert (found[is_flat] == 0).all()
    expected = loop_batch_normalized(combined, is_valid)
    FLOAT64_SAME_OP.check(found, expected)
    assert_notices(
        "the rounding of the batch's mean is subtracted",
        lambda: EXACT.check(expected[is_flat], found[is_flat]),
    )
    assert_notices(
        "population std",
        lambda: FLOAT64_SAME_OP.check(found, loop_batch_normalized(combined, is_valid, ddof=0)),
    )


@pytest.mark.parametrize("equal", [[0.1, 0.1, 0.1], [5.0], []])
def test_a_batch_without_differences_is_zero(equal):
    kept = np.array([*equal, np.nan])
    is_valid = np.array([*[True] * len(equal), False])
    found = gdpo_advantages(kept, ["a"] * len(kept), is_valid)
    EXACT.check(found, np.array([*[0.0] * len(equal), np.nan]))


def test_what_does_not_fit_is_refused_with_its_name():
    two, valid = np.zeros(2), np.ones(2, bool)
    with pytest.raises(DataError, match="name the same ones"):
        combined_rewards({"a": two}, {"b": 1.0}, {"a": "none"}, ["g", "g"], valid)
    with pytest.raises(DataError, match="at least one"):
        combined_rewards({}, {}, {}, ["g", "g"], valid)
    with pytest.raises(DataError, match="2 values of reward 'a', 3 group ids"):
        combined_rewards({"a": two}, {"a": 1.0}, {"a": "none"}, ["g"] * 3, valid)
    bad = np.array([0.0, np.nan])
    for normalization in ("none", "group"):
        with pytest.raises(NumericsError, match="reward 'a' is not finite"):
            combined_rewards({"a": bad}, {"a": 1.0}, {"a": normalization}, ["g", "g"], valid)
    with pytest.raises(NumericsError, match="group g has the rewards"):
        gdpo_advantages(bad, ["g", "g"], valid)
