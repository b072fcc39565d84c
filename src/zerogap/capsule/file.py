"""A step in one file: a zip of JSON and safetensors, without pickle, complete or absent.

capsule.json         run, step, settings, loss and gradient digests, digests of the weights
config.json          the resolved recipe
environment.json     the machine and software of the run
metrics.json         the run's metrics of the step
rollouts/            the step's samples, as in the run's folder
trainer.safetensors  place in the schedule, torch's random state, a critic's weights (with fp32 masters, if bf16), and
                     those of a reference or teacher that follows the policy. No optimizer moments: neither loss nor gradient depends on them
weights.safetensors, tokenizer/  only if the weights are embedded
"""

import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from zerogap.obs import written_whole
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
    """Version of the weights that the step started from: step - 1."""
    origin: str
    """Where the weights came from when the capsule was made."""
    is_proven: bool
    """Whether the weights have the fingerprint that the run recorded."""
    weight_digests: Mapping[str, str]
    """Digest of each weight tensor."""
    architecture: Mapping[str, Any]
    """The model's config, as in Hugging Face's config.json."""
    settings: StepSettings
    """The step's GEMM kernels and corrections."""
    machine: Mapping[str, Any]
    """The machine that computed ``answer``, in the form of environment.json."""
    answer: Answer

    def to_json(self) -> dict[str, Any]:
        """Values that JSON can hold, with the format's number."""
        return {"format": _FORMAT, **asdict(self), "settings": self.settings.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Header":
        """The inverse of ``to_json``; the format's number must be removed first."""
        parsed: dict[str, Any] = dict(values)
        parsed["settings"] = StepSettings.from_json(values["settings"])
        parsed["answer"] = Answer(**values["answer"])
        return cls(**parsed)


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """A policy stored in the capsule."""

    weights: Mapping[str, torch.Tensor]
    """By parameter name."""
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
    """None: the policy that the recipe's ``model`` names."""


def write_capsule(path: Path, capsule: Capsule, *, rollouts: Path) -> None:
    """Write the file.

    Args:
        path: replaced if it exists; its folder is made.
        capsule: everything in it.
        rollouts: the folder of ``capsule.samples``, copied as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not compressed: compressing a model's weights takes a minute and saves a tenth.
    with (
        written_whole(path) as partial,
        zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive,
    ):
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


def read_capsule(path: Path) -> Capsule:
    """The capsule in a file.

    Raises:
        CheckpointError: the file is not a capsule, is damaged, or was written by an incompatible version.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(_HEADER))
            if (found := header.pop("format", None)) != _FORMAT:
                msg = f"{path} has capsule format {found}, but this version of zerogap reads format {_FORMAT}; use the zerogap version that the capsule's environment.json names"
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
        msg = f"{path}: this version of zerogap cannot read the capsule's recipe ({error.error_count()} keys differ), so it cannot replay the step; use the zerogap version that the capsule's environment.json names"
        raise CheckpointError(msg) from error


def _add_folder(archive: zipfile.ZipFile, name: str, folder: Path) -> None:
    for source in sorted(path for path in folder.rglob("*") if path.is_file()):
        _add(archive, f"{name}/{source.relative_to(folder).as_posix()}", source.read_bytes())


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    # A ZipInfo has a fixed date, so equal capsules are equal files.
    archive.writestr(zipfile.ZipInfo(name), content)


def _json(values: object) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
