"""Several rewards: the sum is the reward, each raw value a part; one that fails fails the sample."""

import asyncio

import pytest
from helpers.fake_generator import FakeGenerator
from helpers.samples import completed_sample

from zerogap.config.reward import ImportPart, LastNumberPart, TaskPart, WeightedSumReward
from zerogap.data import PromptItem, PromptSets
from zerogap.errors import ConfigError, RewardFailed
from zerogap.rollout import (
    Collector,
    DirectRewards,
    RewardRequest,
    RewardResult,
    SingleTurn,
    WeightedPart,
    WeightedRewards,
    build_rewards,
    run_async,
)
from zerogap.types import Outcome, SamplingParams

ITEM = PromptItem(item_id="q", question="?", answer="12")
SHORTEST = "helpers.reward_functions:shortest"


def results(rewards, *completions):
    requests = [
        RewardRequest(completion=c, item=ITEM, sample=completed_sample(c)) for c in completions
    ]
    return asyncio.run(rewards.reward(requests))


def length(completion, item, sample):
    return len(completion)


def detailed(completion, item, sample):
    if completion == "bad":
        raise ValueError("unreadable")
    return RewardResult(0.5, {"tags": 1.0})


def summed(**weights):
    functions = {"length": length, "detailed": detailed}
    return WeightedRewards(
        {name: WeightedPart(DirectRewards(functions[name]), w) for name, w in weights.items()}
    )


def test_the_reward_is_the_weighted_sum_and_the_parts_are_raw():
    first, second = results(summed(length=-0.1, detailed=2.0), "aaa", "b")
    assert first == RewardResult(-0.1 * 3 + 1.0, {"length": 3.0, "detailed": 0.5, "detailed/tags": 1.0})  # fmt: skip
    assert second.value == 0.9


def test_a_part_of_weight_zero_is_measured():
    (found,) = results(summed(length=0.0, detailed=1.0), "aaa")
    assert (found.value, found.parts["length"]) == (0.5, 3.0)


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_a_part_that_fails_fails_the_sample_and_is_named(weight):
    bad, fine = results(summed(length=1.0, detailed=weight), "bad", "b")
    assert isinstance(bad, RewardFailed)
    assert str(bad).startswith("reward.parts.detailed: ValueError: unreadable (test_weighted")
    assert fine.value == 1.0 + 0.5 * weight


def test_a_recipes_parts_are_built_with_their_kinds_and_share_the_group():
    config = WeightedSumReward(
        kind="weighted_sum",
        parts={
            "right": LastNumberPart(kind="last_number"),
            "credit": TaskPart(kind="task", weight=0.25),
            "short": ImportPart(kind="import", function=SHORTEST, takes="group", weight=0.5),
        },
    )
    sets = PromptSets(train=[ITEM], evaluation=[], score=lambda text, item: 1.0)
    rewards = build_rewards(config, sets)
    try:
        found = results(rewards, "it is 12", "12", "13")
    finally:
        rewards.close()
    assert [r.value for r in found] == [1.25, 1.75, 0.75]
    assert found[1].parts == {"right": 1.0, "credit": 1.0, "short": 1.0}


def test_a_part_that_cannot_be_built_is_named_and_the_others_are_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(DirectRewards, "close", lambda rewards: closed.append(rewards))
    parts = {"right": LastNumberPart(kind="last_number"), "credit": TaskPart(kind="task")}
    with pytest.raises(
        ConfigError, match=r"reward\.parts\.credit\.kind = .task.: this data has no"
    ):
        build_rewards(WeightedSumReward(kind="weighted_sum", parts=parts))
    assert len(closed) == 1


def test_samples_record_the_parts_and_failures_are_outcomes():
    def every_other(completion, item, sample):
        if sample.rollout_id.endswith(("1", "3")):
            raise ValueError("odd")
        return 2.0

    parts = {
        "length": WeightedPart(DirectRewards(length), -1.0),
        "other": WeightedPart(DirectRewards(every_other), 3.0),
    }
    collector = Collector(
        FakeGenerator(),
        SingleTurn(lambda item: [1, 2], WeightedRewards(parts)),
        decode=lambda ids: "four",
        vocab_limit=259,
        sampling=SamplingParams(max_new_tokens=4),
        group_size=4,
        seed=0,
    )
    samples = run_async(collector.collect([ITEM], step=0)).samples
    assert [s.outcome for s in samples[1::2]] == [Outcome.VERIFIER_FAILED] * 2
    assert samples[1].outcome_detail.startswith("reward.parts.other: ValueError: odd (")
    for sample in samples[::2]:
        written = len(sample.text)
        assert sample.reward == 6.0 - written
        assert sample.reward_parts == {"length": written, "other": 2.0}
