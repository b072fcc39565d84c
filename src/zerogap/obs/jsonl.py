"""Append-only JSON-lines files that survive a kill at any byte.

A line is on disk when ``write`` returns. A kill may leave an incomplete last line and lines of steps after the last
checkpoint, which will run again: ``JsonlFile`` removes both when it opens the file.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zerogap.errors import CheckpointError, NumericsError, RunFolderError


class JsonlFile:
    """An open JSON-lines file; the only writer of that file."""

    def __init__(self, path: Path, *, keep_until_step: int | None = None) -> None:
        """Open for appending.

        Args:
            path: created if absent; its folder must exist.
            keep_until_step: remove everything from the first object with a larger ``step``. None keeps all.

        Raises:
            CheckpointError: a line before the last is not JSON.
        """
        if path.exists():
            os.truncate(path, _length_to_keep(path, keep_until_step))
        # Unbuffered: closing a file whose last line did not fit on the disk must not fail again.
        self._path, self._file = path, path.open("ab", buffering=0)
        _sync_folder(path.parent)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append an object as one line, and wait until it is on disk.

        Raises:
            NumericsError: a value is NaN or infinite, which JSON cannot hold.
            RunFolderError: the line cannot be written. The next opening removes what there is of it.
        """
        try:
            line = json.dumps(record, ensure_ascii=False, allow_nan=False)
        except ValueError as error:
            msg = f"{self._path}: {record} holds a NaN or infinity, which JSON cannot hold; look for the first one in this step"
            raise NumericsError(msg) from error
        try:
            rest = memoryview(line.encode() + b"\n")
            while rest:
                # What does not fit on the disk is left over, and the next call raises.
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            msg = f"{self._path} cannot be written ({error.strerror})"
            raise RunFolderError(msg) from error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> "JsonlFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All complete lines of the file.

    Raises:
        CheckpointError: a line before the last is not JSON.
    """
    return [record for _, record in _whole_lines(path)]


def _length_to_keep(path: Path, keep_until_step: int | None) -> int:
    """Bytes before the incomplete line or the first line of a later step."""
    kept = 0
    for end, record in _whole_lines(path):
        step = record.get("step")
        if keep_until_step is not None and step is not None and step > keep_until_step:
            return kept
        kept = end
    return kept


def _whole_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(offset after the line, object) for each complete line."""
    end = 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except ValueError as error:
            if number == len(lines):
                return
            msg = f"{path}, line {number}: not JSON, so something else changed the file; restore it, or delete that line"
            raise CheckpointError(msg) from error
        if record is None:
            return
        end += len(line)
        yield end, record


def _sync_folder(folder: Path) -> None:
    """Make the folder's entry for the file durable too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
