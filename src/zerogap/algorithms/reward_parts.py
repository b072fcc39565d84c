"""Several rewards of a sample: their weighted sum, with each normalised by itself within its group.

GDPO, https://arxiv.org/abs/2601.05242: each reward is centred and divided by its standard deviation within the group
(eq. 4), the results are added with their weights (eq. 5), and the sum is normalised over the batch (eq. 6). The forms
here follow the authors' code (https://github.com/NVlabs/GDPO, README) and the equations as quoted in its issue 3.
Their code adds 1e-4 to each standard deviation; here a standard deviation has a floor, as in ``group_advantages``.

B samples of any number of groups, in any order.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from zerogap.algorithms._shapes import Bool, Float
from zerogap.algorithms.group_statistics import group_advantages
from zerogap.errors import DataError, NumericsError

RewardNormalization = Literal["none", "group"]
"""Of one part: raw; or centred and divided by its standard deviation within the group."""

_ROUNDING = 1e-9
"""A batch mean below this share of the standard deviation is the rounding of a mean that is 0."""


def combined_rewards(
    parts: Mapping[str, Float[np.ndarray, "B"]],
    weights: Mapping[str, float],
    normalize: Mapping[str, RewardNormalization],
    group_ids: Sequence[str],
    is_valid_B: Bool[np.ndarray, "B"],
) -> Float[np.ndarray, "B"]:
    """The weighted sum of a sample's rewards, float64 [B]; NaN for an invalid sample.

    A normalised part is exactly 0 where all members of a group have the same value, and for the only valid member of a
    group. If all parts are normalised, the result is already centred within groups.

    Args:
        parts: by name, the raw rewards; an invalid sample's slot may hold anything.
        weights: by name, the factor of each part; may be negative.
        normalize: by name. A normalised part is divided by a standard deviation with denominator members - 1 and a
            floor of 1e-6.
        group_ids: one id per sample.
        is_valid_B: samples that count (``exclusion_reason(sample) is None``).

    Raises:
        DataError: the three mappings name different parts, there are none, or lengths differ.
        NumericsError: a valid sample has a part that is not finite.
    """
    if not (parts and parts.keys() == weights.keys() == normalize.keys()):
        msg = f"rewards {list(parts)} with weights of {list(weights)} and normalizations of {list(normalize)}: each reward needs one of each; name the same ones, at least one"
        raise DataError(msg)
    terms = [
        weights[name] * _normalized(name, part_B, normalize[name], group_ids, is_valid_B)
        for name, part_B in parts.items()
    ]
    # fsum rounds once, so the order of the parts cannot change the result.
    return np.array([math.fsum(terms_of_sample) for terms_of_sample in zip(*terms, strict=True)])


def batch_normalized(
    advantages_B: Float[np.ndarray, "B"],
    is_valid_B: Bool[np.ndarray, "B"],
    *,
    std_floor: float = 1e-6,
) -> Float[np.ndarray, "B"]:
    """``(A - mean) / max(std, floor)`` over the valid samples of the batch, float64 [B]; NaN for an invalid sample.

    GDPO, eq. 6. Every sample counts once, whatever its length; the standard deviation has denominator samples - 1. The
    mean of advantages that are centred within their groups is 0. What rounding leaves of it is not subtracted, so that
    a group without a signal keeps advantages of exactly 0. Equal advantages, or a lone one, give exactly 0.

    Args:
        advantages_B: one per sample; an invalid sample's slot may hold anything.
        is_valid_B: samples that count.
        std_floor: smallest standard deviation to divide by.

    Raises:
        NumericsError: a valid sample's advantage is not finite.
    """
    normalized_B = np.full(len(advantages_B), np.nan)
    kept = np.asarray(advantages_B, np.float64)[is_valid_B]
    if not np.isfinite(kept).all():
        msg = f"{int((~np.isfinite(kept)).sum())} of {len(kept)} valid samples have an advantage that is not finite; look for the first NaN among their rewards"
        raise NumericsError(msg)
    if not len(kept) or (kept == kept[0]).all():
        normalized_B[is_valid_B] = 0.0
        return normalized_B
    mean = math.fsum(kept) / len(kept)
    std = math.sqrt(math.fsum((kept - mean) ** 2) / (len(kept) - 1))
    centre = mean if abs(mean) > _ROUNDING * std else 0.0
    normalized_B[is_valid_B] = (kept - centre) / max(std, std_floor)
    return normalized_B


def _normalized(
    name: str,
    part_B: np.ndarray,
    normalization: RewardNormalization,
    group_ids: Sequence[str],
    is_valid_B: np.ndarray,
) -> np.ndarray:
    """float64 [B]; NaN for an invalid sample."""
    if not len(part_B) == len(group_ids) == len(is_valid_B):
        msg = f"{len(part_B)} values of reward {name!r}, {len(group_ids)} group ids and {len(is_valid_B)} validity flags were given, but every sample needs one of each"
        raise DataError(msg)
    raw_B = np.where(is_valid_B, part_B, np.nan).astype(np.float64)
    if not np.isfinite(raw_B[is_valid_B]).all():
        msg = f"reward {name!r} is not finite for a valid sample; give a sample without a score an invalid outcome"
        raise NumericsError(msg)
    if normalization == "none":
        return raw_B
    return group_advantages(raw_B, group_ids, is_valid_B, divisor="group_std").advantages
