"""A declared range of rewards."""

import pytest
from helpers.rewards import results_of
from helpers.samples import completed_sample

from zerogap.config.reward import ExactPart, TaskPart, TaskReward, WeightedSumReward
from zerogap.data import PromptItem, PromptSets
from zerogap.rollout import RewardRequest, RewardResult, build_rewards

ITEM = PromptItem(item_id="q", question="?", answer="12")
SETS = PromptSets(train=[ITEM], evaluation=[], score=lambda completion, item: float(completion))


def results(config, *completions):
    asked = [
        RewardRequest(completion=c, item=ITEM, sample=completed_sample(c)) for c in completions
    ]
    return results_of(build_rewards(config, SETS), asked)


def test_a_value_outside_the_range_is_a_failure_with_the_value_and_the_bounds_belong_to_it():
    config = TaskReward(kind="task", range=(0, 1))
    *inside, above, below = results(config, "0", "1", "0.5", "1.0000001", "-0.5")
    assert inside == [RewardResult(value) for value in (0.0, 1.0, 0.5)]
    assert "the reward is 1.0000001, outside reward.range = [0, 1]" in str(above)
    assert "-0.5, outside reward.range" in str(below)


def test_a_part_and_the_sum_have_ranges_of_their_own():
    score = TaskPart(kind="task", range=(0, 1), weight=2.0)
    parts = {"score": score, "same": ExactPart(kind="exact")}
    config = WeightedSumReward(kind="weighted_sum", parts=parts, range=(0, 2))
    fine, part, total = results(config, "1", "1.5", "12")
    assert fine == RewardResult(2.0, {"score": 1.0, "same": 0.0})
    assert "reward.parts.score: the reward is 1.5, outside reward.parts.score.range" in str(part)
    assert "reward.parts.score" in str(total)
    parts = {"score": TaskPart(kind="task", weight=2.0)}
    config = WeightedSumReward(kind="weighted_sum", parts=parts, range=(0, 2))
    assert "the reward is 3.0, outside reward.range = [0, 2]" in str(results(config, "1.5")[0])


@pytest.mark.parametrize("bounds", [[1, 0], [1, 1]])
def test_a_range_without_room_is_refused(bounds):
    with pytest.raises(ValueError, match="the first number must be smaller"):
        TaskReward.model_validate({"kind": "task", "range": bounds})
