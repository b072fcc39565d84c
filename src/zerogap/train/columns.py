"""What a step computes while it runs, and the time that it takes.

Letters: S all tokens of all samples, R targets of a micro-batch.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from zerogap.obs import Spans
from zerogap.train.metrics import Phase, TrainProgress
from zerogap.train.packing import MicroBatch
from zerogap.train.plan import StepPlan


class StepColumns:
    """Per token; NaN (or False) where nothing was computed. The trainer's step owns it and changes it by these methods only."""

    def __init__(self, plan: StepPlan) -> None:
        new = plan.tokens.index.new_column
        self.own_log_probs_S = plan.old.own_S.copy()
        """The policy's at the start of the step, where this trainer computed them."""
        self.old_log_probs_S = plan.old.old_S.copy()
        """Those that the policy ratio divides by: the same, or the engine's."""
        self.advantages_S = plan.advantages.column_S.copy()
        """The plan's; those of preferences are written when their update begins."""
        self.log_probs_S = new()
        """The policy's, at the update that trains the token."""
        self.entropy_S = new()
        self.kl_S = new()
        """Estimate of the KL to the reference."""
        from_teacher_S = plan.advantages.teacher_kl_S
        self.teacher_kl_S = new() if from_teacher_S is None else from_teacher_S.copy()
        """Estimate of the KL to the teacher."""
        self.is_clipped_S = np.zeros(len(self.log_probs_S), bool)
        self.has_left_S = np.zeros(len(self.log_probs_S), bool)
        """Tokens that their update dropped, because the policy had moved too far from their sample."""

    def write(self, slots_R: np.ndarray, found: Mapping[str, np.ndarray]) -> None:
        """Write values at these slots, by column."""
        for name, values_R in found.items():
            getattr(self, name)[slots_R] = values_R

    def begin_at(self, slots_R: np.ndarray) -> None:
        """Keep the log-probs just computed as those of the start of the step: no weight has changed yet."""
        self.own_log_probs_S[slots_R] = self.log_probs_S[slots_R]
        old_R = self.old_log_probs_S[slots_R]
        self.old_log_probs_S[slots_R] = np.where(np.isnan(old_R), self.log_probs_S[slots_R], old_R)

    def replace_old(self, column_S: np.ndarray) -> None:
        """Replace log-probs of the start of the step by computed ones, where ``column_S`` has them."""
        for own_S in (self.own_log_probs_S, self.old_log_probs_S):
            np.copyto(own_S, column_S, where=~np.isnan(column_S))


class StepMeter:
    """Time and progress of one step, from its planning to its last update."""

    def __init__(self, on_progress: Callable[[TrainProgress], None] | None = None) -> None:
        self.spans = Spans()
        self.on_progress = on_progress
        self._done: Counter[Phase] = Counter()
        self._total: dict[Phase, int] = {}

    def expect(self, phase: Phase, batches: Sequence[MicroBatch]) -> None:
        """Announce the micro-batches that are still to come in a phase; a later call corrects it."""
        self._total[phase] = self._done[phase] + sum(batch.num_rows for batch in batches)

    def counted(self, phase: Phase, batches: Iterable[MicroBatch]) -> Iterator[MicroBatch]:
        """These micro-batches; each is counted and reported when the next one is taken, since it is done then."""
        for batch in batches:
            yield batch
            self._done[phase] += batch.num_rows
            if self.on_progress is not None:
                done, total = self._done.total(), sum(self._total.values())
                self.on_progress(TrainProgress(phase, done, total))
