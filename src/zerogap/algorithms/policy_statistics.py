"""Statistics of how far the updates of a step moved the policy. T tokens, natural log, float64."""

from dataclasses import dataclass

import numpy as np

from zerogap.algorithms._shapes import Bool, Float
from zerogap.algorithms.mismatch import log_ratios


@dataclass(frozen=True)
class PolicyStatistics:
    """Policy ratio (exp(log_probs - old_log_probs)), clipping and entropy over the tokens of the loss."""

    num_tokens: int
    ratio_mean: float
    ratio_min: float
    ratio_max: float
    kl_to_old: float
    """Mean of exp(d) - 1 - d with d = log_probs - old_log_probs: estimates KL(old || current), nats."""
    clip_fraction: float
    """Share of tokens where a clip bound decided the loss."""
    entropy: float
    """Mean entropy of the policy's next-token distribution at the sampling temperature, nats."""


def policy_statistics(
    log_probs_T: Float[np.ndarray, "T"],
    old_log_probs_T: Float[np.ndarray, "T"],
    entropy_T: Float[np.ndarray, "T"],
    is_clipped_T: Bool[np.ndarray, "T"],
    loss_mask_T: Bool[np.ndarray, "T"],
) -> PolicyStatistics:
    """Statistics over the tokens of ``loss_mask_T``; the other slots may hold anything."""
    log_ratio_U = log_ratios(log_probs_T, old_log_probs_T, loss_mask_T, "current minus old")
    ratio_U = np.exp(log_ratio_U)
    return PolicyStatistics(
        num_tokens=len(ratio_U),
        ratio_mean=float(ratio_U.mean()),
        ratio_min=float(ratio_U.min()),
        ratio_max=float(ratio_U.max()),
        kl_to_old=float((np.expm1(log_ratio_U) - log_ratio_U).mean()),
        clip_fraction=float(is_clipped_T[loss_mask_T].mean()),
        entropy=float(entropy_T[loss_mask_T].mean(dtype=np.float64)),
    )
