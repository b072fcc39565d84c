"""Sets the number of threads of the tensor kernels."""

import torch

from zerogap.config.env import read_environment


def apply_threads(*, recorded: int | None = None) -> None:
    """Let the tensor kernels use ZEROGAP_THREADS threads, if it is set.

    Args:
        recorded: threads of the run that is recomputed, used if ZEROGAP_THREADS is not set: sums depend on it.
    """
    threads = read_environment().threads or recorded
    if threads is not None:
        torch.set_num_threads(threads)
