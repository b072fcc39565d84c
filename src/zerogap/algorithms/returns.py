"""Returns, estimates and baselines of each token, from rewards, over trainable tokens only.

The successor of a trainable token is the next trainable token of its rollout, so environment tokens between two turns
neither discount nor interrupt, and nor does a cut of the context, after which the rollout goes on in another sample. The
last one has no successor. A rollout's reward is placed on its last trainable token. Returns, values and advantages of a token belong to the state before it is sampled.

    normalised    (x - mean) / max(std, floor) over the trainable tokens of the train batch
    returns       G_t = r_t + discount G_(t+1)
    gae           A_t = delta_t + discount lambda A_(t+1), delta_t = r_t + discount V_(t+1) - V_t

S all tokens of B samples, samples of one rollout in the order of their turns; U trainable tokens, R rollouts. float64.
``rollout_S`` is a number for each token's rollout: the index of one of its samples.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from zerogap.algorithms._shapes import Bool, Float, Int
from zerogap.algorithms.finite import finite_column, name_by_index
from zerogap.errors import NumericsError


def token_rewards(
    rewards_B: Float[np.ndarray, "B"],
    loss_mask_S: Bool[np.ndarray, "S"],
    rollout_S: Int[np.ndarray, "S"],
    *,
    penalties_S: Float[np.ndarray, "S"] | None = None,
) -> Float[np.ndarray, "S"]:
    """Each rollout's reward on its last trainable token, minus the ``kl_penalties`` of every token.

    Args:
        rewards_B: one a sample, of which that at the rollout's number is read; may hold anything where no token of it trains.
        loss_mask_S: trainable tokens.
        rollout_S: index of a sample of each token's rollout, the same for all of its tokens.
        penalties_S: subtracted from each token's reward; None: no penalty.
    """
    token_U, starts_R = _trainable(loss_mask_S, rollout_S)
    rewards_S = np.zeros(len(loss_mask_S))
    if len(token_U) == 0:
        return rewards_S
    last_R = token_U[np.append(starts_R[1:], len(token_U)) - 1]
    reward_R = np.asarray(rewards_B, np.float64)[rollout_S[last_R]]
    if not np.isfinite(reward_R).all():
        first = int(np.flatnonzero(~np.isfinite(reward_R))[0])
        msg = f"sample {rollout_S[last_R[first]]} trains, but its reward is {reward_R[first]}: give it a finite reward, or an empty loss mask"
        raise NumericsError(msg)
    rewards_S[last_R] = reward_R
    return rewards_S if penalties_S is None else rewards_S - penalties_S


def returns_to_go(
    rewards_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    rollout_S: Int[np.ndarray, "S"],
    *,
    discount: float = 1.0,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[np.ndarray, "S"]:
    """The discounted sum of a token's reward and all later ones of its rollout; 0 at masked slots."""
    rewards_S = finite_column(rewards_S, loss_mask_S, "reward", name_token)
    token_U, starts_R = _trainable(loss_mask_S, rollout_S)
    returns_S = np.zeros(len(loss_mask_S))
    returns_S[token_U] = _discounted_sums(rewards_S[token_U], starts_R, discount)
    return returns_S


def gae_advantages(
    rewards_S: Float[np.ndarray, "S"],
    values_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    rollout_S: Int[np.ndarray, "S"],
    *,
    discount: float,
    gae_lambda: float,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[np.ndarray, "S"]:
    """Generalised advantage estimates (https://arxiv.org/abs/1506.02438, eq. 16); 0 at masked slots.

    An estimate plus its token's value is a target for the critic.

    Args:
        rewards_S: of ``token_rewards``.
        values_S: the critic's estimate before each token is sampled, without gradient.
        loss_mask_S: trainable tokens; the other slots may hold anything.
        rollout_S: number of each token's rollout.
        discount: of the next trainable token's value (gamma).
        gae_lambda: 0 trusts only the critic's next value, 1 only the rewards.
        name_token: name of token s in errors.
    """
    rewards_S = finite_column(rewards_S, loss_mask_S, "reward", name_token)
    values_S = finite_column(values_S, loss_mask_S, "value", name_token)
    token_U, starts_R = _trainable(loss_mask_S, rollout_S)
    next_value_U = np.append(values_S[token_U][1:], 0.0)[: len(token_U)]
    next_value_U[np.append(starts_R, len(token_U))[1:] - 1] = 0.0
    delta_U = rewards_S[token_U] + discount * next_value_U - values_S[token_U]
    advantages_S = np.zeros(len(loss_mask_S))
    advantages_S[token_U] = _discounted_sums(delta_U, starts_R, discount * gae_lambda)
    return advantages_S


def normalized_over_tokens(
    values_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    *,
    std_floor: float = 1e-6,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[np.ndarray, "S"]:
    """Normalised to mean 0 and standard deviation 1 (denominator tokens - 1) over unmasked tokens; all 0 if these are equal."""
    values_S = finite_column(values_S, loss_mask_S, "advantage", name_token)
    values_U = values_S[loss_mask_S]
    normalized_S = np.zeros(len(loss_mask_S))
    # Compare for equality, as for groups: the rounded mean of equal numbers can differ from them.
    if len(values_U) == 0 or (values_U == values_U[0]).all():
        return normalized_S
    centred_U = values_U - math.fsum(values_U) / len(values_U)
    std = math.sqrt(math.fsum(centred_U**2) / (len(values_U) - 1))
    normalized_S[loss_mask_S] = centred_U / max(std, std_floor)
    return normalized_S


def optimal_token_baselines(
    returns_S: Float[np.ndarray, "S"],
    log_probs_S: Float[np.ndarray, "S"],
    square_sums_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    rollout_S: Int[np.ndarray, "S"],
    group_ids: Sequence[str],
    *,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[np.ndarray, "S"]:
    """The optimal token baseline (https://arxiv.org/abs/2602.07078); 0 at masked slots.

    B_t = sum_i G_it W_it / sum_i W_it over the rollouts i of a group that have a t-th trainable token, with the cumulative
    W_it = sum over j <= t of 1 - 2 p_ij + s_ij, p the token's probability and s the sum of the squared ones of its
    distribution. 0 where a rollout is the only one left, or where all W are 0.

    Args:
        returns_S: G, the reward still to come at each token.
        log_probs_S: log p, nats, at the sampling temperature.
        square_sums_S: s, of the same distributions.
        loss_mask_S: trainable tokens; the other slots may hold anything.
        rollout_S: index of a sample of each token's rollout.
        group_ids: the group of each sample.
        name_token: name of token s in errors.
    """
    returns_S = finite_column(returns_S, loss_mask_S, "return", name_token)
    log_probs_S = finite_column(log_probs_S, loss_mask_S, "old log-prob", name_token)
    squares_S = finite_column(square_sums_S, loss_mask_S, "sum of squares", name_token)
    token_U, starts_R = _trainable(loss_mask_S, rollout_S)
    ends_R = np.append(starts_R, len(token_U))[1:]
    members_of: dict[str, list[np.ndarray]] = {}
    for start, end in zip(starts_R, ends_R, strict=True):
        slots = token_U[start:end]
        members_of.setdefault(group_ids[int(rollout_S[slots[0]])], []).append(slots)
    baselines_S = np.zeros(len(loss_mask_S))
    for members in members_of.values():
        longest = max(map(len, members))
        # [members, longest], 0 past a member's end.
        weights, weighted = np.zeros((len(members), longest)), np.zeros((len(members), longest))
        for row, slots in enumerate(members):
            # Never negative, but for the rounding of a certain token, which would throw B out of the range of the returns.
            norms = np.maximum(1 - 2 * np.exp(log_probs_S[slots]) + squares_S[slots], 0.0)
            energy = np.cumsum(norms)
            weights[row, : len(slots)] = energy
            weighted[row, : len(slots)] = energy * returns_S[slots]
        alive = np.array([sum(len(slots) > t for slots in members) for t in range(longest)])
        totals = np.array([math.fsum(column) for column in weights.T])
        sums = np.array([math.fsum(column) for column in weighted.T])
        has_one = (alive > 1) & (totals > 0)
        baseline = np.divide(sums, totals, out=np.zeros(longest), where=has_one)
        for slots in members:
            baselines_S[slots] = baseline[: len(slots)]
    return baselines_S


def _trainable(loss_mask_S: np.ndarray, rollout_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slots of the trainable tokens, rollout by rollout, and where each rollout starts among them."""
    token_U = np.flatnonzero(loss_mask_S)
    token_U = token_U[np.argsort(rollout_S[token_U], kind="stable")]
    starts_R = np.flatnonzero(np.diff(rollout_S[token_U], prepend=-1))
    return token_U, starts_R


def _discounted_sums(values_U: np.ndarray, starts_R: np.ndarray, factor: float) -> np.ndarray:
    """y_t = x_t + factor * y_(t+1) in each rollout, for all rollouts at once, from their last tokens backwards."""
    sums_U = values_U.copy()
    ends_R = np.append(starts_R, len(values_U))[1:]
    for distance in range(1, int((ends_R - starts_R).max(initial=0))):
        here = ends_R[ends_R - starts_R > distance] - 1 - distance
        sums_U[here] += factor * sums_U[here + 1]
    return sums_U
