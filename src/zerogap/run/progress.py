"""Shows the progress of rollouts and trainer as a phase on the console."""

from collections.abc import Callable

from zerogap.obs import Phase
from zerogap.rollout import CollectProgress
from zerogap.train import TrainProgress


def show_generation(phase: Phase) -> Callable[[CollectProgress], None]:
    """A callback for ``Collector.draw``."""

    def show(progress: CollectProgress) -> None:
        phase.update(progress.num_ended, progress.num_samples)

    return show


def show_training(phase: Phase) -> Callable[[TrainProgress], None]:
    """A callback for ``Trainer.step``."""

    def show(progress: TrainProgress) -> None:
        phase.update(progress.rows_done, progress.rows_total)

    return show
