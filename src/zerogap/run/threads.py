"""How many threads the tensor kernels use."""

import torch

from zerogap.config.env import read_environment


def apply_threads() -> None:
    """Let the tensor kernels use ZEROGAP_THREADS threads, if it is set."""
    if (threads := read_environment().threads) is not None:
        torch.set_num_threads(threads)
