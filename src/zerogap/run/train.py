"""The entry point of training: ``train`` runs a recipe with ``TrainingRun``."""

import signal
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from zerogap.config import RunConfig
from zerogap.run.interrupt import Interrupt
from zerogap.run.machine import apply_threads
from zerogap.run.training_run import TrainingRun


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a call of ``train`` ended."""

    folder: Path
    step: int
    """Total number of finished steps."""
    is_finished: bool
    """False if it was interrupted or an alarm stopped it; the same recipe continues it."""
    is_alarmed: bool
    """An alarm stopped it (``watch.stop``)."""
    signal: signal.Signals | None
    """What interrupted it, if it was."""


def train(config: RunConfig, *, quiet: bool = False) -> TrainResult:
    """Run a recipe to its last step, from the newest checkpoint in its folder.

    Args:
        config: the resolved recipe.
        quiet: print only warnings and the last lines.

    Raises:
        ZerogapError: the recipe, its data, its model or its folder cannot be used, or a step failed.
    """
    apply_threads()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    with (
        TrainingRun(config, console, is_quiet=quiet) as run,
        Interrupt(run.announce_interrupt) as interrupt,
    ):
        while not (run.is_finished or run.is_alarmed or interrupt.is_requested):
            run.advance()
        run.finish()
        return TrainResult(
            folder=run.folder.path,
            step=run.step_number,
            is_finished=run.is_finished,
            is_alarmed=run.is_alarmed,
            signal=None if run.is_finished else interrupt.signal,
        )
