"""Rewards of many completions at once."""

import asyncio

from zerogap.rollout import RewardRequest, Rewards, run_async


def results_of(rewards: Rewards, requests: list[RewardRequest]) -> list:
    """In order."""

    async def together() -> list:
        return await asyncio.gather(*map(rewards.reward, requests))

    return run_async(together())
