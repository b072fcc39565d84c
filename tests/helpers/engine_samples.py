"""What an engine generated, as samples of a trainer: the two sides whose log-probs are compared."""

from collections.abc import Sequence

import numpy as np

from helpers.tiny_engine import prompt, request
from zerogap.config import TrainConfig
from zerogap.models import CausalLM
from zerogap.train import NativeTrainer
from zerogap.types import GenerateOutput, GenerateRequest, Sample

# Few pages (10 of 16 tokens) for 9 sequences of 21 + 20 tokens: some must be retracted.
ENGINES = {
    "roomy": {},
    "chunks of 8 rows": {"max_scheduled_tokens": 8, "max_running": 8},
    "one at a time": {"max_running": 1},
    "no prefix cache": {"prefix_cache": False},
    "short of pages": {"kv_cache_tokens": 160, "max_running": 9},
}
"""Arguments of ``tiny_engine``, by what they make the engine do."""
PACKINGS = {
    "one micro-batch": {"micro_batch_tokens": 4096},
    "many micro-batches": {"micro_batch_tokens": 64},
    "prompts not shared": {"share_prompts": False},
    "recompute": {"recompute": True},
}
"""Fields of ``TrainConfig``."""


def requests(temperature: float) -> list[GenerateRequest]:
    """Three prompts, two of which begin alike, with four, four and one completions."""
    long = prompt(37)
    prompts = (long, (*long[:32], *prompt(9, seed=1)), prompt(3, seed=2))
    return [
        request(ids, n=n, temperature=temperature, sampling_seed=seed)
        for seed, (ids, n) in enumerate(zip(prompts, (4, 4, 1), strict=True))
    ]


def samples_of(outputs: Sequence[GenerateOutput], temperature: float) -> list[Sample]:
    """One a completion, rewarded by its place in the group."""
    return [
        Sample.from_output(o, group_id=o.rid, temperature=temperature).scored(o.index)
        for o in outputs
    ]


def trainer_of(model: CausalLM, **config: object) -> NativeTrainer:
    """A trainer of a few steps; ``config`` are fields of ``TrainConfig``."""
    values = {"learning_rate": 1e-3, "max_grad_norm": 1.0} | config
    return NativeTrainer(
        model,
        TrainConfig(**values),
        total_steps=4,
    )


def sampled(columns: Sequence[np.ndarray], samples: Sequence[Sample]) -> list[np.ndarray]:
    """The entries of the tokens that were drawn, of each sample's column."""
    return [column[s.weight_version >= 0] for column, s in zip(columns, samples, strict=True)]
