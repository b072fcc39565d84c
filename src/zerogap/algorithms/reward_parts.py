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
