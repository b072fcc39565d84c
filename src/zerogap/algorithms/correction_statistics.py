"""What is known about the mismatch of a train batch, whether or not anything is corrected.

d = old_log_probs - rollout_log_probs of a trainable token, w = exp(d) (cut at d = +-20). U trainable tokens of the whole train
batch, R records that have any. Shares are of the U tokens unless they say records. float64.
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
    """(sum w)**2 / (U sum w**2): the effective sample size (Kish) as a share of U; 1 when all are equal."""


@dataclass(frozen=True, kw_only=True)
class CorrectionStatistics:
    """Mismatch, weights and rejections of one step."""

    num_tokens: int
    """U."""
    num_records: int
    """R."""
    weight_before: WeightStatistics
    """exp(d) at the weight's level (token without one), unbounded."""
    weight_after: WeightStatistics
    """What the loss is multiplied by; 1 everywhere without a weight."""
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
    num_vetoed_records: int
    """Records dropped for having such a token."""
    fraction_kept: float
    """Share that is left for the loss."""
    rollout_log_perplexity: float
    """Mean over records of the mean of -rollout_log_probs, nats."""
    old_log_perplexity: float
    """Mean over records of the mean of -old_log_probs, nats."""
    log_perplexity_gap: float
    """Trainer's less the engine's; positive where the trainer finds the samples less likely."""
    k1: float
    """Mean of -d: estimates KL(engine || trainer), unbiased, may be negative."""
    k3: float
    """Mean of exp(d) - 1 - d: the same, never negative."""
    chi2_token: float
    """Mean of w**2, less 1: estimates chi-squared(trainer || engine) of a token."""
    chi2_sequence: float
    """The same over records, with w = exp(sum of d)."""


def correction_statistics(
    old_U: np.ndarray,
    rollout_U: np.ndarray,
    record_U: np.ndarray,
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
    """Statistics over trainable tokens; ``record_U`` counts from 0 without gaps, the rest as ``correct_mismatch`` has it."""
    log_ratio_U = old_U - rollout_U
    len_R = np.bincount(record_U)
    rollout_R = -np.bincount(record_U, weights=rollout_U) / len_R
    old_R = -np.bincount(record_U, weights=old_U) / len_R
    token_U = _exp(log_ratio_U)
    sequence_R = _exp(np.bincount(record_U, weights=log_ratio_U))
    return CorrectionStatistics(
        num_tokens=len(record_U),
        num_records=len(len_R),
        weight_before=_weight_statistics(ratio_U),
        weight_after=_weight_statistics(weight_U),
        fraction_truncated_low=float((ratio_U < bounds[0]).mean()),
        fraction_truncated_high=float((ratio_U > bounds[1]).mean()),
        fraction_rejected_low=float(rejected_low_U.mean()),
        fraction_rejected_high=float(rejected_high_U.mean()),
        num_vetoed_tokens=int(vetoing_U.sum()),
        num_vetoed_records=len(np.unique(record_U[vetoed_U])),
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
