"""Memory of the KV cache: zeros that take up space only where they are written, and that can be given back."""

import mmap
import sys

import torch
from torch import Tensor

_FORGETS = sys.platform == "linux"
"""On other systems MADV_DONTNEED may be ignored, and the contents would stay."""


class ForgettableZeros:
    """Zeros with the device and dtype of a tensor.

    On a CPU they are a memory mapping of their own. ``np.zeros`` would ask for huge pages, so that a write takes up
    2 MB at a time (half as much again for a cache that is half full); ``torch.zeros`` would write all of it at once.
    On another device the allocator gives zeros, and takes them back when no reference to the tensor is left.
    """

    def __init__(self, shape: tuple[int, ...], *, like: Tensor) -> None:
        self.tensor = like.new_empty(0)
        """The memory: zeros, or what was written since."""
        self._shape, self._like = shape, like.detach()[:0]
        self._memory: mmap.mmap | None = None
        self._allocate()

    def forget(self) -> None:
        """All zeros again, and the memory goes back to the system.

        On a CPU under Linux ``tensor`` keeps its address, so captured graphs stay valid. Elsewhere ``tensor`` is a new
        one, and the memory of the old one goes back when no reference to it is left.
        """
        if self._memory is not None and _FORGETS:
            self._memory.madvise(mmap.MADV_DONTNEED)
        else:
            self._allocate()

    def _allocate(self) -> None:
        if self._like.is_cpu:
            num_bytes = self._like.element_size() * torch.Size(self._shape).numel()
            # Private: a forked process must not keep the memory alive.
            self._memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            flat = torch.frombuffer(self._memory, dtype=self._like.dtype)
            self.tensor = flat.view(self._shape)
        else:
            self.tensor = self._like.new_empty(0)
            self.tensor = self._like.new_zeros(self._shape)
