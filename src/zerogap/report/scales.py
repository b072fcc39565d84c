"""Maps values to positions on an axis: 0 is the lower end, 1 the upper end."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

FLOAT32_EPSILON = 2.0**-23
"""Spacing of float32 at 1: the rounding error that one reordered addition may cause."""
ZERO_BAND = 0.13
"""Share of a ``ZeroLogScale`` that is reserved for exact zeros, below its break."""

_NARROWEST = 0.1
"""Smallest span of a linear axis, relative to its values; a smaller span makes noise look like a trend."""
_SMALLEST, _LARGEST = 1e-300, 1e300
"""Values beyond these are drawn as 0 and as these: a span of them would be 0 or infinite."""
_FEWEST = 1e-6
"""Steps from here up to its inverse have labels without a power of ten."""
_LOWEST_DECADE, _HIGHEST_DECADE = -9, -1


@dataclass(frozen=True)
class Tick:
    """A labelled position."""

    at: float
    """Share of the axis."""
    label: str


class Scale(Protocol):
    """An axis."""

    def place(self, value: float) -> float:
        """Share of the axis, in [0, 1] for values it was built from."""

    def ticks(self) -> list[Tick]:
        """Ticks from low to high."""


@dataclass(frozen=True)
class LinearScale:
    """Equal differences look equal; both ends are ticks."""

    low: float
    high: float
    step: float
    """Between ticks."""

    @classmethod
    def around(cls, values: Iterable[float], *, num_ticks: int = 4) -> "LinearScale":
        """Holds all values; starts at 0 unless that would leave more than half of the axis empty."""
        finite = [_within_reach(value) for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        size = max(abs(low), abs(high))
        if 0 < high - low < 0.5 * size:
            middle, half = (low + high) / 2, max(0.6 * (high - low), _NARROWEST * size / 2)
            low, high = middle - half, middle + half
        else:
            low, high = min(low, 0.0), max(high, 0.0)
        if low == high:  # nothing but zeros
            high = 1.0
        step = nice_step((high - low) / num_ticks)
        return cls(math.floor(low / step) * step, math.ceil(high / step) * step, step)

    def place(self, value: float) -> float:
        """Share of the axis."""
        return (_within_reach(value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[Tick]:
        """Multiples of ``step``."""
        count = round((self.high - self.low) / self.step)
        values = [self.low + i * self.step + 0.0 for i in range(count + 1)]  # + 0.0: no "-0"
        form = _form(self.step)
        return [Tick(i / count, format(value, form)) for i, value in enumerate(values)]


@dataclass(frozen=True)
class ZeroLogScale:
    """Decades above a break, and a separate band for exact zeros below it.

    A logarithmic axis has no 0, and a linear axis shows 1e-7 like 0.
    """

    low: int
    """Decade of the break, as a power of ten."""
    high: int
    """Decade of the upper end."""

    @classmethod
    def around(cls, values: Iterable[float]) -> "ZeroLogScale":
        """Holds all values; always shows 1e-9 to 0.1, so that runs can be compared by eye."""
        logs = [math.log10(value) for value in values if 0 < value < math.inf]
        low = min([_LOWEST_DECADE, *(math.floor(log) for log in logs)])
        high = max([_HIGHEST_DECADE, *(math.ceil(log) for log in logs)])
        return cls(low, high)

    def place(self, value: float) -> float:
        """Share of the axis; exact zeros in the middle of their band."""
        if value == 0:
            return ZERO_BAND / 2
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return ZERO_BAND + (1 - ZERO_BAND) * share

    def ticks(self) -> list[Tick]:
        """0, and every second decade from the highest down."""
        decades = range(self.high, self.low - 1, -2)
        above = [Tick(self.place(10.0**decade), f"1e{decade}") for decade in reversed(decades)]
        return [Tick(self.place(0.0), "exactly 0"), *above]


def _within_reach(value: float) -> float:
    """The value where a span of such values and its parts are finite and not 0; else the nearest one."""
    return math.copysign(min(abs(value), _LARGEST), value) if abs(value) > _SMALLEST else 0.0


def _form(step: float) -> str:
    """The format of labels that are multiples of ``step``: its decimals, or three digits and a power of ten."""
    if not _FEWEST <= step < 1 / _FEWEST:
        return ".3g"
    decimals = next(d for d in range(16) if math.isclose(round(step, d), step))
    return f",.{decimals}f"


def nice_step(at_least: float) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(
        factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= at_least * (1 - 1e-9)
    )


def integer_ticks(first: int, last: int, *, num_ticks: int = 6) -> list[int]:
    """Round step numbers from ``first`` to ``last``; both ends only if they are round, or nothing else is."""
    if first == last:
        return [first]
    step = max(1, round(nice_step((last - first) / num_ticks)))
    return list(range(math.ceil(first / step) * step, last + 1, step))
