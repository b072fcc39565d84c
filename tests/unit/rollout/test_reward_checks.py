"""Nothing that a reward function returns or raises ends a step, and no number passes that cannot train."""

import pickle
from fractions import Fraction

import numpy as np
import pytest

from zerogap.errors import RewardFailed
from zerogap.rollout import RewardResult
from zerogap.rollout.reward_checks import (
    MAX_REWARD,
    checked_result,
    group_results_or_failures,
    result_or_failure,
)


class Unreadable:
    def __repr__(self):
        raise RuntimeError


class Unpicklable(RewardFailed):
    def __init__(self, text):
        super().__init__(text)
        self.held = lambda: None


def failure_of(returned):
    (failure,) = group_results_or_failures(lambda: [returned], 1)
    assert isinstance(failure, RewardFailed)
    text = str(pickle.loads(pickle.dumps(failure)))
    text.encode()
    assert len(text) < 3000
    return text


@pytest.mark.parametrize("good", [1e-300, -1e9, 1e9, Fraction(1, 3), np.bool_(True), np.array(0.5)])
def test_any_real_scalar_that_can_train_is_a_reward(good):
    assert checked_result(good).value == float(good)


@pytest.mark.parametrize("huge", [1e308, -1e308, 1e200, 1e20, 10**400, Fraction(10**400), np.float32(3e38)])  # fmt: skip
def test_a_number_that_is_too_large_to_train_on_is_refused(huge):
    assert "too large to train on" in failure_of(huge)
    assert "too large to train on" in failure_of(RewardResult(1.0, {"length": huge}))


def test_the_largest_reward_still_has_a_square_in_fp32():
    assert np.isfinite(np.float32(MAX_REWARD) ** 2 * np.float32(1e12))
    assert 1e20**2 > 3.5e38  # the largest fp32 is smaller


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Unreadable(), "a Unreadable, which is not a finite number"),
        ("x" * 10**6, "x ..."),
        ("\ud83d", "\\ud83d"),
        ({"score": 1.0}, "return a float, or a RewardResult(value, parts)"),
        (RewardResult(1.0, {"a\ud83d": 1.0}), "a part named 'a\\ud83d'"),
        (RewardResult(1.0, {1: 1.0}), "a part named 1;"),  # type: ignore[dict-item]
        (RewardResult(1.0, {"": 1.0}), "a part named ''"),
        (Unpicklable("away \ud83d"), "away \\ud83d"),
    ],
)
def test_what_is_no_reward_is_a_short_failure_that_any_file_can_hold(bad, words):
    assert words in failure_of(bad)


@pytest.mark.parametrize("unordered", [{1.0, 2.0}, b"12", {"a": 1.0}])
def test_a_group_is_answered_in_order(unordered):
    results = group_results_or_failures(lambda: unordered, 2)
    assert all("which is no list" in str(result) for result in results)


def test_the_line_that_raised_is_named():
    def deeper():
        raise KeyError("answer")

    failure = result_or_failure(deeper)
    line = deeper.__code__.co_firstlineno + 1
    assert str(failure) == f"KeyError: 'answer' (test_reward_checks.py, line {line})"
