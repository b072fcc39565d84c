"""[corrections]: what is done about samples that another policy than the trainer's drew.

d = old_log_probs - rollout_log_probs a token. Levels: token (d), sequence (sum of d over a record's trainable
tokens), geometric (their mean). Weight and rejections are separate switches; either works without the other.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zerogap.config.section import Section

Level = Literal["token", "sequence", "geometric"]


class WeightCorrection(Section):
    """[corrections.weight]: multiply a token's policy loss by exp(d), bounded, without gradient."""

    kind: Literal["truncate", "clip"] = "truncate"
    """truncate: min(w, high); clip: clamp(w, low, high)."""
    level: Level = "token"
    """Over what d is taken."""
    low: float = Field(0.0, ge=0, lt=1)
    """Smallest weight, for kind = "clip"."""
    high: float = Field(2.0, gt=1)
    """Largest weight."""
    normalize: bool = False
    """Divide by the mean weight over the train batch's trainable tokens."""

    def problems(self) -> Iterator[str]:
        """A lower bound that nothing uses, or a clip without one."""
        if (self.kind == "clip") != (self.low > 0):
            yield f'kind = {self.kind!r}, low = {self.low}: a lower bound belongs to kind = "clip", and that one needs it; set both, or neither'


class MaskCorrection(Section):
    """[corrections.mask]: drop tokens (level "token") or whole records whose exp(d) leaves [low, high]."""

    level: Level = "token"
    """Over what d is taken."""
    low: float = Field(0.5, ge=0, lt=1)
    """Smallest ratio that stays."""
    high: float = Field(2.0, gt=1)
    """Largest ratio that stays."""


class CorrectionsConfig(Section):
    """All off by default: with exact numerics and fresh samples every weight is 1 and nothing is rejected."""

    weight: WeightCorrection | None = None
    """Importance weights; none: 1."""
    mask: MaskCorrection | None = None
    """Rejection by ratio; none: nothing is dropped."""
    veto: float | None = Field(None, gt=0, lt=1)
    """Drop a record if one of its tokens has exp(d) below this (1e-4 is usual); none: never."""
    off_policy_kl: float | None = Field(None, gt=0)
    """Drop a record of negative advantage whose mean of old_log_probs - log_probs exceeds this many nats; none: never."""

    @property
    def needs_old_log_probs(self) -> bool:
        """Whether weights or rejections are decided before the first update's forward pass."""
        return any(part is not None for part in (self.weight, self.mask, self.veto))
