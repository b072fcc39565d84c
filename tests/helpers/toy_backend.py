"""A backend of another precision: torch's operations in float64, rounded to the callers' dtype at the end of each.

It is what a new backend looks like to the test suite: a class, and a name in ``BACKENDS``.
"""

import functools
from dataclasses import fields, is_dataclass, replace

import torch
from torch import Tensor

from zerogap.kernels.choice import BACKENDS
from zerogap.kernels.torch_backend import TorchBackend


class ToyBackend:
    """Every operation of ``TorchBackend`` on float64 copies; what it wrote into its arguments is copied back."""

    name = "toy"

    def __init__(self) -> None:
        self.tile = None

    def takes(self, tensor: Tensor) -> bool:
        """Any floating-point tensor."""
        return tensor.is_floating_point()

    # Made of other operations of this backend, as the contract has it.
    norm_product = TorchBackend.norm_product
    swiglu_product = TorchBackend.swiglu_product
    sample = TorchBackend.sample

    def __getattr__(self, operation: str):
        wide = getattr(TorchBackend(), operation)

        @functools.wraps(wide)
        @torch.no_grad()
        def rounded(*arguments, **named):
            floats = [t for t in _tensors([*arguments, *named.values()]) if t.is_floating_point()]
            copies = {id(t): t.detach().double() for t in floats}
            result = wide(
                *(_swapped(a, copies) for a in arguments),
                **{name: _swapped(a, copies) for name, a in named.items()},
            )
            for t in floats:
                if not torch.equal(copies[id(t)], t.double()):
                    t.detach().copy_(copies[id(t)])
            written = {id(copies[id(t)]): t for t in floats}
            return _narrowed(result, floats[0].dtype, written)

        return rounded


def _tensors(values):
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from _tensors(value)
        elif is_dataclass(value):
            yield from _tensors([getattr(value, field.name) for field in fields(value)])


def _swapped(value, copies):
    if isinstance(value, Tensor):
        return copies.get(id(value), value)
    if isinstance(value, tuple):
        return tuple(_swapped(v, copies) for v in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            f.name: _swapped(getattr(value, f.name), copies) for f in fields(value) if f.init
        }
        return replace(value, **changed)
    return value


def _narrowed(result, dtype, written):
    if isinstance(result, tuple):
        return tuple(_narrowed(part, dtype, written) for part in result)
    if not isinstance(result, Tensor) or not result.is_floating_point():
        return result
    return written.get(id(result), result.to(dtype))


BACKENDS["toy"] = ToyBackend()
