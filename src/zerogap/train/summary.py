"""A step's report, once every update is done."""

from collections.abc import Sequence

import numpy as np

from zerogap.algorithms import (
    CorrectionStatistics,
    DPOTerms,
    GapStatistics,
    correct_mismatch,
    gap_statistics,
    policy_statistics,
)
from zerogap.train.metrics import (
    CriticMetrics,
    OldLogProbAudit,
    PreferenceMetrics,
    TrainMetrics,
)
from zerogap.train.step_state import StepState


def summarise(
    step: StepState,
    *,
    losses: Sequence[float],
    grad_norms: Sequence[float],
    critic: CriticMetrics | None,
    audit: OldLogProbAudit,
    learning_rate: float,
    max_rows: int,
) -> TrainMetrics:
    """What the step's columns say.

    Args:
        step: all of its updates are done.
        losses: one an update.
        grad_norms: one an update, before clipping; none where the critic learnt alone.
        critic: what it says of itself.
        audit: of the old log-probs that were taken over.
        learning_rate: of the updates.
        max_rows: ``train.micro_batch_tokens``.
    """
    has_old_S = step.trains_S & ~np.isnan(step.old_log_probs_S)
    batches = [batch for update in step.updates for batch in update.micro_batches]
    watching = [batch for update in step.updates for batch in update.watching]
    num_rows = sum(batch.num_rows for batch in batches)
    moved = _against_the_engine(step, step.log_probs_S)
    return TrainMetrics(
        loss=float(np.mean(losses)),
        grad_norm=max(grad_norms, default=0.0),
        learning_rate=learning_rate,
        policy=policy_statistics(
            step.log_probs_S,
            step.old_log_probs_S,
            step.entropy_S,
            step.is_clipped_S,
            has_old_S,
        ),
        gap=_against_the_engine(step, step.own_log_probs_S),
        corrections=_corrections(step, has_old_S),
        off_policy_fraction=float(step.has_left_S[step.trains_S].mean()),
        kl_to_rollout=None if moved is None else moved.k3,
        kl_to_reference=_mean(step.kl_S),
        kl_to_teacher=_mean(step.teacher_kl_S),
        critic=critic,
        preferences=_preferences(step.preferences) if step.preferences else None,
        groups=step.advantages.groups,
        num_updates=len(step.updates),
        num_samples=int(step.who.is_kept_B.sum()),
        excluded=step.who.excluded,
        num_loss_tokens=int(step.trains_S.sum()),
        num_micro_batches=len(batches),
        num_rows=num_rows,
        num_rows_without_gradient=sum(batch.num_rows for batch in watching),
        num_rows_saved=sum(batch.num_rows_saved for batch in batches),
        num_rows_repeated=sum(batch.num_rows_repeated for batch in batches),
        micro_batch_fill=num_rows / (len(batches) * max_rows),
        seconds=step.spans.take_totals(),
        old_log_probs=tuple(step.index.split(step.own_log_probs_S)),
        advantages=tuple(step.index.split(step.advantages.column_S)),
        audit=audit,
    )


def summarise_critic(
    step: StepState, updates: Sequence[tuple[float, float]], *, is_alone: bool
) -> CriticMetrics:
    """What a critic's values were worth; ``updates`` holds (loss, gradient norm) of each."""
    returns_S = step.advantages.returns_S
    assert returns_S is not None
    return_U = returns_S[step.trains_S]
    value_U = step.values_S[step.trains_S].astype(np.float64)
    spread = return_U.var()
    return CriticMetrics(
        loss=float(np.mean([loss for loss, _ in updates])),
        grad_norm=max(norm for _, norm in updates),
        value_mean=float(value_U.mean()),
        return_mean=float(return_U.mean()),
        explained_variance=float(1 - (return_U - value_U).var() / spread) if spread > 0 else None,
        clip_fraction=float(step.is_value_clipped_S[step.trains_S].mean()),
        is_alone=is_alone,
    )


def _against_the_engine(step: StepState, log_probs_S: np.ndarray) -> GapStatistics | None:
    """Over the trained tokens that an engine sampled and ``log_probs_S`` has; None if there are none."""
    is_known_S = step.trains_S & ~np.isnan(log_probs_S) & (step.weight_version_S >= 0)
    if not is_known_S.any():
        return None
    return gap_statistics(log_probs_S, step.rollout_log_probs_S, is_known_S)


def _corrections(step: StepState, has_old_S: np.ndarray) -> CorrectionStatistics | None:
    """What was decided, or where nothing was, what could have been."""
    if step.corrections is not None:
        return step.corrections.statistics
    is_known_S = has_old_S & (step.weight_version_S >= 0)
    if not is_known_S.any():
        return None
    return correct_mismatch(
        step.old_log_probs_S, step.rollout_log_probs_S, is_known_S, step.record_S
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
    """Over what was written; None if nothing was."""
    return None if np.isnan(column_S).all() else float(np.nanmean(column_S, dtype=np.float64))
