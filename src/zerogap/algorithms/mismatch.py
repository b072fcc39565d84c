"""The gap between the engine and the trainer on the tokens the engine sampled.

    d_t = old_log_probs_t - rollout_log_probs_t     nats; 0.0 for every token in exact mode

Statistics are over unmasked tokens, in float64, before any correction. T tokens.
"""

from dataclasses import dataclass

import numpy as np

from zerogap.algorithms._shapes import Bool, Float
from zerogap.errors import DataError, NumericsError


@dataclass(frozen=True)
class GapStatistics:
    """How far the trainer's log-probs are from the engine's, per token, in nats."""

    num_tokens: int
    mean: float
    """Mean of |d|: the number that other systems report (0.01 is usual, 0.2 means stale weights)."""
    max: float
    """Largest |d|."""
    signed_mean: float
    """Mean of d; it shows a bias that |d| hides."""
    k3: float
    """Mean of exp(d) - 1 - d: estimates KL(engine || trainer)."""

    @classmethod
    def of(cls, difference_U: Float[np.ndarray, "U"]) -> "GapStatistics":
        """Statistics of U >= 1 finite differences, float64."""
        return cls(
            num_tokens=len(difference_U),
            mean=float(np.abs(difference_U).mean()),
            max=float(np.abs(difference_U).max()),
            signed_mean=float(difference_U.mean()),
            k3=float((np.expm1(difference_U) - difference_U).mean()),
        )


def gap_statistics(
    old_log_probs_T: Float[np.ndarray, "T"],
    rollout_log_probs_T: Float[np.ndarray, "T"],
    loss_mask_T: Bool[np.ndarray, "T"],
) -> GapStatistics:
    """Statistics of old - rollout over the tokens of ``loss_mask_T``.

    Args:
        old_log_probs_T: the trainer's, under the sampling weights or the current ones.
        rollout_log_probs_T: the engine's, at sampling time, at the same temperature.
        loss_mask_T: tokens that count; the other slots may hold anything.
    """
    return GapStatistics.of(
        log_ratios(old_log_probs_T, rollout_log_probs_T, loss_mask_T, "old minus rollout")
    )


def log_ratios(
    log_probs_T: Float[np.ndarray, "T"],
    other_log_probs_T: Float[np.ndarray, "T"],
    loss_mask_T: Bool[np.ndarray, "T"],
    what: str,
) -> Float[np.ndarray, "U"]:
    """First minus second at the U unmasked tokens, float64; refuses an empty mask and values that are not finite."""
    ratios_U = log_probs_T[loss_mask_T].astype(np.float64) - other_log_probs_T[loss_mask_T]
    if len(ratios_U) == 0:
        msg = f"{what}: the mask of {len(loss_mask_T)} tokens is empty, so there are no statistics; leave this batch out"
        raise DataError(msg)
    if not np.isfinite(ratios_U).all():
        first = int(np.flatnonzero(loss_mask_T)[np.flatnonzero(~np.isfinite(ratios_U))[0]])
        msg = f"{what} is not finite at token {first}: {log_probs_T[first]} and {other_log_probs_T[first]}; an unmasked token needs two finite log-probs"
        raise NumericsError(msg)
    return ratios_U
