"""[corrections]: importance weights and rejection for samples that differ from the trainer's policy.

d = old_log_probs - rollout_log_probs of a token. Levels: token (d), sequence (sum of d over a sample's trainable
tokens), geometric (their mean). Weights and rejection are independent.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zerogap.config.section import Section

Level = Literal["token", "sequence", "geometric"]


class WeightCorrection(Section):
    """[corrections.weight]: multiply a token's policy loss by w = exp(d), bounded and without gradient."""

    kind: Literal["truncate", "clip"] = "truncate"
    """truncate: min(w, high); clip: clamp(w, low, high)."""
    level: Level = "token"
    """What d is computed over."""
    low: float = Field(0.0, ge=0, lt=1)
    """Smallest weight, for kind = "clip"."""
    high: float = Field(2.0, gt=1)
    """Largest weight."""
    normalize: bool = False
    """Divide by the mean weight over the train batch's trainable tokens."""

    def problems(self) -> Iterator[str]:
        """A lower bound without kind = "clip", or the reverse."""
        if (self.kind == "clip") != (self.low > 0):
            yield f'kind = {self.kind!r}, low = {self.low}: kind = "clip" needs a lower bound, and no other kind uses one; set both, or neither'


class MaskCorrection(Section):
    """[corrections.mask]: drop tokens (level "token") or whole samples whose exp(d) is outside [low, high]."""

    level: Level = "token"
    """What d is computed over."""
    low: float = Field(0.5, ge=0, lt=1)
    """Smallest ratio to keep."""
    high: float = Field(2.0, gt=1)
    """Largest ratio to keep."""


class CorrectionsConfig(Section):
    """All off by default: with exact numerics and fresh samples every weight would be 1."""

    weight: WeightCorrection | None = None
    """Importance weights; none: all are 1."""
    mask: MaskCorrection | None = None
    """Rejection by ratio; none: drop nothing."""
    veto: float | None = Field(None, gt=0, lt=1)
    """Drop a sample if one of its tokens has exp(d) below this (1e-4 is usual); none: never."""
    off_policy_kl: float | None = Field(None, gt=0)
    """Drop a sample with a negative advantage if its mean of old_log_probs - log_probs exceeds this, in nats; none: never."""

    @property
    def needs_old_log_probs(self) -> bool:
        """Whether weights or rejections need log-probs before the first update."""
        return any(part is not None for part in (self.weight, self.mask, self.veto))
