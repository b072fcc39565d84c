"""Choices that a model makes for each row during a forward pass, such as the experts of a token.

An engine that records them and a trainer that repeats them compute the same function (routing replay). Callers
need not know what is chosen: a model declares its columns, ``Choices`` carries them, and the parts that choose
read and write them.

There is one rule: the first pass that reaches a choice makes it, and every later pass repeats it. So a layer that
is recomputed in the backward pass (``recompute``) repeats its own choices, and a pass that gets ``Choices`` made
elsewhere replays them.

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
    """Of one choice: () for one number, (k,) for k numbers."""


class Choices:
    """The choices of some rows, column by column: [T, L, ...]. A dense model has no columns.

    Example:
        ``made = model.new_choices(num_rows)``, then ``model(ids, positions, attention, choices=made)``; later
        ``model(ids, positions, other_attention, choices=Choices({"routes": made["routes"]}, are_made=True))``.
    """

    def __init__(self, columns: Mapping[str, Tensor], *, are_made: bool) -> None:
        """Choices in the given memory, which is written in place.

        Args:
            columns: [T, L, ...] by name, with an entry for every layer, even one that chooses nothing.
            are_made: True: the columns hold choices to repeat; False: the first pass fills them.
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
        """Memory for the choices of the next pass."""
        # A layer's rows are contiguous: that is how a kernel writes them.
        memory = {
            name: torch.empty((num_layers, num_rows, *c.shape), dtype=c.dtype, device=device)
            for name, c in columns.items()
        }
        return cls({name: m.transpose(0, 1) for name, m in memory.items()}, are_made=False)

    def __getitem__(self, name: str) -> Tensor:
        """The column's memory, [T, L, ...]; no copy."""
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        """Names of the columns."""
        return iter(self._columns)

    def settle(self, name: str, layer: int, decide: Callable[[Tensor], object]) -> Tensor:
        """What this layer chose for each row, [T, ...].

        Args:
            name: the column.
            layer: index from 0.
            decide: writes the choice into the tensor it is given, without gradient; not called if the choice is
                already made. A captured graph can run it if it is a C++ kernel.
        """
        # .data: another layer writes to the same memory, and autograd must not count that as a change of this column.
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
            msg = f"the choices to repeat do not fit this pass: they are {_told(given)}, but the model makes {_told(needed)}; pass the choices that the same model recorded for the same rows"
            raise ModelError(msg)


def _told(columns: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> str:
    return ", ".join(f"{n} {list(s)} {t}" for n, (s, t) in sorted(columns.items())) or "none"


NO_CHOICES = Choices({}, are_made=True)
"""The choices of a dense model, for any number of rows."""
