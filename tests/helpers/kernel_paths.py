"""Run the same call on every backend of kernels, and take its gradients.

The kernels' test suite runs on each name in ``PATHS``. "torch" is what a machine without a compiler gets: ``native`` has
loaded nothing, and puts its library back afterwards. Any other name is looked up for the CPU's tensors.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import helpers.toy_backend  # noqa: F401 - adds its name
from zerogap.kernels import Compute
from zerogap.kernels.choice import OF_DEVICE
from zerogap.kernels.native import native

PATHS = ("cpu", "torch", "toy")
BF16 = Compute(rounds_bf16=True)


@contextmanager
def running_on(path: str) -> Iterator[None]:
    """The block's kernels run on ``path``; a machine without a compiler skips "cpu"."""
    if path == "cpu" and native.library is None:
        pytest.skip(f"no native kernels here: {native.why_not}")
    if path == "torch":
        with running_library(None):
            yield
        return
    before = OF_DEVICE["cpu"]
    OF_DEVICE["cpu"] = path
    try:
        yield
    finally:
        OF_DEVICE["cpu"] = before


@contextmanager
def running_library(library: ctypes.CDLL | None) -> Iterator[None]:
    """The block's kernels come from this build of the sources, or from torch (None)."""
    before = native._library, native.why_not
    native.use(library)
    native.why_not = "a test chose torch" if library is None else None
    try:
        yield
    finally:
        native.use(before[0])
        native.why_not = before[1]


def as_tuple(outputs: object) -> tuple[Tensor, ...]:
    """One output or several, as a tuple."""
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def values_and_gradients(
    function: Callable[..., object], inputs: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, and gradients of a fixed random weighting of them by every floating-point input.

    The weights depend on the outputs' shapes only, so that two implementations and two dtypes are asked
    for the gradient of the same number.
    """
    leaves = [
        x.detach().clone().requires_grad_() if x.is_floating_point() else x.clone() for x in inputs
    ]
    outputs = as_tuple(function(*leaves))
    generator = torch.Generator().manual_seed(1)
    loss = sum(
        (out * torch.randn(out.shape, generator=generator).to(out.dtype)).sum()
        for out in outputs
        if out.requires_grad
    )
    wanted = [x for x in leaves if x.requires_grad]
    gradients = torch.autograd.grad(loss, wanted)
    return [out.detach() for out in outputs], list(gradients)


def doubled(inputs: Sequence[Tensor]) -> list[Tensor]:
    """The same numbers in float64, integers as they are."""
    return [x.double() if x.is_floating_point() else x for x in inputs]
