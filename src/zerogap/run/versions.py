"""``versions.jsonl``: which weights each version of a run was and how the step before it trained, one line a publish.

A checkpoint keeps the fingerprint of the weights it holds; this file keeps those of all others, so that weights which
are computed again from recorded rollouts can be proven to be the ones that sampled them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerogap.config import CorrectionsConfig
from zerogap.errors import CheckpointError
from zerogap.kernels import Products
from zerogap.obs import JsonlFile, read_jsonl


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """What a step trained with that its recipe leaves open: what was timed at the start, what a remedy changed."""

    products: Products
    """Whose matrix products the trainer used."""
    is_exact: bool
    """Whether the engine's log-probs were taken for the trainer's."""
    corrections: CorrectionsConfig

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        corrections = self.corrections.model_dump(mode="json", exclude_defaults=True)
        return {"products": self.products, "is_exact": self.is_exact, "corrections": corrections}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "StepSettings":
        """The inverse of ``to_json``."""
        return cls(
            products=values["products"],
            is_exact=values["is_exact"],
            corrections=CorrectionsConfig.model_validate(values["corrections"]),
        )


@dataclass(frozen=True, kw_only=True)
class PublishedVersion:
    """One version of a run's weights."""

    fingerprint: str
    settings: StepSettings | None
    """Of the step that made it; None for version 0."""


class VersionLog:
    """The open file of a running run; its only writer."""

    def __init__(self, path: Path, *, resumed_step: int = -1) -> None:
        """Open for appending; lines of steps after ``resumed_step`` go, as those steps will be done again."""
        self._file = JsonlFile(path, keep_until_step=resumed_step)

    def record(
        self,
        *,
        step: int,
        weight_version: int,
        fingerprint: str,
        settings: StepSettings | None = None,
    ) -> None:
        """The weights that ``step`` published, and how it trained; step 0: those the run starts from."""
        line = {"step": step, "weight_version": weight_version, "fingerprint": fingerprint}
        trained = {} if settings is None else {"settings": settings.to_json()}
        self._file.write(line | trained)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def read_versions(path: Path) -> dict[int, PublishedVersion]:
    """Weight version -> what is known of it; {} if the run kept none.

    Raises:
        CheckpointError: the file is damaged, or one version has two fingerprints.
    """
    versions: dict[int, PublishedVersion] = {}
    for line in read_jsonl(path) if path.exists() else ():
        version, fingerprint = int(line["weight_version"]), str(line["fingerprint"])
        known = versions.get(version)
        if known is not None and known.fingerprint != fingerprint:
            msg = f"{path}: version {version} has the fingerprints {known.fingerprint} and {fingerprint}, and a version is one set of weights: another run wrote into this folder; use another run.dir for one of them"
            raise CheckpointError(msg)
        settings = StepSettings.from_json(line["settings"]) if "settings" in line else None
        versions[version] = PublishedVersion(fingerprint=fingerprint, settings=settings)
    return versions
