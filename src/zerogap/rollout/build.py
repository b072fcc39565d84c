"""The rewards that a recipe's [reward] section describes."""

import importlib.util
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from zerogap.config.reward import (
    ImportReward,
    MathVerifyReward,
    RegexReward,
    RewardConfig,
    SingleReward,
    WeightedSumReward,
)
from zerogap.data import TaskScore
from zerogap.errors import ConfigError, MissingExtra
from zerogap.rollout.comparisons import (
    build_regex_reward,
    exact_reward,
    last_number_reward,
)
from zerogap.rollout.reward_source import Takes
from zerogap.rollout.rewards import DirectRewards, Rewards
from zerogap.rollout.weighted_rewards import WeightedPart, WeightedRewards
from zerogap.rollout.worker_rewards import WorkerRewards

_MATH_FUNCTION = "zerogap.rollout.math_reward:math_reward"

_MAX_WORKERS = 4
"""A worker with sympy takes about 100 MB, and steps seldom wait for grading."""


def build_rewards(config: RewardConfig, *, score: TaskScore | None = None) -> Rewards:
    """The rewards that the section describes; the caller closes them. ``score`` is the data's own, for kind "task".

    Raises:
        ConfigError: a function cannot be imported or called, or the data comes without a score.
        MissingExtra: math-verify is not installed.
    """
    if not isinstance(config, WeightedSumReward):
        return _single(config, "reward", score)
    parts: dict[str, WeightedPart] = {}
    with ExitStack() as built:
        for name, part in config.parts.items():
            rewards = _single(part, f"reward.parts.{name}", score)
            built.callback(rewards.close)
            parts[name] = WeightedPart(rewards, part.weight)
        built.pop_all()
    return WeightedRewards(parts)


def _single(config: SingleReward, key: str, score: TaskScore | None) -> Rewards:
    """``key`` is the section's in the recipe, for messages."""
    if isinstance(config, ImportReward):
        return _workers(config.function, config.timeout_s, params=config.params, takes=config.takes)
    if isinstance(config, MathVerifyReward):
        if importlib.util.find_spec("math_verify") is None:
            msg = f"{key}.kind = \"math_verify\" needs the math-verify package; install the extra: pip install 'zerogap[math]'"
            raise MissingExtra(msg)
        return _workers(_MATH_FUNCTION, config.timeout_s)
    if isinstance(config, RegexReward):
        return DirectRewards(build_regex_reward(config.pattern))
    if config.kind == "task":
        if score is None:
            msg = f'{key}.kind = "task": this data has no score of its own; set a reward that compares answers, such as "exact"'
            raise ConfigError(msg)
        return DirectRewards(lambda completion, item, sample: score(completion, item))
    return DirectRewards({"exact": exact_reward, "last_number": last_number_reward}[config.kind])


def _workers(
    function: str,
    timeout_s: float,
    *,
    params: Mapping[str, Any] | None = None,
    takes: Takes = "completion",
) -> WorkerRewards:
    num_workers = min(os.cpu_count() or 1, _MAX_WORKERS)
    return WorkerRewards(
        function, params=params, takes=takes, timeout_s=timeout_s, num_workers=num_workers
    )
