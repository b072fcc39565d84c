"""Rewards: a finite number for a completion, or a failure with its reason. A failure never counts as 0.

A reward function gets the completion's text, its prompt item and its sample::

    def length_reward(completion: str, item: PromptItem, sample: Sample) -> float:
        return min(len(completion), 100) / 100

A group reward function gets the texts and samples of a prompt's rollouts that ended well, and returns one reward for
each, in order::

    def shortest(completions: list[str], item: PromptItem, samples: list[Sample]) -> list[float]:
        least = min(map(len, completions))
        return [float(len(completion) == least) for completion in completions]

Both may raise: a sample is then left out of its group's statistics and counted as verifier_failed, and so are all
samples of the group if the function took the group. A RewardFailed in place of a reward fails one sample. Functions
written for TRL or verl: ``reward_conventions``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from zerogap.data import PromptItem
from zerogap.errors import RewardFailed
from zerogap.types import Sample


@dataclass(frozen=True)
class RewardResult:
    """A reward and its parts."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """By name, for metrics; they need not add up to ``value``."""


@dataclass(frozen=True, kw_only=True)
class RewardRequest:
    """One completion to be rewarded."""

    completion: str
    """Text without special tokens and without the stop string."""
    item: PromptItem
    sample: Sample


class RewardFunction(Protocol):
    """Rewards one completion. May raise; may return any finite real number."""

    def __call__(self, completion: str, item: PromptItem, sample: Sample) -> float | RewardResult:
        """The reward of the completion."""
        ...


class GroupRewardFunction(Protocol):
    """Rewards the rollouts of one prompt. May raise; returns one reward for each, in order."""

    def __call__(
        self, completions: list[str], item: PromptItem, samples: list[Sample]
    ) -> Sequence[float | RewardResult | RewardFailed]:
        """The rewards of the completions."""
        ...


class Rewards(Protocol):
    """Rewards the rollouts of a prompt, for many prompts at a time. Owns its resources until ``close``."""

    async def reward(
        self, requests: Sequence[RewardRequest]
    ) -> Sequence[RewardResult | RewardFailed]:
        """The rewards of completions of one prompt, in order; a failure is a result, not an exception."""
        ...

    def describe(self) -> Sequence[str]:
        """How the user's functions are called, a line each; empty without any."""
        ...

    def close(self) -> None:
        """End its processes; the object is unusable afterwards. May be called twice."""
        ...
