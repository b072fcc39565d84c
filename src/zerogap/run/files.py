"""The files that a run writes line by line, opened where the run continues."""

from collections.abc import Mapping
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
from zerogap.run_folder import RunFolder


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
            resumed_step: lines of later steps are removed, since these steps will run again; -1 keeps none.
            console: gets a line per step; None for a quiet run.
        """
        with ExitStack() as opening:

            def jsonl(path: Path, keep_until_step: int | None) -> JsonlFile:
                return opening.enter_context(JsonlFile(path, keep_until_step=keep_until_step))

            self.spans = Spans(jsonl(folder.events, None).write)
            self.ledger = jsonl(folder.ledger, resumed_step)
            self.alarms = jsonl(folder.alarms, resumed_step)
            self.versions = jsonl(folder.versions, resumed_step)
            self._sinks: list[MetricSink] = [JsonlSink(folder.metrics, resumed_step=resumed_step)]
            if console is not None:
                self._sinks.append(ConsoleSink(console, total_steps=config.run.steps))
            if config.obs.tensorboard:
                self._sinks.append(TensorBoardSink(folder.tensorboard, resumed_step=resumed_step))
            for sink in self._sinks:
                opening.callback(sink.close)
            self._open = opening.pop_all()

    def write_step(self, step: int, weight_version: int, metrics: Mapping[str, float]) -> None:
        """Write a step's metrics to every sink."""
        for sink in self._sinks:
            sink.write(step, weight_version, metrics)

    def close(self) -> None:
        """Close all; a second call does nothing."""
        self._open.close()
