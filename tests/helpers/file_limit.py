"""A limit on the size of files: as a full disk, the system refuses to write on, at a known place."""

import resource
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def file_limit(num_bytes: int) -> Generator[None]:
    """While entered, no file of this process grows beyond this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
