"""A step in one file: a zip of JSON and safetensors, without pickle, complete or absent.

``capsule.json`` (what it is, how the step trained, what came out, digests of the weights), ``config.json`` (the resolved
recipe), ``environment.json`` (where the run ran), ``metrics.json`` (what the run recorded of the step), ``rollouts/`` (the
records, as in the run's folder), ``trainer.safetensors`` (place in the schedule, torch's random state and a critic's weights (with
their fp32 masters, if they are bf16); no moments: neither loss nor gradient depends on them) and, where weights are embedded, ``weights.safetensors`` with ``tokenizer/``.
"""

import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from pydantic import ValidationError
from safetensors import SafetensorError

from zerogap.capsule.answer import Answer
from zerogap.config import RunConfig
from zerogap.data import Tokenizer
from zerogap.errors import CheckpointError
from zerogap.rollout import load_rollouts
from zerogap.run.versions import StepSettings
from zerogap.types import Sample

_FORMAT = 2
_HEADER, _CONFIG, _METRICS = "capsule.json", "config.json", "metrics.json"
_ENVIRONMENT = "environment.json"
_TRAINER, _WEIGHTS = "trainer.safetensors", "weights.safetensors"
_ROLLOUTS, _TOKENIZER = "rollouts", "tokenizer"


@dataclass(frozen=True, kw_only=True)
class Header:
    """``capsule.json``."""

    run: str
    """Name of the run's folder."""
    step: int
    weight_version: int
    """Of the weights that the step started from: step - 1."""
    origin: str
    """How the weights were found when the capsule was made."""
    is_proven: bool
    """Whether they were compared with a fingerprint that the run recorded."""
    weight_digests: Mapping[str, str]
    """By tensor."""
    architecture: Mapping[str, Any]
    """As Hugging Face's config.json has it."""
    settings: StepSettings
    """How the step trained."""
    machine: Mapping[str, Any]
    """Where ``answer`` was computed, as environment.json has it."""
    answer: Answer

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        parts = {"settings": self.settings.to_json(), "answer": asdict(self.answer)}
        return {"format": _FORMAT, **plain, **parts}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Header":
        """The inverse of ``to_json``, without the format."""
        parts: dict[str, Any] = {
            "settings": StepSettings.from_json(values["settings"]),
            "answer": Answer(**values["answer"]),
        }
        return cls(**{**values, **parts})


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """A policy that is inside the capsule."""

    weights: Mapping[str, torch.Tensor]
    """By our names."""
    tokenizer: Tokenizer


@dataclass(frozen=True, kw_only=True)
class Capsule:
    """A capsule in memory."""

    header: Header
    config: RunConfig
    environment: Mapping[str, Any]
    metrics: Mapping[str, Any]
    samples: Sequence[Sample]
    trainer_state: Mapping[str, torch.Tensor]
    policy: Embedded | None
    """None: the one that ``model`` of the recipe names."""


def write_capsule(path: Path, capsule: Capsule, *, rollouts: Path) -> None:
    """Write the file.

    Args:
        path: replaced if it exists; its folder is made.
        capsule: everything in it.
        rollouts: the folder of ``capsule.samples``, copied as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    # Stored: compressing a model's weights takes a minute and saves a tenth.
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, _HEADER, _json(capsule.header.to_json()))
        _add(archive, _CONFIG, _json(capsule.config.model_dump(mode="json")))
        _add(archive, _ENVIRONMENT, _json(capsule.environment))
        _add(archive, _METRICS, _json(capsule.metrics))
        _add_folder(archive, _ROLLOUTS, rollouts)
        _add(archive, _TRAINER, safetensors.torch.save(dict(capsule.trainer_state)))
        if capsule.policy is not None:
            _add(archive, _WEIGHTS, safetensors.torch.save(dict(capsule.policy.weights)))
            with tempfile.TemporaryDirectory() as folder:
                capsule.policy.tokenizer.save(Path(folder))
                _add_folder(archive, _TOKENIZER, Path(folder))
    partial.replace(path)


def read_capsule(path: Path) -> Capsule:
    """The capsule in a file.

    Raises:
        CheckpointError: it is none, is damaged, or another version of zerogap wrote it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(_HEADER))
            if (found := header.pop("format", None)) != _FORMAT:
                msg = f"{path} is a capsule of format {found}, and this version of zerogap reads format {_FORMAT}; use the version that its environment.json names"
                raise CheckpointError(msg)
            return _read(archive, header, path)
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile, SafetensorError) as error:
        msg = f"{path} cannot be read as a capsule ({type(error).__name__}: {error}); make it again with `zerogap capsule RUN --step N {path.name}`"
        raise CheckpointError(msg) from error


def _read(archive: zipfile.ZipFile, header: Mapping[str, Any], path: Path) -> Capsule:
    with tempfile.TemporaryDirectory() as folder:
        archive.extractall(folder, [n for n in archive.namelist() if "/" in n])
        return Capsule(
            header=Header.from_json(header),
            config=_config(archive.read(_CONFIG), path),
            environment=json.loads(archive.read(_ENVIRONMENT)),
            metrics=json.loads(archive.read(_METRICS)),
            samples=load_rollouts(Path(folder) / _ROLLOUTS),
            trainer_state=safetensors.torch.load(archive.read(_TRAINER)),
            policy=Embedded(
                weights=safetensors.torch.load(archive.read(_WEIGHTS)),
                tokenizer=Tokenizer.load(Path(folder) / _TOKENIZER),
            )
            if _WEIGHTS in archive.namelist()
            else None,
        )


def _config(text: bytes, path: Path) -> RunConfig:
    try:
        return RunConfig.model_validate_json(text)
    except ValidationError as error:
        msg = f"{path}: its recipe is none of this version of zerogap ({error.error_count()} keys differ), so its step cannot be computed here; use the version that its environment.json names"
        raise CheckpointError(msg) from error


def _add_folder(archive: zipfile.ZipFile, name: str, folder: Path) -> None:
    for source in sorted(path for path in folder.rglob("*") if path.is_file()):
        _add(archive, f"{name}/{source.relative_to(folder).as_posix()}", source.read_bytes())


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    # A ZipInfo without a date: equal capsules are equal files.
    archive.writestr(zipfile.ZipInfo(name), content)


def _json(values: object) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
