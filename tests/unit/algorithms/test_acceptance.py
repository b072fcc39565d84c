"""What an update costs the engine's policy: a plain float64 loop, and a tolerance that falls."""

import math

import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.tolerance import FLOAT64_SAME_OP

from zerogap.algorithms import Acceptance, AcceptanceConfig, inference_gain
from zerogap.errors import NumericsError

RNG = np.random.default_rng(0)
LENGTHS = (3, 1, 5, 2, 4, 6, 1)
GROUPS = ["a", "a", "a", "b", "b", "b", "b"]
REWARDS = np.array([1.0, 0.0, 0.5, 0.0, 1.0, 1.0, np.nan])
VALID = np.array([True] * 6 + [False])
SAMPLE = np.repeat(np.arange(7), LENGTHS)
MASK = np.arange(len(SAMPLE)) % 4 != 1
ROLLOUT = -RNG.random(len(SAMPLE)).astype(np.float32)
OLD = (ROLLOUT + RNG.normal(0, 0.3, len(SAMPLE))).astype(np.float32)


def loop(*, turned=False, summed=False, sign=-1.0, raw=False):
    """-mean of rho A over the valid samples, A the group's standard score: as the secondary reading has it."""
    terms = []
    for b in np.flatnonzero(VALID):
        members = [r for r, g, ok in zip(REWARDS, GROUPS, VALID, strict=True) if ok and g == GROUPS[b]]  # fmt: skip
        mean = sum(members) / len(members)
        std = math.sqrt(sum((r - mean) ** 2 for r in members) / (len(members) - 1))
        gap = [float(o) - float(q) for o, q, s, m in zip(OLD, ROLLOUT, SAMPLE, MASK, strict=True) if s == b and m]  # fmt: skip
        gap = [-x for x in gap] if turned else gap
        rho = math.exp(sum(gap) if summed else sum(gap) / len(gap))
        terms.append(rho * (REWARDS[b] - mean) / (1.0 if raw else std))
    return sign * sum(terms) / len(terms)


def found(old=OLD):
    return inference_gain(old, ROLLOUT, MASK, SAMPLE, REWARDS, GROUPS, VALID)


def test_it_is_that_of_a_plain_loop():
    FLOAT64_SAME_OP.check(found(), loop())
    assert abs(found()) > 1e-3
    for what, wrong in (
        ("the ratio turned round", {"turned": True}),
        ("a sum over the tokens", {"summed": True}),
        ("the other sign", {"sign": 1.0}),
        ("rewards that are not divided", {"raw": True}),
    ):
        assert_notices(what, lambda wrong=wrong: FLOAT64_SAME_OP.check(found(), loop(**wrong)))


def test_without_a_gap_it_is_exactly_0_and_every_update_stays():
    assert found(ROLLOUT) == 0.0
    assert Acceptance(found(ROLLOUT), 0.0).is_accepted


def test_equal_rewards_say_nothing():
    rewards = np.ones(7)
    assert inference_gain(OLD, ROLLOUT, MASK, SAMPLE, rewards, GROUPS, VALID) == 0.0


def test_masked_slots_may_hold_anything():
    old = np.where(MASK, OLD, np.nan).astype(np.float32)
    assert found(old) == found()


def test_a_cut_rollout_counts_once():
    """The last two samples of group b are one rollout."""
    rewards, valid = np.where(np.arange(7) == 6, REWARDS[5], REWARDS), VALID | True
    first_B = np.array([0, 1, 2, 3, 4, 5, 5])
    stands_B = first_B == np.arange(7)

    def check(given_S, valid_B):
        whole = np.minimum(SAMPLE, 5)
        expected = inference_gain(OLD, ROLLOUT, MASK, whole, rewards[:6], GROUPS[:6], VALID[:6])
        found = inference_gain(OLD, ROLLOUT, MASK, given_S, rewards, GROUPS, valid_B)
        FLOAT64_SAME_OP.check(found, expected)

    check(first_B[SAMPLE], stands_B)
    assert_notices("each sample counts", lambda: check(SAMPLE, valid))


def test_a_log_prob_that_is_not_finite_is_an_error_and_no_reason_to_undo():
    old = OLD.copy()
    old[np.flatnonzero(MASK)[2]] = np.nan
    with pytest.raises(NumericsError, match="gap"):
        found(old)


def test_a_loss_up_to_the_tolerance_is_accepted():
    assert Acceptance(-1e-3, 1e-3).is_accepted
    assert not Acceptance(-1.1e-3, 1e-3).is_accepted
    assert Acceptance(5.0, 0.0).is_accepted


def test_the_tolerance_falls_linearly_and_stays():
    config = AcceptanceConfig(tolerance=4e-3, final_tolerance=1e-3, decay_steps=10)
    assert [config.at(step) for step in (0, 5, 10, 99)] == pytest.approx([4e-3, 2.5e-3, 1e-3, 1e-3])
    with pytest.raises(ValueError, match="the tolerance falls; set final_tolerance to at most"):
        AcceptanceConfig(tolerance=1e-3, final_tolerance=1e-2)
