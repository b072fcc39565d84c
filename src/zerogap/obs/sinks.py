"""Sinks: where metrics are written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from zerogap.obs.jsonl import JsonlFile

Metrics = Mapping[str, float]
"""Declared name -> reduced value, of one step."""


class MetricSink(Protocol):
    """Keeps or shows metrics."""

    def write(self, step: int, weight_version: int, metrics: Metrics) -> None:
        """Take the metrics of a finished step; they are stored when this returns.

        Args:
            step: from 1; 0 is the evaluation before the first step.
            weight_version: version of the weights after the step.
            metrics: reduced values by declared name.
        """

    def close(self) -> None:
        """Finish pending writes; ``write`` must not be called afterwards."""


class JsonlSink:
    """``metrics.jsonl``: one object per step, with ``step`` and ``weight_version`` first."""

    def __init__(self, path: Path, *, resumed_step: int | None = None) -> None:
        self._file = JsonlFile(path, keep_until_step=resumed_step)

    def write(self, step: int, weight_version: int, metrics: Metrics) -> None:
        """Append one line; it is on disk when this returns."""
        self._file.write({"step": step, "weight_version": weight_version, **metrics})

    def close(self) -> None:
        """Close the file."""
        self._file.close()
