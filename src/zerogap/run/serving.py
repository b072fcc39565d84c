"""The side that samples: the engine, and how new weights reach it.

By default, engine and trainer share one model, and a publish copies nothing. The engine has its own weights if another
backend runs it, if its precision differs, or if it stays some versions behind.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from zerogap.config import EngineConfig
from zerogap.engine import AsyncEngine, EngineStats
from zerogap.errors import ConfigError
from zerogap.foreign import TransformersGenerator
from zerogap.kernels import Gemm, round_bf16
from zerogap.models import Precision
from zerogap.rollout import Generator
from zerogap.run.policy import Policy
from zerogap.types import Capability
from zerogap.weights import (
    CopiedWeights,
    Published,
    Publisher,
    SharedWeights,
    WeightHistory,
    WeightSink,
    WeightVersions,
    unrounded,
)


class RolloutEngine(Generator, WeightSink, Protocol):
    """An engine as a run uses it: it generates, and takes new weights."""

    @property
    def stats(self) -> EngineStats | None:
        """Counters since its start; None if the engine has none."""
        ...

    def release_memory_occupation(self) -> None:
        """Return the memory of the KV cache while the trainer works."""
        ...

    def resume_memory_occupation(self) -> None:
        """Allocate it again."""
        ...

    def close(self) -> None:
        """End the engine's thread. May be called twice."""
        ...


@dataclass(frozen=True, kw_only=True)
class Serving:
    """An engine and how it gets the trainer's weights. A remedy replaces it as a whole."""

    engine: RolloutEngine
    evaluator: AsyncEngine
    """Answers evaluation prompts with the trainer's current weights, which a copying engine may not have. The engine itself
    if it shares those weights."""
    publish: Callable[[int], Published]
    """Give the trainer's current weights to the engine, under this version."""
    history: WeightHistory | None
    """Older versions of the weights, if any are kept."""

    @property
    def is_copy(self) -> bool:
        """Whether the engine has its own weights."""
        return self.engine is not self.evaluator

    def close(self) -> None:
        """End the engines' threads."""
        self.engine.close()
        self.evaluator.close()


def build_serving(
    policy: Policy,
    config: EngineConfig,
    versions: WeightVersions,
    *,
    gemm: Gemm = "exact",
    lag: int,
    seed: int,
    needed: Collection[Capability] = (),
    history: WeightHistory | None = None,
) -> Serving:
    """The engine of a recipe. Publish weights to it before it generates.

    Args:
        policy: the trainer's model and its tokenizer.
        config: backend, precision and limits of the engine.
        versions: gets the digest of every published version.
        gemm: GEMM kernels of the engine.
        lag: versions that the engine stays behind.
        seed: default sampling seed.
        needed: capabilities that the recipe needs.
        history: of the engine that this one replaces.

    Raises:
        ConfigError: the engine lacks a capability that the recipe needs.
    """
    offered = TransformersGenerator if config.backend == "transformers" else AsyncEngine
    if missing := set(needed) - offered.capabilities:
        msg = f'engine.backend = {config.backend!r} lacks capabilities that this recipe needs: {", ".join(sorted(missing))}; remove them from rollout.sampling, or set engine.backend = "zerogap"'
        raise ConfigError(msg)
    own = policy.model.precision
    precision: Precision = own if config.dtype is None else config.dtype
    on_own_weights = policy.engine(config, gemm=gemm, seed=seed)
    if config.backend == "zerogap" and precision == own and not lag:
        engine = AsyncEngine(on_own_weights)
        publisher = Publisher(SharedWeights(policy.model), engine, versions)
        return Serving(engine=engine, evaluator=engine, publish=publisher.publish, history=None)
    if history is None and lag:
        history = WeightHistory(lag + 1)
    source = CopiedWeights(
        policy.model,
        history,
        lag=lag,
        rounding=round_bf16 if precision == "bf16" != own else unrounded,
    )
    # Before the evaluator's thread starts, because building the copy may fail.
    copying = _copying_engine(policy, config, precision, gemm, seed)
    publisher = Publisher(source, copying, versions)
    return Serving(
        engine=copying,
        evaluator=AsyncEngine(on_own_weights),
        publish=publisher.publish,
        history=history,
    )


def _copying_engine(
    policy: Policy, config: EngineConfig, precision: Precision, gemm: Gemm, seed: int
) -> RolloutEngine:
    if config.backend == "transformers":
        return TransformersGenerator(
            policy.model.config,
            eos_token_ids=policy.eos_token_ids,
            vocab_limit=policy.vocab_limit,
            decode=policy.tokenizer.decode,
            dtype=precision,
            seed=seed,
        )
    copied = policy.model.copied(precision=precision)
    return AsyncEngine(policy.engine(config, model=copied, gemm=gemm, seed=seed))
