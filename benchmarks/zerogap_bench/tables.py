"""Formats results as text tables with aligned columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from zerogap_bench.profiling import ProfileTable

QUIET_SHARE = 0.05
"""Above this load by other processes, absolute numbers are unreliable."""


@dataclass(frozen=True)
class Table:
    """A title, rows with the same keys, and notes below."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = field(default_factory=tuple)

    def lines(self) -> list[str]:
        """The table as lines of text. Text is aligned left, numbers are aligned right."""
        if not self.rows:
            return ["", self.title, *(f"  {note}" for note in self.notes)]
        names = list(self.rows[0])
        cells = [names, *([show(row[name]) for name in names] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
        is_text = [all(isinstance(row[name], str) for row in self.rows) for name in names]
        lines = ["", self.title]
        for line in cells:
            aligned = (
                cell.ljust(width) if left else cell.rjust(width)
                for cell, width, left in zip(line, widths, is_text, strict=True)
            )
            lines.append("  " + "  ".join(aligned).rstrip())
        return [*lines, *(f"  {note}" for note in self.notes)]


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Median, extremes and number of repeats."""
    return {
        "median": median(values),
        "min": min(values),
        "max": max(values),
        "repeats": len(values),
    }


def show(value: Any) -> str:
    """The text of a cell: three significant digits for floats, a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def show_spread(values: Mapping[str, float]) -> str:
    """``median (min..max)``."""
    return f"{show(values['median'])} ({show(values['min'])}..{show(values['max'])})"


def show_share(share: float | None) -> str:
    """In percent; a dash for None."""
    return "-" if share is None else f"{share:.1%}"


def profile_table(title: str, table: ProfileTable) -> Table:
    """The table of a profiled run."""
    return Table(
        f"{title} ({table.seconds:.1f} s under the profiler)",
        [{**row, "share": f"{row['share']:.1%}"} for row in table.rows],
    )


def load_warning(loads: Sequence[float | None]) -> list[str]:
    """A warning if other processes used the machine."""
    worst = max((load for load in loads if load is not None), default=0.0)
    if worst <= QUIET_SHARE:
        return []
    return [
        f"Other processes used up to {worst:.0%} of the cores: trust the ratios, not the absolute numbers."
    ]
