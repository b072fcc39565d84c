"""A step's report, once every update is done."""

from collections.abc import Sequence

import numpy as np

from zerogap.algorithms import gap_statistics, policy_statistics
from zerogap.train.metrics import OldLogProbAudit, TrainMetrics
from zerogap.train.step_state import StepState


def summarise(
    step: StepState,
    *,
    losses: Sequence[float],
    grad_norms: Sequence[float],
    audit: OldLogProbAudit,
    learning_rate: float,
    max_rows: int,
) -> TrainMetrics:
    """What the step's columns say.

    Args:
        step: all of its updates are done.
        losses: one an update.
        grad_norms: one an update, before clipping.
        audit: of the old log-probs that were taken over.
        learning_rate: of the updates.
        max_rows: ``train.micro_batch_tokens``.
    """
    has_trained_S = ~np.isnan(step.log_probs_S)
    is_own_S = ~np.isnan(step.own_log_probs_S)
    batches = [batch for update in step.updates for batch in update.micro_batches]
    watching = [batch for update in step.updates for batch in update.watching]
    num_rows = sum(batch.num_rows for batch in batches)
    has_reference = not np.isnan(step.kl_S).all()
    return TrainMetrics(
        loss=float(np.mean(losses)),
        grad_norm=max(grad_norms),
        learning_rate=learning_rate,
        policy=policy_statistics(
            step.log_probs_S,
            step.old_log_probs_S,
            step.entropy_S,
            step.is_clipped_S,
            has_trained_S,
        ),
        gap=gap_statistics(step.own_log_probs_S, step.rollout_log_probs_S, is_own_S),
        kl_to_rollout=gap_statistics(step.log_probs_S, step.rollout_log_probs_S, has_trained_S).k3,
        kl_to_reference=float(np.nanmean(step.kl_S, dtype=np.float64)) if has_reference else None,
        groups=step.advantages.groups,
        num_updates=len(step.updates),
        num_samples=int(step.who.is_kept_B.sum()),
        excluded=step.who.excluded,
        num_loss_tokens=int(has_trained_S.sum()),
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
