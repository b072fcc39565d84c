"""Importance weights and rejection, for samples that differ from the trainer's policy.

    d = old_log_probs - rollout_log_probs, w = exp(d), at one of three levels:
    token       a token's own d
    sequence    the sum of d over its sample's trainable tokens
    geometric   their mean

    weight      truncate min(w, high), clip clamp(w, low, high); optionally divided by its mean over the train batch
                (truncated importance sampling, Espeholt et al., https://arxiv.org/abs/1802.01561, section 4.1)
    mask        drop tokens (at the other levels: whole samples) whose w, or k2 or k3 of d, is outside [low, high]. What stays
                keeps its weight: IcePop (https://arxiv.org/abs/2510.18855) is a mask with a weight of the same high bound
    veto        drop a sample if one of its tokens has w below a bound

d is cut at +-20 before exp. Weights and rejection are independent: a rejected token counts in the mean that
normalises the weights, and no denominator changes. Both use the whole train batch, before it is split.

S all tokens of all samples, U the trainable ones, R samples with trainable tokens.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from zerogap.algorithms._shapes import Bool, Float, Int
from zerogap.algorithms.correction_statistics import (
    CorrectionStatistics,
    correction_statistics,
)
from zerogap.algorithms.finite import MAX_LOG_RATIO, finite_column, name_by_index
from zerogap.algorithms.terms import Level
from zerogap.errors import DataError
from zerogap.section import Section


class WeightCorrection(Section):
    """[corrections.weight]: multiply a token's terms of loss, KL and teacher by w = exp(d), bounded, without gradient."""

    kind: Literal["truncate", "clip"] = "truncate"
    """truncate: min(w, high); clip: clamp(w, low, high)."""
    level: Level = "token"
    """What d is computed over."""
    low: float = Field(0.0, ge=0, lt=1)
    """Smallest weight, for kind = "clip"."""
    high: float = Field(2.0, gt=1)
    """Largest weight."""
    normalize: bool = False
    """Divide by the mean weight over the train batch's trainable tokens."""

    def problems(self) -> Iterator[str]:
        """A lower bound without kind = "clip", or the reverse."""
        if (self.kind == "clip") != (self.low > 0):
            yield f'kind = {self.kind!r}, low = {self.low}: kind = "clip" needs a lower bound, and no other kind uses one; set both, or neither'


class MaskCorrection(Section):
    """[corrections.mask]: drop tokens (level "token") or whole samples whose statistic is outside [low, high]."""

    kind: Literal["ratio", "k2", "k3"] = "ratio"
    """ratio: exp(d); k2: d**2 / 2; k3: exp(d) - 1 - d, both 0 without a gap, on either side of it."""
    level: Level = "token"
    """ratio: what d is computed over. k2, k3: a token's own; the sum over a sample's tokens (sequence); their mean (geometric)."""
    low: float = Field(0.0, ge=0, lt=1)
    """Smallest ratio to keep, for kind = "ratio"; 0 is no bound."""
    high: float = Field(gt=0)
    """Largest value to keep. Bounds depend on level and kind: for ratios token 0.5 to 5, sequence 0 to 3, geometric 0.999 to
    1.001 are usual; for k3 geometric 0.001 to 0.01."""

    def problems(self) -> Iterator[str]:
        """Bounds that the kind cannot have."""
        if self.kind == "ratio" and self.high <= 1:
            yield f"high = {self.high}: a ratio without a gap is 1, so everything would be dropped; set high above 1"
        if self.kind != "ratio" and self.low > 0:
            yield f"kind = {self.kind!r}, low = {self.low}: it is 0 without a gap, so what agrees best would be dropped; remove low"

    def statistic(self, log_ratio_U: np.ndarray, sample_U: np.ndarray) -> np.ndarray:
        """float64 [U]: what is compared with the bounds."""
        if self.kind == "ratio":
            return _ratios(log_ratio_U, sample_U, self.level)
        cut_U = log_ratio_U.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        own_U = cut_U**2 / 2 if self.kind == "k2" else np.expm1(cut_U) - cut_U
        return _over_level(own_U, sample_U, self.level)


class CorrectionsConfig(Section):
    """All off by default: with exact numerics and fresh samples every weight would be 1."""

    auto: bool = True
    """Without weight, mask and veto: switch on importance weights, truncated at 2, if samples may come from another policy than
    the trainer's (rollout.lag, numerics = "fast", another engine or precision); false: train on such samples as they are."""
    weight: WeightCorrection | None = None
    """Importance weights; none: all are 1."""
    mask: MaskCorrection | None = None
    """Rejection; none: drop nothing."""
    veto: float | None = Field(None, gt=0, lt=1)
    """Drop a sample if one of its tokens has exp(d) below this (1e-4 is usual); none: never."""
    off_policy_kl: float | None = Field(None, gt=0)
    """Drop the policy's term of a sample with a negative advantage if its mean of rollout_log_probs - log_probs exceeds this,
    in nats; none: never."""

    @property
    def needs_old_log_probs(self) -> bool:
        """Whether weights or rejections need log-probs before the first update."""
        return any(part is not None for part in (self.weight, self.mask, self.veto))


@dataclass(frozen=True)
class Corrections:
    """Computed once per step, for ``reduce_loss`` in each micro-batch."""

    weight_S: np.ndarray
    """float64 [S]: factor on a token's terms of loss, KL and teacher; 1 without a weight, and at masked tokens."""
    keep_S: np.ndarray
    """bool [S]: the loss mask without rejected tokens."""
    statistics: CorrectionStatistics


def correct_mismatch(
    old_log_probs_S: Float[np.ndarray, "S"],
    rollout_log_probs_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    sample_S: Int[np.ndarray, "S"],
    *,
    weight: WeightCorrection | None = None,
    mask: MaskCorrection | None = None,
    veto: float | None = None,
    name_token: Callable[[int], str] = name_by_index,
) -> Corrections:
    """Weights, rejections and their statistics; only statistics if all three options are None.

    Args:
        old_log_probs_S: the trainer's at the start of the step, nats.
        rollout_log_probs_S: the engine's at sampling time, same temperature.
        loss_mask_S: trainable tokens of the train batch; the other slots of both columns may hold anything.
        sample_S: which sample a token belongs to.
        weight: importance weights.
        mask: rejection by ratio, k2 or k3.
        veto: smallest w that the tokens of a sample may have.
        name_token: name of token s in errors.

    Raises:
        DataError: no token trains.
        NumericsError: a trainable token lacks a finite log-prob.
    """
    if not loss_mask_S.any():
        msg = f"the mask of {len(loss_mask_S)} tokens is empty, so there is nothing to correct; skip this step"
        raise DataError(msg)
    old_U = finite_column(old_log_probs_S, loss_mask_S, "old log-prob", name_token)[loss_mask_S]
    rollout_U = finite_column(
        rollout_log_probs_S, loss_mask_S, "rollout log-prob", name_token
    )[loss_mask_S]  # fmt: skip
    _, sample_U = np.unique(sample_S[loss_mask_S], return_inverse=True)

    def ratio_at(level: Level) -> np.ndarray:
        return _ratios(old_U - rollout_U, sample_U, level)

    ratio_U = ratio_at(weight.level if weight else "token")
    weight_U = _weights(ratio_U, weight)
    too_low_U = too_high_U = np.zeros(len(ratio_U), bool)
    if mask is not None:
        statistic_U = mask.statistic(old_U - rollout_U, sample_U)
        too_low_U, too_high_U = statistic_U < mask.low, statistic_U > mask.high
    vetoing_U = ratio_at("token") < (veto or 0.0)
    vetoed_U = (np.bincount(sample_U, weights=vetoing_U) > 0)[sample_U]
    keep_U = ~(too_low_U | too_high_U | vetoed_U)
    return Corrections(
        weight_S=_spread(weight_U, loss_mask_S, 1.0),
        keep_S=_spread(keep_U, loss_mask_S, False),
        statistics=correction_statistics(
            old_U,
            rollout_U,
            sample_U,
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


def _ratios(log_ratio_U: np.ndarray, sample_U: np.ndarray, level: Level) -> np.ndarray:
    return np.exp(_over_level(log_ratio_U, sample_U, level).clip(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def _over_level(values_U: np.ndarray, sample_U: np.ndarray, level: Level) -> np.ndarray:
    """The token's own value, or the sum or mean over its sample."""
    if level == "token":
        return values_U
    sum_R = np.bincount(sample_U, weights=values_U)
    return (sum_R / np.bincount(sample_U) if level == "geometric" else sum_R)[sample_U]


def _weights(ratio_U: np.ndarray, weight: WeightCorrection | None) -> np.ndarray:
    if weight is None:
        return np.ones_like(ratio_U)
    # Truncation is a clip with lower bound 0, since exp is never below 0.
    bounded_U = ratio_U.clip(weight.low, weight.high)
    if not weight.normalize:
        return bounded_U
    # fsum rounds once: the order of the samples cannot change a weight.
    return bounded_U / (math.fsum(bounded_U) / len(bounded_U))


def _spread(values_U: np.ndarray, mask_S: np.ndarray, elsewhere: float | bool) -> np.ndarray:
    values_S = np.full(len(mask_S), elsewhere, values_U.dtype)
    values_S[mask_S] = values_U
    return values_S
