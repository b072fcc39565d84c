"""Memory of the KV cache: zeros that take up space only where they were written, and can be given back."""

import mmap
import sys

import torch
from torch import Tensor

_FORGETS = sys.platform == "linux"
"""Elsewhere MADV_DONTNEED is advice that may be ignored: contents stay."""


class ForgettableZeros:
    """Zeros on the device of a tensor and in its dtype.

    On a CPU they are a mapping of their own. Neither ``np.zeros`` nor ``torch.zeros``: the one asks for huge pages, so
    that a write takes up 2 MB at a time (half as much again for a cache that is half full), and the other writes all of it
    at once. Another device's allocator gives zeros, and takes them back when nobody holds the tensor.
    """

    def __init__(self, shape: tuple[int, ...], *, like: Tensor) -> None:
        self.tensor = like.new_empty(0)
        """The zeros, or what was written there since."""
        self._shape, self._like = shape, like.detach()[:0]
        self._memory: mmap.mmap | None = None
        self._allocate()

    def forget(self) -> None:
        """All zeros again, and the memory goes back to the system.

        ``tensor`` stays where it is on a CPU under Linux, so that what points to it (a recorded step) stays valid; elsewhere
        it is another one, and the memory goes back when nobody uses the one before.
        """
        if self._memory is not None and _FORGETS:
            self._memory.madvise(mmap.MADV_DONTNEED)
        else:
            self._allocate()

    def _allocate(self) -> None:
        if self._like.is_cpu:
            num_bytes = self._like.element_size() * torch.Size(self._shape).numel()
            # Private: a process that is forked off must not hold on to it.
            self._memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            flat = torch.frombuffer(self._memory, dtype=self._like.dtype)
            self.tensor = flat.view(self._shape)
        else:
            self.tensor = self._like.new_empty(0)
            self.tensor = self._like.new_zeros(self._shape)
