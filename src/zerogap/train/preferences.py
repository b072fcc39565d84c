"""Pairs of a preferred and another answer, and how an update weighs each of their samples.

Samples of one group are compared by reward: each is preferred to those with a lower reward.
"""

from collections.abc import Sequence

import numpy as np

from zerogap.algorithms import DPOLoss, DPOTerms, dpo_coefficients, sample_sums
from zerogap.errors import DataError
from zerogap.train.plan import StepPlan
from zerogap.types import Sample


def preference_pairs(samples: Sequence[Sample], is_member_B: np.ndarray) -> np.ndarray:
    """int64 [P, 2]: (preferred, other) among the members, as indices of samples.

    Raises:
        DataError: a member has no reward, or no group has different rewards.
    """
    members_of: dict[str, list[tuple[int, float]]] = {}
    for i in np.flatnonzero(is_member_B).tolist():
        if (reward := samples[i].reward) is None:
            msg = f"rollout {samples[i].rollout_id} has no reward, so it cannot be compared; give the preferred answer of a pair 1 and the other 0"
            raise DataError(msg)
        members_of.setdefault(samples[i].group_id, []).append((i, reward))
    pairs = [
        (i, j) for group in members_of.values() for i, high in group for j, low in group if high > low
    ]  # fmt: skip
    if not pairs:
        msg = f"the {int(is_member_B.sum())} samples of an update hold no pair of answers to one prompt with different rewards: there is no preference to learn; give it such pairs"
        raise DataError(msg)
    return np.array(pairs)


def weigh_preferences(
    plan: StepPlan, log_probs_S: np.ndarray, update: int, loss: DPOLoss
) -> DPOTerms:
    """How an update weighs each sample of its pairs, under the current weights.

    Args:
        plan: of the step; has the reference's log-probs.
        log_probs_S: float32 [S]: the policy's current ones, of the update's members.
        update: its number.
        loss: beta and label smoothing.
    """
    tokens = plan.tokens
    assert plan.ref_log_probs_S is not None, "dpo has a reference"
    members_S = tokens.trains_S & tokens.index.spread(plan.is_member_B(update))

    def sums(column_S: np.ndarray, what: str) -> np.ndarray:
        return sample_sums(
            column_S,
            members_S,
            tokens.sample_S,
            num_samples=len(tokens.samples),
            what=what,
            name_token=tokens.index.name,
        )

    return dpo_coefficients(
        sums(log_probs_S, "log-prob"),
        sums(plan.ref_log_probs_S, "reference log-prob"),
        plan.pairs_of(update),
        beta=loss.beta,
        label_smoothing=loss.label_smoothing,
    )
