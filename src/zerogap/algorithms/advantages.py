"""Group-relative advantages: reward minus a baseline from the rewards of the same group.

    A_i = r_i - mean(r)                        Dr. GRPO, https://arxiv.org/abs/2503.20783, eq. 3
    A_i = (r_i - mean(r)) / max(std(r), floor)  GRPO, https://arxiv.org/abs/2402.03300, section 4.1.2
    A_i = r_i - mean of the others' r           RLOO, https://arxiv.org/abs/2402.14740

Mean and standard deviation are over the valid members of one group. The standard
deviation has denominator (members - 1), as in TRL and verl; the paper leaves it open.

B samples of any number of groups, in any order.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.algorithms._shapes import Bool, Float
from zerogap.errors import DataError, NumericsError


@dataclass(frozen=True)
class GroupAdvantages:
    """Advantages of B samples, and counts of their groups."""

    advantages: np.ndarray
    """float64 [B]; NaN for an invalid sample, which must not train."""
    is_alone: np.ndarray
    """bool [B]: the only valid member of its group; without a baseline its advantage is 0."""
    num_groups: int
    """Groups with at least one valid member."""
    num_alone: int
    """Groups with exactly one valid member."""
    num_without_signal: int
    """Groups of two or more valid members with equal rewards: their advantages are exactly 0."""


def group_advantages(
    rewards_B: Float[np.ndarray, "B"],
    group_ids: Sequence[str],
    is_valid_B: Bool[np.ndarray, "B"],
    *,
    normalize_std: bool = False,
    std_floor: float = 1e-6,
) -> GroupAdvantages:
    """Advantage of each sample relative to the valid samples with the same group id.

    Only ids define groups, so any order of samples gives the same numbers.

    Args:
        rewards_B: rewards; an invalid sample's slot may hold anything.
        group_ids: one id per sample.
        is_valid_B: samples that count (``exclusion_reason(sample) is None``).
        normalize_std: divide by the group's standard deviation.
        std_floor: smallest standard deviation to divide by, in units of reward.
    """
    return _over_groups(
        rewards_B,
        group_ids,
        is_valid_B,
        lambda rewards_G: _centred(rewards_G, normalize_std=normalize_std, std_floor=std_floor),
    )


def leave_one_out_advantages(
    rewards_B: Float[np.ndarray, "B"],
    group_ids: Sequence[str],
    is_valid_B: Bool[np.ndarray, "B"],
) -> GroupAdvantages:
    """Reward minus the mean of the group's other valid rewards, so that the baseline excludes the sample's own.

    It is n / (n - 1) times reward minus group mean. Arguments as in ``group_advantages``.
    """
    return _over_groups(rewards_B, group_ids, is_valid_B, _without_own)


def _over_groups(
    rewards_B: np.ndarray,
    group_ids: Sequence[str],
    is_valid_B: np.ndarray,
    advantages_of: Callable[[np.ndarray], np.ndarray],
) -> GroupAdvantages:
    if not len(rewards_B) == len(group_ids) == len(is_valid_B):
        msg = (
            f"{len(rewards_B)} rewards, {len(group_ids)} group ids and {len(is_valid_B)} validity flags were "
            "given, but every sample needs one of each"
        )
        raise DataError(msg)
    advantages_B = np.full(len(rewards_B), np.nan)
    is_alone_B = np.zeros(len(rewards_B), bool)
    num_without_signal = 0
    members_of = _valid_members(group_ids, is_valid_B)
    for group_id, members in members_of.items():
        rewards_G = np.asarray(rewards_B, np.float64)[members]
        if not np.isfinite(rewards_G).all():
            msg = f"group {group_id} has the rewards {rewards_G.tolist()}: a valid sample needs a finite reward; give a sample without a score an invalid outcome"
            raise NumericsError(msg)
        advantages_B[members] = advantages_of(rewards_G)
        is_alone_B[members] = len(members) == 1
        num_without_signal += len(members) > 1 and bool((rewards_G == rewards_G[0]).all())
    num_alone = int(is_alone_B.sum())
    return GroupAdvantages(advantages_B, is_alone_B, len(members_of), num_alone, num_without_signal)


def _valid_members(group_ids: Sequence[str], is_valid_B: np.ndarray) -> dict[str, list[int]]:
    members_of: dict[str, list[int]] = {}
    for sample, group_id in enumerate(group_ids):
        if is_valid_B[sample]:
            members_of.setdefault(group_id, []).append(sample)
    return members_of


def _centred(rewards_G: np.ndarray, *, normalize_std: bool, std_floor: float) -> np.ndarray:
    # Compare for equality: the rounded mean of equal numbers can differ from them,
    # and a tiny standard deviation would turn that rounding error into a real advantage.
    if (rewards_G == rewards_G[0]).all():
        return np.zeros_like(rewards_G)
    # fsum rounds once, so the order of samples cannot change the result.
    centred_G = rewards_G - math.fsum(rewards_G) / len(rewards_G)
    if not normalize_std:
        return centred_G
    variance = math.fsum(centred_G**2) / (len(centred_G) - 1)
    return centred_G / max(math.sqrt(variance), std_floor)


def _without_own(rewards_G: np.ndarray) -> np.ndarray:
    num_members = len(rewards_G)
    scale = num_members / (num_members - 1) if num_members > 1 else 0.0
    return scale * _centred(rewards_G, normalize_std=False, std_floor=0.0)
