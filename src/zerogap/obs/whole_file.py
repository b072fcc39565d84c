"""Files that are complete or absent, whenever a process ends."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Generator[Path]:
    """A path beside ``path`` to write to; its file takes the place of ``path`` at the end, or is removed after an error."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
