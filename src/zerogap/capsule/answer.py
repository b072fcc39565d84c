"""Loss and gradient of a step's first update; two machines of one kind compute the same bits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zerogap.config import RunConfig
from zerogap.errors import CheckpointError
from zerogap.obs import Progress
from zerogap.run.progress import show_training
from zerogap.run.trainers import exact_version
from zerogap.run.versions import StepSettings
from zerogap.train import Trainer
from zerogap.types import Sample
from zerogap.weights import WeightDigest, digest_weights


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Loss and gradient of a step's first update, before clipping."""

    loss: float
    grad_norm: float
    """Global 2-norm."""
    tensors: Mapping[str, str]
    """Digest of each parameter's gradient."""
    norms: Mapping[str, float]
    """2-norm of each parameter's gradient, compared where equal bits are not promised."""
    num_updates: int
    """Number of the step's updates. Only the first is computed: later ones start from weights that it changed."""

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of the whole gradient."""
        return WeightDigest(self.tensors).hex


def compute_answer(
    trainer: Trainer,
    samples: Sequence[Sample],
    *,
    config: RunConfig,
    step: int,
    settings: StepSettings,
    progress: Progress,
) -> Answer:
    """Forward and backward of the first update on ``samples``; no weight changes.

    Args:
        trainer: as it was before the step.
        samples: the step's samples.
        config: the run's resolved recipe.
        step: number of the step.
        settings: the GEMM kernels and corrections of the step.
        progress: shows the rows computed.

    Raises:
        CheckpointError: the step trained nothing, because it undid the one before.
    """
    trainer.use_corrections(settings.corrections)
    trainer.use_gemm(settings.gemm)
    label = f"loss and gradient of step {step}"
    with progress.phase(label, unit="rows") as phase:
        show = show_training(phase)
        known = exact_version(config, step - 1, settings)
        plan = trainer.plan(samples, exact_version=known, on_progress=show)
        if plan.undoes:
            msg = f"step {step} undid the step before it and trained on none of its samples, so it has no loss and no gradient; choose another step"
            raise CheckpointError(msg)
        found = trainer.gradient(plan, on_progress=show)
    return Answer(
        loss=found.loss,
        grad_norm=found.grad_norm,
        tensors=dict(digest_weights(found.tensors).tensors),
        norms={name: float(g.detach().double().norm()) for name, g in found.tensors.items()},
        num_updates=found.num_updates,
    )
