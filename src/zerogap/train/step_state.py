"""What one step was given and has found so far; turns into its metrics at the end.

Letters: B samples as given, S all their tokens one after the other.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from zerogap.algorithms import gap_statistics, policy_statistics
from zerogap.obs import Spans
from zerogap.train.metrics import OldLogProbAudit, TrainMetrics, TrainProgress
from zerogap.train.packing import MicroBatch
from zerogap.train.plan import StepPlan
from zerogap.train.token_index import TokenIndex
from zerogap.types import Sample


class StepState:
    """Columns of per-token results (NaN where nothing trained), the time spent, and the progress."""

    def __init__(
        self,
        samples: Sequence[Sample],
        advantages: Sequence[float],
        plan: StepPlan,
        *,
        spans: Spans,
        on_progress: Callable[[TrainProgress], None] | None,
    ) -> None:
        self.samples, self.plan, self.spans = samples, plan, spans
        self.advantage_B = np.asarray(advantages, np.float64)
        self.index = TokenIndex(samples)
        self.rollout_log_probs_S = np.concatenate([s.rollout_log_probs for s in samples])
        self.old_log_probs_S = self.index.new_column()
        self.is_taken_S = np.zeros(len(self.old_log_probs_S), bool)
        """Where the old log-prob is the engine's, not the trainer's own."""
        self.ref_log_probs_S = self.index.new_column()
        self.log_probs_S = self.index.new_column()
        self.entropy_S = self.index.new_column()
        self.kl_S = self.index.new_column()
        self.is_clipped_S = np.zeros(len(self.log_probs_S), bool)
        self._rows_done = self._rows_total = 0
        self._on_progress = on_progress

    def expect(self, batches: Sequence[MicroBatch]) -> None:
        """Announce a pass over ``batches``."""
        self._rows_total += sum(batch.num_rows for batch in batches)

    def advance(self, phase: Literal["old", "reference", "update"], batch: MicroBatch) -> None:
        """Count a finished micro-batch and tell the caller."""
        self._rows_done += batch.num_rows
        if self._on_progress is not None:
            self._on_progress(TrainProgress(phase, self._rows_done, self._rows_total))

    def metrics(
        self,
        *,
        losses: Sequence[float],
        grad_norms: Sequence[float],
        audit: OldLogProbAudit,
        learning_rate: float,
        max_rows: int,
    ) -> TrainMetrics:
        """The step's report, once every update is done."""
        has_trained_S = ~np.isnan(self.log_probs_S)
        is_scored_S = has_trained_S & ~self.is_taken_S
        batches = [batch for update in self.plan.updates for batch in update.micro_batches]
        watching = [batch for update in self.plan.updates for batch in update.watching]
        num_rows = sum(batch.num_rows for batch in batches)
        has_reference = not np.isnan(self.kl_S).all()
        return TrainMetrics(
            loss=float(np.mean(losses)),
            grad_norm=max(grad_norms),
            learning_rate=learning_rate,
            policy=policy_statistics(
                self.log_probs_S,
                self.old_log_probs_S,
                self.entropy_S,
                self.is_clipped_S,
                has_trained_S,
            ),
            gap=gap_statistics(self.old_log_probs_S, self.rollout_log_probs_S, is_scored_S),
            kl_to_rollout=gap_statistics(
                self.log_probs_S, self.rollout_log_probs_S, has_trained_S
            ).k3,
            kl_to_reference=float(np.nanmean(self.kl_S, dtype=np.float64))
            if has_reference
            else None,
            num_updates=len(self.plan.updates),
            num_samples=len(self.samples) - self.plan.excluded.total(),
            excluded=self.plan.excluded,
            num_loss_tokens=int(has_trained_S.sum()),
            num_micro_batches=len(batches),
            num_rows=num_rows,
            num_rows_without_gradient=sum(batch.num_rows for batch in watching),
            num_rows_saved=sum(batch.num_rows_saved for batch in batches),
            num_rows_repeated=sum(batch.num_rows_repeated for batch in batches),
            micro_batch_fill=num_rows / (len(batches) * max_rows),
            seconds=self.spans.take_totals(),
            old_log_probs=tuple(
                self.index.split(
                    np.where(self.is_taken_S, np.float32(np.nan), self.old_log_probs_S)
                )
            ),
            audit=audit,
        )
