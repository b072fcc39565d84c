"""Rewards of many completions at once, each of a prompt of its own."""

import asyncio

from zerogap.rollout import RewardRequest, Rewards, run_async


def results_of(rewards: Rewards, requests: list[RewardRequest]) -> list:
    """In order."""

    async def together() -> list:
        answers = await asyncio.gather(*(rewards.reward([request]) for request in requests))
        return [result for answer in answers for result in answer]

    return run_async(together())
