"""The witness must be awake: a comparison is run again with a fault planted, and has to fail.

::

    FP32_SAME_OP.check(ours(x, weight), reference(x, weight))
    with planted_fault("one weight scaled by 1.01"):
        FP32_SAME_OP.check(ours(x, scaled(weight)), reference(x, weight))
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class FaultNotNoticed(Exception):
    """A comparison accepted a planted fault. Not an AssertionError, so an outer block cannot swallow it."""


@contextmanager
def planted_fault(what: str) -> Iterator[None]:
    """The block contains a fault and must raise AssertionError; every other exception passes through."""
    try:
        yield
    except AssertionError:
        return
    raise FaultNotNoticed(f"the comparison accepted a planted fault: {what}")


def assert_notices(what: str, comparison: Callable[[], object]) -> None:
    """``planted_fault`` for a comparison that is a function."""
    with planted_fault(what):
        comparison()


def scaled(tensor: torch.Tensor, factor: float = 1.01) -> torch.Tensor:
    """A copy whose element of largest size is scaled by ``factor``."""
    copy = tensor.detach().clone().contiguous()
    flat = copy.view(-1)
    flat[flat.abs().argmax()] *= factor
    return copy


def nudged(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose first element is one unit in the last place larger: the smallest fault there is."""
    copy = tensor.detach().clone().contiguous()
    flat = copy.view(-1)
    flat[0] = torch.nextafter(flat[0], torch.tensor(float("inf"), dtype=copy.dtype))
    return copy
