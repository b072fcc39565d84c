"""Writes safetensors files whose permissions follow the umask, and whose errors are the system's.

safetensors itself makes files that only their owner can read, and reports a full disk as a text without an errno.
"""

import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

if TYPE_CHECKING:
    from torch import Tensor

_ERRNO = re.compile(r"\(os error (\d+)\)")


def save_tensors(
    tensors: Mapping[str, "Tensor"], path: Path, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write contiguous tensors by name; several metadata keys are written in any order.

    Raises:
        OSError: the file cannot be written.
    """
    # Imports torch, which readers and writers of arrays do without.
    import safetensors.torch

    with _written(path):
        safetensors.torch.save_file(dict(tensors), path, dict(metadata) if metadata else None)


def save_arrays(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """The same for contiguous arrays."""
    with _written(path):
        safetensors.numpy.save_file(dict(arrays), path)


@contextmanager
def _written(path: Path) -> Generator[None]:
    path.touch()
    permissions = path.stat().st_mode
    try:
        yield
    except SafetensorError as error:
        if (found := _ERRNO.search(str(error))) is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error
    path.chmod(permissions)
