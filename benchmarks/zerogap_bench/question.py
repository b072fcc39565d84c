"""What the questions have in common: each is measured step by step and can be shown at any moment."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from zerogap_bench.prepare import Prepared
from zerogap_bench.tables import Table


@dataclass(frozen=True)
class Setting:
    """What every measurement starts from."""

    prepared: Prepared
    folder: Path
    """For files of the sides; gone afterwards."""
    say: Callable[[str], None]
    """Shows a line of progress."""


class Question(Protocol):
    """One thing to find out. Holds what has been measured, so an interrupted one can be shown as well."""

    name: str

    @property
    def num_prompts(self) -> int:
        """Different prompts it needs."""
        ...

    @property
    def failures(self) -> list[str]:
        """What went wrong with a side; the others were measured all the same."""
        ...

    def measure(self, setting: Setting) -> None:
        """Measure everything, one run after the other."""
        ...

    def tables(self) -> list[Table]:
        """What has been measured so far."""
        ...

    def report(self) -> dict[str, Any]:
        """The same as plain values."""
        ...
