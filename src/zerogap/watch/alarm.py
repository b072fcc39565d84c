"""The watch's report on a step: alarms that went on or off, as JSON, console lines and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerogap.obs import METRICS, AlarmKind
from zerogap.watch.hysteresis import Change

TITLES: dict[AlarmKind, str] = {
    "gap": "engine and trainer disagree",
    "entropy": "the policy's entropy has collapsed",
    "gradient": "the gradient has a spike",
    "truncation": "completions are cut off",
    "signal": "most groups carry no signal",
    "failures": "completions get no reward",
    "numerics": "a number is not finite, or two computations of it differ",
}


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """One change of one alarm."""

    kind: AlarmKind
    change: Change
    step: int
    """The step at which it went on or off."""
    metric: str
    """A declared metric, or in words what failed in a step."""
    value: float | None
    """Value of ``metric`` at ``step`` (``signal``: as a share of groups); None if it is not finite or not a metric."""
    limit: float | None
    """The limit for ``value``; None for ``numerics``."""
    first_step: int
    """First of the consecutive steps beyond the limit."""
    first_value: float | None
    suspect: str
    """Probable cause; empty when the alarm went off."""
    command: str
    """Command to run for a closer look."""

    def to_json(self) -> dict[str, Any]:
        """The line of alarms.jsonl."""
        return {"event": "alarm", **self.__dict__}

    def line(self) -> str:
        """The line for the console."""
        if self.change == "off":
            return f"alarm {self.kind} is over at step {self.step}: {self.metric} = {_number(self.value)}"  # fmt: skip
        beyond = "" if self.limit is None else f" (limit {_number(self.limit)})"
        if self.metric in METRICS:
            sign = f"first sign at step {self.first_step}, {_number(self.first_value)}"
            found = f"{self.metric} = {_number(self.value)}{beyond} at step {self.step}, {sign}"
        else:
            found = f"{self.metric} at step {self.step}"
        return f"alarm {self.kind}: {TITLES[self.kind]}: {found}; suspect: {self.suspect}; look closer: {self.command}"


@dataclass(frozen=True, kw_only=True)
class WatchReport:
    """What changed at a step."""

    alarms: tuple[Alarm, ...]
    """Alarms that went on or off."""
    metrics: Mapping[str, float]
    """``alarm/<kind>``: 1 while on, else 0."""
    should_stop: bool
    """Whether to save a checkpoint and stop: ``watch.stop`` is set and an alarm went on."""


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"
