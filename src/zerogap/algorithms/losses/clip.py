"""PPO's clipped objective: GRPO, DAPO, REINFORCE++, GSPO (with another level of the ratio)."""

from typing import Literal

from pydantic import Field

from zerogap.algorithms.losses.base import RatioLoss
from zerogap.algorithms.terms import LossTerms, Surrogate


class ClipLoss(RatioLoss):
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    PPO, https://arxiv.org/abs/1707.06347, eq. 7; asymmetric bounds: DAPO, https://arxiv.org/abs/2503.14476, eq. 8.
    Where A < 0 the term is further limited to -dual_clip A (https://arxiv.org/abs/1912.09729, eq. 5): a large ratio cannot
    give an unbounded step.
    """

    kind: Literal["clip"] = "clip"
    """Which objective."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """Policy ratios below 1 - clip_low give no further gradient where the advantage is negative."""
    clip_high: float = Field(0.2, ge=0)
    """Policy ratios above 1 + clip_high give no further gradient where the advantage is positive."""
    dual_clip: float | None = Field(None, gt=1)
    """Largest ratio that counts where the advantage is negative; none: the loss of such a token is unbounded."""

    def surrogate(self, terms: LossTerms) -> Surrogate:
        """See the class."""
        ratio_T, advantages_T = terms.ratio_T, terms.advantages_T
        free_T = -ratio_T * advantages_T
        bounded_T = -ratio_T.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages_T
        is_clipped_T = bounded_T > free_T
        numerator_T = bounded_T.where(is_clipped_T, free_T)
        if self.dual_clip is not None:
            ceiling_T = -self.dual_clip * advantages_T
            is_over_T = (advantages_T < 0) & (numerator_T > ceiling_T)
            numerator_T = ceiling_T.where(is_over_T, numerator_T)
            is_clipped_T = is_clipped_T | is_over_T
        return Surrogate(numerator_T, is_clipped_T)
