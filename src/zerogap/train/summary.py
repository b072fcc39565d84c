"""The metrics of a step whose updates are done."""

from collections.abc import Mapping, Sequence

import numpy as np

from zerogap.algorithms import (
    CorrectionStatistics,
    DPOTerms,
    GapStatistics,
    correct_mismatch,
    gap_statistics,
    policy_statistics,
)
from zerogap.train.columns import StepColumns
from zerogap.train.critic import CriticUpdate
from zerogap.train.metrics import (
    CriticMetrics,
    OldLogProbAudit,
    PreferenceMetrics,
    TrainMetrics,
)
from zerogap.train.packing import UpdateBatches
from zerogap.train.plan import StepPlan
from zerogap.train.tokens import StepTokens


def summarise(
    plan: StepPlan,
    columns: StepColumns,
    updates: Sequence[UpdateBatches],
    *,
    losses: Sequence[float],
    grad_norms: Sequence[float],
    critic: CriticMetrics | None,
    preferences: Sequence[DPOTerms],
    audit: OldLogProbAudit,
    learning_rate: float,
    max_rows: int,
    seconds: Mapping[str, float],
) -> TrainMetrics:
    """The metrics of a step, once all of its updates are done.

    Args:
        plan: of the step.
        columns: what the step computed.
        updates: micro-batches of each.
        losses: one for each update.
        grad_norms: one for each update, before clipping; none if the critic trained alone.
        critic: its metrics.
        preferences: one for each update, if answers are compared.
        audit: of the old log-probs that were taken over.
        learning_rate: of the updates.
        max_rows: ``train.micro_batch_tokens``.
        seconds: by part.
    """
    tokens = plan.tokens
    has_old_S = tokens.trains_S & ~np.isnan(columns.old_log_probs_S)
    batches = [batch for update in updates for batch in update.all]
    without_gradient = [batch for update in updates for batch in update.without_gradient]
    num_rows = sum(batch.num_rows for batch in batches)
    moved = _against_the_engine(tokens, columns.log_probs_S)
    return TrainMetrics(
        loss=float(np.mean(losses)),
        grad_norm=max(grad_norms, default=0.0),
        learning_rate=learning_rate,
        policy=policy_statistics(
            columns.log_probs_S,
            columns.old_log_probs_S,
            columns.entropy_S,
            columns.is_clipped_S,
            has_old_S,
        ),
        gap=_against_the_engine(tokens, columns.own_log_probs_S),
        corrections=_corrections(plan, columns, has_old_S),
        off_policy_fraction=float(columns.has_left_S[tokens.trains_S].mean()),
        kl_to_rollout=None if moved is None else moved.k3,
        kl_to_reference=_mean(columns.kl_S),
        kl_to_teacher=_mean(columns.teacher_kl_S),
        critic=critic,
        preferences=_preferences(preferences) if preferences else None,
        groups=plan.advantages.groups,
        num_updates=plan.num_updates,
        num_updates_without_signal=grad_norms.count(0.0),
        num_samples=int((tokens.num_loss_tokens_B > 0).sum()),
        excluded=tokens.who.excluded,
        num_loss_tokens=int(tokens.trains_S.sum()),
        num_micro_batches=len(batches),
        num_rows=num_rows,
        num_rows_without_gradient=sum(batch.num_rows for batch in without_gradient),
        num_rows_saved=sum(batch.num_rows_saved for batch in batches),
        num_rows_repeated=sum(batch.num_rows_repeated for batch in batches),
        micro_batch_fill=num_rows / (len(batches) * max_rows),
        seconds=seconds,
        old_log_probs=tuple(tokens.index.split(columns.own_log_probs_S)),
        advantages=tuple(tokens.index.split(columns.advantages_S)),
        audit=audit,
    )


def summarise_critic(plan: StepPlan, updates: Sequence[CriticUpdate]) -> CriticMetrics:
    """How good a critic's values were, and how it was updated."""
    returns_S, values_S, trains_S = plan.advantages.returns_S, plan.values_S, plan.tokens.trains_S
    assert returns_S is not None, "a critic has returns"
    assert values_S is not None, "a critic has values"
    return_U = returns_S[trains_S]
    value_U = values_S[trains_S].astype(np.float64)
    is_clipped_S = np.any([update.is_clipped_S for update in updates], axis=0)
    spread = return_U.var()
    return CriticMetrics(
        loss=float(np.mean([update.loss for update in updates])),
        grad_norm=max(update.grad_norm for update in updates),
        value_mean=float(value_U.mean()),
        return_mean=float(return_U.mean()),
        explained_variance=float(1 - (return_U - value_U).var() / spread) if spread > 0 else None,
        clip_fraction=float(is_clipped_S[trains_S].mean()),
        is_alone=not plan.trains_policy,
    )


def _against_the_engine(tokens: StepTokens, log_probs_S: np.ndarray) -> GapStatistics | None:
    """Over the trained tokens that an engine sampled and ``log_probs_S`` has; None if there are none."""
    is_known_S = tokens.trains_S & ~np.isnan(log_probs_S) & (tokens.weight_version_S >= 0)
    if not is_known_S.any():
        return None
    return gap_statistics(log_probs_S, tokens.rollout_log_probs_S, is_known_S)


def _corrections(
    plan: StepPlan, columns: StepColumns, has_old_S: np.ndarray
) -> CorrectionStatistics | None:
    """Statistics of the plan's corrections; without corrections, of what they could have corrected."""
    if plan.corrections is not None:
        return plan.corrections.statistics
    tokens = plan.tokens
    is_known_S = has_old_S & (tokens.weight_version_S >= 0)
    if not is_known_S.any():
        return None
    return correct_mismatch(
        columns.old_log_probs_S, tokens.rollout_log_probs_S, is_known_S, tokens.sample_S
    ).statistics


def _preferences(updates: Sequence[DPOTerms]) -> PreferenceMetrics:
    chosen_P = np.concatenate([terms.chosen_rewards_P for terms in updates])
    rejected_P = np.concatenate([terms.rejected_rewards_P for terms in updates])
    margins_P = np.concatenate([terms.margins_P for terms in updates])
    return PreferenceMetrics(
        accuracy=float((margins_P > 0).mean()),
        margin_mean=float(margins_P.mean()),
        chosen_reward_mean=float(chosen_P.mean()),
        rejected_reward_mean=float(rejected_P.mean()),
        num_pairs=len(margins_P),
    )


def _mean(column_S: np.ndarray) -> float | None:
    """The mean of what was written; None if nothing was."""
    return None if np.isnan(column_S).all() else float(np.nanmean(column_S, dtype=np.float64))
