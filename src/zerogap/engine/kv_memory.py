"""Memory of the KV cache: zeros that take up space only where they were written, and can be given back."""

import mmap

import numpy as np


def untouched_zeros(shape: tuple[int, ...]) -> np.ndarray:
    """float32 zeros in a mapping of their own, which ends with the last array that uses it.

    Neither ``np.zeros`` nor ``torch.zeros``: the one asks for huge pages, so that a write takes up 2 MB at a
    time (half as much again for a cache that is half full), and the other writes all of it at once.
    """
    num_bytes = 4 * int(np.prod(shape))
    # Private: a process that is forked off must not hold on to it.
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, np.float32).reshape(shape)
