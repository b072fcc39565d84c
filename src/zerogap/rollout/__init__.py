"""From prompts to scored groups: generation through the ``Generator`` protocol, rewards, outcomes, storage.

Comes in: prompt items, with a generator that continues them or reference answers to learn from. Goes out: groups of
samples, each with a reward or with the reason why it has none. Advantages are in ``algorithms``.
"""

from zerogap.rollout.build import build_rewards
from zerogap.rollout.collect import Collector, CollectProgress, Rollouts
from zerogap.rollout.demonstrations import Demonstrations
from zerogap.rollout.direct_rewards import DirectRewards
from zerogap.rollout.dynamic_sampling import DynamicRollouts, collect_dynamically
from zerogap.rollout.environment import Environment, Session, SingleTurn
from zerogap.rollout.event_loop import run_async
from zerogap.rollout.generator import Generator
from zerogap.rollout.hints import Hinted, Hints
from zerogap.rollout.rewards import (
    GroupRewardFunction,
    RewardFunction,
    RewardRequest,
    RewardResult,
    Rewards,
)
from zerogap.rollout.shaping import Shaping, by_completion_len, mask_truncated, shaped
from zerogap.rollout.statistics import add_rollout_metrics
from zerogap.rollout.storage import load_rollouts, save_rollouts
from zerogap.rollout.weighted_rewards import WeightedPart, WeightedRewards
from zerogap.rollout.worker_rewards import WorkerRewards

__all__ = [
    "CollectProgress",
    "Collector",
    "Demonstrations",
    "DirectRewards",
    "DynamicRollouts",
    "Environment",
    "Generator",
    "GroupRewardFunction",
    "Hinted",
    "Hints",
    "RewardFunction",
    "RewardRequest",
    "RewardResult",
    "Rewards",
    "Rollouts",
    "Session",
    "Shaping",
    "SingleTurn",
    "WeightedPart",
    "WeightedRewards",
    "WorkerRewards",
    "add_rollout_metrics",
    "build_rewards",
    "by_completion_len",
    "collect_dynamically",
    "load_rollouts",
    "mask_truncated",
    "run_async",
    "save_rollouts",
    "shaped",
]
