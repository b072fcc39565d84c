"""What a run needs on disk, and what it says when the disk refuses."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from zerogap.config.run import RunSection
from zerogap.errors import ConfigError, RunFolderError
from zerogap.run_folder import RunFolder


@contextmanager
def storing(path: Path) -> Generator[None]:
    """While something is written to ``path``.

    Raises:
        RunFolderError: the system refused; the message gives its reason.
    """
    try:
        yield
    except OSError as error:
        msg = f"{path} cannot be written ({error.strerror or error})"
        raise RunFolderError(msg) from error


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """Bytes of a run's large files. Metrics, rollouts and the report are small beside them."""

    checkpoint: int
    """Of one checkpoint."""
    export: int
    """Of the exported model."""
    num_kept: int
    """Checkpoints that stay."""
    num_at_once: int
    """Checkpoints while the last of them is written."""

    @classmethod
    def of(cls, section: RunSection, *, checkpoint: int, export: int) -> "DiskNeed":
        """Of a run with these settings; of one without a checkpoint on the way, the one at the end."""
        num_written = -(-section.steps // section.checkpoint_every) if section.checkpoint_every else 1  # fmt: skip
        return cls(
            checkpoint=checkpoint,
            export=export,
            num_kept=min(num_written, section.keep_checkpoints),
            num_at_once=min(num_written, section.keep_checkpoints + 1),
        )

    @property
    def at_end(self) -> int:
        """When the run is complete."""
        return self.num_kept * self.checkpoint + self.export

    @property
    def at_most(self) -> int:
        """At any time: before the export, a checkpoint more may be there."""
        return max(self.num_at_once * self.checkpoint, self.at_end)

    def check(self, folder: RunFolder) -> str:
        """One line about it.

        Raises:
            ConfigError: the disk has too little room.
        """
        mine = sum(_size_of(path) for path in (folder.checkpoints, folder.export))
        free = shutil.disk_usage(folder.path).free
        parts = f"{self.num_kept} checkpoint{'s' * (self.num_kept > 1)} of {_gb(self.checkpoint)}, model {_gb(self.export)}"
        if self.at_most > free + mine:
            is_one_more = self.num_at_once > self.num_kept
            more = ", and one checkpoint more while it is written" if is_one_more else ""
            msg = f"run.dir = {str(folder.path)!r}: the run needs {_gb(self.at_most)} there ({parts}{more}), and {_gb(free)} are free; make room, lower run.keep_checkpoints, or set a run.dir on another disk"
            raise ConfigError(msg)
        return f"disk: {_gb(self.at_end)} at the end ({parts}); {_gb(free)} free"


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 10**8 else f"{num_bytes / 1e6:.1f} MB"
