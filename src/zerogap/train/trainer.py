"""The interface of a trainer: it plans a step, carries it out, and keeps what the next one depends on.

``NativeTrainer`` does this in one process. Several processes can do it too: a plan is made once and does not depend on them
(``plan_step``), scores come from any process with the model, and the gradients of the plan's leaves add up to the update's.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from zerogap.algorithms import CorrectionsConfig
from zerogap.kernels import Gemm
from zerogap.train.metrics import StepGradient, TrainMetrics, TrainProgress
from zerogap.train.plan import StepPlan
from zerogap.types import Sample


class Trainer(Protocol):
    """Writes the model's weights in place, only inside ``step``."""

    name: str
    """The name of its part of a checkpoint."""

    @property
    def is_inconsistent(self) -> bool:
        """A step failed after one of its updates was applied: weights and state are inconsistent and must not be saved."""
        ...

    @property
    def num_saved_bytes(self) -> int:
        """The most bytes that ``save`` writes."""
        ...

    def use_gemm(self, gemm: Gemm) -> None:
        """Use these GEMM kernels from the next pass on."""
        ...

    def use_corrections(self, corrections: CorrectionsConfig) -> None:
        """Use these corrections from the next plan on.

        Raises:
            ConfigError: this loss has nothing to correct.
        """
        ...

    def plan(
        self,
        samples: Sequence[Sample],
        *,
        exact_version: int | None = None,
        on_progress: Callable[[TrainProgress], None] | None = None,
    ) -> StepPlan:
        """Decide everything that depends on the whole batch, and compute what must be known before the weights change.

        Args:
            samples: any order; invalid outcomes and samples without loss tokens are left out and counted.
            exact_version: version of the current weights, if the log-probs that the engine reports under it equal this
                trainer's to the bit: exact numerics, and no penalty, bias or ban on the logits. Later updates then take
                the engine's log-probs of samples that it drew, and audit a share. None: score everything.
            on_progress: called after each micro-batch.

        Raises:
            DataError: no sample trains, or one cannot be scored.
            NumericsError: a reward or a log-prob is not finite; names the sample.
        """
        ...

    def step(
        self, plan: StepPlan, *, on_progress: Callable[[TrainProgress], None] | None = None
    ) -> TrainMetrics:
        """Train once. When it raises before its first update the weights are as they were; the message says so.

        Args:
            plan: made with the weights as they are now; one that ``undoes`` is for ``undo``.
            on_progress: called after each micro-batch; counts on from those of ``plan``.

        Raises:
            DataError: the plan is of another step, or undoes one.
            NumericsError: a log-prob or the gradient is not finite; names the sample or the parameter. See ``is_inconsistent``.
        """
        ...

    def undo(self, plan: StepPlan) -> None:
        """Do a step that undoes the one before: weights, moments and all else that training changed are as they were then.

        Args:
            plan: one that ``undoes``, made with the weights as they are now.

        Raises:
            DataError: the plan is of another step, or trains.
        """
        ...

    def gradient(
        self, plan: StepPlan, *, on_progress: Callable[[TrainProgress], None] | None = None
    ) -> StepGradient:
        """Loss and gradient of the first update that ``step`` would make, without making it.

        Raises:
            NumericsError: as ``step``.
        """
        ...

    def score(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Log-probs of every token that was sampled, whatever its outcome, at the sample's temperature.

        Returns:
            float32 [T] for each sample, NaN where the policy did not sample. No weight or gradient changes.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write everything that the next step depends on, except the weights, into an empty folder."""
        ...

    def load(self, folder: Path) -> None:
        """Continue from what ``save`` wrote; the model's weights are loaded before.

        Raises:
            CheckpointError: it belongs to another model or loss. Errors of reading files are raised unchanged.
        """
        ...
