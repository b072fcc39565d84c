"""One owner of a run's folder at a time."""

import errno
import fcntl
import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from zerogap.errors import ConfigError, RunFolderError
from zerogap.run_folder import RunFolder

_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def owned(folder: RunFolder) -> Generator[None]:
    """Create the folder and hold its lock. The system releases the lock when the process ends, however it ends.

    Raises:
        ConfigError: the folder cannot be created or written.
        RunFolderError: another process holds the lock; nothing was changed.
    """
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        file = folder.lock.open("a+", encoding="utf-8")
    except OSError as error:
        msg = f"run.dir = {str(folder.path)!r}: the folder cannot be created or written ({error.strerror}); set another run.dir"
        raise ConfigError(msg) from error
    with file:
        _take(file.fileno(), folder.lock)
        yield


def _take(descriptor: int, lock: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # The owner may not have written its number yet.
        who = lock.read_text(encoding="utf-8").strip()
        named = f" by process {who}" if who else ""
        msg = f"{lock.parent} is in use{named}; wait until that run ends, stop it, or set another run.dir"
        raise RunFolderError(msg) from None
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        warnings.warn(
            f"the file system of {lock.parent} has no locks ({error.strerror}), so a second run in this folder would not be noticed",
            stacklevel=2,
        )
        return
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
