"""Reads the recorded steps of a run's folder and says which of them can be audited."""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zerogap.config import RunConfig
from zerogap.errors import CheckpointError
from zerogap.obs import read_jsonl
from zerogap.rollout import load_rollouts
from zerogap.run.trainers import settings_of_recipe
from zerogap.run.versions import PublishedVersion, StepSettings, read_versions
from zerogap.run_folder import RunFolder, list_checkpoints, step_of
from zerogap.types import Sample, exclusion_reason


class RecordedRun:
    """A run's folder, finished or not, read only. Step N turns weights of version N - 1 into version N."""

    def __init__(self, path: Path) -> None:
        """Read the recipe.

        Raises:
            CheckpointError: the folder holds no run, or another version of zerogap recorded it.
        """
        self.folder = RunFolder(path)
        if not self.folder.config.exists():
            msg = f"{path} has no config.json, so it is not the folder of a run; give the folder that run.dir named"
            raise CheckpointError(msg)
        try:
            text = self.folder.config.read_text(encoding="utf-8")
            self.config = RunConfig.model_validate_json(text)
        except ValidationError as error:
            msg = f"{self.folder.config} does not match the recipe of this version of zerogap ({error.error_count()} keys differ), so its steps cannot be recomputed here; use the zerogap version that environment.json names"
            raise CheckpointError(msg) from error

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The environment of the run's last session; {} if it was not recorded."""
        path = self.folder.environment
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    @property
    def num_threads(self) -> int | None:
        """Threads of the run's last session; None if they were not recorded."""
        threads = self.environment.get("threads")
        return None if threads is None else int(threads)

    @cached_property
    def versions(self) -> dict[int, PublishedVersion]:
        """Each recorded weight version."""
        return read_versions(self.folder.versions)

    def settings(self, step: int) -> StepSettings:
        """The step's GEMM kernels and corrections: as recorded, else as in the recipe."""
        made = self.versions.get(step)
        known = None if made is None else made.settings
        return settings_of_recipe(self.config) if known is None else known

    @cached_property
    def checkpoints(self) -> dict[int, Path]:
        """Weight version -> complete checkpoint."""
        found = list_checkpoints(self.folder.checkpoints)
        return {step_of(path): path for path in found}

    @cached_property
    def steps(self) -> list[int]:
        """Steps whose rollouts are on disk, ascending."""
        found = (self.folder.path / "rollouts").glob("step_*")
        return sorted(map(step_of, found))

    def samples(self, step: int) -> list[Sample]:
        """The samples that the step trained on."""
        return load_rollouts(self.folder.rollouts(step))

    def trained(self, samples: Sequence[Sample]) -> bool:
        """Whether a step trained on any of these samples; if not, its weights did not change."""
        return any(exclusion_reason(sample) is None for sample in samples)

    def metrics(self, step: int) -> dict[str, Any]:
        """The step's line of metrics.jsonl; {} if it has none."""
        path = self.folder.metrics
        lines = read_jsonl(path) if path.exists() else []
        return next((line for line in lines if line["step"] == step), {})

    def start_of(self, version: int) -> int:
        """The newest version up to ``version`` that is stored: a checkpoint, or 0 for the recipe's model."""
        return max((saved for saved in self.checkpoints if saved <= version), default=0)

    def missing_for(self, version: int, *, after: int | None = None) -> list[int]:
        """Steps whose rollouts are missing to compute ``version`` from ``after`` (default: ``start_of(version)``)."""
        needed = range((self.start_of(version) if after is None else after) + 1, version + 1)
        return sorted(set(needed) - set(self.steps))

    def choose_step(self, step: int | None) -> int:
        """``step``, or the last recorded one.

        Raises:
            CheckpointError: it has no rollouts, or its initial weights cannot be recomputed.
        """
        if not self.steps:
            msg = f"{self.folder.path} keeps no rollouts (obs.rollouts_every = {self.config.obs.rollouts_every}), and an audit needs them; run with obs.rollouts_every = 1"
            raise CheckpointError(msg)
        step = self.steps[-1] if step is None else step
        if step not in self.steps:
            msg = f"step {step} of {self.folder.path} has no rollouts on disk, so there is nothing to score; steps that can be audited: {self._auditable()}"
            raise CheckpointError(msg)
        if missing := self.missing_for(step - 1):
            start = self.start_of(step - 1)
            source = f"the checkpoint of step {start}" if start else "the recipe's initial model"
            msg = (
                f"step {step} of {self.folder.path} starts from weights of version {step - 1}. The nearest stored version is {start} ({source}), "
                f"and the rollouts to train from there are missing for steps {_ranges(missing)} (obs.rollouts_every = "
                f"{self.config.obs.rollouts_every}); steps that can be audited: {self._auditable()}. For later runs set obs.rollouts_every = 1"
            )
            raise CheckpointError(msg)
        return step

    def _auditable(self) -> str:
        steps = [step for step in self.steps if not self.missing_for(step - 1)]
        return _ranges(steps) or "none"


def _ranges(numbers: Iterable[int]) -> str:
    """``1-3, 5, 8-9`` of ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
