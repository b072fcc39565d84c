"""Estimators of KL(policy || reference) from sampled tokens, for use inside a loss or a reward.

With d = log_probs - ref_log_probs at a token drawn from the policy
(Schulman, http://joschu.net/blog/kl-approx.html):

    k1 = d                    unbiased value; its gradient has expectation 0, so in a loss it only adds noise
    k2 = d**2 / 2             biased value; its gradient is that of the KL
    k3 = exp(-d) - 1 + d      unbiased value, never negative; the estimator of the GRPO paper (2402.03300, eq. 4)
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from zerogap.algorithms._shapes import Bool, Float
from zerogap.algorithms.finite import MAX_LOG_RATIO, name_by_index, require_finite

KLKind = Literal["k1", "k2", "k3"]


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
        ref_log_probs_T: frozen reference at the same temperature.
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
    return torch.expm1((-log_ratio_T).clamp(max=MAX_LOG_RATIO)) + log_ratio_T


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
    Losses with one reward per sample subtract the sum over the sample (``sample_sums``).
    """
    estimate_S = kl_estimate(
        torch.from_numpy(np.asarray(log_probs_S, np.float64)),
        torch.from_numpy(np.asarray(ref_log_probs_S, np.float64)),
        torch.from_numpy(np.asarray(loss_mask_S, bool)),
        kind=kind,
        name_token=name_token,
    )
    return coefficient * estimate_S.numpy()
