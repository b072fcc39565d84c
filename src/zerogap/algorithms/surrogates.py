"""Policy losses: one numerator per token, to be minimised, with gradient to ``log_probs_T``.

r = exp(log_probs - old_log_probs) is a token's policy ratio, A its advantage; log-ratios are cut at +-20.

    clipped     -min(r A, clip(r, 1 - low, 1 + high) A)                PPO, GRPO, DAPO, REINFORCE++
    gspo        the same with one ratio per sample, exp(mean log r)    GSPO
    cispo       -detach(clip(r, low, high)) A log_prob                 CISPO
    reinforce   -r A                                                   RLOO, distillation
    weighted    coefficient * log_prob                                 SFT (-1), DPO, plain REINFORCE (-A)

Values that depend on a whole batch or sample (advantages, coefficients, old log-probs) come in as columns, so
the sum over tokens does not depend on the split into micro-batches; gspo needs whole samples and checks it.
T tokens of any number of samples; masked slots may hold NaN and give 0, without gradient. NaN or infinity in an
unmasked slot raises ``NumericsError`` naming the token.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from zerogap.algorithms._shapes import Bool, Float, Int
from zerogap.algorithms.finite import MAX_LOG_RATIO, name_by_index, require_finite
from zerogap.algorithms.per_sample import sample_means


class Surrogate(NamedTuple):
    """Per-token loss terms before weighting."""

    numerator_T: Tensor
    """To be minimised; 0 at masked slots."""
    is_clipped_T: Tensor
    """bool: a bound decided the value; False at masked slots. Such a token has no gradient, except in CISPO, where
    the bound becomes its weight."""


def clipped_surrogate(
    log_probs_T: Float[Tensor, "T"],
    old_log_probs_T: Float[Tensor, "T"],
    advantages_T: Float[Tensor, "T"],
    loss_mask_T: Bool[Tensor, "T"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    name_token: Callable[[int], str] = name_by_index,
) -> Surrogate:
    """PPO's clipped objective, negated, one term per token.

    -min(r A, clip(r, 1 - low, 1 + high) A)
    (PPO, https://arxiv.org/abs/1707.06347, eq. 7; asymmetric bounds: DAPO, https://arxiv.org/abs/2503.14476, eq. 8).
    Where A < 0 the term is further limited to -c A, c = ``dual_clip`` > 1
    (https://arxiv.org/abs/1912.09729, eq. 5): a large ratio cannot give an unbounded step.

    Args:
        log_probs_T: current policy, with gradient, nats.
        old_log_probs_T: the policy at the start of the step, no gradient.
        advantages_T: the sample's advantage at each of its tokens.
        loss_mask_T: tokens that count; the other slots may hold anything.
        clip_low: r below 1 - clip_low gives no further gain.
        clip_high: r above 1 + clip_high gives no further gain.
        dual_clip: largest ratio that counts where A < 0; None for no limit.
        name_token: name of token t in errors, e.g. its rollout and position.
    """
    log_ratio_T, _ = _log_ratios(log_probs_T, old_log_probs_T, loss_mask_T, name_token)
    advantages_T = require_finite(advantages_T.detach(), loss_mask_T, "advantage", name_token)
    numerator_T, is_clipped_T = _clipped(_exp(log_ratio_T), advantages_T, clip_low, clip_high)
    if dual_clip is not None:
        ceiling_T = -dual_clip * advantages_T
        is_over_T = (advantages_T < 0) & (numerator_T > ceiling_T)
        numerator_T = torch.where(is_over_T, ceiling_T, numerator_T)
        is_clipped_T = is_clipped_T | is_over_T
    return Surrogate(numerator_T, is_clipped_T)


def gspo_surrogate(
    log_probs_T: Float[Tensor, "T"],
    old_log_probs_T: Float[Tensor, "T"],
    advantages_T: Float[Tensor, "T"],
    loss_mask_T: Bool[Tensor, "T"],
    sample_T: Int[Tensor, "T"],
    sample_len_T: Int[Tensor, "T"],
    *,
    clip_low: float,
    clip_high: float,
    name_token: Callable[[int], str] = name_by_index,
) -> Surrogate:
    """The clipped objective with one ratio per sample: s = exp(mean over its trainable tokens of log r).

    GSPO, https://arxiv.org/abs/2507.18071, eqs. 5 and 7. Every token of a sample carries the sample's term, so with
    denominator "sample" (own tokens times samples) the sum is the mean over samples of -min(s A, clip(s) A).
    The gradient goes through the mean: for each token it is -s A / len, whatever its own ratio.

    Args:
        log_probs_T: current policy, with gradient, nats.
        old_log_probs_T: the policy at the start of the step.
        advantages_T: one number per sample, at each of its tokens.
        loss_mask_T: tokens that count, before any rejection: dropping a token does not change its sample's ratio.
        sample_T: which sample a token belongs to.
        sample_len_T: number of its trainable tokens in the train batch; all must be in this micro-batch.
        clip_low: s below 1 - clip_low gives no further gain.
        clip_high: s above 1 + clip_high gives no further gain.
        name_token: name of token t in errors.
    """
    log_ratio_T, _ = _log_ratios(log_probs_T, old_log_probs_T, loss_mask_T, name_token)
    advantages_T = require_finite(advantages_T.detach(), loss_mask_T, "advantage", name_token)
    mean_T = sample_means(log_ratio_T, loss_mask_T, sample_T, sample_len_T, name_token)
    return Surrogate(*_clipped(_exp(mean_T), advantages_T, clip_low, clip_high))


def cispo_surrogate(
    log_probs_T: Float[Tensor, "T"],
    old_log_probs_T: Float[Tensor, "T"],
    advantages_T: Float[Tensor, "T"],
    loss_mask_T: Bool[Tensor, "T"],
    *,
    ratio_low: float,
    ratio_high: float,
    name_token: Callable[[int], str] = name_by_index,
) -> Surrogate:
    """REINFORCE weighted by a clipped ratio that has no gradient: -detach(clip(r, low, high)) A log_prob.

    CISPO (MiniMax-M1, https://arxiv.org/abs/2506.13585), eqs. 4 and 5, with token denominator. No token loses its
    gradient, however far its ratio is. The bounds are ratios (the paper's 1 - eps and 1 + eps); low 0 is no bound.
    """
    log_ratio_T, log_probs_T = _log_ratios(log_probs_T, old_log_probs_T, loss_mask_T, name_token)
    advantages_T = require_finite(advantages_T.detach(), loss_mask_T, "advantage", name_token)
    ratio_T = _exp(log_ratio_T.detach())
    weight_T = ratio_T.clamp(ratio_low, ratio_high)
    return Surrogate(-weight_T * advantages_T * log_probs_T, (weight_T != ratio_T) & loss_mask_T)


def reinforce_surrogate(
    log_probs_T: Float[Tensor, "T"],
    old_log_probs_T: Float[Tensor, "T"],
    advantages_T: Float[Tensor, "T"],
    loss_mask_T: Bool[Tensor, "T"],
    *,
    name_token: Callable[[int], str] = name_by_index,
) -> Surrogate:
    """-r A, without bounds (RLOO, https://arxiv.org/abs/2402.14740, with its advantages over several updates).

    In the first update r is 1 and the gradient equals that of -A log_prob. In later ones the samples are the old policy's;
    r corrects for a token's probability, not for its prefix's, and has no bound: make few updates a step.
    """
    log_ratio_T, _ = _log_ratios(log_probs_T, old_log_probs_T, loss_mask_T, name_token)
    advantages_T = require_finite(advantages_T.detach(), loss_mask_T, "advantage", name_token)
    return Surrogate(-_exp(log_ratio_T) * advantages_T, torch.zeros_like(loss_mask_T))


def weighted_log_probs(
    log_probs_T: Float[Tensor, "T"],
    coefficient_T: Float[Tensor, "T"],
    loss_mask_T: Bool[Tensor, "T"],
    *,
    name_token: Callable[[int], str] = name_by_index,
) -> Surrogate:
    """A constant coefficient times the log-prob.

    With -A it is REINFORCE (Williams 1992, eq. 11, sign turned), with ``DPOTerms.coefficient_B`` DPO's gradient.
    """
    log_probs_T = require_finite(log_probs_T, loss_mask_T, "log-prob", name_token)
    coefficient_T = require_finite(coefficient_T.detach(), loss_mask_T, "coefficient", name_token)
    return Surrogate(coefficient_T * log_probs_T, torch.zeros_like(loss_mask_T))


def sft_surrogate(
    log_probs_T: Float[Tensor, "T"],
    loss_mask_T: Bool[Tensor, "T"],
    *,
    name_token: Callable[[int], str] = name_by_index,
) -> Surrogate:
    """Cross-entropy with the given token: -log_prob, in nats."""
    minus_one_T = -torch.ones_like(log_probs_T)
    return weighted_log_probs(log_probs_T, minus_one_T, loss_mask_T, name_token=name_token)


def _log_ratios(
    log_probs_T: Tensor, old_log_probs_T: Tensor, mask_T: Tensor, name_token: Callable[[int], str]
) -> tuple[Tensor, Tensor]:
    """Current minus old, and current; both 0 at masked slots."""
    log_probs_T = require_finite(log_probs_T, mask_T, "log-prob", name_token)
    old_log_probs_T = require_finite(old_log_probs_T.detach(), mask_T, "old log-prob", name_token)
    return log_probs_T - old_log_probs_T, log_probs_T


def _exp(log_ratio_T: Tensor) -> Tensor:
    return log_ratio_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _clipped(
    ratio_T: Tensor, advantages_T: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    free_T = -ratio_T * advantages_T
    bounded_T = -ratio_T.clamp(1 - clip_low, 1 + clip_high) * advantages_T
    is_clipped_T = bounded_T > free_T
    return torch.where(is_clipped_T, bounded_T, free_T), is_clipped_T
