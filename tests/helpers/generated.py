"""Whole batches from a ``rollout.Generator``."""

import asyncio
from collections.abc import Sequence

from zerogap.rollout import Generator, run_async
from zerogap.types import GenerateOutput, GenerateRequest


async def outputs_of(generator: Generator, request: GenerateRequest) -> list[GenerateOutput]:
    """In order of sibling."""
    updates = [update async for update in generator.submit(request)]
    outputs = [update.output for update in updates if update.output is not None]
    return sorted(outputs, key=lambda output: output.index)


def generated(generator: Generator, requests: Sequence[GenerateRequest]) -> list[GenerateOutput]:
    """All requests submitted at once; outputs in order of request and sibling."""

    async def together() -> list[list[GenerateOutput]]:
        return await asyncio.gather(*(outputs_of(generator, one) for one in requests))

    return [output for outputs in run_async(together()) for output in outputs]
