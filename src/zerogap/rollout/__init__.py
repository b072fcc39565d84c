"""From prompts to scored groups: generation through the ``Generator`` protocol, rewards, outcomes, storage.

Comes in: prompt items and whoever continues them. Goes out: groups of samples, each with a reward or with
the reason why it has none. Advantages are in ``algorithms``.
"""

from zerogap.rollout.build import build_rewards
from zerogap.rollout.collect import Collector, CollectProgress, Rollouts, group_samples
from zerogap.rollout.dynamic_sampling import DynamicRollouts, collect_dynamically
from zerogap.rollout.generator import Generator, Progress
from zerogap.rollout.rewards import (
    DirectRewards,
    RewardFunction,
    RewardRequest,
    RewardResult,
    Rewards,
)
from zerogap.rollout.statistics import add_rollout_metrics
from zerogap.rollout.storage import load_rollouts, save_rollouts
from zerogap.rollout.worker_rewards import WorkerRewards

__all__ = [
    "CollectProgress",
    "Collector",
    "DirectRewards",
    "DynamicRollouts",
    "Generator",
    "Progress",
    "RewardFunction",
    "RewardRequest",
    "RewardResult",
    "Rewards",
    "Rollouts",
    "WorkerRewards",
    "add_rollout_metrics",
    "build_rewards",
    "collect_dynamically",
    "group_samples",
    "load_rollouts",
    "save_rollouts",
]
