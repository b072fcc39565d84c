"""``versions.jsonl``: the fingerprint of each weight version, and how its step trained; one line per publish.

With the fingerprints, an audit can prove that the weights it recomputes from recorded rollouts are those of the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerogap.algorithms import CorrectionsConfig
from zerogap.errors import CheckpointError
from zerogap.kernels import Gemm
from zerogap.obs import read_jsonl


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """Settings of a step that the recipe does not decide: GEMM kernels timed at the start, and changes by remedies."""

    gemm: Gemm
    """The trainer's GEMM kernels."""
    is_exact: bool
    """Whether the engine's log-probs counted as the trainer's."""
    corrections: CorrectionsConfig

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        corrections = self.corrections.model_dump(mode="json", exclude_defaults=True)
        return {"gemm": self.gemm, "is_exact": self.is_exact, "corrections": corrections}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "StepSettings":
        """The inverse of ``to_json``."""
        return cls(
            gemm=values["gemm"],
            is_exact=values["is_exact"],
            corrections=CorrectionsConfig.model_validate(values["corrections"]),
        )


@dataclass(frozen=True, kw_only=True)
class PublishedVersion:
    """One version of a run's weights."""

    fingerprint: str
    settings: StepSettings | None
    """Settings of its step; None for version 0."""


def version_line(
    version: int, fingerprint: str, settings: StepSettings | None = None
) -> dict[str, Any]:
    """The line of a published version, and how its step, of the same number, trained; version 0: the initial weights."""
    line = {"step": version, "weight_version": version, "fingerprint": fingerprint}
    return line if settings is None else {**line, "settings": settings.to_json()}


def read_versions(path: Path) -> dict[int, PublishedVersion]:
    """Weight version -> its recorded fingerprint and settings; {} if there is no file.

    Raises:
        CheckpointError: the file is damaged, or one version has two fingerprints.
    """
    versions: dict[int, PublishedVersion] = {}
    for line in read_jsonl(path) if path.exists() else ():
        version, fingerprint = int(line["weight_version"]), str(line["fingerprint"])
        known = versions.get(version)
        if known is not None and known.fingerprint != fingerprint:
            msg = f"{path}: version {version} has two fingerprints, {known.fingerprint} and {fingerprint}: another run wrote into this folder; use another run.dir for one of them"
            raise CheckpointError(msg)
        settings = StepSettings.from_json(line["settings"]) if "settings" in line else None
        versions[version] = PublishedVersion(fingerprint=fingerprint, settings=settings)
    return versions
