"""Files and folders that are complete or absent, whenever a process ends."""

import shutil
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


@contextmanager
def building(folder: Path) -> Generator[None]:
    """While files are written into ``folder``, a new one with a temporary name; after an error it is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
