"""Weights from one place to another, in place: who reads the target by address (a recorded pass) goes on reading it."""

from collections.abc import Iterable

import torch
from torch import Tensor

from zerogap.errors import WeightSyncError
from zerogap.weights.digest import NamedWeights

_NUM_NAMED = 5


@torch.no_grad()
def copy_weights(weights: Iterable[tuple[str, Tensor]], into: NamedWeights) -> None:
    """Write every tensor into the one of its name.

    Args:
        weights: (name, values), each name of ``into`` once; read one after the other, so they may be made on the way.
        into: the storage that is written.

    Raises:
        WeightSyncError: a tensor is unknown, comes twice, is missing, or has another shape or dtype. What came before it is
            written: the target then holds weights of no version.
    """
    written: set[str] = set()
    for name, tensor in weights:
        target = into.get(name)
        if target is None or name in written:
            what = "comes twice" if name in written else "has no place in the target"
            msg = f"weights: {name} {what}, which holds {len(into)} tensors ({named(into)}); send each of its tensors once, by these names"
            raise WeightSyncError(msg)
        if (target.shape, target.dtype) != (tensor.shape, tensor.dtype):
            msg = f"weights: {name} is {describe(tensor)}, and {describe(target)} where it is to be written: the two models differ; build both from one config and dtype"
            raise WeightSyncError(msg)
        target.copy_(tensor)
        written.add(name)
    if missing := into.keys() - written:
        msg = f"weights: {len(missing)} of {len(into)} tensors were not sent ({named(missing)}), so the target holds two versions; send all of them again"
        raise WeightSyncError(msg)


def named(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    ordered = sorted(names)
    more = len(ordered) - _NUM_NAMED
    return ", ".join(ordered[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")


def describe(tensor: Tensor) -> str:
    """Dtype and shape, for a message."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
