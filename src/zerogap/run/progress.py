"""From the progress records of rollouts and trainer to a phase on the console."""

from collections.abc import Callable

from zerogap.obs import Phase
from zerogap.rollout import CollectProgress
from zerogap.train import TrainProgress


def show_generation(phase: Phase) -> Callable[[CollectProgress], None]:
    """A callback for ``Collector.draw``."""

    def show(record: CollectProgress) -> None:
        phase.update(record.num_ended, record.num_samples)

    return show


def show_training(phase: Phase) -> Callable[[TrainProgress], None]:
    """A callback for ``Trainer.step``."""

    def show(record: TrainProgress) -> None:
        phase.update(record.rows_done, record.rows_total)

    return show
