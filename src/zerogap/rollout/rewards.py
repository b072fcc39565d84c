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
samples of the group if the function took the group. A RewardFailed in place of a reward fails one sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
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

    def close(self) -> None:
        """End its processes; the object is unusable afterwards. May be called twice."""
        ...


class DirectRewards:
    """Calls the function in the caller's thread. For functions that are quick and never hang."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function

    async def reward(self, requests: Sequence[RewardRequest]) -> list[RewardResult | RewardFailed]:
        """See ``Rewards``."""
        return [reward_or_failure(self._function, request) for request in requests]

    def close(self) -> None:
        """There is nothing to end."""


def reward_or_failure(
    function: RewardFunction, request: RewardRequest
) -> RewardResult | RewardFailed:
    """The function's checked reward, or why there is none."""
    try:
        return checked_result(function(request.completion, request.item, request.sample))
    except RewardFailed as error:
        return error
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything; it becomes a typed outcome
        return _described(error)


def group_rewards_or_failures(
    function: GroupRewardFunction, requests: Sequence[RewardRequest]
) -> list[RewardResult | RewardFailed]:
    """The function's checked rewards of a group, or why there are none. ``requests`` are of one prompt, at least one."""
    try:
        returned = function(
            [request.completion for request in requests],
            requests[0].item,
            [request.sample for request in requests],
        )
        rewards = _listed(returned)
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything; it becomes a typed outcome
        failure = error if isinstance(error, RewardFailed) else _described(error)
        return [failure] * len(requests)
    if len(rewards) != len(requests):
        msg = f"the reward function returned {len(rewards)} rewards for a group of {len(requests)} completions; return one for each, in order"
        return [RewardFailed(msg)] * len(requests)
    return [_checked_or_failure(reward) for reward in rewards]


def _listed(returned: object) -> list[object]:
    if isinstance(returned, str | Mapping) or not isinstance(returned, Iterable):
        msg = f"the reward function takes a group, but returned {returned!r}, which is no list; return a list with one reward for each completion"
        raise RewardFailed(msg)
    return list(returned)


def _checked_or_failure(returned: object) -> RewardResult | RewardFailed:
    try:
        return checked_result(returned)
    except RewardFailed as error:
        return error


def _described(error: Exception) -> RewardFailed:
    return RewardFailed(f"{type(error).__name__}: {error}")


def checked_result(returned: object) -> RewardResult:
    """The return value of a reward function, checked.

    Raises:
        RewardFailed: the value is one, or the reward or a part is not a finite number.
    """
    if isinstance(returned, RewardFailed):
        raise returned
    if not isinstance(returned, RewardResult):
        return RewardResult(_finite(returned, "reward"))
    parts = {name: _finite(part, f"part {name!r}") for name, part in returned.parts.items()}
    return RewardResult(_finite(returned.value, "reward"), parts)


def _finite(value: object, what: str) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        msg = f"the reward function returned {what} = {value!r}, which is not a finite number; return a finite float, or raise"
        raise RewardFailed(msg)
    return float(value)
