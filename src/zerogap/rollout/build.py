"""The rewards that a recipe's [reward] section describes."""

import importlib.util
import os
from contextlib import ExitStack
from functools import partial
from typing import Any

from zerogap.config.reward import (
    ImportReward,
    MathVerifyReward,
    RegexReward,
    RewardConfig,
    SingleReward,
    WeightedSumReward,
)
from zerogap.data import PromptSets, TaskScore
from zerogap.errors import ConfigError, MissingExtra
from zerogap.rollout.comparisons import exact_reward, last_number_reward
from zerogap.rollout.direct_rewards import DirectRewards
from zerogap.rollout.ranged_rewards import RangedRewards
from zerogap.rollout.reward_conventions import columns_of
from zerogap.rollout.rewards import RewardFunction, Rewards
from zerogap.rollout.weighted_rewards import WeightedPart, WeightedRewards
from zerogap.rollout.worker_rewards import WorkerRewards

_MATH_FUNCTION = "zerogap.rollout.math_reward:math_reward"
_REGEX_FUNCTION = "zerogap.rollout.comparisons:regex_reward"
_TASK_FUNCTION = "zerogap.rollout.comparisons:task_reward"

_MAX_WORKERS = 4
"""A worker with sympy takes about 100 MB, and steps seldom wait for grading."""


def build_rewards(
    config: RewardConfig, sets: PromptSets | None = None, *, answer_name: str | None = None
) -> Rewards:
    """The rewards that the section describes; the caller closes them.

    Args:
        config: the section.
        sets: the data, with its own score for kind "task"; functions that ask for its fields by name are checked against
            it. Without it, nothing is known of the fields.
        answer_name: the data's own name of the reference answer.

    Raises:
        ConfigError: a function cannot be imported, is declared in no known way or asks for what the data does not have, or the
            data comes without a score.
        MissingExtra: math-verify is not installed.
    """
    build = partial(_ranged, sets=sets, answer_name=answer_name)
    if not isinstance(config, WeightedSumReward):
        return build(config, "reward")
    parts: dict[str, WeightedPart] = {}
    with ExitStack() as built:
        for name, part in config.parts.items():
            rewards = build(part, f"reward.parts.{name}")
            built.callback(rewards.close)
            parts[name] = WeightedPart(rewards, part.weight)
        built.pop_all()
    rewards = WeightedRewards(parts)
    return rewards if config.range is None else RangedRewards(rewards, config.range, key="reward.range")  # fmt: skip


def _ranged(
    config: SingleReward, key: str, *, sets: PromptSets | None, answer_name: str | None
) -> Rewards:
    """``key`` is the section's in the recipe, for messages."""
    rewards = _single(config, key, sets, answer_name)
    return rewards if config.range is None else RangedRewards(rewards, config.range, key=f"{key}.range")  # fmt: skip


def _single(
    config: SingleReward, key: str, sets: PromptSets | None, answer_name: str | None
) -> Rewards:
    if isinstance(config, ImportReward):
        return _workers(
            config.function,
            config.timeout_s,
            params=config.params,
            takes=config.takes,
            columns=None if sets is None else _columns(sets, answer_name),
            answer_name=answer_name,
            key=key,
        )
    if isinstance(config, MathVerifyReward):
        if importlib.util.find_spec("math_verify") is None:
            msg = f"{key}.kind = \"math_verify\" needs the math-verify package; install the extra: pip install 'zerogap[math]'"
            raise MissingExtra(msg)
        return _workers(_MATH_FUNCTION, config.timeout_s)
    if isinstance(config, RegexReward):
        return _workers(_REGEX_FUNCTION, config.timeout_s, params={"pattern": config.pattern})
    if config.kind == "task":
        return _task(key, config.timeout_s, sets)
    compare: dict[str, RewardFunction] = {"exact": exact_reward, "last_number": last_number_reward}
    return DirectRewards(compare[config.kind])


def _task(key: str, timeout_s: float, sets: PromptSets | None) -> Rewards:
    score: TaskScore | None = None if sets is None else sets.score
    if sets is None or score is None:
        msg = f'{key}.kind = "task": this data has no score of its own; set a reward that compares answers, such as "exact"'
        raise ConfigError(msg)
    if sets.score_may_hang:
        return _workers(_TASK_FUNCTION, timeout_s, params={"score": score})
    return DirectRewards(lambda completion, item, sample: score(completion, item))


def _columns(sets: PromptSets, answer_name: str | None) -> set[str]:
    """Names that every row has. Rows that are made when they are used are all alike: the first one stands for them."""
    rows = [
        item
        for items in (sets.train, sets.evaluation)
        for item in (items if isinstance(items, list) else items[:1])
    ]
    names = [set(columns_of(item, answer_name)) for item in rows]
    return set.intersection(*names) if names else set()


def _workers(function: str, timeout_s: float, **options: Any) -> WorkerRewards:  # noqa: ANN401 - passed on as they are
    num_workers = min(os.cpu_count() or 1, _MAX_WORKERS)
    return WorkerRewards(function, timeout_s=timeout_s, num_workers=num_workers, **options)
