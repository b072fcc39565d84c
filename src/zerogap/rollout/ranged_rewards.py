"""Rewards with a declared range: a value outside is a failure of the reward function, not a reward."""

from __future__ import annotations

from collections.abc import Sequence

from zerogap.errors import RewardFailed
from zerogap.rollout.rewards import RewardRequest, RewardResult, Rewards


class RangedRewards:
    """Refuses values outside a range. Owns the rewards."""

    def __init__(self, rewards: Rewards, bounds: tuple[float, float], *, key: str) -> None:
        """Keep both.

        Args:
            rewards: whose values are checked.
            bounds: smallest and largest allowed value.
            key: of the range in the recipe, for the message.
        """
        self._rewards, self._bounds, self._key = rewards, bounds, key

    async def reward(self, requests: Sequence[RewardRequest]) -> list[RewardResult | RewardFailed]:
        """See ``Rewards``."""
        return [self._checked(result) for result in await self._rewards.reward(requests)]

    def describe(self) -> Sequence[str]:
        """See ``Rewards``."""
        return self._rewards.describe()

    def close(self) -> None:
        """Close the rewards."""
        self._rewards.close()

    def _checked(self, result: RewardResult | RewardFailed) -> RewardResult | RewardFailed:
        low, high = self._bounds
        if isinstance(result, RewardFailed) or low <= result.value <= high:
            return result
        msg = f"the reward is {result.value!r}, outside {self._key} = [{low:g}, {high:g}]; correct the reward function, or the range"
        return RewardFailed(msg)
