"""Memory of the KV cache: zeros that take up space only where they were written, and can be given back."""

import mmap
import sys

import numpy as np

_FORGETS = sys.platform == "linux"
"""Elsewhere MADV_DONTNEED is advice that may be ignored: contents stay."""


class ForgettableZeros:
    """float32 zeros in a mapping of their own.

    Neither ``np.zeros`` nor ``torch.zeros``: the one asks for huge pages, so that a write takes up 2 MB at a
    time (half as much again for a cache that is half full), and the other writes all of it at once.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._memory, self.array = _map(shape)

    def forget(self) -> None:
        """All zeros again, and the memory goes back to the system.

        ``array`` stays where it is on Linux, so that what points to it (a recorded step) stays valid; elsewhere it is
        another one, and the memory goes back when nobody uses the one before.
        """
        if _FORGETS:
            self._memory.madvise(mmap.MADV_DONTNEED)
        else:
            self._memory, self.array = _map(self.shape)


def _map(shape: tuple[int, ...]) -> tuple[mmap.mmap, np.ndarray]:
    num_bytes = 4 * int(np.prod(shape))
    # Private: a process that is forked off must not hold on to it.
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memory, np.frombuffer(memory, np.float32).reshape(shape)
