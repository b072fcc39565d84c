"""What an evaluation measures of its answers."""

import pytest
from helpers.fake_generator import FakeGenerator

from zerogap.config.rollout import EvaluateConfig, SamplingConfig
from zerogap.data import PromptItem
from zerogap.errors import RewardFailed
from zerogap.obs import StepMetrics
from zerogap.rollout import Collector, DirectRewards, RewardResult, SingleTurn
from zerogap.run.evaluate import Evaluation

ITEMS = [PromptItem(item_id=f"i{n}", question="q", answer="a") for n in range(3)]


def evaluated(grade, **config) -> dict[str, float]:
    evaluation = Evaluation(
        items=ITEMS, config=EvaluateConfig(every=1, **config), sampling=SamplingConfig(max_new_tokens=4)
    )  # fmt: skip

    def make_collector(sampling, group_size):
        return Collector(
            FakeGenerator(),
            SingleTurn(lambda item: [1, 2], DirectRewards(grade)),
            decode=lambda ids: "four",
            vocab_limit=259,
            sampling=sampling,
            group_size=group_size,
            seed=0,
        )

    metrics = StepMetrics()
    evaluation.run(make_collector, metrics=metrics)
    return metrics.reduce()


def by_item():
    """Rewards 0, 1, 2 by prompt, with a part of twice that; the last one fails."""

    def grade(completion, item, sample):
        number = float(item.item_id[1:])
        if number == 2:
            raise RewardFailed("odd")
        return RewardResult(number, {"twice": 2 * number})

    return grade


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"greedy": True, "samples": 0}, {"eval/reward"}),
        ({"greedy": True, "samples": 2}, {"eval/reward", "eval/sampled/reward"}),
        ({"greedy": False, "samples": 2}, {"eval/reward", "eval/sampled/reward"}),
    ],
)
def test_parts_of_the_reward_are_measured_like_the_reward(config, names):
    found = evaluated(by_item(), **config)
    for name in ("eval/reward", "eval/sampled/reward"):
        expected = (0.5, 1.0) if name in names else (None, None)
        assert (found.get(f"{name}/mean"), found.get(f"{name}/twice/mean")) == expected
    num_completions = config["samples"] + config["greedy"]
    assert found["eval/num_failed"] == num_completions
