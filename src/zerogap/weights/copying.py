"""Copies weights in place: the target keeps its addresses, so captured graphs that read it stay valid."""

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
        weights: (name, values), each name of ``into`` once; read one at a time, so a generator may make them.
        into: the tensors to write.

    Raises:
        WeightSyncError: a tensor is unknown, comes twice, is missing, or has another shape or dtype. Earlier tensors are
            already written: the target then mixes versions.
    """
    written: set[str] = set()
    for name, tensor in weights:
        target = into.get(name)
        if target is None or name in written:
            what = "comes twice for" if name in written else "has no place in"
            msg = f"weights: {name} {what} the target of {len(into)} tensors ({named(into)}); send each of its tensors once, by these names"
            raise WeightSyncError(msg)
        if (target.shape, target.dtype) != (tensor.shape, tensor.dtype):
            msg = f"weights: {name} is {describe(tensor)}, and {describe(target)} in the target: the two models differ; build both from one config and dtype"
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
