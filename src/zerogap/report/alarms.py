"""alarms.jsonl as a table: alarms that went on, until when, and what the mismatch budget did."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerogap.report.data import Json, RunData
from zerogap.report.numbers import format_number


@dataclass(frozen=True)
class AlarmRow:
    """One alarm or one decision of the budget."""

    steps: str
    what: str
    sign: str
    """What was measured, and since when."""
    why: str
    """The suspect, or the source of the gap."""
    command: str
    """What shows more; empty for decisions."""
    is_failure: bool


def alarm_rows(run: RunData) -> list[AlarmRow]:
    """In the order in which they began."""
    rows = []
    for place, record in enumerate(run.alarms):
        if record["event"] == "alarm":
            if record["change"] == "on":
                rows.append(_alarm(record, run.alarms[place + 1 :]))
        else:
            rows.append(_decision(record))
    return rows


def _alarm(record: Json, later: Sequence[Json]) -> AlarmRow:
    ended = next(_ends_of(record["kind"], later), None)
    return AlarmRow(
        steps=f"{record['step']} to {ended}" if ended else f"{record['step']} on",
        what=f"alarm: {record['kind']}",
        sign=f"{record['metric']}{_value(record['first_value'])} at step {record['first_step']}",
        why=record["suspect"],
        command=record["command"],
        is_failure=True,
    )


def _ends_of(kind: str, later: Sequence[Json]) -> Iterator[int]:
    for record in later:
        if record["event"] == "alarm" and (record["kind"], record["change"]) == (kind, "off"):
            yield record["step"]


def _decision(record: Json) -> AlarmRow:
    is_stop = record["event"] == "stop"
    return AlarmRow(
        steps=str(record["step"]),
        what="budget: the run stops" if is_stop else f"budget: {record['remedy']}",
        sign=f"gap/total/mean{_value(record['total'])}, above {format_number(record['budget'])}",
        why=f"mostly {record['source']}{_value(record['source_mean'])}",
        command="",
        is_failure=is_stop,
    )


def _value(value: float | None) -> str:
    return " not finite" if value is None else f" {format_number(value)}"
