"""Advantages of all tokens of a step, computed over the whole train batch before the first update.

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
    """Advantages of the tokens of all samples, and what comes with them."""

    column_S: np.ndarray
    """float64 [S]; NaN at tokens that do not train, unless each sample has a single advantage, which all its tokens get."""
    groups: GroupAdvantages | None = None
    """Statistics of the groups, where the loss compares within them."""
    returns_S: np.ndarray | None = None
    """float64 [S]: the critic's regression targets."""
    teacher_kl_S: np.ndarray | None = None
    """float32 [S]: estimate of the KL to the teacher, where it gives the advantage; NaN at tokens that do not train."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Scored:
    """Results of the forward passes before a step's first update: float32 [S] each; None where the loss needs none."""

    old_S: np.ndarray
    """NaN where the first update's own forward pass will compute it."""
    reference_S: np.ndarray | None
    teacher_S: np.ndarray | None
    values_S: np.ndarray | None


def decide_advantages(step: StepTokens, scored: Scored, loss: LossConfig) -> Advantages:
    """Advantages of the tokens that train, from rewards and from the forward passes before the first update.

    In supervised training they are 1. With preferences they are 0 until the update begins, because the weight of a log-prob
    depends on the policy at that point. A differentiable KL has no advantages; the column is 0.
    """
    match loss:
        case GRPOLossConfig() | GSPOLossConfig() | CISPOLossConfig():
            return _within_groups(step, scored, loss, normalize_std=loss.normalize_std)
        case DrGRPOLossConfig():
            return _within_groups(step, scored, loss, normalize_std=False)
        case DAPOLossConfig():
            return _within_groups(step, scored, loss, normalize_std=True)
        case RLOOLossConfig():
            rewards_B = _penalized_rewards(step, scored, loss)
            groups = leave_one_out_advantages(
                rewards_B, step.group_ids, step.who.stands_for_rollout_B
            )
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
    rewards_B = _penalized_rewards(step, scored, loss)
    groups = group_advantages(
        rewards_B, step.group_ids, step.who.stands_for_rollout_B, normalize_std=normalize_std
    )
    return _spread(step, groups)


def _spread(step: StepTokens, groups: GroupAdvantages) -> Advantages:
    return Advantages(step.index.spread(groups.advantages[step.who.first_B]), groups)


def _over_the_batch(
    step: StepTokens, scored: Scored, loss: ReinforcePlusPlusLossConfig
) -> Advantages:
    rewards_B, groups = step.rewards_B, None
    if loss.baseline:
        groups = group_advantages(rewards_B, step.group_ids, step.who.stands_for_rollout_B)
        rewards_B = groups.advantages[step.who.first_B]
    penalties_S = _penalties(step, scored, loss)
    rewards_S = token_rewards(rewards_B, step.trains_S, step.sample_S, penalties_S=penalties_S)
    column_S = reinforce_pp_advantages(
        rewards_S, step.trains_S, step.sample_S, name_token=step.index.name
    )
    return Advantages(np.where(step.trains_S, column_S, np.nan), groups)


def _from_values(step: StepTokens, scored: Scored, loss: PPOLossConfig) -> Advantages:
    assert scored.values_S is not None, "ppo has a critic"
    penalties_S = _penalties(step, scored, loss)
    rewards_S = token_rewards(step.rewards_B, step.trains_S, step.sample_S, penalties_S=penalties_S)
    found = gae_advantages(
        rewards_S,
        scored.values_S,
        step.trains_S,
        step.sample_S,
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


def _penalized_rewards(step: StepTokens, scored: Scored, loss: PolicyLoss) -> np.ndarray:
    """float64 [B]: each reward minus the KL penalties of the tokens of its rollout."""
    penalties_S = _penalties(step, scored, loss)
    if penalties_S is None:
        return step.rewards_B
    penalties_B = sample_sums(
        penalties_S, step.trains_S, step.sample_S, num_samples=len(step.samples), what="penalty"
    )
    first_B = step.who.first_B
    return step.rewards_B - np.bincount(first_B, penalties_B, minlength=len(first_B))[first_B]


def _penalties(step: StepTokens, scored: Scored, loss: PolicyLoss) -> np.ndarray | None:
    """float64 [S]: the KL penalty on each token's reward; None if the KL is in the loss or there is none."""
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
