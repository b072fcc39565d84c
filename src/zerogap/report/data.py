"""What a run's folder says. A run that was killed, or still goes on, leaves parts out: they are empty here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zerogap.config import RunConfig
from zerogap.errors import CheckpointError
from zerogap.obs import read_jsonl
from zerogap.run_folder import RunFolder

Json = dict[str, Any]


@dataclass(frozen=True)
class RunData:
    """Everything on the page but the rollouts."""

    name: str
    config: Json
    """As recorded; empty if absent."""
    environment: Json
    """As recorded; empty if absent."""
    records: tuple[Json, ...]
    """One a step, in order of steps; step 0 is the evaluation before the first."""
    alarms: tuple[Json, ...] = ()
    """Alarms that went on or off, and decisions of the mismatch budget, as they came."""

    @property
    def num_steps(self) -> int:
        """Training steps done."""
        return sum(1 for record in self.records if record["step"] > 0)

    @property
    def num_planned_steps(self) -> int | None:
        """``run.steps`` of the recipe, if known."""
        run = self.config.get("run")
        return run.get("steps") if isinstance(run, dict) else None

    def points(self, name: str) -> list[tuple[int, float]]:
        """(step, value) wherever the metric was measured."""
        return [(record["step"], record[name]) for record in self.records if name in record]

    def total(self, name: str) -> float:
        """Sum over all steps; 0 if it was never measured."""
        return sum(value for _, value in self.points(name))


def read_run(folder: RunFolder) -> RunData:
    """Read the folder of a run in any state.

    Raises:
        CheckpointError: it is no run's folder, or one of its files was damaged by something else than a kill.
    """
    if not (folder.config.exists() or folder.metrics.exists()):
        msg = f"{folder.path}: holds neither config.json nor metrics.jsonl, so it is no run's folder; give the folder that run.dir named"
        raise CheckpointError(msg)
    records = read_jsonl(folder.metrics) if folder.metrics.exists() else []
    return RunData(
        name=folder.path.resolve().name,
        config=_read_json(folder.config),
        environment=_read_json(folder.environment),
        records=tuple(sorted(records, key=lambda record: record["step"])),
        alarms=tuple(read_jsonl(folder.alarms)) if folder.alarms.exists() else (),
    )


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value; empty tables are left out."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= (
            flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


def changed_settings(config: Json) -> dict[str, Any]:
    """Dotted keys of what differs from its default; everything, if this version does not know the recipe's form."""
    try:
        known = RunConfig.model_validate_json(json.dumps(config))
    except ValidationError:  # written by another version of the package
        return flatten(config)
    return flatten(known.model_dump(mode="json", exclude_defaults=True))


def _read_json(path: Path) -> Json:
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        msg = f"{path}: not JSON, though the run writes it whole: something else changed it; restore it, or delete it (a report leaves that part out)"
        raise CheckpointError(msg) from error
