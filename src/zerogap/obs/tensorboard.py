"""Metrics as TensorBoard event files, written by the ``tensorboard`` package alone."""

import importlib
from pathlib import Path

from zerogap.errors import MissingExtra
from zerogap.obs.clock import unix_time_s
from zerogap.obs.sinks import Metrics

# SessionLog.START in tensorboard's event.proto: a reader drops what it has from this step on.
_SESSION_START = 1


class TensorBoardSink:
    """Event files in ``folder``; when a run resumes, TensorBoard drops the steps that run again."""

    def __init__(self, folder: Path, *, resumed_step: int | None = None) -> None:
        """Open a new event file.

        Raises:
            MissingExtra: the tensorboard package is not installed.
        """
        try:
            # Protocol buffers create their classes at import, so a type checker cannot see them.
            events = importlib.import_module("tensorboard.compat.proto.event_pb2")
            writers = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        except ImportError as error:
            msg = (
                "obs.tensorboard = true: the tensorboard package is not installed; "
                "run `pip install 'zerogap[tensorboard]'`, or set obs.tensorboard = false"
            )
            raise MissingExtra(msg) from error
        self._new_event = events.Event
        self._writer = writers.EventFileWriter(str(folder))
        if resumed_step is not None:
            self._add(step=resumed_step + 1, session_log={"status": _SESSION_START})

    def write(self, step: int, weight_version: int, metrics: Metrics) -> None:
        """Write one scalar per metric."""
        scalars = {"weight_version": weight_version, **metrics}
        values = [{"tag": tag, "simple_value": float(value)} for tag, value in scalars.items()]
        self._add(step=step, summary={"value": values})
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()

    def _add(self, **fields: object) -> None:
        self._writer.add_event(self._new_event(wall_time=unix_time_s(), **fields))
