"""Advantages that differ from token to token: rewards in, credit out, over trainable tokens only.

The successor of a trainable token is the next trainable token of its record, so an environment's words between
two turns neither discount nor interrupt anything; after the last one nothing follows. A record's reward stands on
its last trainable token. Returns, values and advantages of a token are those of the state before it is drawn.

    normalised    (x - mean) / max(std, floor) over the trainable tokens of the train batch
    returns       G_t = r_t + discount G_(t+1)
    gae           A_t = delta_t + discount lambda A_(t+1), delta_t = r_t + discount V_(t+1) - V_t

S all tokens of B records, in any order of records; U trainable tokens, record by record. float64.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zerogap.algorithms._shapes import Bool, Float, Int
from zerogap.algorithms.finite import finite_column, name_by_index
from zerogap.errors import NumericsError


@dataclass(frozen=True)
class ValueTargets:
    """What a critic makes of the rewards."""

    advantages_S: np.ndarray
    """float64 [S]: for the policy; 0 at masked slots."""
    returns_S: np.ndarray
    """float64 [S]: advantage plus value, what the critic is regressed on; 0 at masked slots."""


def token_rewards(
    rewards_B: Float[np.ndarray, "B"],
    loss_mask_S: Bool[np.ndarray, "S"],
    record_S: Int[np.ndarray, "S"],
    *,
    penalties_S: Float[np.ndarray, "S"] | None = None,
) -> Float[np.ndarray, "S"]:
    """Each record's reward on its last trainable token, less what ``kl_penalties`` takes off every one.

    Args:
        rewards_B: one a record; that of a record without trainable tokens may hold anything.
        loss_mask_S: trainable tokens.
        record_S: index of each token's record.
        penalties_S: taken off token by token; None for nothing.
    """
    token_U, starts_R = _trainable(loss_mask_S, record_S)
    rewards_S = np.zeros(len(loss_mask_S))
    if len(token_U) == 0:
        return rewards_S
    last_R = token_U[np.append(starts_R[1:], len(token_U)) - 1]
    reward_R = np.asarray(rewards_B, np.float64)[record_S[last_R]]
    if not np.isfinite(reward_R).all():
        first = int(np.flatnonzero(~np.isfinite(reward_R))[0])
        msg = f"record {record_S[last_R[first]]} trains, but its reward is {reward_R[first]}: give it a finite one or an empty loss mask"
        raise NumericsError(msg)
    rewards_S[last_R] = reward_R
    return rewards_S if penalties_S is None else rewards_S - penalties_S


def reinforce_pp_advantages(
    rewards_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    record_S: Int[np.ndarray, "S"],
    *,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[np.ndarray, "S"]:
    """Undiscounted returns of ``token_rewards``, normalised over all trainable tokens of the train batch.

    REINFORCE++, https://arxiv.org/abs/2501.03262: reward minus the KL penalties still to come, then the global batch's mean
    and standard deviation. For the baseline variant, put ``group_advantages(..., normalize_std=False)`` in as the rewards:
    the group's mean goes first, then the batch's standard deviation.
    """
    returns_S = returns_to_go(rewards_S, loss_mask_S, record_S, name_token=name_token)
    return normalized_over_tokens(returns_S, loss_mask_S, name_token=name_token)


def returns_to_go(
    rewards_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    record_S: Int[np.ndarray, "S"],
    *,
    discount: float = 1.0,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[np.ndarray, "S"]:
    """The discounted sum of a token's reward and all later ones of its record; 0 at masked slots."""
    rewards_S = finite_column(rewards_S, loss_mask_S, "reward", name_token)
    token_U, starts_R = _trainable(loss_mask_S, record_S)
    returns_S = np.zeros(len(loss_mask_S))
    returns_S[token_U] = _discounted_sums(rewards_S[token_U], starts_R, discount)
    return returns_S


def gae_advantages(
    rewards_S: Float[np.ndarray, "S"],
    values_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    record_S: Int[np.ndarray, "S"],
    *,
    discount: float,
    gae_lambda: float,
    name_token: Callable[[int], str] = name_by_index,
) -> ValueTargets:
    """Generalised advantage estimates (https://arxiv.org/abs/1506.02438, eq. 16) and the critic's targets.

    Args:
        rewards_S: of ``token_rewards``.
        values_S: the critic's estimate before each token is drawn, without gradient.
        loss_mask_S: trainable tokens; the other slots may hold anything.
        record_S: index of each token's record.
        discount: of the next trainable token's value (gamma).
        gae_lambda: 0 trusts the critic's next value, 1 the rewards that came.
        name_token: how an error calls token s.
    """
    rewards_S = finite_column(rewards_S, loss_mask_S, "reward", name_token)
    values_S = finite_column(values_S, loss_mask_S, "value", name_token)
    token_U, starts_R = _trainable(loss_mask_S, record_S)
    next_value_U = np.append(values_S[token_U][1:], 0.0)[: len(token_U)]
    next_value_U[np.append(starts_R, len(token_U))[1:] - 1] = 0.0
    delta_U = rewards_S[token_U] + discount * next_value_U - values_S[token_U]
    advantages_S = np.zeros(len(loss_mask_S))
    advantages_S[token_U] = _discounted_sums(delta_U, starts_R, discount * gae_lambda)
    return ValueTargets(advantages_S, advantages_S + values_S)


def normalized_over_tokens(
    values_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    *,
    std_floor: float = 1e-6,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[np.ndarray, "S"]:
    """Mean 0 and standard deviation 1 (denominator tokens - 1) over the unmasked tokens; all 0 where they are all equal."""
    values_S = finite_column(values_S, loss_mask_S, "advantage", name_token)
    values_U = values_S[loss_mask_S]
    normalized_S = np.zeros(len(loss_mask_S))
    # Equality by comparison, as for groups: the rounded mean of equal numbers can differ from them.
    if len(values_U) == 0 or (values_U == values_U[0]).all():
        return normalized_S
    centred_U = values_U - math.fsum(values_U) / len(values_U)
    std = math.sqrt(math.fsum(centred_U**2) / (len(values_U) - 1))
    normalized_S[loss_mask_S] = centred_U / max(std, std_floor)
    return normalized_S


def _trainable(loss_mask_S: np.ndarray, record_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slots of the trainable tokens, record by record, and where each record's begin among them."""
    token_U = np.flatnonzero(loss_mask_S)
    token_U = token_U[np.argsort(record_S[token_U], kind="stable")]
    starts_R = np.flatnonzero(np.diff(record_S[token_U], prepend=-1))
    return token_U, starts_R


def _discounted_sums(values_U: np.ndarray, starts_R: np.ndarray, factor: float) -> np.ndarray:
    """y_t = x_t + factor * y_(t+1) in each record: all records together, from their last tokens backwards."""
    sums_U = values_U.copy()
    ends_R = np.append(starts_R, len(values_U))[1:]
    for distance in range(1, int((ends_R - starts_R).max(initial=0))):
        here = ends_R[ends_R - starts_R > distance] - 1 - distance
        sums_U[here] += factor * sums_U[here + 1]
    return sums_U
