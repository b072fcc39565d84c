"""How many threads the tensor kernels use."""

import torch

from zerogap.config.env import read_environment


def apply_threads(*, recorded: int | None = None) -> None:
    """Let the tensor kernels use ZEROGAP_THREADS threads, if it is set.

    Args:
        recorded: of what is computed again; used where ZEROGAP_THREADS says nothing, since sums depend on it.
    """
    threads = read_environment().threads or recorded
    if threads is not None:
        torch.set_num_threads(threads)
