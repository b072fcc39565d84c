"""The watch: metrics of each step in, alarms out. A pure state machine; checkpoints hold its state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerogap.config import WatchConfig
from zerogap.errors import NumericsError, RecheckError
from zerogap.obs import ALARM_KINDS, AlarmKind
from zerogap.watch.alarm import Alarm, WatchReport
from zerogap.watch.hysteresis import Change, Hysteresis, Reading
from zerogap.watch.limits import METRIC_OF, History, first_not_finite
from zerogap.watch.suspects import command, suspect


class Watch:
    """The alarms of a run. Mutated by ``observe``, ``failed`` and ``load_state_dict``."""

    def __init__(self, config: WatchConfig, run_dir: Path) -> None:
        """A watch before the first step.

        Args:
            config: limits and patience.
            run_dir: for the commands that alarms suggest.
        """
        self._config, self._run_dir = config, run_dir
        self._history = History(config)
        self._alarms = {kind: Hysteresis() for kind in ALARM_KINDS}

    def observe(self, step: int, metrics: Mapping[str, float]) -> WatchReport:
        """Take the reduced metrics of a training step (not of the initial evaluation)."""
        changed = [*self._watch_numerics(step, metrics)]
        if first_not_finite(metrics) is None:
            for kind, reading in self._history.readings(metrics):
                change = self._alarms[kind].observe(step, reading, self._config.patience)
                if change is not None:
                    changed.append(self._alarm(kind, change, step, reading, metrics))
        return self._report(changed)

    def failed(self, step: int, error: NumericsError) -> WatchReport:
        """Take the error of a step that failed because a number was not finite or had two values."""
        if self._turn_numerics_on(step):
            what = "a log-prob has two values" if isinstance(error, RecheckError) else "a number is not finite"  # fmt: skip
            return self._report([self._numerics(step, what, str(error))])
        return self._report([])

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; JSON."""
        return {
            "history": self._history.state_dict(),
            "alarms": {kind: alarm.state_dict() for kind, alarm in self._alarms.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self._history.load_state_dict(state["history"])
        # An older version's checkpoint has no state of an alarm that is new.
        known = state["alarms"]
        self._alarms = {kind: Hysteresis.from_state(known.get(kind, {})) for kind in ALARM_KINDS}

    # ------------------------------------------------------------ numerics: without patience

    def _watch_numerics(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        name = first_not_finite(metrics)
        if name is not None:
            return [self._numerics(step, name, suspect("numerics", metrics))] if self._turn_numerics_on(step) else []  # fmt: skip
        calm = Reading(0.0, 1.0)
        if self._alarms["numerics"].observe(step, calm, self._config.patience) == "off":
            return [self._alarm("numerics", "off", step, calm, metrics)]
        return []

    def _turn_numerics_on(self, step: int) -> bool:
        """Switch the alarm on; returns whether it was off."""
        state = self._alarms["numerics"]
        was_on, state.num_calm = state.is_on, 0
        return not was_on and state.observe(step, Reading(1.0, 0.0), 1) == "on"

    def _numerics(self, step: int, metric: str, why: str) -> Alarm:
        return Alarm(
            kind="numerics",
            change="on",
            step=step,
            metric=metric,
            value=None,
            limit=None,
            first_step=step,
            first_value=None,
            suspect=why,
            command=command("numerics", self._run_dir, step),
        )

    # ------------------------------------------------------------ report

    def _alarm(
        self,
        kind: AlarmKind,
        change: Change,
        step: int,
        reading: Reading,
        metrics: Mapping[str, float],
    ) -> Alarm:
        state = self._alarms[kind]
        return Alarm(
            kind=kind,
            change=change,
            step=step,
            metric=METRIC_OF.get(kind, "every number"),
            value=reading.value,
            limit=reading.limit,
            first_step=state.first_step,
            first_value=state.first_value,
            suspect=suspect(kind, metrics) if change == "on" else "",
            command=command(kind, self._run_dir, state.first_step),
        )

    def _report(self, changed: list[Alarm]) -> WatchReport:
        return WatchReport(
            alarms=tuple(changed),
            metrics={f"alarm/{kind}": float(state.is_on) for kind, state in self._alarms.items()},
            should_stop=self._config.stop and any(alarm.change == "on" for alarm in changed),
        )
