"""Reads a run's folder. A killed or unfinished run lacks some parts, which are empty here."""

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
    """The data of the page, except rollouts."""

    name: str
    config: Json
    """As recorded; empty if absent."""
    environment: Json
    """As recorded; empty if absent."""
    entries: tuple[Json, ...]
    """Lines of metrics.jsonl, one per step; step 0 is the initial evaluation."""
    alarms: tuple[Json, ...] = ()
    """Lines of alarms.jsonl: alarms that went on or off, and decisions of the mismatch budget."""

    @property
    def num_steps(self) -> int:
        """Number of finished training steps."""
        return sum(1 for entry in self.entries if entry["step"] > 0)

    @property
    def num_planned_steps(self) -> int | None:
        """``run.steps`` of the recipe, if known."""
        run = self.config.get("run")
        return run.get("steps") if isinstance(run, dict) else None

    def points(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of every step that measured the metric."""
        return [(entry["step"], entry[name]) for entry in self.entries if name in entry]

    def total(self, name: str) -> float:
        """Sum over all steps; 0 if it was never measured."""
        return sum(value for _, value in self.points(name))


def read_run(folder: RunFolder) -> RunData:
    """Read the folder of a run in any state.

    Raises:
        CheckpointError: not the folder of a run, or a file was damaged by something other than a kill.
    """
    if not (folder.config.exists() or folder.metrics.exists()):
        msg = f"{folder.path} has neither config.json nor metrics.jsonl, so it is not the folder of a run; give the folder that run.dir named"
        raise CheckpointError(msg)
    entries = read_jsonl(folder.metrics) if folder.metrics.exists() else []
    return RunData(
        name=folder.path.resolve().name,
        config=_read_json(folder.config),
        environment=_read_json(folder.environment),
        entries=tuple(sorted(entries, key=lambda entry: entry["step"])),
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
    """Dotted keys that differ from their default; all keys if another version of zerogap wrote the recipe."""
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
        msg = f"{path} is not JSON, so something other than zerogap changed it; restore it, or delete it (the report then leaves that part out)"
        raise CheckpointError(msg) from error
