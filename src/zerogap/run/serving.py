"""The side that samples: which engine, whose weights, and how a new version gets there.

By default engine and trainer hold one model and a publish copies nothing. An engine that another program runs, that
computes in another precision, or that stays some versions behind has weights of its own.
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
    """What a run asks of whoever samples."""

    @property
    def stats(self) -> EngineStats | None:
        """Counters up to now; None if it has none."""
        ...

    def release_memory_occupation(self) -> None:
        """Give memory back while the trainer works."""
        ...

    def resume_memory_occupation(self) -> None:
        """Take it again."""
        ...

    def close(self) -> None:
        """End its thread. May be called twice."""
        ...


@dataclass(frozen=True, kw_only=True)
class Serving:
    """An engine with its weights' way from the trainer. Replaced as a whole when a remedy changes it."""

    engine: RolloutEngine
    evaluator: AsyncEngine
    """Answers evaluation prompts, always with the trainer's present weights; the engine itself where it shares them."""
    publish: Callable[[int], Published]
    """Serve the trainer's weights as they are now, under this version."""
    history: WeightHistory | None
    """Versions that the trainer has left behind, if any are kept."""

    @property
    def is_copy(self) -> bool:
        """Whether the engine has weights of its own."""
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
    """The engine of a recipe, without weights: publish to it before it generates.

    Args:
        policy: the trainer's model and its tokenizer.
        config: which engine, its precision and its limits.
        versions: gets the digest of every version that is served.
        gemm: GEMM kernels of its passes.
        lag: versions that the engine stays behind.
        seed: of the engine's own noise.
        needed: what the recipe asks of whoever samples.
        history: taken over from another serving of the same run.

    Raises:
        ConfigError: the engine lacks something that is needed.
    """
    own = policy.model.precision
    precision: Precision = own if config.dtype is None else config.dtype
    evaluator = AsyncEngine(policy.engine(config, gemm=gemm, seed=seed))
    if config.backend == "zerogap" and precision == own and not lag:
        publisher = Publisher(SharedWeights(policy.model), evaluator, versions)
        return Serving(
            engine=evaluator, evaluator=evaluator, publish=publisher.publish, history=None
        )
    if history is None and lag:
        history = WeightHistory(lag + 1)
    engine = _copying_engine(policy, config, precision, gemm, seed)
    if missing := set(needed) - engine.capabilities:
        msg = f'engine.backend = {config.backend!r} lacks what this recipe asks of its engine: {", ".join(sorted(missing))}; leave that out of rollout.sampling, or set engine.backend = "zerogap"'
        raise ConfigError(msg)
    source = CopiedWeights(
        policy.model,
        history,
        lag=lag,
        rounding=round_bf16 if precision == "bf16" != own else unrounded,
    )
    publisher = Publisher(source, engine, versions)
    return Serving(engine=engine, evaluator=evaluator, publish=publisher.publish, history=history)


def _copying_engine(
    policy: Policy, config: EngineConfig, precision: Precision, gemm: Gemm, seed: int
) -> RolloutEngine:
    if config.backend == "transformers":
        return TransformersGenerator(
            policy.model.config,
            eos_token_ids=policy.eos_token_ids,
            vocab_limit=policy.vocab_limit,
            decode=policy.detokenize,
            dtype=precision,
            seed=seed,
        )
    copied = policy.model.copied(precision=precision)
    return AsyncEngine(policy.engine(config, model=copied, gemm=gemm, seed=seed))
