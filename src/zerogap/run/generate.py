"""Completions of prompts given on the command line."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence

from zerogap.config import EngineConfig, ModelSection, PromptConfig
from zerogap.data import PromptEncoder, PromptItem
from zerogap.engine import AsyncEngine
from zerogap.run.machine import apply_threads
from zerogap.run.policy import load_policy
from zerogap.types import CompletionUpdate, GenerateRequest, SamplingParams


def generate_text(
    model: str,
    prompts: Sequence[str],
    params: SamplingParams,
    *,
    system: str | None = None,
    is_raw: bool = False,
) -> Iterator[CompletionUpdate]:
    """Stream the completions of each prompt, prompt after prompt.

    Args:
        model: a model source (folder, hub id, GGUF file, ``package:``).
        prompts: user messages, or texts to continue when ``is_raw``.
        params: how to sample.
        system: system message.
        is_raw: do not apply the chat template.
    """
    apply_threads()
    policy = load_policy(ModelSection(path=model), seed=0)
    encode = PromptEncoder(policy.tokenizer, PromptConfig(chat=not is_raw, system=system))
    with AsyncEngine(policy.engine(EngineConfig())) as engine, asyncio.Runner() as loop:
        for number, prompt in enumerate(prompts):
            ids = tuple(encode(PromptItem(item_id=f"prompt-{number}", question=prompt)))
            request = GenerateRequest(input_ids=ids, sampling_params=params, rid=str(number))
            updates = engine.submit(request, with_progress=True)
            while (update := loop.run(_next(updates))) is not None:
                yield update


async def _next(updates: AsyncGenerator[CompletionUpdate, None]) -> CompletionUpdate | None:
    return await anext(updates, None)
