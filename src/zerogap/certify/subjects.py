"""The subjects of the checks: the policy, its engines and its trainers, built as in a run.

All share one model. Learning rates are 0 unless a check gives one, and a check that changes a weight restores it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zerogap.algorithms import Algorithm
from zerogap.config import EngineConfig, RunConfig, TrainConfig
from zerogap.data import TOKENIZER_FILES
from zerogap.engine import Engine
from zerogap.kernels import Gemm
from zerogap.models import resolve_source
from zerogap.run.policy import Policy, tokenizer_folder
from zerogap.train import NativeTrainer
from zerogap.types import Sample

_ROOM = {"kv_cache_tokens": 2048}
"""Enough KV cache for the probe batch; replaces the recipe's size."""


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """Builds engines and trainers of one policy from the recipe, with a check's changes."""

    policy: Policy
    config: RunConfig
    engine_gemm: Gemm = "exact"
    """GEMM kernels of the engines; only numerics = "fast" may choose others."""
    trainer_gemm: Gemm = "exact"
    """The same for the trainers."""

    def engine(self, **changes: Any) -> Engine:  # noqa: ANN401 - values of [engine]
        """An engine at version 0; ``changes`` are keys of [engine]."""
        given = self.config.engine.model_dump() | _ROOM | changes
        limits = EngineConfig.model_validate(given)
        return self.policy.engine(limits, gemm=self.engine_gemm, seed=self.config.run.seed)

    def trainer(self, **changes: Any) -> NativeTrainer:  # noqa: ANN401 - values of [train]
        """A trainer with learning rate 0; ``changes`` are keys of [train]."""
        given = self.config.train.model_dump() | {"learning_rate": 0.0, "warmup_steps": 0} | changes
        return NativeTrainer(
            self.policy.model,
            TrainConfig.model_validate(given),
            self.algorithm(),
            total_steps=1,
            gemm=self.trainer_gemm,
        )

    def score(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Scores by an engine on these weights: float32 [T] each, NaN where not sampled."""
        engine, columns = self.engine(), []
        for sample in samples:
            column = np.full(len(sample), np.nan, np.float32)
            start = sample.num_prompt_tokens
            column[start:] = engine.score(tuple(sample.token_ids.tolist()), start=start, temperature=sample.temperature)  # fmt: skip
            columns.append(column)
        return columns

    def algorithm(self) -> Algorithm:
        """The recipe's if it compares completions within groups and needs no second model; else GRPO."""
        found = self.config.algorithm
        is_plain = found.loss.trains_on_completions and found.advantage.compares_within_group
        if is_plain and not found.needs_reference and found.teacher is None:
            return found
        return Algorithm()

    def tokenizer_folder(self) -> Path | None:
        """Folder with the tokenizer's files, if there are any."""
        section = self.config.model
        name = section.tokenizer or section.path
        if name is None or name == "byte":
            return None
        folder = tokenizer_folder(resolve_source(name, with_weights=section.tokenizer is None))
        return folder if any((folder / file).exists() for file in TOKENIZER_FILES) else None
