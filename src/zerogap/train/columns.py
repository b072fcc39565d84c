"""What a step finds while it is carried out, and the time that it takes.

Letters: S all tokens of all samples, R targets of a micro-batch.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from zerogap.obs import Spans
from zerogap.train.metrics import Phase, TrainProgress
from zerogap.train.packing import MicroBatch
from zerogap.train.plan import StepPlan


class StepColumns:
    """Per token: NaN (or False) where nothing was computed. Owned by the trainer's step, and changed by its methods alone."""

    def __init__(self, plan: StepPlan) -> None:
        new = plan.tokens.index.new_column
        self.own_log_probs_S = plan.old.own_S.copy()
        """The policy's at the start of the step, where this trainer computed them."""
        self.old_log_probs_S = plan.old.old_S.copy()
        """What the policy ratio is taken against: the same, or the engine's."""
        self.advantages_S = plan.advantages.column_S.copy()
        """The plan's; a preference's are written when its update begins."""
        self.log_probs_S = new()
        """The policy's at each token's update."""
        self.entropy_S = new()
        self.kl_S = new()
        """Estimate of the KL to the reference."""
        from_teacher_S = plan.advantages.teacher_kl_S
        self.teacher_kl_S = new() if from_teacher_S is None else from_teacher_S.copy()
        """Estimate of the KL to the teacher."""
        self.is_clipped_S = np.zeros(len(self.log_probs_S), bool)
        self.has_left_S = np.zeros(len(self.log_probs_S), bool)
        """Dropped in its update, since the policy has left its record already."""

    def write(self, slots_R: np.ndarray, found: Mapping[str, np.ndarray]) -> None:
        """Values at some slots, by column."""
        for name, values_R in found.items():
            getattr(self, name)[slots_R] = values_R

    def begin_at(self, slots_R: np.ndarray) -> None:
        """No weight has moved yet: the log-probs just computed are those of the start of the step."""
        self.own_log_probs_S[slots_R] = self.log_probs_S[slots_R]
        old_R = self.old_log_probs_S[slots_R]
        self.old_log_probs_S[slots_R] = np.where(np.isnan(old_R), self.log_probs_S[slots_R], old_R)

    def replace_old(self, column_S: np.ndarray) -> None:
        """Log-probs of the start of the step that were computed after all, where ``column_S`` has them."""
        slots = np.flatnonzero(~np.isnan(column_S))
        found = {"own_log_probs_S": column_S[slots], "old_log_probs_S": column_S[slots]}
        self.write(slots, found)


class StepMeter:
    """Time and progress of one step, from its planning to its last update."""

    def __init__(self, on_progress: Callable[[TrainProgress], None] | None = None) -> None:
        self.spans = Spans()
        self.on_progress = on_progress
        self._done: Counter[Phase] = Counter()
        self._total: dict[Phase, int] = {}

    def expect(self, phase: Phase, batches: Sequence[MicroBatch]) -> None:
        """Announce what is still to come of a phase: for the first time, or since more is known now."""
        self._total[phase] = self._done[phase] + sum(batch.num_rows for batch in batches)

    def advance(self, phase: Phase, batch: MicroBatch) -> None:
        """Count a finished micro-batch and tell the caller."""
        self._done[phase] += batch.num_rows
        if self.on_progress is not None:
            done, total = self._done.total(), sum(self._total.values())
            self.on_progress(TrainProgress(phase, done, total))
