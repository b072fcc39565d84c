"""What is done about samples that another policy than the trainer's drew: importance weights and rejection.

    d = old_log_probs - rollout_log_probs, w = exp(d), at one of three levels:
    token       a token's own d
    sequence    the sum of d over its record's trainable tokens
    geometric   their mean

    weight      truncate min(w, high), clip clamp(w, low, high); optionally divided by its mean over the train batch
                (truncated importance sampling, Espeholt et al., https://arxiv.org/abs/1802.01561, section 4.1)
    mask        drop what has w outside [low, high]: tokens at level "token", whole records at the others
                (masked importance sampling; IcePop, https://arxiv.org/abs/2510.18855)
    veto        drop a record if one of its tokens has w below a bound

d is cut at +-20 before exp. Weight and rejection are decided separately: a rejected token counts in the mean that
normalises the weights, and no denominator changes. All of it is over the whole train batch, before micro-batches are cut.

S all tokens of all samples, U the trainable ones among them, R records that have any.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zerogap.algorithms._shapes import Bool, Float, Int
from zerogap.algorithms.correction_statistics import (
    CorrectionStatistics,
    correction_statistics,
)
from zerogap.algorithms.finite import MAX_LOG_RATIO, finite_column, name_by_index
from zerogap.config.corrections import Level, MaskCorrection, WeightCorrection
from zerogap.errors import DataError


@dataclass(frozen=True)
class Corrections:
    """Decided once a step, read by ``reduce_loss`` in each micro-batch."""

    weight_S: np.ndarray
    """float64 [S]: what the policy loss of a token is multiplied by; 1 without a weight, and where nothing trains."""
    keep_S: np.ndarray
    """bool [S]: the loss mask less what was rejected."""
    statistics: CorrectionStatistics


def correct_mismatch(
    old_log_probs_S: Float[np.ndarray, "S"],
    rollout_log_probs_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    record_S: Int[np.ndarray, "S"],
    *,
    weight: WeightCorrection | None = None,
    mask: MaskCorrection | None = None,
    veto: float | None = None,
    name_token: Callable[[int], str] = name_by_index,
) -> Corrections:
    """Weights, rejections and their statistics; with all three None nothing but the statistics.

    Args:
        old_log_probs_S: the trainer's at the start of the step, nats.
        rollout_log_probs_S: the engine's at sampling time, same temperature.
        loss_mask_S: trainable tokens of the train batch; the other slots of both columns may hold anything.
        record_S: which record a token belongs to.
        weight: importance weights.
        mask: rejection by ratio.
        veto: smallest w that a record's tokens may have.
        name_token: how an error calls token s.

    Raises:
        DataError: no token trains.
        NumericsError: a trainable token lacks a finite log-prob.
    """
    if not loss_mask_S.any():
        msg = f"the mask of {len(loss_mask_S)} tokens is empty, so there is nothing to correct; skip the step"
        raise DataError(msg)
    old_U = finite_column(old_log_probs_S, loss_mask_S, "old log-prob", name_token)[loss_mask_S]
    rollout_U = finite_column(
        rollout_log_probs_S, loss_mask_S, "rollout log-prob", name_token
    )[loss_mask_S]  # fmt: skip
    _, record_U = np.unique(record_S[loss_mask_S], return_inverse=True)

    def ratio_at(level: Level) -> np.ndarray:
        return _ratios(old_U - rollout_U, record_U, level)

    ratio_U = ratio_at(weight.level if weight else "token")
    weight_U = _weights(ratio_U, weight)
    too_low_U, too_high_U = (
        _out_of_bounds(ratio_at(mask.level), mask) if mask else _nothing(ratio_U)
    )
    vetoing_U = ratio_at("token") < (veto or 0.0)
    vetoed_U = (np.bincount(record_U, weights=vetoing_U) > 0)[record_U]
    keep_U = ~(too_low_U | too_high_U | vetoed_U)
    return Corrections(
        weight_S=_spread(weight_U, loss_mask_S, 1.0),
        keep_S=_spread(keep_U, loss_mask_S, False),
        statistics=correction_statistics(
            old_U,
            rollout_U,
            record_U,
            ratio_U=ratio_U,
            weight_U=weight_U,
            bounds=(weight.low, weight.high) if weight else (0.0, math.inf),
            rejected_low_U=too_low_U,
            rejected_high_U=too_high_U,
            vetoing_U=vetoing_U,
            vetoed_U=vetoed_U,
            keep_U=keep_U,
        ),
    )


def _ratios(log_ratio_U: np.ndarray, record_U: np.ndarray, level: Level) -> np.ndarray:
    if level != "token":
        sum_R = np.bincount(record_U, weights=log_ratio_U)
        per_record_R = sum_R / np.bincount(record_U) if level == "geometric" else sum_R
        log_ratio_U = per_record_R[record_U]
    return np.exp(log_ratio_U.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def _weights(ratio_U: np.ndarray, weight: WeightCorrection | None) -> np.ndarray:
    if weight is None:
        return np.ones_like(ratio_U)
    # Truncation is a clip whose lower bound is 0, which no exp is below.
    bounded_U = ratio_U.clip(weight.low, weight.high)
    if not weight.normalize:
        return bounded_U
    # fsum rounds once: the order of the samples cannot change a weight.
    return bounded_U / (math.fsum(bounded_U) / len(bounded_U))


def _out_of_bounds(ratio_U: np.ndarray, mask: MaskCorrection) -> tuple[np.ndarray, np.ndarray]:
    return ratio_U < mask.low, ratio_U > mask.high


def _nothing(ratio_U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(len(ratio_U), bool), np.zeros(len(ratio_U), bool)


def _spread(values_U: np.ndarray, mask_S: np.ndarray, elsewhere: float | bool) -> np.ndarray:
    values_S = np.full(len(mask_S), elsewhere, values_U.dtype)
    values_S[mask_S] = values_U
    return values_S
