"""On-policy distillation: a teacher scores each token of the policy's own completions.

    sampled    A = log teacher - log policy of the sampled token, for ``reinforce_surrogate``
    top k      KL over the teacher's k likeliest ids and one more bucket with the rest of the mass, with gradient

On-policy distillation: https://arxiv.org/abs/2306.13649; the reverse KL: MiniLLM, https://arxiv.org/abs/2306.08543.
Merging ids into a bucket can only lower the KL, so the top-k value is a lower bound, exact for k = vocabulary.
S all tokens; R tokens of a micro-batch; K ids a token.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from zerogap.algorithms._shapes import Bool, Float, Tensor
from zerogap.algorithms.finite import finite_column, name_by_index, require_finite

KLDirection = Literal["reverse", "forward"]

MIN_REST_MASS = 1e-6
"""Smallest probability outside the k ids that differs from 0: fp32 log-probs allow no finer."""


def distillation_advantages(
    teacher_log_probs_S: Float[np.ndarray, "S"],
    log_probs_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    *,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[np.ndarray, "S"]:
    """Teacher minus policy at each sampled token, nats, float64; 0 at masked slots.

    Its negative is the k1 estimate of KL(policy || teacher), and the policy gradient with it as the advantage is that of
    the KL at each prefix: the policy's own log-prob in it needs no gradient, since that term has expectation 0. Nothing is
    clipped or normalised, and no later token's KL is credited to an earlier one.

    Args:
        teacher_log_probs_S: of the sampled tokens, at the sample's temperature.
        log_probs_S: the policy's at the start of the step.
        loss_mask_S: tokens that train; the other slots may hold anything.
        name_token: name of token s in errors.
    """
    teacher_S = finite_column(teacher_log_probs_S, loss_mask_S, "teacher log-prob", name_token)
    return teacher_S - finite_column(log_probs_S, loss_mask_S, "log-prob", name_token)


def top_k_kl(
    log_probs_RK: Float[Tensor, "R K"],
    teacher_log_probs_RK: Float[Tensor, "R K"],
    loss_mask_R: Bool[Tensor, "R"],
    *,
    direction: KLDirection,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[Tensor, "R"]:
    """KL of each token in nats, with gradient to ``log_probs_RK``; float64, 0 at masked rows.

    With p the policy, q the teacher and a last bucket of 1 - sum over the K ids on either side:
    reverse sum p (log p - log q), seeking a mode; forward sum q (log q - log p), covering all of them.

    Args:
        log_probs_RK: the policy's at the teacher's ids, over the whole vocabulary, with gradient.
        teacher_log_probs_RK: the teacher's at the same ids.
        loss_mask_R: rows that count; the others may hold anything.
        direction: which side the expectation is over.
        name_token: name of row r in errors.
    """
    policy_RK = _finite_rows(log_probs_RK, loss_mask_R, "log-prob", name_token)
    teacher_RK = _finite_rows(
        teacher_log_probs_RK.detach(), loss_mask_R, "teacher log-prob", name_token
    )
    kl_R = _divergences(policy_RK, teacher_RK, direction).sum(1)
    kl_R = kl_R + _divergences(_rest(policy_RK), _rest(teacher_RK), direction)
    return kl_R.where(loss_mask_R, 0.0)


def _finite_rows(
    values_RK: Tensor, mask_R: Tensor, what: str, name_token: Callable[[int], str]
) -> Tensor:
    """float64, with masked rows uniform over K ids and the rest, so that their logarithms are harmless."""
    num_ids = values_RK.shape[1]
    flat_mask = mask_R.repeat_interleave(num_ids)
    values_RK = require_finite(
        values_RK.double().flatten(), flat_mask, what, lambda i: name_token(i // num_ids)
    ).view_as(values_RK)
    return values_RK.where(mask_R[:, None], -math.log(num_ids + 1))


def _divergences(policy: Tensor, teacher: Tensor, direction: KLDirection) -> Tensor:
    """The terms of the KL, one an outcome, from the log-probs of each outcome."""
    if direction == "reverse":
        return policy.exp() * (policy - teacher)
    return teacher.exp() * (teacher - policy)


def _rest(log_probs_RK: Tensor) -> Tensor:
    """[R]: log(1 - sum of exp).

    The rest is at least ``MIN_REST_MASS``, with the gradient there. Otherwise a policy with all its mass on the K ids
    would get no gradient towards a teacher that has mass elsewhere.
    """
    mass_R = log_probs_RK.logsumexp(1)
    bounded_R = mass_R.detach().clamp(max=math.log1p(-MIN_REST_MASS))
    return (-(mass_R - (mass_R.detach() - bounded_R)).expm1()).log()
