"""Rewards computed in the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence

from zerogap.errors import RewardFailed
from zerogap.rollout.reward_checks import result_or_failure
from zerogap.rollout.rewards import RewardFunction, RewardRequest, RewardResult


class DirectRewards:
    """Calls the function in the caller's thread. Only for functions that are quick and never hang: nothing can end them."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function

    async def reward(self, requests: Sequence[RewardRequest]) -> list[RewardResult | RewardFailed]:
        """See ``Rewards``."""
        return [
            result_or_failure(lambda r=r: self._function(r.completion, r.item, r.sample))
            for r in requests
        ]

    def describe(self) -> list[str]:
        """No function here is the user's."""
        return []

    def close(self) -> None:
        """There is nothing to end."""
