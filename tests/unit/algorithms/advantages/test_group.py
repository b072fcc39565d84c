import math

import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from hypothesis import given
from hypothesis import strategies as st

from zerogap.algorithms import group_advantages, leave_one_out_advantages
from zerogap.errors import DataError, NumericsError


def loop_advantages(rewards, group_ids, is_valid, *, std_floor=None):
    """The definition, one sample at a time."""
    result = []
    for i in range(len(rewards)):
        mine = [
            rewards[j] for j in range(len(rewards)) if is_valid[j] and group_ids[j] == group_ids[i]
        ]
        if not is_valid[i]:
            result.append(math.nan)
            continue
        mean = sum(mine) / len(mine)
        advantage = rewards[i] - mean
        if std_floor is not None and len(mine) > 1:
            variance = sum((r - mean) ** 2 for r in mine) / (len(mine) - 1)
            advantage /= max(math.sqrt(variance), std_floor)
        result.append(advantage)
    return np.array(result)


@pytest.mark.parametrize("normalize_std", [False, True])
def test_advantages_match_the_loop(normalize_std):
    rng = np.random.default_rng(0)
    rewards, is_valid = rng.normal(size=40), rng.random(40) < 0.8
    group_ids = [f"g{i}" for i in rng.integers(0, 6, size=40)]
    ours = group_advantages(rewards, group_ids, is_valid, normalize_std=normalize_std).advantages
    floor = 1e-6 if normalize_std else None
    FLOAT64_SAME_OP.check(ours, loop_advantages(rewards, group_ids, is_valid, std_floor=floor))
    everyone = loop_advantages(rewards, group_ids, np.ones(40, bool), std_floor=floor)
    assert_notices(
        "invalid members moved the mean",
        lambda: FLOAT64_SAME_OP.check(ours, np.where(is_valid, everyone, np.nan)),
    )


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


@pytest.mark.parametrize("normalize_std", [False, True])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1e17, -3.3])
def test_an_all_equal_group_gives_exactly_zero(reward, normalize_std):
    for size in range(1, 12):
        found = group_advantages(
            np.full(size, reward), ["a"] * size, np.ones(size, bool), normalize_std=normalize_std
        )
        EXACT.check(found.advantages, np.zeros(size))
        assert found.num_without_signal == (size > 1)


def test_the_floor_bounds_a_tiny_spread():
    rewards = np.array([0.1, np.nextafter(0.1, 1)])
    found = group_advantages(rewards, ["a", "a"], np.ones(2, bool), normalize_std=True)
    assert np.abs(found.advantages).max() < 1e-9


def test_the_standard_deviation_survives_a_large_offset():
    rewards = np.array([1e8, 1e8 + 1, 1e8 + 2])
    found = group_advantages(rewards, ["a"] * 3, np.ones(3, bool), normalize_std=True)
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


@given(MEMBERS, st.booleans(), st.randoms(use_true_random=False))
def test_advantages_of_a_group_sum_to_zero_in_any_order(members, normalize_std, random):
    def compute(rows):
        rewards, group_ids, is_valid = zip(*rows, strict=True)
        return group_advantages(
            np.array(rewards), list(group_ids), np.array(is_valid), normalize_std=normalize_std
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
    found = leave_one_out_advantages(rewards, group_ids, is_valid)

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
    found = leave_one_out_advantages(np.array([0.1, 0.1, 0.1, 7.0]), list("aaab"), np.ones(4, bool))
    EXACT.check(found.advantages, np.zeros(4))
    assert (found.num_alone, found.num_without_signal) == (1, 1)
