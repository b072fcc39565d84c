"""[sampling_policy]: which completions a step draws, and which of them train. Every loss that samples can use it.

docs/algorithms.md says what each part does, and what other systems call it.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zerogap.section import Section

SignalKind = Literal["reward", "accuracy"]
"""What a group must have so that it trains."""

_HALF = 0.5


class DynamicSamplingConfig(Section):
    """[sampling_policy.dynamic_sampling]: train on groups that have a signal, and draw others for those that have none.

    DAPO (https://arxiv.org/abs/2503.14476), section 3.2. Off with ``max_rounds = 1`` and ``over_sampling = 1``.
    """

    max_rounds: int = Field(1, ge=1)
    """At most this many rounds of sampling a step; 1: no group is replaced. If groups are still missing after the last
    round, the step trains on those it has and reports it."""
    signal: SignalKind = "reward"
    """reward: the completions of a group have different rewards; accuracy: some completions are right and some are not. Both
    look at the reward before any shaping."""
    correct_threshold: float = _HALF
    """For signal = "accuracy": a completion is right if its reward before shaping is at least this."""
    over_sampling: float = Field(1.0, ge=1)
    """A round draws this many times the missing groups, rounded up; the step takes the first that have a signal, and does
    not train on the surplus."""

    @property
    def is_on(self) -> bool:
        """Whether groups without a signal are left out."""
        return self.max_rounds > 1 or self.over_sampling > 1

    def problems(self) -> Iterator[str]:
        """A choice of signal that nothing reads."""
        if not self.is_on and self.signal != "reward":
            yield f"signal = {self.signal!r}, max_rounds = {self.max_rounds}, over_sampling = {self.over_sampling}: every group that is drawn trains, so no signal decides anything; set max_rounds = 2 or more, or remove signal"
        if self.signal != "accuracy" and self.correct_threshold != _HALF:
            yield f'correct_threshold = {self.correct_threshold}: signal = {self.signal!r} compares rewards and has no threshold; set signal = "accuracy", or remove correct_threshold'


class OverlongConfig(Section):
    """[sampling_policy.overlong]: a soft penalty on completions close to the token limit.

    DAPO (https://arxiv.org/abs/2503.14476), section 3.4.
    """

    buffer_tokens: int = Field(ge=1)
    """The penalty rises linearly from 0 over this many tokens below rollout.sampling.max_new_tokens."""
    penalty: float = Field(1.0, gt=0)
    """Subtracted from the reward of a completion that reaches the limit."""


class SamplingPolicyConfig(Section):
    """[sampling_policy]: which completions a step draws, and which of them train."""

    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
    """Replaces groups without a signal."""
    overlong: OverlongConfig | None = None
    """Penalty on completions near the token limit; none: no penalty."""
    truncated: Literal["train", "mask"] = "train"
    """Completions that the token limit ended. train: as others; mask: their tokens do not train (DAPO's overlong filtering),
    but their rewards count in their group's baseline."""
