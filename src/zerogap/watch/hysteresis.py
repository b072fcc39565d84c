"""The state of one alarm: on after ``patience`` consecutive steps beyond its limit, off after as many well within it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Change = Literal["on", "off"]

CALM_SHARE = 0.9
"""A step is calm if its value is within this share of the limit. Between calm and the limit, an alarm does not change."""


@dataclass(frozen=True)
class Reading:
    """The value of one alarm at one step, and its limit."""

    value: float
    limit: float
    is_collapse_below: bool = False
    """Whether small values are bad (entropy)."""

    @property
    def is_beyond(self) -> bool:
        """Whether the value exceeds the limit in the bad direction."""
        return self.value < self.limit if self.is_collapse_below else self.value > self.limit

    @property
    def is_calm(self) -> bool:
        """Whether the value is well within the limit."""
        if self.is_collapse_below:
            return self.value >= self.limit / CALM_SHARE
        return self.value <= self.limit * CALM_SHARE


@dataclass
class Hysteresis:
    """Counts of one alarm. Mutated by ``observe`` only."""

    is_on: bool = False
    num_beyond: int = 0
    """Consecutive steps beyond the limit, while the alarm is off."""
    num_calm: int = 0
    """Consecutive calm steps, while the alarm is on."""
    first_step: int = 0
    """First of the current (or last) consecutive steps beyond the limit."""
    first_value: float = 0.0

    def observe(self, step: int, reading: Reading, patience: int) -> Change | None:
        """Take one step's reading; returns what changed."""
        if self.is_on:
            self.num_calm = self.num_calm + 1 if reading.is_calm else 0
            return self._turn(is_on=False) if self.num_calm >= patience else None
        if not reading.is_beyond:
            self.num_beyond = 0
            return None
        if self.num_beyond == 0:
            self.first_step, self.first_value = step, reading.value
        self.num_beyond += 1
        return self._turn(is_on=True) if self.num_beyond >= patience else None

    def _turn(self, *, is_on: bool) -> Change:
        self.is_on, self.num_beyond, self.num_calm = is_on, 0, 0
        return "on" if is_on else "off"

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; JSON."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Hysteresis":
        """The inverse of ``state_dict``."""
        return cls(**state)
