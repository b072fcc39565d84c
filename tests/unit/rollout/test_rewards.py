import re
from decimal import Decimal

import numpy as np
import pytest
from helpers.rewards import results_of
from helpers.samples import completed_sample

from zerogap.config.reward import (
    ExactReward,
    ImportReward,
    LastNumberReward,
    RegexReward,
    TaskReward,
)
from zerogap.data import PromptItem, PromptSets
from zerogap.errors import ConfigError, RewardFailed
from zerogap.rollout import DirectRewards, RewardRequest, RewardResult, build_rewards
from zerogap.rollout.reward_checks import checked_result


def request(completion, answer="12"):
    item = PromptItem(item_id="q", question="?", answer=answer)
    return RewardRequest(completion=completion, item=item, sample=completed_sample(completion))


def value(rewards, completion, answer="12"):
    result = results_of(rewards, [request(completion, answer)])[0]
    return result.value if isinstance(result, RewardResult) else result


@pytest.mark.parametrize(
    ("config", "completion", "reward"),
    [
        (ExactReward(kind="exact"), " 12\n", 1),
        (ExactReward(kind="exact"), "12.", 0),
        (LastNumberReward(kind="last_number"), "3 * 4 = 12.0", 1),
        (LastNumberReward(kind="last_number"), "12 is not 13", 0),
        (LastNumberReward(kind="last_number"), "no idea", 0),
        (RegexReward(kind="regex", pattern="<a>(.*?)</a>"), "<a>1</a> <a>\n12 </a>", 1),
        (RegexReward(kind="regex", pattern="<a>(.*?)</a>"), "<a>12</a> <a>1</a>", 0),
        (RegexReward(kind="regex", pattern="<a>(.*?)</a>"), "12", 0),
        (RegexReward(kind="regex", pattern="(?:=(.*))?"), "x", 0),
    ],
)
def test_comparisons_with_the_reference_answer(config, completion, reward):
    assert value(build_rewards(config), completion) == reward


@pytest.mark.parametrize(
    "config", [ExactReward(kind="exact"), LastNumberReward(kind="last_number")]
)
def test_a_missing_reference_answer_is_a_failure_not_a_zero(config):
    failure = value(build_rewards(config), "12", answer=None)
    assert isinstance(failure, RewardFailed)
    assert "data.answer_field" in str(failure)


def test_a_reference_answer_without_a_number_is_a_failure_not_a_zero():
    failure = value(build_rewards(LastNumberReward(kind="last_number")), "12", answer="twelve")
    assert "no number" in str(failure)


def test_the_tasks_own_score_is_used():
    sets = PromptSets(train=[], evaluation=[], score=lambda text, item: len(text) / 4)
    rewards = build_rewards(TaskReward(kind="task"), sets)
    assert value(rewards, "12") == 0.5
    with pytest.raises(ConfigError, match="no score of its own"):
        build_rewards(TaskReward(kind="task"))


@pytest.mark.parametrize("good", [1, 0.5, True, np.float32(0.25), np.int64(3)])
def test_finite_numbers_are_rewards(good):
    assert checked_result(good).value == float(good)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "1",
        float("nan"),
        float("inf"),
        1j,
        Decimal(1),
        [1.0],
        np.array([1.0]),
        RewardResult(float("nan")),
        RewardResult(1.0, {"format": float("inf")}),
    ],
)
def test_anything_else_is_a_failure(bad):
    with pytest.raises(RewardFailed, match="not a finite number"):
        checked_result(bad)


def test_parts_are_kept():
    rewards = DirectRewards(lambda c, i, s: RewardResult(1.0, {"format": np.float32(0.5)}))
    assert results_of(rewards, [request("a")]) == [RewardResult(1.0, {"format": 0.5})]


def test_an_exception_is_a_failure_of_its_own_completion_only():
    def picky(completion, item, sample):
        return 1 / len(completion)

    results = results_of(DirectRewards(picky), [request("a"), request(""), request("ab")])
    assert [results[0].value, results[2].value] == [1.0, 0.5]
    assert re.fullmatch(
        r"ZeroDivisionError: division by zero \(test_rewards.py, line \d+\)", str(results[1])
    )


def test_interruption_is_no_failure():
    def interrupted(completion, item, sample):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        results_of(DirectRewards(interrupted), [request("a")])


def test_an_imported_function_gets_its_parameters():
    config = ImportReward(
        kind="import", function="helpers.reward_functions:length", params={"scale": 0.5}
    )
    rewards = build_rewards(config)
    try:
        assert value(rewards, "abc") == 1.5
    finally:
        rewards.close()
