"""The policy gradient without bounds: RLOO, sampled distillation."""

from typing import Literal

from zerogap.algorithms.losses.base import RatioLoss
from zerogap.algorithms.terms import LossTerms, Surrogate


class ReinforceLoss(RatioLoss):
    """-r A (Williams 1992, eq. 11, times the ratio; RLOO, https://arxiv.org/abs/2402.14740, over several updates).

    In the first update r is 1 and the gradient is that of -A log_prob. In later ones the samples are the old policy's;
    r corrects for a token's probability, not for that of what precedes it, and has no bound: few updates a step.
    """

    kind: Literal["reinforce"] = "reinforce"
    """Which objective."""

    def surrogate(self, terms: LossTerms) -> Surrogate:
        """See the class."""
        numerator_T = -terms.ratio_T * terms.advantages_T
        return Surrogate(numerator_T, numerator_T != numerator_T)
