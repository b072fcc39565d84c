"""The files that a run writes line by line, opened at the place where it goes on."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from zerogap.config import RunConfig
from zerogap.obs import (
    ConsoleSink,
    JsonlFile,
    JsonlSink,
    MetricSink,
    Spans,
    TensorBoardSink,
)
from zerogap.run.folder import RunFolder
from zerogap.run.versions import VersionLog


class RunFiles:
    """Open files of a run; the only writer of each. A context manager."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        *,
        resumed_step: int,
        console: Console | None,
    ) -> None:
        """Open for appending.

        Args:
            folder: exists.
            config: the recipe.
            resumed_step: lines of later steps go, as those steps will be done again; -1 keeps none.
            console: gets a line a step; None for a quiet run.
        """
        self._open = ExitStack()
        events = self._jsonl(folder.events, None)
        self.spans = Spans(events.write)
        self.ledger = self._jsonl(folder.ledger, resumed_step)
        self.alarms = self._jsonl(folder.alarms, resumed_step)
        self.versions = VersionLog(folder.versions, resumed_step=resumed_step)
        self._open.callback(self.versions.close)
        self._sinks: Sequence[MetricSink] = [
            JsonlSink(folder.metrics, resumed_step=resumed_step),
            *([] if console is None else [ConsoleSink(console, total_steps=config.run.steps)]),
            *([TensorBoardSink(folder.tensorboard, resumed_step=resumed_step)] if config.obs.tensorboard else []),
        ]  # fmt: skip
        for sink in self._sinks:
            self._open.callback(sink.close)

    def write_step(self, step: int, weight_version: int, metrics: Mapping[str, float]) -> None:
        """A step's metrics, into every sink."""
        for sink in self._sinks:
            sink.write(step, weight_version, metrics)

    def close(self) -> None:
        """Close all; a second call does nothing."""
        self._open.close()

    def _jsonl(self, path: Path, resumed_step: int | None) -> JsonlFile:
        file = JsonlFile(path, keep_until_step=resumed_step)
        self._open.callback(file.close)
        return file
