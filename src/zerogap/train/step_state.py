"""What one step was given and has found so far.

Letters: B samples as given, S all their tokens one after the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.algorithms import Corrections, DPOTerms, GroupAdvantages
from zerogap.obs import Spans
from zerogap.train.metrics import Phase, TrainProgress
from zerogap.train.packing import MicroBatch
from zerogap.train.participants import Participants
from zerogap.train.plan import UpdatePlan
from zerogap.train.token_index import TokenIndex
from zerogap.types import Sample


@dataclass(frozen=True)
class Advantages:
    """Of the tokens of all samples."""

    column_S: np.ndarray
    """float64 [S]; NaN where nothing trains, unless a whole sample has one advantage. A preference's are written when its
    update begins."""
    groups: GroupAdvantages | None = None
    """What was found out about the groups, where they were compared."""
    returns_S: np.ndarray | None = None
    """float64 [S]: what a critic is regressed on."""


class StepState:
    """Columns of per-token results (NaN where nothing was computed), the time spent, and the progress."""

    advantages: Advantages
    """Set once the passes that they rest on are done."""
    corrections: Corrections | None = None
    """Set before the first update where weights or rejections are switched on."""
    updates: Sequence[UpdatePlan]
    """Set before the first update."""

    def __init__(
        self,
        samples: Sequence[Sample],
        who: Participants,
        *,
        spans: Spans,
        on_progress: Callable[[TrainProgress], None] | None,
    ) -> None:
        self.samples, self.who, self.spans = samples, who, spans
        self.index = TokenIndex(samples)
        self.group_ids = [sample.group_id for sample in samples]
        self.rewards_B = np.array([np.nan if s.reward is None else s.reward for s in samples])
        self.num_loss_tokens_B = np.array([s.num_loss_tokens for s in samples]) * who.is_kept_B
        """int64 [B]: 0 for samples that have no part."""
        self.record_S = self.index.spread(np.arange(len(samples)))
        loss_mask_S = np.concatenate([sample.loss_mask for sample in samples])
        self.trains_S = self.index.spread(who.is_kept_B) & loss_mask_S
        """bool [S]: tokens of the loss."""
        self.rollout_log_probs_S = np.concatenate([s.rollout_log_probs for s in samples])
        self.weight_version_S = np.concatenate([s.weight_version for s in samples])
        """-1 where no engine sampled."""
        self.own_log_probs_S = self.index.new_column()
        """At the start of the step, where this trainer computed it."""
        self.old_log_probs_S = self.index.new_column()
        """What the policy ratio is taken against: the same, or the engine's."""
        self.ref_log_probs_S = self.index.new_column()
        self.teacher_log_probs_S = self.index.new_column()
        self.values_S = self.index.new_column()
        """A critic's, before each token, at the start of the step."""
        self.log_probs_S = self.index.new_column()
        self.entropy_S = self.index.new_column()
        self.kl_S = self.index.new_column()
        """Estimate of the KL to the reference."""
        self.teacher_kl_S = self.index.new_column()
        """Estimate of the KL to the teacher."""
        self.is_clipped_S = np.zeros(len(self.log_probs_S), bool)
        self.has_left_S = np.zeros(len(self.log_probs_S), bool)
        """Dropped in its update, since the policy has left its record already."""
        self.is_value_clipped_S = np.zeros(len(self.log_probs_S), bool)
        self.preferences: list[DPOTerms] = []
        """One an update, where answers are compared."""
        self._rows_done = 0
        self._rows_of: dict[Phase, int] = {}
        self._on_progress = on_progress

    def begin_at(self, slots_R: np.ndarray) -> None:
        """No weight has moved yet: the log-probs just computed are those of the start of the step."""
        self.own_log_probs_S[slots_R] = self.log_probs_S[slots_R]
        old_R = self.old_log_probs_S[slots_R]
        self.old_log_probs_S[slots_R] = np.where(np.isnan(old_R), self.log_probs_S[slots_R], old_R)

    def expect(self, phase: Phase, batches: Sequence[MicroBatch]) -> None:
        """Announce all of a phase: for the first time, or since more is known now."""
        self._rows_of[phase] = sum(batch.num_rows for batch in batches)

    def advance(self, phase: Phase, batch: MicroBatch) -> None:
        """Count a finished micro-batch and tell the caller."""
        self._rows_done += batch.num_rows
        if self._on_progress is not None:
            total = sum(self._rows_of.values())
            self._on_progress(TrainProgress(phase, self._rows_done, total))
