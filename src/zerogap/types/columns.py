"""Columns of a sample: their declaration, and all operations that follow from it.

A column has one row per token. Rows are numbers, arrays of one shape, or lists of different lengths (``Ragged``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerogap.errors import DataError

_KEY = "column"


@dataclass(frozen=True, eq=False)
class Ragged:
    """T lists end to end: list t is ``values[offsets[t]:offsets[t + 1]]``.

    Example:
        [5, 9], [] and [7] have values 5, 9, 7 and offsets 0, 2, 2, 3.
    """

    values: np.ndarray
    """[N]"""
    offsets: np.ndarray
    """int64 [T + 1], from 0 to N."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> Ragged:
        start, end, _ = rows.indices(len(self))
        offsets = self.offsets[start : max(start, end) + 1]
        return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    @property
    def row_of_value(self) -> np.ndarray:
        """int64 [N]: the token of each value."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))


Values = np.ndarray | Ragged
"""The values of a column."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """The declaration of a column of numbers or of arrays of one shape; made by ``column``."""

    name: str = ""
    """Name of the field that it declares."""
    dtypes: tuple[type[np.generic], ...]
    """One type, to which values are converted; or several types, one of which the values must have already."""
    fill: float = 0
    """Value of a token for which nothing is given."""
    axes: tuple[str, ...] = ()
    """Names of the axes after the token axis; each sample chooses their sizes."""
    is_optional: bool = False
    """Whether a sample may lack the column."""

    def declared(self, values: Any) -> Values:  # noqa: ANN401 - whatever numpy takes for an array
        """``values`` as a contiguous, read-only array of the declared type.

        Raises:
            DataError: they have another type or number of axes, or do not fit the type.
        """
        array = np.asarray(values)
        if len(self.dtypes) > 1 and array.dtype not in self.dtypes:
            allowed = ", ".join(np.dtype(dtype).name for dtype in self.dtypes)
            msg = f"{self.name} has type {array.dtype}, but must have one of {allowed}; convert it to the smallest that holds every id"
            raise DataError(msg)
        if array.ndim != 1 + len(self.axes):
            msg = f"{self.name} has shape {array.shape}, but its axes are ({', '.join(('token', *self.axes))}); reshape it"
            raise DataError(msg)
        return self._converted(array, self.dtypes[0] if len(self.dtypes) == 1 else array.dtype)

    def filled(self, num_tokens: int, *, like: Any = None) -> Values:  # noqa: ANN401 - Values; the subclass knows which kind
        """Fill values for ``num_tokens`` tokens, with the row shape and type of ``like``."""
        if like is None:
            return np.full(num_tokens, self.fill, self.dtypes[0])
        return np.full((num_tokens, *like.shape[1:]), self.fill, like.dtype)

    def joined(self, parts: Sequence[Any]) -> Values:
        """Parts end to end.

        Raises:
            DataError: their types or row shapes differ.
        """
        kinds = {(part.dtype, part.shape[1:]) for part in parts}
        if len(kinds) > 1:
            found = sorted(f"{dtype} {shape}" for dtype, shape in kinds)
            msg = f"{self.name} cannot be joined: types or row shapes differ ({', '.join(found)}); join only parts from one model"
            raise DataError(msg)
        return np.concatenate(parts) if parts else self.filled(0)

    def extended(
        self, old: Values | None, num_old: int, new: object, num_new: int
    ) -> Values | None:
        """``num_old`` tokens, then ``num_new`` more; a part that is None gets fill values.

        Args:
            old: values of the declared type, or None.
            num_old: their number.
            new: rows, one number for all of them, or None.
            num_new: their number.

        Raises:
            DataError: as for ``declared`` and ``joined``.
        """
        if old is None and new is None:
            return None
        if new is not None:
            new = self.declared(np.full(num_new, new) if np.isscalar(new) else new)
        old = self.filled(num_old, like=new) if old is None else old
        return self.joined([old, self.filled(num_new, like=old) if new is None else new])

    def to_arrays(self, values: Any) -> dict[str, np.ndarray]:  # noqa: ANN401 - as above
        """Arrays by name, as a file stores them."""
        return {self.name: values}

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> Values:
        """The inverse of ``to_arrays``.

        Raises:
            KeyError: an array is missing.
        """
        return arrays[self.name]

    def _converted(self, array: np.ndarray, dtype: Any) -> np.ndarray:  # noqa: ANN401 - whatever numpy takes for a type
        converted = np.ascontiguousarray(array, dtype)
        if (
            converted.dtype.kind in "iu"
            and converted.dtype != array.dtype
            and (converted != array).any()
        ):
            msg = f"{self.name}: values from {array.min()} to {array.max()} do not fit {converted.dtype}; give values in its range"
            raise DataError(msg)
        converted.setflags(write=False)
        return converted


class RaggedColumn(Column):
    """The declaration of a column of lists; the fill value is an empty list."""

    def declared(self, values: Any) -> Ragged:  # noqa: ANN401 - checked here
        """As ``Column.declared``."""
        if not isinstance(values, Ragged):
            msg = f"{self.name} is a {type(values).__name__}, but it has one list per token; give a Ragged"
            raise DataError(msg)
        offsets = self._converted(np.asarray(values.offsets), np.int64)
        flat = self._converted(np.asarray(values.values), self.dtypes[0])
        is_whole = offsets.ndim == flat.ndim == 1 and len(offsets) > 0 and offsets[0] == 0
        if not (is_whole and offsets[-1] == len(flat) and (np.diff(offsets) >= 0).all()):
            msg = f"{self.name}: offsets of shape {offsets.shape} do not fit values of shape {flat.shape}; give offsets that rise from 0 to the number of values"
            raise DataError(msg)
        return Ragged(flat, offsets)

    def filled(self, num_tokens: int, *, like: Any = None) -> Ragged:  # noqa: ANN401 - lists have no row shape
        """Empty lists."""
        return Ragged(np.empty(0, self.dtypes[0]), np.zeros(num_tokens + 1, np.int64))

    def joined(self, parts: Sequence[Any]) -> Ragged:
        """Lists of all parts, in order."""
        lengths = [np.diff(part.offsets) for part in parts]
        values = [np.empty(0, self.dtypes[0]), *(part.values for part in parts)]
        return Ragged(
            np.concatenate(values), np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64)
        )

    def to_arrays(self, values: Any) -> dict[str, np.ndarray]:  # noqa: ANN401 - as above
        """``NAME.values`` and ``NAME.offsets``."""
        return {f"{self.name}.values": values.values, f"{self.name}.offsets": values.offsets}

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> Ragged:
        """The inverse of ``to_arrays``."""
        return Ragged(arrays[f"{self.name}.values"], arrays[f"{self.name}.offsets"])


def column(
    *dtypes: type[np.generic],
    fill: float = 0,
    axes: tuple[str, ...] = (),
    is_ragged: bool = False,
    is_optional: bool = False,
) -> dict[str, Column]:
    """Metadata that declares a dataclass field as a column; for the arguments see ``Column``."""
    kind = RaggedColumn if is_ragged else Column
    return {_KEY: kind(dtypes=dtypes, fill=fill, axes=axes, is_optional=is_optional)}


def columns_of(record: type) -> tuple[Column, ...]:
    """The columns that a dataclass declares, in the order of its fields."""
    return tuple(
        dataclasses.replace(field.metadata[_KEY], name=field.name)
        for field in dataclasses.fields(record)
        if _KEY in field.metadata
    )
