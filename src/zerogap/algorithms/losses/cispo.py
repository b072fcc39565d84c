"""CISPO: the log-prob, weighted by a clipped ratio without gradient."""

from typing import Literal

from pydantic import Field

from zerogap.algorithms.losses.base import RatioLoss
from zerogap.algorithms.terms import LossTerms, Surrogate


class CISPOLoss(RatioLoss):
    """-sg(clip(r, ratio_low, ratio_high)) A log_prob.

    MiniMax-M1, https://arxiv.org/abs/2506.13585, eqs. 4 and 5. No token loses its gradient, however far its ratio is:
    ``clip_fraction`` counts tokens whose weight is a bound. The bounds are ratios (the paper's 1 - eps and 1 + eps).
    """

    kind: Literal["cispo"] = "cispo"
    """Which objective."""
    ratio_low: float = Field(0.0, ge=0, lt=1)
    """Smallest weight; 0 is no bound."""
    ratio_high: float = Field(5.0, gt=1)
    """Largest weight (5 is ScaleRL's, https://arxiv.org/abs/2510.13786). A token beyond it keeps a gradient with this weight."""

    def surrogate(self, terms: LossTerms) -> Surrogate:
        """See the class."""
        ratio_T = terms.ratio_T.detach()
        weight_T = ratio_T.clamp(self.ratio_low, self.ratio_high)
        return Surrogate(-weight_T * terms.advantages_T * terms.log_probs_T, weight_T != ratio_T)
