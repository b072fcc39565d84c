"""Statistics of the mismatch of a train batch, with or without corrections.

d = old_log_probs - rollout_log_probs of a trainable token, w = exp(d) (cut at d = +-20). U trainable tokens of the whole train
batch, R samples with such tokens. Shares are of the U tokens unless they say samples. float64.
"""

from dataclasses import dataclass

import numpy as np

from zerogap.algorithms.finite import MAX_LOG_RATIO


@dataclass(frozen=True)
class WeightStatistics:
    """Importance weights over the trainable tokens."""

    mean: float
    min: float
    max: float
    effective_share: float
    """(sum w)**2 / (U sum w**2): Kish's effective sample size as a share of U; 1 if all weights are equal."""


@dataclass(frozen=True, kw_only=True)
class CorrectionStatistics:
    """Mismatch, weights and rejections of one step."""

    num_tokens: int
    """U."""
    num_samples: int
    """R."""
    weight_before: WeightStatistics
    """exp(d) at the weight's level (default: token), unbounded."""
    weight_after: WeightStatistics
    """Factor on the loss; 1 without a weight."""
    fraction_truncated_low: float
    """Share with a weight below its lower bound."""
    fraction_truncated_high: float
    """Share with a weight above its upper bound."""
    fraction_rejected_low: float
    """Share that the mask dropped because its ratio is too small."""
    fraction_rejected_high: float
    """Share that the mask dropped because its ratio is too large."""
    num_vetoed_tokens: int
    """Tokens whose ratio is below the veto's bound."""
    num_vetoed_samples: int
    """Samples dropped because of such a token."""
    fraction_kept: float
    """Share of tokens left in the loss."""
    rollout_log_perplexity: float
    """Mean over samples of the mean of -rollout_log_probs, nats."""
    old_log_perplexity: float
    """Mean over samples of the mean of -old_log_probs, nats."""
    log_perplexity_gap: float
    """Trainer's minus engine's; positive if the samples are less likely for the trainer."""
    k1: float
    """Mean of -d: estimates KL(engine || trainer), unbiased, may be negative."""
    k3: float
    """Mean of exp(d) - 1 - d: the same, never negative."""
    chi2_token: float
    """Mean of w**2 - 1: estimates chi-squared(trainer || engine) of a token."""
    chi2_sequence: float
    """The same over samples, with w = exp(sum of d)."""


def correction_statistics(
    old_U: np.ndarray,
    rollout_U: np.ndarray,
    sample_U: np.ndarray,
    *,
    ratio_U: np.ndarray,
    weight_U: np.ndarray,
    bounds: tuple[float, float],
    rejected_low_U: np.ndarray,
    rejected_high_U: np.ndarray,
    vetoing_U: np.ndarray,
    vetoed_U: np.ndarray,
    keep_U: np.ndarray,
) -> CorrectionStatistics:
    """Statistics over trainable tokens. ``sample_U`` counts from 0 without gaps; other arguments as ``correct_mismatch``."""
    log_ratio_U = old_U - rollout_U
    len_R = np.bincount(sample_U)
    rollout_R = -np.bincount(sample_U, weights=rollout_U) / len_R
    old_R = -np.bincount(sample_U, weights=old_U) / len_R
    token_U = _exp(log_ratio_U)
    sequence_R = _exp(np.bincount(sample_U, weights=log_ratio_U))
    return CorrectionStatistics(
        num_tokens=len(sample_U),
        num_samples=len(len_R),
        weight_before=_weight_statistics(ratio_U),
        weight_after=_weight_statistics(weight_U),
        fraction_truncated_low=float((ratio_U < bounds[0]).mean()),
        fraction_truncated_high=float((ratio_U > bounds[1]).mean()),
        fraction_rejected_low=float(rejected_low_U.mean()),
        fraction_rejected_high=float(rejected_high_U.mean()),
        num_vetoed_tokens=int(vetoing_U.sum()),
        num_vetoed_samples=len(np.unique(sample_U[vetoed_U])),
        fraction_kept=float(keep_U.mean()),
        rollout_log_perplexity=float(rollout_R.mean()),
        old_log_perplexity=float(old_R.mean()),
        log_perplexity_gap=float((old_R - rollout_R).mean()),
        k1=float(-log_ratio_U.mean()),
        k3=float((np.expm1(log_ratio_U.clip(max=MAX_LOG_RATIO)) - log_ratio_U).mean()),
        chi2_token=float((token_U**2).mean() - 1),
        chi2_sequence=float((sequence_R**2).mean() - 1),
    )


def _exp(log_ratio_U: np.ndarray) -> np.ndarray:
    return np.exp(log_ratio_U.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def _weight_statistics(weight_U: np.ndarray) -> WeightStatistics:
    return WeightStatistics(
        mean=float(weight_U.mean()),
        min=float(weight_U.min()),
        max=float(weight_U.max()),
        effective_share=float(weight_U.sum() ** 2 / (len(weight_U) * (weight_U**2).sum())),
    )
