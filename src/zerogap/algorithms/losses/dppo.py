"""DPPO: a trust region in probabilities instead of ratios; and DRPO, its smooth form."""

from typing import Literal

from pydantic import Field

from zerogap.algorithms._shapes import Tensor
from zerogap.algorithms.finite import MAX_LOG_RATIO
from zerogap.algorithms.losses.base import PolicyLoss
from zerogap.algorithms.terms import LossTerms, Surrogate


class DPPOLoss(PolicyLoss):
    """-M sg(min(r, max_ratio)) A log_prob, with r = p / q, p the policy's and q the sampler's probability of the token.

    M is 0 where the policy has moved away from the sampler in the direction that A asks for (p > q with A > 0, p < q with
    A < 0) and the divergence of the two exceeds its bound; a move back keeps its gradient. Divergences of the token against
    the rest of the vocabulary: total variation |p - q|, or KL(q || p) = q log(q / p) + (1 - q) log((1 - q) / (1 - p)).
    Divergence Proximal Policy Optimization, https://arxiv.org/abs/2602.04879 (its binary approximations). The ratio is
    against the engine's log-probs, whatever ``train.old_log_probs`` says.
    """

    compares_with_engine = True

    kind: Literal["dppo"] = "dppo"
    """Which objective."""
    divergence: Literal["tv", "kl"] = "tv"
    """Total variation or KL of (the token, the rest)."""
    max_divergence_low: float = Field(0.15, gt=0)
    """Bound where the advantage is negative (0.05 is usual for kl)."""
    max_divergence_high: float = Field(0.15, gt=0)
    """Bound where the advantage is positive."""
    max_ratio: float = Field(20.0, gt=1)
    """Largest weight of a token."""

    def surrogate(self, terms: LossTerms) -> Surrogate:
        """See the class."""
        new_T, rollout_T = terms.log_probs_T.detach(), terms.rollout_log_probs_T
        divergence_T = (
            (new_T.exp() - rollout_T.exp()).abs()
            if self.divergence == "tv"
            else _binary_kl(rollout_T, new_T)
        )
        advantages_T = terms.advantages_T
        is_out_T = (
            (advantages_T > 0) & (new_T > rollout_T) & (divergence_T > self.max_divergence_high)
        ) | ((advantages_T < 0) & (new_T < rollout_T) & (divergence_T > self.max_divergence_low))
        weight_T = _ratio(new_T, rollout_T).clamp(max=self.max_ratio)
        numerator_T = -weight_T * advantages_T * terms.log_probs_T
        return Surrogate(numerator_T.where(~is_out_T, 0.0), is_out_T)


class DRPOLoss(PolicyLoss):
    """-A r + |A| q (r - 1)^2 / (2 delta), with r = p / q against the sampler's probability q.

    Divergence Regularized Policy Optimization, https://arxiv.org/abs/2606.09821. The gradient is that of -w r A log_prob with
    w = 1 - sign(A (r - 1)) |p - q| / delta: DPPO's bound as a smooth slope. The ratio is against the engine's log-probs,
    whatever ``train.old_log_probs`` says.
    """

    compares_with_engine = True

    kind: Literal["drpo"] = "drpo"
    """Which objective."""
    delta: float = Field(12.5, gt=0)
    """Strength of the penalty is 1 / delta. Below 1 the gradient is 0 at |p - q| = delta and turns beyond it."""

    def surrogate(self, terms: LossTerms) -> Surrogate:
        """See the class."""
        rollout_T, advantages_T = terms.rollout_log_probs_T, terms.advantages_T
        ratio_T = _ratio(terms.log_probs_T, rollout_T)
        penalty_T = advantages_T.abs() * rollout_T.exp() * (ratio_T - 1).square() / (2 * self.delta)
        return Surrogate(penalty_T - ratio_T * advantages_T, advantages_T != advantages_T)


def _ratio(log_probs_T: Tensor, rollout_log_probs_T: Tensor) -> Tensor:
    return (log_probs_T - rollout_log_probs_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _binary_kl(log_q_T: Tensor, log_p_T: Tensor) -> Tensor:
    """KL of (q, 1 - q) to (p, 1 - p), from the logarithms of q and p; at a probability of 1 the rest counts as 1e-12."""
    rest_q_T, rest_p_T = ((-log_T.expm1()).clamp(min=1e-12) for log_T in (log_q_T, log_p_T))
    return log_q_T.exp() * (log_q_T - log_p_T) + rest_q_T * (rest_q_T / rest_p_T).log()
