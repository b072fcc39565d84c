"""Memory that the C allocator keeps for later, given back to the system when another phase begins."""

import ctypes


def return_free_memory() -> None:
    """Make the process as small as what it uses; for the points where one phase has freed much of it.

    glibc keeps freed blocks below some megabytes, which is what makes the next micro-batch quick: a backward pass
    leaves 600 MB behind that a rollout, with its own needs, does not fit into. Nothing where the C library has no
    ``malloc_trim``.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
