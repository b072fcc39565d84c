"""What a watch says of a step: alarms that went on or off, as records, console lines and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerogap.obs import AlarmKind
from zerogap.watch.hysteresis import Change

TITLES: dict[AlarmKind, str] = {
    "gap": "engine and trainer disagree",
    "entropy": "the policy's entropy has collapsed",
    "gradient": "the gradient has a spike",
    "truncation": "completions are cut off",
    "signal": "most groups carry no signal",
    "numerics": "a number is not finite",
}


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """One change of one alarm."""

    kind: AlarmKind
    change: Change
    step: int
    """At which it went on or off."""
    metric: str
    value: float | None
    """Of ``metric`` at ``step`` (of the share of groups, for ``signal``); None if it is not finite."""
    limit: float | None
    """What it is held against; None for ``numerics``."""
    first_step: int
    """The first sign: where the row of steps beyond the limit began."""
    first_value: float | None
    suspect: str
    """What is probably behind it; empty when it went off."""
    command: str
    """What to run for a closer look."""

    def record(self) -> dict[str, Any]:
        """A line of alarms.jsonl."""
        return {"event": "alarm", **self.__dict__}

    def line(self) -> str:
        """For the console."""
        if self.change == "off":
            return f"alarm {self.kind} is over at step {self.step}: {self.metric} = {_number(self.value)}"  # fmt: skip
        beyond = "" if self.limit is None else f" (limit {_number(self.limit)})"
        sign = f"first sign at step {self.first_step}, {_number(self.first_value)}"
        return f"alarm {self.kind}: {TITLES[self.kind]}: {self.metric} = {_number(self.value)}{beyond} at step {self.step}, {sign}; suspect: {self.suspect}; look closer: {self.command}"


@dataclass(frozen=True, kw_only=True)
class WatchReport:
    """What a step changed."""

    alarms: tuple[Alarm, ...]
    """Those that went on or off."""
    metrics: Mapping[str, float]
    """``alarm/<kind>``: 1 while on, else 0."""
    should_stop: bool
    """``watch.stop`` is set and an alarm went on: save a checkpoint and end."""


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"
