"""A step's plan: all that is decided once over the whole train batch, before that is split into micro-batches or processes.

A plan does not depend on how many processes carry it out, on their memory or on their packing. It holds samples and
read-only numpy arrays, so it can be pickled and sent. A process that carries out a part of it takes whole leaves: the
gradients of all leaves add up to the update's gradient, since every denominator is the update's.

Letters: B samples as given, S all their tokens one after the other, P pairs, R targets of a micro-batch, T tokens of a sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass

import numpy as np

from zerogap.algorithms import Acceptance, Corrections
from zerogap.train.advantages import StepAdvantages
from zerogap.train.old_log_probs import OldLogProbs
from zerogap.train.tokens import StepTokens
from zerogap.types import Sample


@dataclass(frozen=True, eq=False, kw_only=True)
class StepPlan:
    """One step, ready for its first update."""

    step_number: int
    """Steps that the trainer had done: scores and advantages rest on its weights at that step."""
    tokens: StepTokens
    """The samples, and which of them take part in which update."""
    denominator_B: np.ndarray
    """float64 [B]: the divisor of each sample's loss terms, over its whole update; infinite if the sample takes no part."""
    leaf_B: np.ndarray
    """int64 [B]: the leaf of each sample. A leaf is a group: its samples share rows, and preferences compare them."""
    learns_B: np.ndarray
    """bool [B]: samples with a gradient. Groups whose advantages are all 0 have a gradient of exactly 0, but count in the
    denominators and in every statistic. All False while a critic trains alone."""
    advantages: StepAdvantages
    old: OldLogProbs
    ref_log_probs_S: np.ndarray | None
    """float32 [S]: the reference's, if the loss has one."""
    values_S: np.ndarray | None
    """float32 [S]: a critic's, before each token."""
    corrections: Corrections | None
    """Weights and rejections, if they are switched on."""
    off_policy_kl: float | None
    """``corrections.off_policy_kl``."""
    pairs_P2: np.ndarray | None
    """int64 [P, 2]: (preferred, other), if answers are compared."""
    trains_policy: bool
    """False while a critic trains alone."""
    acceptance: Acceptance | None = None
    """The judgement of the step before, from samples of its weights; if it is not accepted, this step undoes it."""
    num_epochs: int = 1
    """Passes over the samples."""
    policy_keep_S: np.ndarray | None = None
    """bool [S]: tokens of the loss's own term, if only those of high entropy have one."""

    teacher_keep_S: np.ndarray | None = None
    """bool [S]: tokens that the teacher scores, if not all: it has no hint for some samples."""

    def __post_init__(self) -> None:
        _lock(self)

    @property
    def samples(self) -> Sequence[Sample]:
        """The samples as given."""
        return self.tokens.samples

    @property
    def undoes(self) -> bool:
        """Whether the step undoes the one before instead of training."""
        return self.acceptance is not None and not self.acceptance.is_accepted

    @property
    def old_log_probs(self) -> list[np.ndarray]:
        """float32 [T] for each sample: what the trainer computed before the step; NaN where it did not."""
        return self.tokens.index.split(self.old.own_S)

    @property
    def num_updates(self) -> int:
        """How many updates the step makes."""
        return self.tokens.who.num_updates * self.num_epochs

    def is_member_B(self, update: int) -> np.ndarray:
        """Bool [B]: the samples of an update's train batch."""
        return self.tokens.who.update_B == update % self.tokens.who.num_updates

    def pairs_of(self, update: int) -> np.ndarray:
        """int64 [P, 2]: the pairs of an update that are in this plan, or in this process's share of it."""
        assert self.pairs_P2 is not None, "a loss that compares answers has pairs"
        return self.pairs_P2[self.is_member_B(update)[self.pairs_P2[:, 0]]]


def _lock(owner: object) -> None:
    """Make a dataclass's arrays read-only."""
    for value in vars(owner).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        elif is_dataclass(value):
            _lock(value)
