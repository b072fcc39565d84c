"""Group-relative advantages: reward minus a baseline from the rewards of the same group.

    A_i = r_i - mean(r)                         Dr. GRPO, https://arxiv.org/abs/2503.20783, eq. 3
    A_i = (r_i - mean(r)) / std(r)              GRPO, https://arxiv.org/abs/2402.03300, section 4.1.2
    A_i = (r_i - mean(r)) / std(batch's r)      Lite PPO, https://arxiv.org/abs/2508.08221
    A_i = (r_i - mean(r)) / std(batch's A)      ScaleRL, https://arxiv.org/abs/2510.13786
    A_i = (r_i - mean(r)) / mean(r)             MaxRL, https://arxiv.org/abs/2602.02710
    A_i = r_i - mean of the others' r           RLOO, https://arxiv.org/abs/2402.14740

Mean and standard deviation are over the valid members of one group. Standard deviations have denominator (numbers - 1), as
in TRL and verl; the papers leave it open. A penalty of each sample (the KL in the reward) is part of the numerator and not
of the divisor: a divisor that contained it would cancel its coefficient where all rewards are equal.

B samples of any number of groups, in any order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from zerogap.algorithms._shapes import Bool, Float
from zerogap.errors import DataError, NumericsError

Baseline = Literal["mean", "leave_one_out"]
Divisor = Literal["none", "group_std", "batch_std", "batch_advantage_std", "group_mean"]
STD_FLOOR = 1e-6
"""Smallest standard deviation to divide by, in units of reward."""


@dataclass(frozen=True)
class GroupAdvantages:
    """Advantages of B samples, and counts of their groups."""

    advantages: np.ndarray
    """float64 [B]; NaN for an invalid sample, which must not train."""
    is_alone: np.ndarray
    """bool [B]: the only valid member of its group; its advantage is 0."""
    num_groups: int
    """Groups with at least one valid member."""
    num_alone: int
    """Groups with exactly one valid member."""
    num_without_signal: int
    """Groups of two or more valid members with equal rewards, penalties left out."""


def group_advantages(
    rewards_B: Float[np.ndarray, "B"],
    group_ids: Sequence[str],
    is_valid_B: Bool[np.ndarray, "B"],
    *,
    baseline: Baseline = "mean",
    divisor: Divisor = "none",
    penalties_B: Float[np.ndarray, "B"] | None = None,
) -> GroupAdvantages:
    """Advantage of each sample relative to the valid samples with the same group id.

    Only ids define groups, so any order of samples gives the same numbers. Equal rewards without penalties give exactly 0.

    Args:
        rewards_B: rewards; an invalid sample's slot may hold anything.
        group_ids: one id per sample.
        is_valid_B: samples that count (``exclusion_reason(sample) is None``).
        baseline: the group's mean, or the mean of its other members, which is n / (n - 1) times as far away.
        divisor: of every advantage, computed from the rewards without penalties. Where these are all equal it is 1.
        penalties_B: subtracted from the rewards before the baseline; None: none.

    Raises:
        NumericsError: a valid sample's reward is not finite, or negative with divisor group_mean.
    """
    if not len(rewards_B) == len(group_ids) == len(is_valid_B):
        msg = (
            f"{len(rewards_B)} rewards, {len(group_ids)} group ids and {len(is_valid_B)} validity flags were "
            "given, but every sample needs one of each"
        )
        raise DataError(msg)
    rewards_B = np.asarray(rewards_B, np.float64)
    net_B = rewards_B if penalties_B is None else rewards_B - penalties_B
    advantages_B = np.full(len(rewards_B), np.nan)
    of_rewards_B = np.full(len(rewards_B), np.nan)
    is_alone_B = np.zeros(len(rewards_B), bool)
    num_without_signal = 0
    members_of = _valid_members(group_ids, is_valid_B)
    for group_id, members in members_of.items():
        rewards_G, net_G = rewards_B[members], net_B[members]
        if not (np.isfinite(rewards_G).all() and np.isfinite(net_G).all()):
            msg = f"group {group_id} has the rewards {net_G.tolist()}: a valid sample needs a finite reward; give a sample without a score an invalid outcome"
            raise NumericsError(msg)
        of_rewards_B[members] = _centred(rewards_G)
        advantages_B[members] = _scale(baseline, len(members)) * _centred(net_G)
        if divisor == "group_std":
            advantages_B[members] /= _std(rewards_G)
        elif divisor == "group_mean":
            advantages_B[members] = _over_mean(advantages_B[members], rewards_G, group_id)
        is_alone_B[members] = len(members) == 1
        num_without_signal += len(members) > 1 and _all_equal(rewards_G)
    if divisor == "batch_std":
        advantages_B /= _std(rewards_B[is_valid_B])
    elif divisor == "batch_advantage_std":
        advantages_B /= _std(of_rewards_B[is_valid_B])
    num_alone = int(is_alone_B.sum())
    return GroupAdvantages(advantages_B, is_alone_B, len(members_of), num_alone, num_without_signal)


def _valid_members(group_ids: Sequence[str], is_valid_B: np.ndarray) -> dict[str, list[int]]:
    members_of: dict[str, list[int]] = {}
    for sample, group_id in enumerate(group_ids):
        if is_valid_B[sample]:
            members_of.setdefault(group_id, []).append(sample)
    return members_of


def _scale(baseline: Baseline, num_members: int) -> float:
    if baseline == "mean":
        return 1.0
    return num_members / (num_members - 1) if num_members > 1 else 0.0


def _centred(values_G: np.ndarray) -> np.ndarray:
    # Compare for equality: the rounded mean of equal numbers can differ from them,
    # and a tiny standard deviation would turn that rounding error into a real advantage.
    if _all_equal(values_G):
        return np.zeros_like(values_G)
    # fsum rounds once, so the order of samples cannot change the result.
    return values_G - math.fsum(values_G) / len(values_G)


def _std(values_G: np.ndarray) -> float:
    if len(values_G) == 0 or _all_equal(values_G):
        return 1.0
    centred_G = _centred(values_G)
    return max(math.sqrt(math.fsum(centred_G**2) / (len(centred_G) - 1)), STD_FLOOR)


def _over_mean(advantages_G: np.ndarray, rewards_G: np.ndarray, group_id: str) -> np.ndarray:
    if (rewards_G < 0).any():
        msg = f"group {group_id} has the rewards {rewards_G.tolist()}: MaxRL divides by the group's mean, which needs rewards of 0 and above; choose another reward, or another advantage"
        raise NumericsError(msg)
    mean = math.fsum(rewards_G) / len(rewards_G)
    return advantages_G / mean if mean > 0 else np.zeros_like(advantages_G)


def _all_equal(values_G: np.ndarray) -> bool:
    return bool((values_G == values_G[0]).all())
