"""The weighted sum of several rewards. Each one's value is a part of the result, under its name."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zerogap.errors import RewardFailed
from zerogap.rollout.rewards import RewardRequest, RewardResult, Rewards


@dataclass(frozen=True)
class WeightedPart:
    """One reward of the sum."""

    rewards: Rewards
    weight: float


class WeightedRewards:
    """Adds up rewards with their weights. Owns them.

    The parts of the result are the raw values by name. What a part's function returned as its own parts is named
    ``NAME/PART``. If one part fails, the sample has no reward, even if the part's weight is 0.
    """

    def __init__(self, parts: Mapping[str, WeightedPart]) -> None:
        self._parts = dict(parts)

    async def reward(self, requests: Sequence[RewardRequest]) -> list[RewardResult | RewardFailed]:
        """See ``Rewards``."""
        columns = await asyncio.gather(
            *(part.rewards.reward(requests) for part in self._parts.values())
        )
        return [
            self._sum(dict(zip(self._parts, row, strict=True)))
            for row in zip(*columns, strict=True)
        ]

    def describe(self) -> list[str]:
        """See ``Rewards``."""
        return [line for part in self._parts.values() for line in part.rewards.describe()]

    def close(self) -> None:
        """Close every part."""
        for part in self._parts.values():
            part.rewards.close()

    def _sum(
        self, results: Mapping[str, RewardResult | RewardFailed]
    ) -> RewardResult | RewardFailed:
        parts: dict[str, float] = {}
        for name, result in results.items():
            if isinstance(result, RewardFailed):
                return RewardFailed(f"reward.parts.{name}: {result}")
            parts |= {name: result.value}
            parts |= {f"{name}/{inner}": value for inner, value in result.parts.items()}
        terms = [part.weight * parts[name] for name, part in self._parts.items()]
        return RewardResult(math.fsum(terms), parts)
