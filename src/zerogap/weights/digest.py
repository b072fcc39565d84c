"""Digests of weights: one of each tensor, and one of all of them. A version number stands for these.

XXH3 with 128 bits: it guards against mistakes (a tensor that was never sent, sent twice, or half), not against an
adversary. Bytes are taken as they are, so -0.0 differs from 0.0, and NaNs of different bits differ.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import torch
import xxhash
from torch import Tensor, nn

from zerogap.errors import WeightSyncError

NamedWeights = Mapping[str, Tensor]
"""Tensors by the trainer's names; they are the storage itself, not copies, unless a docstring says otherwise."""
Rounding = Callable[[Tensor], Tensor]
"""Rounds values to another precision, element by element; the tensor's dtype stays."""


class Place(NamedTuple):
    """Where and how a tensor lies in memory: equal places hold equal values, whatever is written to one of them."""

    device: torch.device
    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class WeightDigest:
    """Digests of named tensors. Equal exactly if names, shapes, dtypes and bytes are equal, in any order."""

    tensors: Mapping[str, str]
    """32 hexadecimal digits over dtype, shape and bytes, by name."""

    @property
    def hex(self) -> str:
        """32 hexadecimal digits of the whole: what checkpoints and the version registry keep."""
        whole = xxhash.xxh3_128()
        for name in sorted(self.tensors):
            whole.update(f"{name} {self.tensors[name]}\n".encode())
        return whole.hexdigest()

    def differences(self, other: "WeightDigest") -> tuple[str, ...]:
        """Names, sorted, of the tensors that differ or that only one of the two has."""
        names = self.tensors.keys() | other.tensors.keys()
        return tuple(sorted(n for n in names if self.tensors.get(n) != other.tensors.get(n)))


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters by name, sharing its storage; no buffers."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Those of ``named_weights`` that require a gradient; the others stay as they were loaded."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def unrounded(tensor: Tensor) -> Tensor:
    """The ``Rounding`` that changes nothing."""
    return tensor


def digest_weights(weights: NamedWeights, *, rounding: Rounding = unrounded) -> WeightDigest:
    """The digest of all tensors after ``rounding``, on as many threads as torch uses.

    Raises:
        WeightSyncError: the weight set is empty.
    """
    if not weights:
        msg = "the weight set has no tensors, so its digest would equal that of any other empty set; pass the model's parameters by name"
        raise WeightSyncError(msg)
    places = places_of(weights)
    names_at: dict[Place, list[str]] = {}
    # Largest first, so that the threads end together.
    for name in sorted(weights, key=lambda name: -weights[name].nbytes):
        names_at.setdefault(places[name], []).append(name)
    # A storage that has two names (a tied head) is read once.
    distinct = [weights[names[0]] for names in names_at.values()]
    # xxhash releases the GIL while it digests a large buffer.
    with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
        found = list(pool.map(lambda tensor: digest_tensor(rounding(tensor)), distinct))
    digests = {
        name: digest
        for names, digest in zip(names_at.values(), found, strict=True)
        for name in names
    }
    return WeightDigest(digests)


def weight_fingerprint(model: nn.Module) -> str:
    """The digest of a model's parameters as one text, ``WeightDigest.hex``."""
    return digest_weights(named_weights(model)).hex


def places_of(weights: NamedWeights) -> dict[str, Place]:
    """The place of each tensor, by name."""
    return {
        name: Place(t.device, t.data_ptr(), tuple(t.shape), t.stride(), t.dtype)
        for name, t in weights.items()
    }


def digest_tensor(tensor: Tensor) -> str:
    """32 hexadecimal digits over dtype, shape and bytes."""
    whole = xxhash.xxh3_128(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    # As bytes: numpy has no bf16.
    content = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    whole.update(content.data)
    return whole.hexdigest()
