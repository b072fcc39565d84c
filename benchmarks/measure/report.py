"""Numbers for people (aligned columns) and for programs (one JSON object on the last line)."""

import json
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from measure.profiling import ProfileTable
from measure.shapes import RunShape

QUIET_SHARE = 0.05
"""Above this load of other processes a number says more about them than about us."""


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Median, extremes and number of repeats."""
    return {
        "median": median(values),
        "min": min(values),
        "max": max(values),
        "repeats": len(values),
    }


def show(value: Any) -> str:
    """A cell: three significant digits for floats, a dash for nothing."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def show_spread(values: Mapping[str, float]) -> str:
    """``median (min..max)``."""
    return f"{show(values['median'])} ({show(values['min'])}..{show(values['max'])})"


def print_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Columns are the keys of the first row; text to the left, numbers to the right."""
    names = list(rows[0])
    cells = [names, *([show(row[name]) for name in names] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    is_text = [all(isinstance(row[name], str) for row in rows) for name in names]
    print(f"\n{title}")
    for line in cells:
        aligned = (
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, is_text, strict=True)
        )
        print("  " + "  ".join(aligned).rstrip())


def print_profile(title: str, table: ProfileTable) -> None:
    """Where a profiled run's time went."""
    print_table(
        f"{title} ({table.seconds:.1f} s under the profiler)",
        [{**row, "share": f"{row['share']:.1%}"} for row in table.rows],
    )


def print_progress(shape: RunShape, repeat: int, side: str, seconds: float) -> None:
    """One line a run, beside the results."""
    print(f"{shape} run {repeat + 1} {side}: {seconds:.1f} s", file=sys.stderr, flush=True)


def print_load_warning(loads: Sequence[float | None]) -> None:
    """Say so when other processes took part of the machine."""
    worst = max((load for load in loads if load is not None), default=0.0)
    if worst > QUIET_SHARE:
        print(f"\nOther processes took up to {worst:.0%} of the cores: trust the ratios, not the absolute numbers.")  # fmt: skip


def print_json(report: Mapping[str, Any]) -> None:
    """One line."""
    print(json.dumps(report), flush=True)


def headline(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result's own numbers with their spread: what stands at the top of a report of several shapes."""
    numbers = {name: v for name, v in result.items() if not isinstance(v, (dict, list))}
    return {**numbers, "spread": result["spread"]}
