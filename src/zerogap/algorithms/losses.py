"""The policy loss: terms per token, and the one expression that turns them into a number.

    loss = sum_t numerator_t * weight_t * keep_t / denominator_t

``numerator`` is the clipped surrogate (plus a coefficient times a KL estimate), ``weight`` a detached
importance weight, ``keep`` the loss mask less rejected tokens, ``denominator`` what ``loss_denominators``
decided for the token's record. T tokens of any number of records.

Masked slots may hold NaN: inputs are replaced there *before* any arithmetic, because NaN * 0 is NaN in a value
and in a gradient. NaN or infinity in an unmasked slot raises ``NumericsError`` naming the token.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from zerogap.algorithms._shapes import Bool, Float
from zerogap.errors import NumericsError

MAX_LOG_RATIO = 20.0
"""Log-ratios beyond it are cut before exp, which would overflow: e**20 is far outside any clip range."""


class ClippedSurrogate(NamedTuple):
    """Per-token loss terms before weighting."""

    numerator_T: Tensor
    """To be minimised; 0 at masked slots."""
    is_clipped_T: Tensor
    """bool: a clip bound decided the value, so the token has no gradient; False at masked slots."""


def name_by_index(token: int) -> str:
    """The name of a token of which nothing but its place is known."""
    return f"token {token}"


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
) -> ClippedSurrogate:
    """PPO's clipped objective with its sign turned, one term a token.

    With r = exp(log_probs - old_log_probs):  -min(r A, clip(r, 1 - low, 1 + high) A)
    (PPO, https://arxiv.org/abs/1707.06347, eq. 7; asymmetric bounds: DAPO, https://arxiv.org/abs/2503.14476, eq. 8).
    Where A < 0 the term is further limited to -c A, c = ``dual_clip`` > 1
    (https://arxiv.org/abs/1912.09729, eq. 5): a large ratio cannot give an unbounded step.

    Args:
        log_probs_T: current policy, with gradient, nats.
        old_log_probs_T: the policy at the start of the step, no gradient.
        advantages_T: the record's advantage at each of its tokens.
        loss_mask_T: tokens that count; the other slots may hold anything.
        clip_low: r below 1 - clip_low gains nothing more.
        clip_high: r above 1 + clip_high gains nothing more.
        dual_clip: largest ratio that counts where A < 0; None for no limit.
        name_token: how an error calls token t, e.g. its rollout and position.
    """
    log_probs_T = require_finite(log_probs_T, loss_mask_T, "log-prob", name_token)
    old_log_probs_T = require_finite(
        old_log_probs_T.detach(), loss_mask_T, "old log-prob", name_token
    )
    advantages_T = require_finite(advantages_T.detach(), loss_mask_T, "advantage", name_token)
    policy_ratio_T = (log_probs_T - old_log_probs_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    free_T = -policy_ratio_T * advantages_T
    bounded_T = -policy_ratio_T.clamp(1 - clip_low, 1 + clip_high) * advantages_T
    is_clipped_T = bounded_T > free_T
    numerator_T = torch.where(is_clipped_T, bounded_T, free_T)
    if dual_clip is not None:
        ceiling_T = -dual_clip * advantages_T
        is_over_T = (advantages_T < 0) & (numerator_T > ceiling_T)
        numerator_T = torch.where(is_over_T, ceiling_T, numerator_T)
        is_clipped_T = is_clipped_T | is_over_T
    return ClippedSurrogate(numerator_T, is_clipped_T)


def reduce_loss(
    numerator_T: Float[Tensor, "T"],
    denominator_T: Float[Tensor, "T"],
    keep_T: Bool[Tensor, "T"],
    *,
    weight_T: Float[Tensor, "T"] | None = None,
) -> Float[Tensor, ""]:
    """Sum of numerator * weight * keep / denominator, in float64.

    Args:
        numerator_T: loss terms, with gradient; may hold anything where ``keep_T`` is False.
        denominator_T: of the token's record, decided over the whole train batch.
        keep_T: the loss mask less tokens that a correction rejected. Rejection changes no denominator.
        weight_T: detached importance weights; None is 1 everywhere.
    """
    zero = numerator_T.new_zeros((), dtype=torch.float64)
    terms_T = torch.where(keep_T, numerator_T.double(), zero)
    if weight_T is not None:
        terms_T = terms_T * torch.where(keep_T, weight_T.detach().double(), zero)
    return (terms_T / torch.where(keep_T, denominator_T.double(), zero + 1)).sum()


def require_finite(
    values_T: Tensor, mask_T: Tensor, what: str, name_token: Callable[[int], str]
) -> Tensor:
    """``values_T`` with 0 at masked slots; refuses what is not finite elsewhere."""
    is_bad_T = mask_T & ~values_T.detach().isfinite()
    if is_bad_T.any():
        first = int(is_bad_T.nonzero()[0])
        msg = (
            f"the {what} of {name_token(first)} is {values_T[first].item()} ({int(is_bad_T.sum())} of "
            f"{int(mask_T.sum())} trainable tokens are not finite): a loss needs finite numbers; look at the "
            "record, the weights and the learning rate"
        )
        raise NumericsError(msg)
    return torch.where(mask_T, values_T, values_T.new_zeros(()))
