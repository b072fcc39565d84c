"""Collectors of a recipe: its prompts' encoding, its rewards and its seed, on one engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from zerogap.data import PromptItem
from zerogap.rollout import Collector, Generator, Rewards, Shaping
from zerogap.run.policy import Policy
from zerogap.types import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Collectors:
    """Makes collectors that differ only in how they draw. Reads the policy as it is when they are used."""

    policy: Policy
    engine: Generator
    rewards: Rewards
    """Closed by whoever built it."""
    encode: Callable[[PromptItem], Sequence[int]]
    """Prompt ids of an item."""
    seed: int
    """The run's."""
    shapings: Mapping[str, Shaping] = field(default_factory=dict)
    """Added to rewards, by name."""

    def __call__(self, sampling: SamplingParams, group_size: int) -> Collector:
        """One that draws ``group_size`` completions of each prompt."""
        return Collector(
            self.engine,
            self.rewards,
            encode=self.encode,
            decode=self.policy.detokenize,
            vocab_limit=self.policy.vocab_limit,
            sampling=sampling,
            group_size=group_size,
            seed=self.seed,
            shapings=self.shapings,
        )
