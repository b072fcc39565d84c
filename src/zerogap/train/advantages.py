"""What each token of a step is worth, decided over the whole train batch before the first update.

B samples, S all their tokens.
"""

from dataclasses import dataclass

import numpy as np

from zerogap.algorithms import (
    GroupAdvantages,
    distillation_advantages,
    gae_advantages,
    group_advantages,
    kl_penalties,
    leave_one_out_advantages,
    normalized_over_tokens,
    reinforce_pp_advantages,
    sample_sums,
    token_rewards,
)
from zerogap.config.loss import (
    CISPOLossConfig,
    DAPOLossConfig,
    DistillationLossConfig,
    DPOLossConfig,
    DrGRPOLossConfig,
    GRPOLossConfig,
    GSPOLossConfig,
    LossConfig,
    PolicyLoss,
    PPOLossConfig,
    ReinforcePlusPlusLossConfig,
    RLOOLossConfig,
    SFTLossConfig,
)
from zerogap.train.tokens import StepTokens


@dataclass(frozen=True, eq=False)
class Advantages:
    """Of the tokens of all samples."""

    column_S: np.ndarray
    """float64 [S]; NaN where nothing trains, unless a whole sample has one advantage."""
    groups: GroupAdvantages | None = None
    """What was found out about the groups, where they were compared."""
    returns_S: np.ndarray | None = None
    """float64 [S]: what a critic is regressed on."""
    teacher_kl_S: np.ndarray | None = None
    """float32 [S]: of the KL to the teacher, where it is the advantage; NaN where nothing trains."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Scored:
    """What was computed of a step's tokens before its first update: float32 [S] each, where the loss needs it."""

    old_S: np.ndarray
    """NaN where the first update's own forward pass will give it."""
    reference_S: np.ndarray | None
    teacher_S: np.ndarray | None
    values_S: np.ndarray | None


def decide_advantages(step: StepTokens, scored: Scored, loss: LossConfig) -> Advantages:
    """Advantages of the tokens that train, from rewards and what was computed before the first update.

    A token of supervised training has the advantage 1. One of a preference has 0 until its update begins: the weight of
    its log-prob depends on the policy then. One of a differentiable KL has none and says 0.
    """
    match loss:
        case GRPOLossConfig() | GSPOLossConfig() | CISPOLossConfig():
            return _within_groups(step, scored, loss, normalize_std=loss.normalize_std)
        case DrGRPOLossConfig():
            return _within_groups(step, scored, loss, normalize_std=False)
        case DAPOLossConfig():
            return _within_groups(step, scored, loss, normalize_std=True)
        case RLOOLossConfig():
            rewards_B = _rewards_of_records(step, scored, loss)
            groups = leave_one_out_advantages(rewards_B, step.group_ids, step.who.is_kept_B)
            return _spread(step, groups)
        case ReinforcePlusPlusLossConfig():
            return _over_the_batch(step, scored, loss)
        case PPOLossConfig():
            return _from_values(step, scored, loss)
        case DistillationLossConfig(estimator="sampled"):
            return _from_teacher(step, scored)
        case SFTLossConfig():
            return Advantages(np.where(step.trains_S, 1.0, np.nan))
        case DPOLossConfig() | DistillationLossConfig():
            return Advantages(np.where(step.trains_S, 0.0, np.nan))


def _within_groups(
    step: StepTokens, scored: Scored, loss: PolicyLoss, *, normalize_std: bool
) -> Advantages:
    rewards_B = _rewards_of_records(step, scored, loss)
    groups = group_advantages(
        rewards_B, step.group_ids, step.who.is_kept_B, normalize_std=normalize_std
    )
    return _spread(step, groups)


def _spread(step: StepTokens, groups: GroupAdvantages) -> Advantages:
    return Advantages(step.index.spread(groups.advantages), groups)


def _over_the_batch(
    step: StepTokens, scored: Scored, loss: ReinforcePlusPlusLossConfig
) -> Advantages:
    rewards_B, groups = step.rewards_B, None
    if loss.baseline:
        groups = group_advantages(rewards_B, step.group_ids, step.who.is_kept_B)
        rewards_B = groups.advantages
    penalties_S = _penalties(step, scored, loss)
    rewards_S = token_rewards(rewards_B, step.trains_S, step.record_S, penalties_S=penalties_S)
    column_S = reinforce_pp_advantages(
        rewards_S, step.trains_S, step.record_S, name_token=step.index.name
    )
    return Advantages(np.where(step.trains_S, column_S, np.nan), groups)


def _from_values(step: StepTokens, scored: Scored, loss: PPOLossConfig) -> Advantages:
    assert scored.values_S is not None, "ppo has a critic"
    penalties_S = _penalties(step, scored, loss)
    rewards_S = token_rewards(step.rewards_B, step.trains_S, step.record_S, penalties_S=penalties_S)
    found = gae_advantages(
        rewards_S,
        scored.values_S,
        step.trains_S,
        step.record_S,
        discount=loss.discount,
        gae_lambda=loss.gae_lambda,
        name_token=step.index.name,
    )
    column_S = found.advantages_S
    if loss.normalize_advantages:
        column_S = normalized_over_tokens(column_S, step.trains_S, name_token=step.index.name)
    return Advantages(np.where(step.trains_S, column_S, np.nan), returns_S=found.returns_S)


def _from_teacher(step: StepTokens, scored: Scored) -> Advantages:
    assert scored.teacher_S is not None, "distillation has a teacher"
    column_S = distillation_advantages(
        scored.teacher_S, scored.old_S, step.trains_S, name_token=step.index.name
    )
    column_S = np.where(step.trains_S, column_S, np.nan)
    return Advantages(column_S, teacher_kl_S=(-column_S).astype(np.float32))


def _rewards_of_records(step: StepTokens, scored: Scored, loss: PolicyLoss) -> np.ndarray:
    """float64 [B]: each reward, less what the KL takes off all of the record's tokens."""
    penalties_S = _penalties(step, scored, loss)
    if penalties_S is None:
        return step.rewards_B
    return step.rewards_B - sample_sums(
        penalties_S, step.trains_S, step.record_S, num_samples=len(step.samples), what="penalty"
    )


def _penalties(step: StepTokens, scored: Scored, loss: PolicyLoss) -> np.ndarray | None:
    """float64 [S]: what the KL takes off the reward of each token; None where it is in the loss, or nowhere."""
    if loss.kl.kind == "none" or loss.kl.place != "reward":
        return None
    assert scored.reference_S is not None, "a KL penalty has a reference"
    return kl_penalties(
        scored.old_S,
        scored.reference_S,
        step.trains_S,
        kind=loss.kl.kind,
        coefficient=loss.kl.coefficient,
        name_token=step.index.name,
    )
