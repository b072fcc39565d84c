"""What each token of a step is worth, decided over the whole train batch before the first update."""

import numpy as np

from zerogap.algorithms import (
    GroupAdvantages,
    distillation_advantages,
    gae_advantages,
    group_advantages,
    kl_penalties,
    leave_one_out_advantages,
    normalized_over_tokens,
    record_sums,
    reinforce_pp_advantages,
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
from zerogap.train.step_state import Advantages, StepState


def decide_advantages(step: StepState, loss: LossConfig) -> Advantages:
    """Advantages of the tokens that train, from rewards and what was computed before the first update.

    A token of supervised training has the advantage 1. One of a preference has 0 until its update begins: the weight of
    its log-prob depends on the policy then. One of a differentiable KL has none and says 0.
    """
    match loss:
        case GRPOLossConfig() | GSPOLossConfig() | CISPOLossConfig():
            return _within_groups(step, loss, normalize_std=loss.normalize_std)
        case DrGRPOLossConfig():
            return _within_groups(step, loss, normalize_std=False)
        case DAPOLossConfig():
            return _within_groups(step, loss, normalize_std=True)
        case RLOOLossConfig():
            rewards_B = _rewards_of_records(step, loss)
            return _spread(
                step, leave_one_out_advantages(rewards_B, step.group_ids, step.who.is_kept_B)
            )
        case ReinforcePlusPlusLossConfig():
            return _over_the_batch(step, loss)
        case PPOLossConfig():
            return _from_values(step, loss)
        case DistillationLossConfig(estimator="sampled"):
            return _from_teacher(step)
        case SFTLossConfig():
            return Advantages(np.where(step.trains_S, 1.0, np.nan))
        case DPOLossConfig() | DistillationLossConfig():
            return Advantages(np.where(step.trains_S, 0.0, np.nan))


def _within_groups(step: StepState, loss: PolicyLoss, *, normalize_std: bool) -> Advantages:
    groups = group_advantages(
        _rewards_of_records(step, loss),
        step.group_ids,
        step.who.is_kept_B,
        normalize_std=normalize_std,
    )
    return _spread(step, groups)


def _spread(step: StepState, groups: GroupAdvantages) -> Advantages:
    return Advantages(step.index.spread(groups.advantages), groups)


def _over_the_batch(step: StepState, loss: ReinforcePlusPlusLossConfig) -> Advantages:
    rewards_B, groups = step.rewards_B, None
    if loss.baseline:
        groups = group_advantages(rewards_B, step.group_ids, step.who.is_kept_B)
        rewards_B = groups.advantages
    rewards_S = token_rewards(
        rewards_B, step.trains_S, step.record_S, penalties_S=_penalties(step, loss)
    )
    column_S = reinforce_pp_advantages(
        rewards_S, step.trains_S, step.record_S, name_token=step.index.name
    )
    return Advantages(np.where(step.trains_S, column_S, np.nan), groups)


def _from_values(step: StepState, loss: PPOLossConfig) -> Advantages:
    rewards_S = token_rewards(
        step.rewards_B, step.trains_S, step.record_S, penalties_S=_penalties(step, loss)
    )
    found = gae_advantages(
        rewards_S,
        step.values_S,
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


def _from_teacher(step: StepState) -> Advantages:
    column_S = distillation_advantages(
        step.teacher_log_probs_S, step.old_log_probs_S, step.trains_S, name_token=step.index.name
    )
    step.teacher_kl_S[step.trains_S] = -column_S[step.trains_S]
    return Advantages(np.where(step.trains_S, column_S, np.nan))


def _rewards_of_records(step: StepState, loss: PolicyLoss) -> np.ndarray:
    """float64 [B]: each reward, less what the KL takes off all of the record's tokens."""
    penalties_S = _penalties(step, loss)
    if penalties_S is None:
        return step.rewards_B
    return step.rewards_B - record_sums(
        penalties_S, step.trains_S, step.record_S, num_records=len(step.samples), what="penalty"
    )


def _penalties(step: StepState, loss: PolicyLoss) -> np.ndarray | None:
    """float64 [S]: what the KL takes off the reward of each token; None where it is in the loss, or nowhere."""
    if loss.kl.kind == "none" or loss.kl.place != "reward":
        return None
    estimate_S = kl_penalties(
        step.old_log_probs_S,
        step.ref_log_probs_S,
        step.trains_S,
        kind=loss.kl.kind,
        coefficient=1.0,
        name_token=step.index.name,
    )
    step.kl_S[step.trains_S] = estimate_S[step.trains_S]
    return loss.kl.coefficient * estimate_S
