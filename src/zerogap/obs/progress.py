"""Progress of a long phase: a live bar on a terminal, occasional lines elsewhere, nothing when quiet."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from zerogap.obs.clock import Clock, format_duration, monotonic_s

PLAIN_INTERVAL_S = 15.0
"""Without a terminal, report a phase at most this often; short phases print nothing."""


class Phase:
    """A running phase, which is told how much is done. This class shows nothing."""

    def advance(self, count: int = 1) -> None:
        """``count`` more units are done."""

    def update(self, completed: int, total: int | None = None) -> None:
        """``completed`` units are done in all; ``total``, if given, replaces the earlier one."""


class Progress:
    """Phases on one console. Step lines use the same console, so bar and lines do not overwrite each other."""

    def __init__(
        self, console: Console, *, is_quiet: bool = False, clock: Clock = monotonic_s
    ) -> None:
        self._console = console
        self._is_quiet = is_quiet
        self._clock = clock

    @contextmanager
    def phase(
        self, name: str, *, total: int | None = None, unit: str = ""
    ) -> Generator[Phase, None, None]:
        """Show the block as a phase of ``total`` units; None: unknown length.

        Phases do not nest on a terminal: the inner one would need a second live region.
        """
        if self._is_quiet:
            yield Phase()
        elif self._console.is_terminal:
            with _live(self._console, unit) as live:
                yield _LivePhase(live, live.add_task(name, total=total))
        else:
            yield _PlainPhase(self._console, name, total, unit, self._clock)


def _live(console: Console, unit: str) -> RichProgress:
    return RichProgress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit, markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        transient=True,
    )


@dataclass
class _LivePhase(Phase):
    live: RichProgress
    task: TaskID

    def advance(self, count: int = 1) -> None:
        self.live.advance(self.task, count)

    def update(self, completed: int, total: int | None = None) -> None:
        self.live.update(self.task, completed=completed, total=total)


class _PlainPhase(Phase):
    def __init__(
        self, console: Console, name: str, total: int | None, unit: str, clock: Clock
    ) -> None:
        self._console, self._name, self._total, self._unit = console, name, total, unit
        self._clock = clock
        self._completed = 0
        self._began_s = self._reported_s = clock()

    def advance(self, count: int = 1) -> None:
        self.update(self._completed + count)

    def update(self, completed: int, total: int | None = None) -> None:
        self._completed = completed
        self._total = self._total if total is None else total
        now_s = self._clock()
        if now_s - self._reported_s >= PLAIN_INTERVAL_S:
            self._reported_s = now_s
            of = "" if self._total is None else f"/{self._total}"
            text = f"  {self._name}: {completed}{of} {self._unit}".rstrip()
            elapsed = format_duration(now_s - self._began_s)
            self._console.print(
                f"{text} after {elapsed}", highlight=False, markup=False, soft_wrap=True
            )
