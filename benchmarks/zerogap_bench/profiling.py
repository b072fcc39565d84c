"""Profiles a run: torch's operators by shape and zerogap's kernels, as shares of the wall time.

The times are those of the main thread, which takes part in every parallel region, so they add up to the wall time. The
rest is Python and the time between operators.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_MAX_ROWS = 30


@dataclass
class ProfileTable:
    """Filled when the profiled block ends."""

    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Largest first: name, shapes, calls, seconds, share of the wall time, and GFLOP/s for GEMMs."""


@contextmanager
def profiled() -> Generator[ProfileTable]:
    """Profile the block. The profiler takes time itself, so compare shares, not seconds."""
    from torch.profiler import ProfilerActivity, profile

    table = ProfileTable()
    with _named_kernels(), profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True) as run:  # fmt: skip
        start_s = perf_counter()
        yield table
        table.seconds = perf_counter() - start_s
    table.rows = _rows(run.key_averages(group_by_input_shape=True), table.seconds)


@contextmanager
def _named_kernels() -> Generator[None]:
    """Give each call of a C++ kernel, direct or in a captured graph, a range with its name: torch does not know them."""
    from torch.profiler import record_function

    from zerogap.kernels.graph import CapturedGraph
    from zerogap.kernels.native import KernelCall, NativeKernels

    call, run = NativeKernels._call, CapturedGraph.run

    def named_call(self: NativeKernels, name: str, *arguments: object) -> int | None:
        with record_function(name):
            return call(self, name, *arguments)

    def named(recorded: KernelCall) -> KernelCall:
        def function(*arguments: object) -> int | None:
            with record_function(recorded.function.__name__):
                return recorded.function(*arguments)

        return KernelCall(function, recorded.arguments, recorded.result)

    def named_run(self: CapturedGraph, inputs: Sequence[Tensor]) -> Tensor:
        plain = self._calls
        self._calls = [named(recorded) for recorded in plain]
        try:
            return run(self, inputs)
        finally:
            self._calls = plain

    NativeKernels._call, CapturedGraph.run = named_call, named_run
    try:
        yield
    finally:
        NativeKernels._call, CapturedGraph.run = call, run


def _rows(events: Any, wall_s: float) -> list[dict[str, Any]]:
    rows = [_row(event, wall_s) for event in events if event.self_cpu_time_total > 0]
    rows.sort(key=lambda row: -row["seconds"])
    explained_s = sum(row["seconds"] for row in rows)
    rest_s = sum(row["seconds"] for row in rows[_MAX_ROWS:])
    return [
        *rows[:_MAX_ROWS],
        _summary("smaller operators", rest_s, wall_s),
        _summary("Python, and between operators", max(0.0, wall_s - explained_s), wall_s),
    ]


def _row(event: Any, wall_s: float) -> dict[str, Any]:
    seconds = event.self_cpu_time_total / 1e6
    shapes = "·".join("x".join(map(str, shape)) for shape in event.input_shapes or () if shape)
    return {
        "name": event.key,
        "shapes": shapes,
        "calls": event.count,
        "seconds": seconds,
        "share": seconds / wall_s,
        "gflops": event.flops / seconds / 1e9 if event.flops and "mm" in event.key else None,
    }


def _summary(name: str, seconds: float, wall_s: float) -> dict[str, Any]:
    return {"name": name, "shapes": "", "calls": None, "seconds": seconds, "share": seconds / wall_s, "gflops": None}  # fmt: skip
