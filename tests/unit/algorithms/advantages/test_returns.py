import math

import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from hypothesis import given
from hypothesis import strategies as st

from zerogap.algorithms import (
    AdvantageInputs,
    CriticAdvantage,
    ReturnAdvantage,
    gae_advantages,
    kl_penalties,
    normalized_over_tokens,
    returns_to_go,
    sample_sums,
    token_rewards,
)
from zerogap.errors import NumericsError

SAMPLES = 6


def batch(seed=0):
    """Samples with masked tokens at the front, in the middle and at the end; one sample is masked altogether."""
    rng = np.random.default_rng(seed)
    sample = np.repeat(np.arange(SAMPLES), rng.integers(2, 12, size=SAMPLES))
    mask = (rng.random(len(sample)) < 0.6) & (sample != 2)
    mask[0] = True
    rewards_S, values_S = rng.normal(size=(2, len(sample)))
    rewards_S[~mask], values_S[~mask] = np.nan, np.nan
    return rewards_S, values_S, mask, sample


def loop_gae(rewards, values, mask, sample, discount, gae_lambda):
    """By the definition: the sum over all later trainable tokens of the sample."""
    advantages = [0.0] * len(mask)
    for t in np.flatnonzero(mask):
        later = [u for u in range(t, len(mask)) if mask[u] and sample[u] == sample[t]]
        for steps, u in enumerate(later):
            following = later[steps + 1 : steps + 2]
            next_value = values[following[0]] if following else 0.0
            delta = rewards[u] + discount * next_value - values[u]
            advantages[t] += (discount * gae_lambda) ** steps * delta
    return np.array(advantages)


@pytest.mark.parametrize(
    ("discount", "gae_lambda"), [(1.0, 0.95), (0.9, 0.5), (0.99, 0.0), (1.0, 1.0)]
)
def test_gae_matches_the_loop(discount, gae_lambda):
    columns = batch()
    found = gae_advantages(*columns, discount=discount, gae_lambda=gae_lambda)
    expected = loop_gae(*columns, discount, gae_lambda)
    FLOAT64_SAME_OP.check(found, expected)
    wrong = loop_gae(*columns, discount, gae_lambda + 0.01)
    assert_notices("another lambda", lambda: FLOAT64_SAME_OP.check(found, wrong))


def test_environment_tokens_between_turns_change_nothing():
    rewards, values = np.array([0.0, 0.5, 0.0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4])
    alone = gae_advantages(
        rewards, values, np.ones(4, bool), np.zeros(4, int), discount=0.9, gae_lambda=0.8
    )
    places = np.array([1, 2, 6, 7])
    spread = np.full((2, 9), np.nan)
    spread[:, places] = rewards, values
    mask = np.isin(np.arange(9), places)
    found = gae_advantages(*spread, mask, np.zeros(9, int), discount=0.9, gae_lambda=0.8)
    EXACT.check(found[places], alone)
    assert not found[~mask].any()
    counted = gae_advantages(
        *np.nan_to_num(spread), np.ones(9, bool), np.zeros(9, int), discount=0.9, gae_lambda=0.8
    )
    assert_notices(
        "environment tokens discount",
        lambda: EXACT.check(counted[places], alone),
    )


def test_the_reward_stands_on_the_last_trainable_token():
    mask = np.array([False, True, True, False, False, False, True])
    sample = np.array([0, 0, 0, 0, 1, 2, 2])
    found = token_rewards(np.array([2.0, np.nan, 3.0]), mask, sample)
    EXACT.check(found, np.array([0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 3.0]))
    penalties = np.where(mask, 0.25, 0.0)
    EXACT.check(token_rewards(np.array([2.0, 0.0, 3.0]), mask, sample, penalties_S=penalties), found - penalties)  # fmt: skip
    EXACT.check(token_rewards(np.zeros(3), np.zeros(7, bool), sample), np.zeros(7))


def test_a_record_that_trains_without_a_reward_is_refused():
    with pytest.raises(NumericsError, match="sample 1 trains, but its reward is nan"):
        token_rewards(np.array([1.0, np.nan]), np.ones(2, bool), np.array([0, 1]))


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_returns_are_gae_without_a_critic(discount):
    rewards, _, mask, sample = batch(1)
    found = returns_to_go(rewards, mask, sample, discount=discount)
    FLOAT64_SAME_OP.check(
        found, loop_gae(rewards, np.zeros(len(mask)), mask, sample, discount, 1.0)
    )


def loop_normalized(values, mask):
    chosen = [v for v, m in zip(values, mask, strict=True) if m]
    mean = sum(chosen) / len(chosen)
    std = math.sqrt(sum((v - mean) ** 2 for v in chosen) / (len(chosen) - 1))
    return np.array([(v - mean) / std if m else 0.0 for v, m in zip(values, mask, strict=True)])


@pytest.mark.parametrize("baseline", [False, True])
def test_reinforce_pp_matches_the_loop(baseline):
    _, _, mask, sample = batch(2)
    rng = np.random.default_rng(2)
    rewards, log_probs, ref = rng.normal(size=SAMPLES), *-rng.exponential(size=(2, len(mask)))
    log_probs[~mask], ref[~mask] = np.nan, np.nan
    group_ids = ["a", "b", "a", "b", "a", "b"]
    penalties = kl_penalties(log_probs, ref, mask, kind="k1", coefficient=0.1)
    found = (
        ReturnAdvantage(baseline="group" if baseline else "none")
        .decide(
            AdvantageInputs(
                rewards_B=rewards,
                is_valid_B=np.bincount(sample, weights=mask) > 0,
                group_ids=group_ids,
                loss_mask_S=mask,
                sample_S=sample,
                penalties_S=penalties,
            )
        )
        .column_S
    )

    def loop(coefficient):
        returns = np.full(len(mask), np.nan)
        for t in np.flatnonzero(mask):
            later = [u for u in range(t, len(mask)) if mask[u] and sample[u] == sample[t]]
            peers = [r for r in range(SAMPLES) if group_ids[r] == group_ids[sample[t]] and r != 2]
            baseline_reward = sum(rewards[r] for r in peers) / len(peers) if baseline else 0.0
            kl = sum(log_probs[u] - ref[u] for u in later)
            returns[t] = rewards[sample[t]] - baseline_reward - coefficient * kl
        return np.where(mask, loop_normalized(returns, mask), np.nan)

    FLOAT64_SAME_OP.check(found, loop(0.1))
    assert_notices("another coefficient", lambda: FLOAT64_SAME_OP.check(found, loop(0.11)))


@pytest.mark.parametrize("value", [0.0, 0.1, 1e17, -3.3])
def test_equal_values_are_normalised_to_exactly_zero(value):
    for size in (1, 2, 3, 7, 1000):
        EXACT.check(normalized_over_tokens(np.full(size, value), np.ones(size, bool)), np.zeros(size))  # fmt: skip
    EXACT.check(normalized_over_tokens(np.full(2, np.nan), np.zeros(2, bool)), np.zeros(2))


def test_the_standard_deviation_survives_a_large_offset():
    found = normalized_over_tokens(np.array([1e8, 1e8 + 1, 1e8 + 2]), np.ones(3, bool))
    FLOAT64_SAME_OP.check(found, np.array([-1.0, 0.0, 1.0]))


@given(st.integers(0, 10_000))
def test_the_order_of_records_changes_no_bit(seed):
    rewards, values, mask, sample = batch(seed)
    order = np.random.default_rng(seed).permutation(SAMPLES)
    order = np.concatenate([np.flatnonzero(sample == r) for r in order])

    def compute(*columns):
        rewards, values, mask, sample = columns
        targets = gae_advantages(rewards, values, mask, sample, discount=0.99, gae_lambda=0.9)
        return targets, normalized_over_tokens(returns_to_go(rewards, mask, sample), mask)

    shuffled = compute(rewards[order], values[order], mask[order], sample[order])
    for found, whole in zip(shuffled, compute(rewards, values, mask, sample), strict=True):
        EXACT.check(found, whole[order])


def test_a_nan_that_counts_names_its_token():
    rewards, values, mask, sample = batch()
    values[np.flatnonzero(mask)[1]] = np.nan
    with pytest.raises(NumericsError, match="the value of slot"):
        gae_advantages(
            rewards, values, mask, sample, discount=1.0, gae_lambda=0.9, name_token=lambda s: f"slot {s}"
        )  # fmt: skip


def test_sample_sums_skip_what_is_masked():
    values = np.array([1.0, np.nan, 2.0, 4.0, np.nan])
    mask = np.array([True, False, True, True, False])
    sample = np.array([0, 0, 0, 2, 2])
    EXACT.check(
        sample_sums(values, mask, sample, num_samples=4), np.array([3.0, 0.0, 4.0, 0.0])
    )  # fmt: skip
    with pytest.raises(NumericsError, match="the log-prob of token 1 is nan"):
        sample_sums(values, np.ones(5, bool), sample, num_samples=4, what="log-prob")


def test_kl_penalties_are_the_estimate_without_gradient():
    log_probs, ref = np.array([-1.0, np.nan, -2.0]), np.array([-1.5, np.nan, -1.0])
    found = kl_penalties(
        log_probs, ref, np.array([True, False, True]), kind="k1", coefficient=0.5
    )  # fmt: skip
    EXACT.check(found, np.array([0.25, 0.0, -0.5]))


def critic_inputs(rewards, lengths, values_S):
    sample = np.repeat(np.arange(len(lengths)), lengths)
    return AdvantageInputs(
        rewards_B=np.array(rewards),
        is_valid_B=np.ones(len(rewards), bool),
        group_ids=["a"] * len(rewards),
        loss_mask_S=np.ones(len(sample), bool),
        sample_S=sample,
        values_S=values_S,
    )


@pytest.mark.parametrize("std", ["none", "batch"])
def test_a_critics_advantages_and_targets_have_lambdas_of_their_own(std):
    lengths = [4, 1, 6]
    values = np.random.default_rng(7).normal(size=11)
    inputs = critic_inputs([1.0, -2.0, 0.5], lengths, values)
    rewards = np.zeros(11)
    rewards[[3, 4, 10]] = 1.0, -2.0, 0.5
    found = CriticAdvantage(discount=0.9, gae_lambda=0.5, critic_lambda=0.8, std=std).decide(inputs)
    everything = np.ones(11, bool)

    def loop(gae_lambda):
        return loop_gae(rewards, values, everything, inputs.sample_S, 0.9, gae_lambda)

    policy = loop(0.5) if std == "none" else loop_normalized(loop(0.5), everything)
    FLOAT64_SAME_OP.check((found.column_S, found.returns_S), (policy, loop(0.8) + values))
    assert_notices(
        "one lambda for both", lambda: FLOAT64_SAME_OP.check(found.returns_S, loop(0.5) + values)
    )


@pytest.mark.parametrize(("length", "at_095"), [(50, 0.081), (200, 3.7e-5), (1000, 5.6e-23)])
def test_the_first_token_sees_a_reward_at_the_end_by_default(length, at_095):
    """With a critic that knows nothing yet; 0.95, the old default, hides the reward from long answers."""
    inputs = critic_inputs([1.0], [length], np.zeros(length))
    FLOAT64_SAME_OP.check(CriticAdvantage(std="none").decide(inputs).column_S, np.ones(length))
    old = CriticAdvantage(std="none", gae_lambda=0.95).decide(inputs).column_S
    assert abs(old[0] / at_095 - 1) < 0.02
    assert_notices("lambda 0.95", lambda: FLOAT64_SAME_OP.check(old, np.ones(length)))
