"""Rewards: a finite number for a completion, or a failure with its reason. A failure never counts as 0.

A reward function gets the completion's text, its prompt item and its sample::

    def length_reward(completion: str, item: PromptItem, sample: Sample) -> float:
        return min(len(completion), 100) / 100

It may raise: the sample is then left out of its group's statistics and counted as verifier_failed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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


class Rewards(Protocol):
    """Rewards completions, many at a time. Owns its resources until ``close``."""

    async def reward(self, request: RewardRequest) -> RewardResult | RewardFailed:
        """The reward of one completion; a failure is a result, not an exception."""
        ...

    def close(self) -> None:
        """End its processes; the object is unusable afterwards. May be called twice."""
        ...


class DirectRewards:
    """Calls the function in the caller's thread. For functions that are quick and never hang."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function

    async def reward(self, request: RewardRequest) -> RewardResult | RewardFailed:
        """See ``Rewards``."""
        return reward_or_failure(self._function, request)

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
