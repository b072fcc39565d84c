"""SAPO: a soft gate instead of a clip."""

from typing import Literal

from pydantic import Field

from zerogap.algorithms.losses.base import RatioLoss
from zerogap.algorithms.terms import LossTerms, Surrogate


class SAPOLoss(RatioLoss):
    """-f(r) A, f(r) = 4 / tau sigmoid(tau (r - 1)), tau = tau_pos where A > 0, else tau_neg.

    Soft Adaptive Policy Optimization, https://arxiv.org/abs/2511.20347. The gradient is that of -w(r) r A log_prob with
    w(r) = 4 s (1 - s), s = sigmoid(tau (r - 1)): 1 on policy, smoothly down to 0 away from it. The value on policy is
    -2 A / tau, so it is not comparable with other losses. Nothing is clipped.
    """

    kind: Literal["sapo"] = "sapo"
    """Which objective."""
    tau_pos: float = Field(1.0, gt=0)
    """Steepness of the gate where the advantage is positive."""
    tau_neg: float = Field(1.05, gt=0)
    """Steepness of the gate where the advantage is negative; larger: such tokens fade sooner."""

    def surrogate(self, terms: LossTerms) -> Surrogate:
        """See the class."""
        advantages_T, ratio_T = terms.advantages_T, terms.ratio_T
        tau_T = (advantages_T * 0 + self.tau_neg).where(advantages_T <= 0, self.tau_pos)
        gate_T = 4 / tau_T * (tau_T * (ratio_T - 1)).sigmoid()
        return Surrogate(-gate_T * advantages_T, advantages_T != advantages_T)
