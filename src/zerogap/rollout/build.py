"""The rewards that a recipe's [reward] section describes."""

import importlib.util
import os

from zerogap.config.reward import ImportReward, MathVerifyReward, RegexReward, RewardConfig
from zerogap.data import TaskScore
from zerogap.errors import ConfigError, MissingExtra
from zerogap.rollout.comparisons import (
    build_regex_reward,
    exact_reward,
    last_number_reward,
)
from zerogap.rollout.rewards import DirectRewards, Rewards
from zerogap.rollout.worker_rewards import WorkerRewards

_MATH_FUNCTION = "zerogap.rollout.math_reward:math_reward"

_MAX_WORKERS = 4
"""A worker with sympy takes about 100 MB, and steps seldom wait for grading."""


def build_rewards(config: RewardConfig, *, score: TaskScore | None = None) -> Rewards:
    """The rewards that the section describes; the caller closes them. ``score`` is the data's own, for kind "task".

    Raises:
        ConfigError: the function cannot be imported, or the data comes without a score.
        MissingExtra: math-verify is not installed.
    """
    if isinstance(config, ImportReward):
        return _workers(config.function, config.params, config.timeout_s)
    if isinstance(config, MathVerifyReward):
        if importlib.util.find_spec("math_verify") is None:
            msg = "reward.kind = \"math_verify\" needs the math-verify package; install the extra: pip install 'zerogap[math]'"
            raise MissingExtra(msg)
        return _workers(_MATH_FUNCTION, {}, config.timeout_s)
    if isinstance(config, RegexReward):
        return DirectRewards(build_regex_reward(config.pattern))
    if config.kind == "task":
        if score is None:
            msg = 'reward.kind = "task": this data has no score of its own; set a reward that compares answers, such as "exact"'
            raise ConfigError(msg)
        return DirectRewards(lambda completion, item, sample: score(completion, item))
    return DirectRewards({"exact": exact_reward, "last_number": last_number_reward}[config.kind])


def _workers(function: str, params: dict, timeout_s: float) -> WorkerRewards:
    num_workers = min(os.cpu_count() or 1, _MAX_WORKERS)
    return WorkerRewards(function, params=params, timeout_s=timeout_s, num_workers=num_workers)
