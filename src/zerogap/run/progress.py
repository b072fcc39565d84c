"""From the progress records of engine and trainer to a phase on the console."""

from collections.abc import Callable
from typing import Any

from zerogap.engine import GenerateProgress
from zerogap.obs import Phase
from zerogap.train import TrainProgress


def show_generation(phase: Phase) -> Callable[[Any], None]:
    """A callback for generators; records of other kinds (grading) say nothing here."""

    def show(record: object) -> None:
        if isinstance(record, GenerateProgress):
            phase.update(record.num_finished, record.num_sequences)

    return show


def show_training(phase: Phase) -> Callable[[TrainProgress], None]:
    """A callback for ``Trainer.step``."""

    def show(record: TrainProgress) -> None:
        phase.update(record.rows_done, record.rows_total)

    return show
