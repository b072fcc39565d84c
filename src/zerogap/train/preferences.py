"""Pairs of a preferred and another answer, and what an update does with each record of theirs.

Records of one group are compared by their reward: each is preferred to those of the group with a lower one.
"""

from collections.abc import Sequence

import numpy as np

from zerogap.algorithms import DPOTerms, dpo_coefficients, sample_sums
from zerogap.config.loss import DPOLossConfig
from zerogap.errors import DataError
from zerogap.train.plan import StepPlan
from zerogap.types import Sample


def preference_pairs(samples: Sequence[Sample], is_member_B: np.ndarray) -> np.ndarray:
    """int64 [P, 2]: (preferred, other) among the members, as indices of samples.

    Raises:
        DataError: a member has no reward, or nobody is preferred to anybody.
    """
    members_of: dict[str, list[tuple[int, float]]] = {}
    for i in np.flatnonzero(is_member_B).tolist():
        if (reward := samples[i].reward) is None:
            msg = f"record {samples[i].rollout_id} has no reward, so it is neither preferred nor not; give the preferred answer of a pair 1 and the other 0"
            raise DataError(msg)
        members_of.setdefault(samples[i].group_id, []).append((i, reward))
    pairs = [
        (i, j) for group in members_of.values() for i, high in group for j, low in group if high > low
    ]  # fmt: skip
    if not pairs:
        msg = f"the {int(is_member_B.sum())} records of an update hold no pair of answers to one prompt with different rewards: there is no preference to learn; give it such pairs"
        raise DataError(msg)
    return np.array(pairs)


def weigh_preferences(
    plan: StepPlan, log_probs_S: np.ndarray, update: int, loss: DPOLossConfig
) -> DPOTerms:
    """What an update does with each record of its pairs, at the weights as they are now.

    Args:
        plan: of the step; has the reference's log-probs.
        log_probs_S: float32 [S]: the policy's of the update's members, as they are now.
        update: its number.
        loss: how strongly, and how many pairs are taken to be wrong.
    """
    tokens = plan.tokens
    assert plan.ref_log_probs_S is not None, "with a reference"
    members_S = tokens.trains_S & tokens.index.spread(plan.is_member_B(update))

    def sums(column_S: np.ndarray, what: str) -> np.ndarray:
        return sample_sums(
            column_S,
            members_S,
            tokens.record_S,
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
