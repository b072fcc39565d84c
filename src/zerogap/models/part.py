"""The building blocks of a layer: parts, the weights that they declare, and the block that runs them in order.

A part computes one step of the residual stream and holds no tensors. It declares the weights it needs; the block owns
them (``layers.3.qkv.weight``) and passes itself to the part when it runs. The model's family (``families``) decides
which parts a layer has; no other code needs to know.

Letters: T packed tokens, D model dim, h half of a head's dim.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zerogap.kernels import Compute
from zerogap.models.attention import Attention
from zerogap.models.choices import ChoiceColumn, Choices


@dataclass(frozen=True)
class WeightSpec:
    """One parameter of a layer, and the checkpoint tensors that its rows come from."""

    rows: Mapping[str, int]
    """Number of rows by Hugging Face name within the layer, without ``.weight``, in the parameter's order. Several
    names make a fused parameter: one larger GEMM instead of several."""
    columns: int | None = None
    """None: a vector."""
    has_bias: bool = False
    """Whether there is a bias too; its tensors have the same names with ``.bias``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter."""
        num_rows = sum(self.rows.values())
        return (num_rows,) if self.columns is None else (num_rows, self.columns)


class Weights(nn.Module):
    """A parameter and perhaps its bias. Both hold NaN until they are initialised or loaded."""

    bias: nn.Parameter | None

    def __init__(self, shape: tuple[int, ...], *, has_bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, math.nan))
        self.register_parameter(
            "bias", nn.Parameter(torch.full(shape[:1], math.nan)) if has_bias else None
        )


@dataclass(frozen=True)
class ForwardRows:
    """What every layer gets to know about the rows of a forward pass."""

    cos_Th: Tensor
    sin_Th: Tensor
    attention: Attention
    choices: Choices
    compute: Compute
    """Passed to every kernel: ``kernels.linear(..., compute=rows.compute)``."""


class Part(ABC):
    """One step of a layer: the residual stream in, the residual stream out."""

    weights: Mapping[str, WeightSpec]
    """By name within the layer; two parts of a layer never share a name."""
    choices: Mapping[str, ChoiceColumn] = {}
    """What the part chooses for each row, by column."""

    @abstractmethod
    def __call__(self, layer: "Block", x_TD: Tensor, rows: ForwardRows) -> Tensor:
        """The residual stream after this step, [T, D]; a row must not depend on the other rows of the pass.

        Args:
            layer: the owner of the weights: ``layer["qkv"].weight``.
            x_TD: the residual stream.
            rows: positions, attention and choices of this pass.
        """

    def gemm_shapes(self) -> Iterator[tuple[int, int]]:
        """(in, out) of each GEMM with a weight. By default each matrix is one GEMM; override if a part cuts it."""
        for spec in self.weights.values():
            if spec.columns is not None:
                yield spec.columns, spec.shape[0]


class Block(nn.Module):
    """One layer: its parts in order, and the weights of all of them."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        for part in parts:
            for name, spec in part.weights.items():
                assert name not in self._modules, f"two parts of a layer have a weight {name}"
                self.add_module(name, Weights(spec.shape, has_bias=spec.has_bias))

    def __getitem__(self, name: str) -> Weights:
        """The weights that a part declared as ``name``."""
        weights = self._modules[name]
        assert isinstance(weights, Weights)
        return weights

    def forward(self, x_TD: Tensor, rows: ForwardRows) -> Tensor:
        """The residual stream after this layer, [T, D]."""
        for part in self.parts:
            x_TD = part(self, x_TD, rows)
        return x_TD
