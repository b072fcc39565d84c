"""KL(policy || reference) from sampled tokens: estimators, and the penalty in a loss or in a reward.

With d = log_probs - ref_log_probs at a token drawn from the policy
(Schulman, http://joschu.net/blog/kl-approx.html):

    k1 = d                    unbiased value
    k2 = d**2 / 2             biased value
    k3 = exp(-d) - 1 + d      unbiased value, never negative

A penalty in the loss needs the right gradient, not the right value, and tokens that another policy drew need its importance
ratio r = exp(log_probs - old_log_probs):

    k2    sg(r) k2            gradient r d grad(log_prob): in expectation over the old policy's tokens that of the KL
    k3    r k3                the same gradient, with the ratio's own part (DeepSeek-V3.2, https://arxiv.org/abs/2512.02556)

Without the ratio, k3's expected gradient is that of the reverse, KL(reference || policy), and k1's is 0
(https://arxiv.org/abs/2510.01555).
"""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from pydantic import Field

from zerogap.algorithms._shapes import Bool, Float, Tensor
from zerogap.algorithms.finite import (
    MAX_LOG_RATIO,
    finite_column,
    name_by_index,
    require_finite,
)
from zerogap.algorithms.refresh import Refresh
from zerogap.section import Section

KLKind = Literal["k1", "k2", "k3"]


class KLConfig(Section):
    """[kl]: a penalty on the KL to the reference: the initial policy, or an older one."""

    kind: Literal["none", "k1", "k2", "k3"] = "none"
    """Estimator per token (http://joschu.net/blog/kl-approx.html); with none, no reference model is loaded."""
    coefficient: float = Field(0.0, ge=0)
    """Weight of the estimate."""
    place: Literal["loss", "reward"] = "loss"
    """loss: add the mean to the loss, with gradient; reward: subtract each token's estimate from its reward, without gradient."""
    refresh: Refresh | None = None
    """When the reference moves to the policy; none: it stays the initial policy."""

    @property
    def is_on(self) -> bool:
        """Whether there is a penalty."""
        return self.kind != "none"

    @property
    def is_in_reward(self) -> bool:
        """Whether it is subtracted from rewards."""
        return self.is_on and self.place == "reward"

    @property
    def is_in_loss(self) -> bool:
        """Whether it is a term of the loss."""
        return self.is_on and self.place == "loss"

    def problems(self) -> Iterator[str]:
        """A coefficient without a kind, or the reverse; k1 in the loss."""
        if (self.kind == "none") != (self.coefficient == 0):
            yield f"kind = {self.kind!r}, coefficient = {self.coefficient}: a penalty needs both; set both, or neither"
        if self.kind == "none" and self.refresh is not None:
            yield "refresh: without a penalty there is no reference to refresh; set kind and coefficient, or remove the table"
        if self.kind == "k1" and self.place == "loss":
            yield 'kind = "k1", place = "loss": the gradient of k1 has expectation 0, so it would only add noise; set kind = "k3" or "k2", or place = "reward"'


def kl_estimate(
    log_probs_T: Float[Tensor, "T"],
    ref_log_probs_T: Float[Tensor, "T"],
    loss_mask_T: Bool[Tensor, "T"],
    *,
    kind: KLKind,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[Tensor, "T"]:
    """KL estimate of each token in nats, with gradient to ``log_probs_T``; 0 at masked slots.

    Args:
        log_probs_T: current policy, with gradient.
        ref_log_probs_T: the reference's, at the same temperature.
        loss_mask_T: tokens that count; the other slots may hold anything.
        kind: the estimator.
        name_token: name of token t in errors.
    """
    log_probs_T = require_finite(log_probs_T, loss_mask_T, "log-prob", name_token)
    ref_log_probs_T = require_finite(
        ref_log_probs_T.detach(), loss_mask_T, "reference log-prob", name_token
    )
    log_ratio_T = log_probs_T - ref_log_probs_T
    if kind == "k1":
        return log_ratio_T
    if kind == "k2":
        return log_ratio_T.square() / 2
    return (-log_ratio_T).clamp(max=MAX_LOG_RATIO).expm1() + log_ratio_T


def kl_loss(
    estimate_T: Float[Tensor, "T"], ratio_T: Float[Tensor, "T"], *, kind: KLKind
) -> Float[Tensor, "T"]:
    """The estimate times the importance ratio, so that its gradient is that of KL(policy || reference).

    Args:
        estimate_T: of ``kl_estimate``, with gradient; k2 or k3.
        ratio_T: exp(log_probs - old_log_probs) of each token, with gradient.
        kind: of the estimate.
    """
    return (ratio_T if kind == "k3" else ratio_T.detach()) * estimate_T


def kl_penalties(
    log_probs_S: Float[np.ndarray, "S"],
    ref_log_probs_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    *,
    kind: KLKind,
    coefficient: float,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[np.ndarray, "S"]:
    """Penalty on each token's reward: coefficient times the KL estimate, float64, 0 at masked slots.

    InstructGPT, https://arxiv.org/abs/2203.02155, eq. 2 (with k1). ``log_probs_S`` are those at the start of the step: a
    reward has no gradient, so k1, whose gradient would be noise in a loss, is the usual kind here.
    Advantages with one number per sample subtract the sum over the sample.
    """
    own_S = finite_column(log_probs_S, loss_mask_S, "log-prob", name_token)
    log_ratio_S = own_S - finite_column(
        ref_log_probs_S, loss_mask_S, "reference log-prob", name_token
    )
    if kind == "k1":
        return coefficient * log_ratio_S
    if kind == "k2":
        return coefficient * np.square(log_ratio_S) / 2
    return coefficient * (np.expm1((-log_ratio_S).clip(max=MAX_LOG_RATIO)) + log_ratio_S)
