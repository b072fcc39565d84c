"""Records results as baselines, and compares new results with them: ratios, shares and memory, never times.

A baseline is a JSON file per processor, with the machine, the numbers and their tolerances. On shared machines, times and
rates vary by a third within hours, so only numbers that were measured side by side are compared.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zerogap.errors import BenchmarkError
from zerogap_bench.tables import Table

DEFAULT_FOLDER = Path("benchmarks/baselines")
_TOLERANCES: Mapping[str, tuple[float, Literal["higher", "lower"]]] = {
    "ratio_to_transformers": (0.15, "higher"),
    "share_of_limit": (0.12, "higher"),
    "share_of_read": (0.15, "higher"),
    "peak_rss_gb": (0.1, "lower"),
}
"""Compared numbers, with their tolerance (a share of the recorded value) and the better direction. A new baseline
stores them, and a comparison uses the stored ones."""


@dataclass(frozen=True)
class Comparison:
    """One number, recorded and now."""

    name: str
    recorded: float
    found: float | None
    """None if it was not measured this time."""
    tolerance: float
    """As a share of the recorded value."""
    better: str
    """``higher`` or ``lower``."""

    @property
    def is_worse(self) -> bool:
        """Whether it is beyond the tolerance in the bad direction, or missing."""
        if self.found is None:
            return True
        if self.better == "higher":
            return self.found < self.recorded * (1 - self.tolerance)
        return self.found > self.recorded * (1 + self.tolerance)


def check_numbers(report: Mapping[str, Any]) -> dict[str, float]:
    """The compared numbers of a ``check`` report by name, such as ``rollout/8x8x16/share_of_limit``."""
    found: dict[str, float] = {}
    for question in ("rollout", "step"):
        for result in report[question]["shapes"]:
            numbers = {**result, **(result.get("decoding") or {})}
            # A single sequence is bound by memory, so its share of the GEMM limit is meaningless.
            left_out = {"share_of_limit"} if result.get("decoding") else set()
            for name in _TOLERANCES.keys() - left_out:
                if numbers.get(name) is not None:
                    found[f"{question}/{result['shape']}/{name}"] = numbers[name]
    return dict(sorted(found.items()))


def build_baseline(report: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline from a ``check`` report.

    Raises:
        BenchmarkError: there is no commit, or files differ from it.
    """
    check_recordable(report)
    numbers = {}
    for name, value in check_numbers(report).items():
        tolerance, better = _TOLERANCES[name.rpartition("/")[2]]
        numbers[name] = {"value": value, "tolerance": tolerance, "better": better}
    kept = ("device", "num_cores", "threads", "memory_gb", "versions", "commit", "date", "config", "kernels")  # fmt: skip
    return {**{name: report[name] for name in kept}, "numbers": numbers}


def check_recordable(report: Mapping[str, Any]) -> None:
    """Refuse a report that cannot be reproduced.

    Raises:
        BenchmarkError: see ``build_baseline``.
    """
    commit = report["commit"]
    if commit is None or commit.endswith("-dirty"):
        given = "files differ from the commit" if commit else "this is not a checkout with a commit"
        msg = f"--record: {given}, so the result cannot be reproduced; commit first, and record from the checkout"
        raise BenchmarkError(msg)


def baseline_path(folder: Path, report: Mapping[str, Any]) -> Path:
    """The file that records a report of this machine: ``check_<device>_<threads>threads.json``."""
    device = re.sub(r"[^a-z0-9]+", "-", str(report["device"]).lower()).strip("-")
    return folder / f"{report['benchmark']}_{device}_{report['threads']}threads.json"


def load_baseline(folder: Path, report: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline of the report's machine.

    Raises:
        BenchmarkError: the file is missing or not a baseline.
    """
    path = baseline_path(folder, report)
    if not path.exists():
        found = ", ".join(sorted(p.name for p in folder.glob("check_*.json"))) or "none"
        msg = (
            f"{path}: there is no baseline for this processor with {report['threads']} threads (found: {found}), and a baseline of another processor "
            "does not apply; record one with `zerogap bench --suite check --record` at a known good commit"
        )
        raise BenchmarkError(msg)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for entry in content["numbers"].values():
            float(entry["value"]), float(entry["tolerance"])
            if entry["better"] not in ("higher", "lower"):
                msg = f'better = {entry["better"]!r} must be "higher" or "lower"'
                raise ValueError(msg)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{path} is not a baseline ({type(error).__name__}: {error}); record it again with --record"
        raise BenchmarkError(msg) from error
    return content


def compare(baseline: Mapping[str, Any], found: Mapping[str, float]) -> list[Comparison]:
    """Each recorded number with the new one."""
    return [
        Comparison(name, entry["value"], found.get(name), entry["tolerance"], entry["better"])
        for name, entry in baseline["numbers"].items()
    ]


def comparison_table(comparisons: list[Comparison], path: Path, commit: str) -> Table:
    """Changes and verdicts."""
    rows = [
        {
            "number": c.name,
            "recorded": c.recorded,
            "now": c.found,
            "change": "-" if c.found is None else f"{c.found / c.recorded - 1:+.1%}",
            "tolerated": f"{'-' if c.better == 'higher' else '+'}{c.tolerance:.0%}",
            "": _verdict(c),
        }
        for c in comparisons
    ]
    return Table(f"Against {path.name}, recorded at {commit}", rows)


def _verdict(comparison: Comparison) -> str:
    if comparison.found is None:
        return "NOT MEASURED"
    return "WORSE" if comparison.is_worse else "ok"
