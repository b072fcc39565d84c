"""Which matrix products run: those whose rows keep their bits, or whatever the BLAS does with the rows as they are.

The choice belongs to a stretch of code, not to the process: an engine and a trainer that share one model may multiply
differently, which is what ``numerics = "fast"`` allows and what a test plants.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from torch import Tensor

from zerogap.kernels.native import native

Products = Literal["exact", "blas"]
"""exact: a row's bits do not depend on the rows beside it (our own products, or the BLAS as the probe settled it);
blas: torch's product of all rows at once, forward and backward, whose bits depend on their number."""

_chosen: ContextVar[Products] = ContextVar("products", default="exact")


@contextmanager
def products(choice: Products) -> Generator[None]:
    """Within it, on this thread, matrix products are of this kind.

    A forward pass and its backward belong into one block: with recomputation, the backward multiplies again.
    """
    token = _chosen.set(choice)
    try:
        yield
    finally:
        _chosen.reset(token)


def chosen_products() -> Products:
    """What the surrounding ``products`` block says; "exact" outside of one."""
    return _chosen.get()


def multiplies_own(tensor: Tensor) -> bool:
    """Whether a product of this tensor is one of ours."""
    return _chosen.get() == "exact" and native.multiplies(tensor)
