import math
from itertools import product
from typing import get_args

import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from hypothesis import given
from hypothesis import strategies as st

from zerogap.algorithms import AdvantageInputs, Algorithm, GroupAdvantage, group_advantages
from zerogap.algorithms.group_statistics import Divisor
from zerogap.errors import DataError, NumericsError

DIVISORS = get_args(Divisor)


def std_of(values):
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def loop_advantages(rewards, group_ids, is_valid, *, divisor="none", penalties=None):
    """The definition, one sample at a time; divisors are of the rewards without penalties."""
    penalties = [0.0] * len(rewards) if penalties is None else penalties
    kept = [j for j in range(len(rewards)) if is_valid[j]]

    def group_mean(i, values):
        mine = [values[j] for j in kept if group_ids[j] == group_ids[i]]
        return sum(mine) / len(mine)

    net = [r - p for r, p in zip(rewards, penalties, strict=True)]
    result = []
    for i in range(len(rewards)):
        if not is_valid[i]:
            result.append(math.nan)
            continue
        mine = [rewards[j] for j in kept if group_ids[j] == group_ids[i]]
        by = 1.0
        if divisor == "group_std" and len(mine) > 1:
            by = max(std_of(mine), 1e-6)
        elif divisor == "batch_std":
            by = std_of([rewards[j] for j in kept])
        elif divisor == "batch_advantage_std":
            by = std_of([rewards[j] - group_mean(j, rewards) for j in kept])
        elif divisor == "group_mean":
            by = group_mean(i, rewards) or math.inf
        result.append((net[i] - group_mean(i, net)) / by)
    return np.array(result)


@pytest.mark.parametrize("has_penalties", [False, True])
@pytest.mark.parametrize("divisor", DIVISORS)
def test_advantages_match_the_loop(divisor, has_penalties):
    rng = np.random.default_rng(0)
    rewards, is_valid = np.abs(rng.normal(size=40)), rng.random(40) < 0.8
    group_ids = [f"g{i}" for i in rng.integers(0, 6, size=40)]
    penalties = rng.normal(size=40) if has_penalties else None
    ours = group_advantages(
        rewards, group_ids, is_valid, divisor=divisor, penalties_B=penalties
    ).advantages

    def check(other, mask=is_valid, **options):
        expected = loop_advantages(rewards, group_ids, mask, divisor=other, **options)
        FLOAT64_SAME_OP.check(ours, np.where(is_valid, expected, np.nan))

    check(divisor, penalties=penalties)
    assert_notices(
        "invalid members moved the mean",
        lambda: check(divisor, np.ones(40, bool), penalties=penalties),
    )
    another = DIVISORS[DIVISORS.index(divisor) - 1]
    assert_notices("another divisor", lambda: check(another, penalties=penalties))
    if has_penalties:
        assert_notices("no penalties", lambda: check(divisor))


@pytest.mark.parametrize(
    ("preset", "divisor"),
    [
        ("grpo", "group_std"), ("dr_grpo", "none"), ("lite_ppo", "batch_std"), ("scalerl", "batch_advantage_std"),
        ("maxrl", "group_mean"), ("rloo", "none"),
    ],
)  # fmt: skip
def test_a_preset_has_the_papers_divisor_at_every_token(preset, divisor):
    rewards, ids = np.array([0.0, 1.0, 1.0, 0.0, 2.0, 5.0]), list("aabbcc")
    tables = {"loss": {"constant_denominator": 9}} if preset == "dr_grpo" else {}
    sample = np.repeat(np.arange(6), 3)
    found = Algorithm.preset(preset, **tables).advantage.decide(inputs_of(rewards, ids, sample))
    scale = 2.0 if preset == "rloo" else 1.0
    expected = scale * loop_advantages(rewards, ids, [True] * 6, divisor=divisor)
    FLOAT64_SAME_OP.check(found.column_S, expected[sample])
    assert found.groups.num_groups == 3


def inputs_of(rewards, group_ids, sample, penalties=None):
    return AdvantageInputs(
        rewards_B=rewards,
        is_valid_B=np.ones(len(rewards), bool),
        group_ids=group_ids,
        loss_mask_S=np.ones(len(sample), bool),
        sample_S=sample,
        penalties_S=penalties,
    )


@pytest.mark.parametrize("coefficient", [1e-2, 1e-4, 1e-6])
def test_a_kl_in_the_reward_keeps_its_coefficient_where_all_rewards_are_equal(coefficient):
    """The review's case: with the KL in the divisor, every coefficient gave (.36, -.36, 1.17, -1.17)."""
    kl = np.array([-0.36, 0.36, -1.17, 1.17])
    sample = np.repeat(np.arange(4), 2)
    penalties = np.repeat(coefficient * kl / 2, 2)
    found = GroupAdvantage(std="group").decide(
        inputs_of(np.full(4, 0.7), ["a"] * 4, sample, penalties)
    )
    FLOAT64_SAME_OP.check(found.column_S, np.repeat(-coefficient * kl, 2))
    assert found.groups.num_without_signal == 1
    net = 0.7 - coefficient * kl
    cancelled = (net - net.mean()) / np.std(net, ddof=1)
    assert cancelled.round(2).tolist() == [0.36, -0.36, 1.17, -1.17]
    assert_notices(
        "the KL in its own divisor",
        lambda: FLOAT64_SAME_OP.check(found.column_S, np.repeat(cancelled, 2)),
    )


@pytest.mark.parametrize("num_samples", [1, 2, 3, 5])
def test_maxrl_has_the_gradient_of_the_truncated_log_probability(num_samples):
    """Every outcome of N draws of a Bernoulli policy: grad J_(N-1), J_n = - sum over k <= n of (1 - p)^k / k.

    N - 1 and not N: the baseline is dropped where all draws fail, as published.
    """
    p = 0.3
    # d log p of a success and of a failure, by p.
    slopes = {1: 1 / p, 0: -1 / (1 - p)}
    expected = 0.0
    for draws in product((0, 1), repeat=num_samples):
        found = group_advantages(
            np.array(draws, float), ["a"] * num_samples, np.ones(num_samples, bool), divisor="group_mean"
        ).advantages  # fmt: skip
        chance = math.prod(p if d else 1 - p for d in draws)
        terms = zip(found, draws, strict=True)
        expected += chance * sum(a * slopes[d] for a, d in terms) / num_samples

    def truncated(order):
        return sum((1 - p) ** (k - 1) for k in range(1, order + 1))

    FLOAT64_SAME_OP.check(np.array(expected), np.array(float(truncated(num_samples - 1))))
    assert_notices(
        "the order N",
        lambda: FLOAT64_SAME_OP.check(np.array(expected), np.array(float(truncated(num_samples)))),
    )


def test_maxrl_of_failures_is_zero_and_of_negative_rewards_an_error():
    found = group_advantages(np.zeros(3), ["a"] * 3, np.ones(3, bool), divisor="group_mean")
    EXACT.check(found.advantages, np.zeros(3))
    with pytest.raises(NumericsError, match="rewards of 0 and above; choose another reward"):
        group_advantages(np.array([1.0, -1.0]), ["a", "a"], np.ones(2, bool), divisor="group_mean")


@pytest.mark.parametrize("order", ["grouped", "interleaved", "shuffled"])
def test_advantages_depend_only_on_the_group_id(order):
    # Case 20: 2 prompts x 4 samples in any order.
    rewards = np.array([0.0, 1.0, 1.0, 0.0, 5.0, 5.0, 5.0, 9.0])
    group_ids = np.array(["a"] * 4 + ["b"] * 4)
    arrange = {
        "grouped": np.arange(8),
        "interleaved": np.arange(8).reshape(2, 4).T.ravel(),
        "shuffled": np.random.default_rng(1).permutation(8),
    }[order]
    expected = np.array([-0.5, 0.5, 0.5, -0.5, -1.0, -1.0, -1.0, 3.0])[arrange]
    found = group_advantages(rewards[arrange], list(group_ids[arrange]), np.ones(8, bool))
    EXACT.check(found.advantages, expected)
    assert found.num_groups == 2
    assert not found.is_alone.any()
    by_place = [f"g{i // 4}" for i in range(8)]
    if order != "grouped":
        assert_notices(
            "groups by place in the list",
            lambda: EXACT.check(
                group_advantages(rewards[arrange], by_place, np.ones(8, bool)).advantages, expected
            ),
        )


def test_a_member_that_does_not_train_shifts_nobody():
    # Case 17: rewards [100, 1], the first without trainable tokens: the second is not at -49.5.
    found = group_advantages(np.array([100.0, 1.0]), ["a", "a"], np.array([False, True]))
    EXACT.check(found.advantages, np.array([np.nan, 0.0]))
    EXACT.check(found.is_alone, np.array([False, True]))
    assert (found.num_groups, found.num_alone, found.num_without_signal) == (1, 1, 0)


def test_the_reward_slot_of_an_invalid_member_may_hold_anything():
    rewards = np.array([np.nan, 2.0, 4.0, np.inf])
    found = group_advantages(rewards, ["a"] * 4, np.array([False, True, True, False]))
    EXACT.check(found.advantages, np.array([np.nan, -1.0, 1.0, np.nan]))


@pytest.mark.parametrize("divisor", DIVISORS)
@pytest.mark.parametrize("reward", [0.0, 0.1, 1e17, -3.3])
def test_an_all_equal_group_gives_exactly_zero(reward, divisor):
    if divisor == "group_mean" and reward < 0:
        return
    for size in range(1, 12):
        found = group_advantages(
            np.full(size, reward), ["a"] * size, np.ones(size, bool), divisor=divisor
        )
        EXACT.check(found.advantages, np.zeros(size))
        assert found.num_without_signal == (size > 1)


def test_the_floor_bounds_a_tiny_spread():
    rewards = np.array([0.1, np.nextafter(0.1, 1)])
    found = group_advantages(rewards, ["a", "a"], np.ones(2, bool), divisor="group_std")
    assert np.abs(found.advantages).max() < 1e-9


def test_the_standard_deviation_survives_a_large_offset():
    rewards = np.array([1e8, 1e8 + 1, 1e8 + 2])
    found = group_advantages(rewards, ["a"] * 3, np.ones(3, bool), divisor="group_std")
    FLOAT64_SAME_OP.check(found.advantages, np.array([-1.0, 0.0, 1.0]))


def test_an_unscored_valid_member_is_refused():
    with pytest.raises(NumericsError, match="group a has the rewards"):
        group_advantages(np.array([1.0, np.nan]), ["a", "a"], np.ones(2, bool))


def test_columns_of_different_length_are_refused():
    with pytest.raises(DataError, match="2 rewards, 1 group ids and 2 validity flags"):
        group_advantages(np.zeros(2), ["a"], np.ones(2, bool))


MEMBERS = st.lists(
    st.tuples(st.integers(-999, 999).map(lambda n: n / 7), st.sampled_from("abc"), st.booleans()),
    min_size=1,
    max_size=20,
)


@given(MEMBERS, st.sampled_from(DIVISORS[:4]), st.randoms(use_true_random=False))
def test_advantages_of_a_group_sum_to_zero_in_any_order(members, divisor, random):
    def compute(rows):
        rewards, group_ids, is_valid = zip(*rows, strict=True)
        return group_advantages(
            np.array(rewards), list(group_ids), np.array(is_valid), divisor=divisor
        ).advantages

    advantages = compute(members)
    for name in "abc":
        mine = [a for a, (_, g, ok) in zip(advantages, members, strict=True) if g == name and ok]
        assert abs(sum(mine)) <= 1e-9 * max(1.0, *map(abs, mine), 0.0)
    order = random.sample(range(len(members)), len(members))
    EXACT.check(compute([members[i] for i in order]), advantages[order])


def test_leave_one_out_matches_the_loop():
    rng = np.random.default_rng(3)
    rewards, is_valid = rng.normal(size=40), rng.random(40) < 0.8
    group_ids = [f"g{i}" for i in rng.integers(0, 6, size=40)]
    found = group_advantages(rewards, group_ids, is_valid, baseline="leave_one_out")

    def loop(is_member):
        result = np.full(40, np.nan)
        for i in np.flatnonzero(is_valid):
            others = [
                rewards[j] for j in range(40) if is_valid[j] and group_ids[j] == group_ids[i] and is_member(i, j)
            ]  # fmt: skip
            result[i] = rewards[i] - sum(others) / len(others) if others else 0.0
        return result

    FLOAT64_SAME_OP.check(found.advantages, loop(lambda i, j: i != j))
    with_own = loop(lambda i, j: True)
    assert_notices("the own reward in the baseline", lambda: FLOAT64_SAME_OP.check(found.advantages, with_own))  # fmt: skip


def test_leave_one_out_of_equal_or_single_rewards_is_exactly_zero():
    found = group_advantages(
        np.array([0.1, 0.1, 0.1, 7.0]), list("aaab"), np.ones(4, bool), baseline="leave_one_out"
    )
    EXACT.check(found.advantages, np.zeros(4))
    assert (found.num_alone, found.num_without_signal) == (1, 1)
