"""The interface of all questions. A question measures step by step, and its results can be shown at any time."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from zerogap_bench.prepare import Prepared
from zerogap_bench.tables import Table


@dataclass(frozen=True)
class Setting:
    """Model, prompts and a folder for a measurement."""

    prepared: Prepared
    folder: Path
    """For files of the sides; removed afterwards."""
    say: Callable[[str], None]
    """Shows a line of progress."""


class Question(Protocol):
    """A question that a benchmark answers. It keeps its measurements, so results can be shown after an interrupt."""

    name: str

    @property
    def num_prompts(self) -> int:
        """Number of different prompts that it needs."""
        ...

    @property
    def failures(self) -> list[str]:
        """Errors of failed sides; the other sides were still measured."""
        ...

    def measure(self, setting: Setting) -> None:
        """Measure all runs, one after the other."""
        ...

    def tables(self) -> list[Table]:
        """The results so far, as tables."""
        ...

    def report(self) -> dict[str, Any]:
        """The results so far, as plain values."""
        ...
