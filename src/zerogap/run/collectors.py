"""Builds collectors with a recipe's environment and seed on one generator."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerogap.rollout import Collector, Environment, Generator, Shaping
from zerogap.run.policy import Policy
from zerogap.types import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Collectors:
    """Makes collectors that differ only in their sampling. They read the policy's weights when they are used."""

    policy: Policy
    generator: Generator
    environment: Environment
    seed: int
    """Seed of the run."""
    shapings: Mapping[str, Shaping] = field(default_factory=dict)
    """Added to rewards, by name."""

    def __call__(self, sampling: SamplingParams, group_size: int) -> Collector:
        """A collector that draws ``group_size`` rollouts of each prompt."""
        return Collector(
            self.generator,
            self.environment,
            decode=self.policy.tokenizer.decode,
            vocab_limit=self.policy.vocab_limit,
            sampling=sampling,
            group_size=group_size,
            seed=self.seed,
            shapings=self.shapings,
        )
