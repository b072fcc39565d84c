"""What each token of a step is worth, decided over the whole train batch before the first update.

B samples, S all their tokens.
"""

from dataclasses import dataclass

import numpy as np

from zerogap.algorithms import (
    AdvantageInputs,
    Algorithm,
    DPOLoss,
    GroupAdvantages,
    KLConfig,
    distillation_advantages,
    kl_penalties,
)
from zerogap.train.tokens import StepTokens


@dataclass(frozen=True, eq=False)
class StepAdvantages:
    """The advantages of the tokens of all samples."""

    column_S: np.ndarray
    """float64 [S]; NaN where nothing trains, unless a whole sample has one advantage."""
    groups: GroupAdvantages | None = None
    """Statistics of the groups, if samples were compared within groups."""
    returns_S: np.ndarray | None = None
    """float64 [S]: the critic's regression targets."""
    teacher_kl_S: np.ndarray | None = None
    """float32 [S]: the KL to the teacher, if it is part of the advantage; NaN where nothing trains."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Scored:
    """Scores of a step's tokens before its first update: float32 [S] each, if the algorithm needs them."""

    old_S: np.ndarray
    """NaN where the first update's own forward pass will give the log-prob."""
    reference_S: np.ndarray | None
    teacher_S: np.ndarray | None
    values_S: np.ndarray | None
    square_sums_S: np.ndarray | None


def decide_advantages(
    step: StepTokens, scored: Scored, algorithm: Algorithm, teacher_keep_S: np.ndarray
) -> StepAdvantages:
    """The rewards' advantages, and the teacher's added to them where it scores (``teacher_keep_S``, bool [S]).

    A token of supervised training has the advantage 1. One of a preference has 0 until its update begins: its weight depends
    on the policy at that point.
    """
    if not algorithm.loss.trains_on_completions:
        value = 0.0 if isinstance(algorithm.loss, DPOLoss) else 1.0
        return StepAdvantages(np.where(step.trains_S, value, np.nan))
    found = algorithm.advantage.decide(
        AdvantageInputs(
            rewards_B=step.rewards_B,
            is_valid_B=step.who.is_kept_B,
            first_B=step.who.first_B,
            group_ids=step.group_ids,
            loss_mask_S=step.trains_S,
            sample_S=step.sample_S,
            old_log_probs_S=scored.old_S if algorithm.needs_old_first else None,
            penalties_S=_penalties(step, scored, algorithm.kl),
            values_S=scored.values_S,
            square_sums_S=scored.square_sums_S,
            name_token=step.index.name,
        )
    )
    column_S, teacher_kl_S = found.column_S, None
    if scored.teacher_S is not None:
        assert algorithm.teacher is not None
        more_S = distillation_advantages(
            scored.teacher_S, scored.old_S, teacher_keep_S, name_token=step.index.name
        )
        column_S = column_S + np.where(step.trains_S, algorithm.teacher.weight * more_S, np.nan)
        teacher_kl_S = np.where(teacher_keep_S, -more_S, np.nan).astype(np.float32)
    return StepAdvantages(column_S, found.groups, found.returns_S, teacher_kl_S)


def _penalties(step: StepTokens, scored: Scored, kl: KLConfig) -> np.ndarray | None:
    """float64 [S]: what the KL subtracts from each token's reward; None unless the KL is in the reward."""
    if not kl.is_in_reward:
        return None
    assert kl.kind != "none"
    assert scored.reference_S is not None, "a KL penalty has a reference"
    return kl_penalties(
        scored.old_S,
        scored.reference_S,
        step.trains_S,
        kind=kl.kind,
        coefficient=kl.coefficient,
        name_token=step.index.name,
    )
