"""alarms.jsonl as a table: alarms with their duration, and the decisions of the mismatch budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerogap.obs import METRICS
from zerogap.report.data import Json, RunData
from zerogap.report.numbers import format_number, plural


@dataclass(frozen=True)
class AlarmRow:
    """One alarm or one decision of the budget."""

    steps: str
    what: str
    sign: str
    """Measured value, and the step it was first seen."""
    why: str
    """The probable cause, or the source of the gap."""
    command: str
    """Command for a closer look; empty for decisions."""
    is_failure: bool


def alarm_rows(run: RunData) -> list[AlarmRow]:
    """Rows in order of their first step."""
    rows = []
    for place, entry in enumerate(run.alarms):
        if entry["event"] == "alarm":
            if entry["change"] == "on":
                rows.append(_alarm(entry, run.alarms[place + 1 :]))
        else:
            rows.append(_decision(entry))
    return rows


def _alarm(entry: Json, later: Sequence[Json]) -> AlarmRow:
    ended = next(_ends_of(entry["kind"], later), None)
    value = _value(entry["first_value"]) if entry["metric"] in METRICS else ""
    return AlarmRow(
        steps=f"{entry['step']} to {ended}" if ended else f"{entry['step']} on",
        what=f"alarm: {entry['kind']}",
        sign=f"{entry['metric']}{value} at step {entry['first_step']}",
        why=entry["suspect"],
        command=entry["command"],
        is_failure=True,
    )


def _ends_of(kind: str, later: Sequence[Json]) -> Iterator[int]:
    for entry in later:
        if entry["event"] == "alarm" and (entry["kind"], entry["change"]) == (kind, "off"):
            yield entry["step"]


def _decision(entry: Json) -> AlarmRow:
    is_stop = entry["event"] == "stop"
    return AlarmRow(
        steps=str(entry["step"]),
        what="budget: the run stops" if is_stop else f"budget: {entry['remedy']}",
        sign=f"gap/total/mean{_value(entry['total'])}{_audited(entry)}, above {format_number(entry['budget'])}",
        why=f"mostly {entry['source']}{_value(entry['source_mean'])}",
        command="",
        is_failure=is_stop,
    )


def _value(value: float | None) -> str:
    return " not finite" if value is None else f" {format_number(value)}"


def _audited(entry: Json) -> str:
    """What the ledger's mean is over; folders of older versions do not say."""
    if "num_tokens" not in entry:
        return ""
    return (
        f" over {plural(entry['num_tokens'], 'token')} of {plural(entry['num_samples'], 'sample')}"
    )
