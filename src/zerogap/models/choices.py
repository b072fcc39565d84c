"""Choices that a model makes for each row on its way: the experts of a token, for one.

An engine that records them and a trainer that repeats them compute the same function (routing replay). Callers
need not know what is chosen: a model says which columns it has, ``Choices`` carries them, and the parts that
choose read and write there.

There is one rule: the first pass that comes to a choice makes it, and every later one repeats it. So a layer
that is computed again in the backward pass (``recompute``) goes the way that it went before, and a pass that
is given ``Choices`` which are already made replays them.

Letters: T rows, L layers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from zerogap.errors import ModelError


@dataclass(frozen=True)
class ChoiceColumn:
    """What one layer chooses for one row."""

    dtype: torch.dtype
    shape: tuple[int, ...] = ()
    """() is a number, (k,) are k numbers."""


class Choices:
    """The choices of some rows, column by column: [T, L, ...]. A dense model has no columns.

    Example:
        ``made = model.new_choices(num_rows)``, then ``model(ids, positions, attention, choices=made)``; later
        ``model(ids, positions, other_attention, choices=Choices({"routes": made["routes"]}, are_made=True))``.
    """

    def __init__(self, columns: Mapping[str, Tensor], *, are_made: bool) -> None:
        """Choices in the given memory, which is written in place.

        Args:
            columns: [T, L, ...] by name, with an entry for every layer, also for those that choose nothing.
            are_made: they hold what is to be repeated; False: the first pass fills them.
        """
        self._columns = dict(columns)
        self._made = {
            (name, layer)
            for name, column in columns.items()
            for layer in range(column.shape[1])
            if are_made
        }

    @classmethod
    def empty(
        cls,
        columns: Mapping[str, ChoiceColumn],
        *,
        num_rows: int,
        num_layers: int,
        device: torch.device,
    ) -> Self:
        """Memory for choices that the next pass makes."""
        # A layer's rows lie together, as a kernel wants to write them.
        memory = {
            name: torch.empty((num_layers, num_rows, *c.shape), dtype=c.dtype, device=device)
            for name, c in columns.items()
        }
        return cls({name: m.transpose(0, 1) for name, m in memory.items()}, are_made=False)

    def __getitem__(self, name: str) -> Tensor:
        """[T, L, ...], the memory itself."""
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        """Names of the columns."""
        return iter(self._columns)

    def settle(self, name: str, layer: int, decide: Callable[[Tensor], object]) -> Tensor:
        """What this layer chose for each row, [T, ...].

        Args:
            name: of the column.
            layer: from 0.
            decide: writes its choice into the tensor it is given; not called if the choice is made. It runs without
                gradient. A recorded forward pass can repeat it if it is a C++ kernel.
        """
        # .data: autograd must not take what another layer writes beside it for a change of this one.
        chosen_T = self._columns[name][:, layer].data
        if (name, layer) not in self._made:
            with torch.no_grad():
                decide(chosen_T)
            self._made.add((name, layer))
        return chosen_T

    def check(self, columns: Mapping[str, ChoiceColumn], *, num_rows: int, num_layers: int) -> None:
        """Raise ModelError unless these are choices of ``num_rows`` rows of a model with these columns."""
        needed = {n: ((num_rows, num_layers, *c.shape), c.dtype) for n, c in columns.items()}
        given = {n: (tuple(c.shape), c.dtype) for n, c in self._columns.items()}
        if given != needed:
            msg = f"the choices to repeat do not fit this pass: given are {_told(given)}, the model makes {_told(needed)}; give those that the same model recorded for the same rows"
            raise ModelError(msg)


def _told(columns: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> str:
    return ", ".join(f"{n} {list(s)} {t}" for n, (s, t) in sorted(columns.items())) or "none"


NO_CHOICES = Choices({}, are_made=True)
"""Of a dense model, for any rows."""
